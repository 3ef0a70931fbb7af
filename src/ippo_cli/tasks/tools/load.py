"""Load the tools of an agent from its settings."""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from pathlib import Path

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import ToolsConfig
from ippo_cli.config.tools import tool_entries
from ippo_cli.tasks.tools.functions import load_python_tools
from ippo_cli.tasks.tools.mcp_server import load_server_tools
from ippo_cli.tasks.tools.sandboxed import check_sandboxed
from ippo_cli.tasks.tools.tool import AgentTools, Tool


def load_agent_tools(agent: str, config: ToolsConfig) -> AgentTools | None:
    """The tools of an agent; None without any. Raises `ConfigError` for tools that cannot be used."""
    if config.tools is None:
        return None
    setting = f"task.agents.{agent}.tools"
    tools = [
        tool
        for entry in tool_entries(config.tools)
        for tool in _load_entry(entry, setting, config.tool_sandbox, _modification_time(entry))
    ]
    if repeated := [name for name, count in Counter(tool.name for tool in tools).items() if count > 1]:
        raise ConfigError(
            f"{setting}={config.tools}", f"has several tools with the name {repeated[0]!r}", "rename or remove one"
        )
    return AgentTools(
        agent=agent,
        tools=tuple(tools),
        format=config.tool_format,
        max_calls=config.max_tool_calls,
        timeout_s=config.tool_timeout_s,
        sandbox=config.tool_sandbox,
    )


@cache
def _load_entry(entry: str | tuple[str, ...], setting: str, sandbox: bool, modified: int) -> tuple[Tool, ...]:
    """Load an entry once: loading executes the user's file, or starts a server."""
    if isinstance(entry, tuple):
        return tuple(load_server_tools(entry, setting))
    tools = load_python_tools(entry, setting)
    if sandbox:
        for tool in tools:
            assert isinstance(tool.source, str)
            check_sandboxed(tool.source, setting)
    return tuple(tools)


def _modification_time(entry: str | tuple[str, ...]) -> int:
    """When the entry's file was written, in nanoseconds; 0 if it is no file."""
    place = Path(entry.partition(".py")[0] + ".py") if isinstance(entry, str) and ".py" in entry else None
    try:
        return 0 if place is None else os.stat(place).st_mtime_ns
    except OSError:
        return 0
