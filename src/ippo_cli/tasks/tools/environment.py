"""An environment with agents that may call tools before they act."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ippo_cli.config.schema import ToolsConfig
from ippo_cli.tasks.environment import Action, Environment, Step
from ippo_cli.tasks.tools.formats import ParsedResponse
from ippo_cli.tasks.tools.load import load_agent_tools
from ippo_cli.tasks.tools.runner import ToolRunner
from ippo_cli.tasks.tools.tool import ToolResults
from ippo_cli.types import Example

PARTS = ("tool_calls", "failed_tool_calls", "tool_turns")
"""Numbers of each agent in the parts of an episode: calls, failed calls, and responses with a call that succeeded."""


def part_of_agent(part: str, agent: str) -> str:
    """The name of one of `PARTS` for an agent."""
    return f"{part}.{agent}"


@dataclass(slots=True)
class ToolTurn:
    """One turn of the protocol of an agent with tools: it calls tools until it answers, or has used its calls."""

    runner: ToolRunner
    remaining: int = field(init=False)

    def __post_init__(self) -> None:
        self.remaining = self.runner.tools.max_calls

    def respond(self, response: ParsedResponse | None, finished: bool) -> ToolResults | None:
        """The results of a response's calls; None if the response is the answer.

        A truncated response is the answer, and so is every response after the last allowed call.
        """
        if response is None or not finished or self.remaining <= 0 or not (response.calls or response.errors):
            return None
        results = self.runner.run(response, self.remaining)
        self.remaining -= len(results)
        return ToolResults(results)


class ToolEnvironment:
    """Answers calls with observations, and passes answers to an environment, which never sees calls and results.

    Agents that act at the same time are passed on together: an agent that has answered waits for those with calls.
    """

    def __init__(self, environment: Environment, runners: Mapping[str, ToolRunner]) -> None:
        self.environment = environment
        self.runners = runners

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        self._turns: dict[str, ToolTurn] = {}
        self._answers: dict[str, Action] = {}
        self._parts = {part_of_agent(part, agent): 0.0 for agent in self.runners for part in PARTS}
        return self.environment.reset(example, seed)

    def step(self, actions: Mapping[str, Action]) -> Step:
        observations: dict[str, str] = {}
        for agent, action in actions.items():
            results = self._run_calls(agent, action)
            if results is None:
                self._turns.pop(agent, None)
                self._answers[agent] = replace(action, text=action.answer)
            else:
                observations[agent] = results
        if observations:
            return Step(observations=observations, parts=dict(self._parts))
        answers, self._answers = self._answers, {}
        step = self.environment.step(answers)
        return replace(step, parts={**step.parts, **self._parts})

    @property
    def roles(self) -> Mapping[str, str]:
        """The roles of the environment."""
        return getattr(self.environment, "roles", {})

    def actions(self) -> Mapping[str, Sequence[str]]:
        """Legal actions of the agents that act next; empty if the environment does not list them."""
        return self.environment.actions() if hasattr(self.environment, "actions") else {}  # pyright: ignore

    def close(self) -> None:
        self.environment.close()

    def _run_calls(self, agent: str, action: Action) -> ToolResults | None:
        if agent not in self.runners:
            return None
        turn = self._turns.setdefault(agent, ToolTurn(self.runners[agent]))
        results = turn.respond(action.response, action.finished)
        if results is not None:
            failed = sum(result.has_failed for result in results.results)
            self._count("tool_calls", agent, len(results.results))
            self._count("failed_tool_calls", agent, failed)
            self._count("tool_turns", agent, failed < len(results.results))
        return results

    def _count(self, part: str, agent: str, number: int) -> None:
        self._parts[part_of_agent(part, agent)] += number


def add_tools(make: Callable[[], Environment], agents: Mapping[str, ToolsConfig]) -> Callable[[], Environment]:
    """Return a factory of environments with the agents' tools; the factory itself if no agent has any."""
    tools = {name: load_agent_tools(name, agent) for name, agent in agents.items()}
    runners = {name: ToolRunner(own) for name, own in tools.items() if own is not None}
    return (lambda: ToolEnvironment(make(), runners)) if runners else make
