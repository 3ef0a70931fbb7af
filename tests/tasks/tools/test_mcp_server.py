"""Tools of a local MCP server."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import ToolFormat, ToolsConfig
from ippo_cli.tasks.tools.formats import ParsedResponse, ToolCall
from ippo_cli.tasks.tools.load import load_agent_tools
from ippo_cli.tasks.tools.runner import ToolRunner

pytest.importorskip("mcp")
SERVER = """
import os, time
try:
    from mcp.server.mcpserver import MCPServer as Server
except ImportError:  # before version 2
    from mcp.server.fastmcp import FastMCP as Server

server = Server("tests")

@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

@server.tool()
def hang() -> str:
    "Wait."
    time.sleep(60)

@server.tool()
def end() -> str:
    "End the process."
    os._exit(3)

server.run()
"""


def test_tools_of_a_server_and_its_failures(tmp_path: Path) -> None:
    file = tmp_path / "server.py"
    file.write_text(SERVER)
    config = ToolsConfig(
        template="", tools=[{"mcp": [sys.executable, str(file)]}], tool_format=ToolFormat.json, tool_timeout_s=20.0
    )
    tools = load_agent_tools("solo", config)
    assert tools is not None
    assert [tool.name for tool in tools.tools] == ["add", "hang", "end"]
    assert tools.tools[0].schema["function"]["parameters"]["required"] == ["a", "b"]
    patient, impatient = ToolRunner(tools), ToolRunner(replace(tools, timeout_s=2.0))

    def call(name: str, runner: ToolRunner = patient, **arguments: object) -> tuple[str, bool]:
        [result] = runner.run(ParsedResponse("", (ToolCall(name, arguments),)), 9)
        return result.text, result.has_failed

    assert call("add", a=2, b=3) == ("5", False)
    text, failed = call("add", a=2)
    assert failed
    assert "b" in text
    assert call("hang", impatient) == ("Error: the call took longer than 2 s", True)
    assert call("hang", impatient) == ("Error: the call took longer than 2 s", True), "a new server hangs again"
    text, failed = call("end")
    assert failed
    assert call("add", a=2, b=3) == ("5", False)
    patient.close()
    impatient.close()


@pytest.mark.parametrize(("command", "message"), [("no-such-program", "cannot be started"), ("true", "cannot be")])
def test_a_server_that_does_not_start_is_an_error(command: str, message: str) -> None:
    config = ToolsConfig(template="", tools=f"mcp:{command}", tool_format=ToolFormat.json)
    with pytest.raises(ConfigError, match=f"mcp:{command} {message}"):
        load_agent_tools("solo", config)
