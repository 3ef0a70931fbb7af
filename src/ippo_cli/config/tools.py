"""Rules of agents' tools: `task.agents.NAME.tools` and the keys that have an effect with it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.python_names import is_code_reference
from ippo_cli.config.schema import Config, ContextMode, ConversationConfig, ToolsConfig

MCP = "mcp"  # prefix or key of an entry that starts a server of the Model Context Protocol
TOOL_KEYS = ("tool_format", "max_tool_calls", "tool_timeout_s", "tool_sandbox")
FORMS = "use file.py, file.py:name, module:name, mcp:COMMAND or {mcp: [COMMAND, ARGUMENT]}, or a list of these"


def tool_entries(tools: Any) -> list[Any]:
    """The entries of `tools`: references to Python code as text, servers as their command in a tuple."""
    entries = tools if isinstance(tools, list) else [] if tools is None else [tools]
    return [command if (command := server_command(entry)) is not None else entry for entry in entries]


def server_command(entry: Any) -> tuple[str, ...] | None:
    """The command line of an entry that names an MCP server; None for other entries."""
    if isinstance(entry, str) and entry.startswith(f"{MCP}:"):
        try:
            return tuple(shlex.split(entry.removeprefix(f"{MCP}:")))
        except ValueError:  # a quotation mark without its partner
            return ()
    if isinstance(entry, Mapping) and entry.keys() == {MCP}:
        command = entry[MCP]
        return tuple(map(str, command)) if isinstance(command, list) else (str(command),)
    return None


def check_tools(config: Config) -> None:
    """Raise `ConfigError` for tools that the task does not support, and for keys without effect."""
    for name, agent in config.task.agents.items():
        where = f"task.agents.{name}"
        if agent.tools is None:
            _check_unused_keys(agent, where)
            continue
        setting = f"{where}.tools={agent.tools}"
        if not isinstance(config.task, ConversationConfig):
            raise ConfigError(
                setting,
                f"needs a task in which agents exchange messages, and task.kind={config.task.kind} is an environment",
                "use task=jsonl",
            )
        for entry in tool_entries(agent.tools):
            if not _is_entry(entry):
                raise ConfigError(f"{where}.tools={entry}", "names no tools", FORMS)
            if isinstance(entry, tuple) and agent.tool_sandbox:
                raise ConfigError(
                    f"{where}.tool_sandbox=true",
                    f"has no effect on an MCP server ({' '.join(entry)}), which is a separate program",
                    "set it to false",
                )
        if config.rollout.context is ContextMode.last_only:
            raise ConfigError(
                "rollout.context=last_only",
                f"removes the question when {name} reads the result of a tool",
                "use rollout.context=append or retokenize",
            )


def _check_unused_keys(agent: ToolsConfig, where: str) -> None:
    """Raise `ConfigError` for a key that differs from its default and has no effect."""
    defaults = {leaf.name: leaf.default for leaf in fields(ToolsConfig)}
    for key in TOOL_KEYS:
        if (value := getattr(agent, key)) != defaults[key]:
            raise ConfigError(
                f"{where}.{key}={getattr(value, 'value', value)}", "has no effect without tools", f"set {where}.tools"
            )


def _is_entry(entry: Any) -> bool:
    if isinstance(entry, tuple):
        return bool(entry)
    return isinstance(entry, str) and (entry.endswith(".py") or is_code_reference(entry))
