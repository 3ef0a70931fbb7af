"""A tool, the tools of an agent, and the results of calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ippo_cli.config.schema.tools import ToolFormat

ERROR = "Error: "  # beginning of the result of a failed call


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A function that a model may call."""

    name: str
    schema: Mapping[str, Any]  # {"type": "function", "function": {"name", "description", "parameters"}}
    source: str | tuple[str, ...]  # path.py:name or module:name, or the command of an MCP server


@dataclass(frozen=True, kw_only=True)
class AgentTools:
    """The tools of one agent, and its settings of them."""

    agent: str
    tools: tuple[Tool, ...]
    format: ToolFormat
    max_calls: int  # per turn of the protocol
    timeout_s: float
    sandbox: bool

    @property
    def setting(self) -> str:
        """The key of the tools, for errors."""
        return f"task.agents.{self.agent}.tools"


@dataclass(frozen=True)
class ToolResult:
    """The text that a model receives for one of its calls."""

    name: str  # of the tool; empty if the call could not be parsed
    text: str
    has_failed: bool = False


class ToolResults(str):
    """An observation with the results of a response's calls; as text, for logs and rewards, one result per line."""

    results: tuple[ToolResult, ...]

    def __new__(cls, results: Sequence[ToolResult]) -> ToolResults:
        text = super().__new__(cls, "\n".join(result.text for result in results))
        text.results = tuple(results)
        return text

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.results,)
