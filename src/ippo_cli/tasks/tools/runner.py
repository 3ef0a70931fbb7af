"""Run the tool calls of a response outside of the training process."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from ippo_cli.processes.pool import CallFailed, ProcessPool
from ippo_cli.processes.sandbox import BWRAP, ProgramFailed, Sandbox
from ippo_cli.tasks.tools.formats import ParsedResponse, ToolCall
from ippo_cli.tasks.tools.functions import CALLER, format_error, format_result
from ippo_cli.tasks.tools.mcp_server import McpServer
from ippo_cli.tasks.tools.sandboxed import read_source
from ippo_cli.tasks.tools.tool import ERROR, AgentTools, Tool, ToolResult

T = TypeVar("T", ProcessPool, McpServer)
NUM_THREADS = 8
"""Episodes with tools that run at the same time, and so the number of child processes per agent."""


class ToolRunner:
    """Runs one agent's calls, in any thread. A call that raises, hangs or ends its process has an error as its result.

    Each thread uses a separate child process or server, started on demand and reused; a sandboxed call has a new
    sandbox.
    """

    def __init__(self, tools: AgentTools) -> None:
        self.tools = tools
        self._by_name = {tool.name: tool for tool in tools.tools}
        sandboxed = [tool for tool in tools.tools if tools.sandbox and isinstance(tool.source, str)]
        self._programs = {tool.name: read_source(str(tool.source), tools.setting) for tool in sandboxed}
        self._processes: deque[ProcessPool] = deque()  # idle ones
        commands = {tool.source for tool in tools.tools if isinstance(tool.source, tuple)}
        self._servers: dict[tuple[str, ...], deque[McpServer]] = {command: deque() for command in commands}
        self.close = weakref.finalize(self, _close_all, [self._processes, *self._servers.values()])

    def run(self, response: ParsedResponse, limit: int) -> list[ToolResult]:
        """The results of a response's calls, in order; errors for calls after the first `limit` and malformed ones."""
        results: list[ToolResult] = []
        for call in response.calls:
            if len(results) < limit:
                results.append(self._run_call(call))
            else:
                results.append(_fail(call.name, f"no more than {self.tools.max_calls} calls are allowed; answer now"))
        return [*results, *(_fail("", f"the call is malformed: {error}") for error in response.errors)]

    def _run_call(self, call: ToolCall) -> ToolResult:
        tool = self._by_name.get(call.name)
        if tool is None:
            return _fail(call.name, f"there is no tool {call.name!r:.80}; tools are {' '.join(self._by_name)}")
        if isinstance(tool.source, tuple):
            call_tool = self._call_server
        else:
            call_tool = self._call_in_sandbox if self.tools.sandbox else self._call_in_process
        has_succeeded, text = call_tool(tool, call.arguments)
        return ToolResult(call.name, text) if has_succeeded else _fail(call.name, text)

    def _call_in_process(self, tool: Tool, arguments: dict[str, Any]) -> tuple[bool, str]:
        with _borrow(self._processes, self._start_process) as process:
            try:
                [result] = process.call([((tool.source, arguments), {})])
            except CallFailed as error:  # the process did not start
                result = error
        return (False, str(result)) if isinstance(result, CallFailed) else (result[0], result[1])

    def _call_in_sandbox(self, tool: Tool, arguments: dict[str, Any]) -> tuple[bool, str]:
        with closing(Sandbox(BWRAP, self.tools.timeout_s)) as sandbox:
            try:
                sandbox.load(*self._programs[tool.name])
                return True, format_result(sandbox.call(**arguments))
            except ProgramFailed as error:
                return False, f"the call failed: {error}"
            except Exception as error:  # raised by the function, and built again here
                return False, format_error(error)

    def _call_server(self, tool: Tool, arguments: dict[str, Any]) -> tuple[bool, str]:
        command = tool.source
        assert isinstance(command, tuple)
        with _borrow(self._servers[command], lambda: McpServer(command)) as server:
            return server.call(tool.name, arguments, self.tools.timeout_s)

    def _start_process(self) -> ProcessPool:
        sources = [tool.source for tool in self.tools.tools if isinstance(tool.source, str)]
        setting = self.tools.setting
        return ProcessPool(CALLER, setting, 1, self.tools.timeout_s, factory_arguments=(sources, setting))


@contextmanager
def _borrow(idle: deque[T], start: Callable[[], T]) -> Iterator[T]:
    """An idle process or a new one, which is idle again afterwards."""
    try:
        process = idle.pop()
    except IndexError:
        process = start()
    try:
        yield process
    finally:
        idle.append(process)


def _close_all(idle: Sequence[deque[Any]]) -> None:
    for processes in idle:
        while processes:
            processes.pop().close()


def _fail(name: str, reason: str) -> ToolResult:
    return ToolResult(name, f"{ERROR}{reason}", has_failed=True)
