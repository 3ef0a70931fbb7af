"""Cost of sampled alternatives to turns, per iteration: `reward.credit_alternatives`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ippo_cli.config.schema import Config
from ippo_cli.tasks.task import max_turns_by_agent


def alternatives_cost(config: Config) -> str:
    """The replayed episodes of an iteration and a bound of the tokens that they sample, for `mode=plan`."""
    task, size, count = config.task, config.rollout.buffer_size, config.reward.credit_alternatives
    assert count is not None
    trained = [name for name, agent in task.agents.items() if not agent.frozen]
    limits = {name: limit for name, limit in max_turns_by_agent(task).items() if limit is not None}
    turns_per_agent = config.reward.credit_turns
    rest = "turns with unchanged prompts are reused"
    if len(limits) < len(task.agents):
        if turns_per_agent is None:
            return (
                f"counterfactual: {count} more episodes are replayed and scored for each turn of {len(trained)} "
                f"agents in {size} episodes; {rest}"
            )
        turns, tokens = turns_per_agent * len(trained), ""
    else:
        costs = _EpisodeCost(config, limits).token_bounds(trained)
        turns, tokens = len(costs), f", and at most {size * count * sum(costs)} tokens are sampled"
    has_fixed_length = task.is_fixed_length and all(agent.tools is None for agent in task.agents.values())
    bound = "" if has_fixed_length else "at most "
    return (
        f"counterfactual: {bound}{size * count * turns} more episodes are replayed and scored "
        f"({size} x {turns} turns x {count} alternatives){tokens}; {rest}"
    )


@dataclass(frozen=True)
class _EpisodeCost:
    """Bounds of the tokens that an alternative to a turn samples: of the turn, and of all turns after its step."""

    config: Config
    limits: dict[str, int]  # turns of each agent, including turns that call tools

    def token_bounds(self, trained: list[str]) -> list[int]:
        """A bound for each turn that may be measured in an episode."""
        most = self.config.reward.credit_turns
        # Later turns have no larger bounds, and which turns are measured is random.
        turns = {name: min(self.limits[name], most or self.limits[name]) for name in trained}
        bounds = {name: [self._bound_tokens(name, turn) for turn in range(turns[name])] for name in trained}
        if not self._is_calls:
            return [bound for name in trained for bound in bounds[name]]
        called = sorted((bound for name in trained if name != self._caller for bound in bounds[name]), reverse=True)
        shared = (self._answers - 1) * max(self._turns_per_answer(name) for name in self._helpers)
        return [*bounds.get(self._caller, []), *called[:shared]]

    def _bound_tokens(self, agent: str, turn: int) -> int:
        task = self.config.task
        rest = {agent: self.limits[agent] - turn}
        if task.built_in_protocol is None:
            # An environment may let the others act only now, as often as the task allows.
            rest |= {name: limit for name, limit in self.limits.items() if name != agent}
            return sum(turns * self._tokens_per_turn(name) for name, turns in rest.items())
        names = list(task.agents)
        answered = turn // self._turns_per_answer(agent)  # the fewest answers before this turn
        if self._is_calls:
            return self._bound_call_tokens(agent, turn, answered)
        for place, name in enumerate(names):
            if name == agent:
                continue
            turns = (self._answers - answered) * self._turns_per_answer(name)
            if task.built_in_protocol == "parallel":
                turns -= 1  # its first turn of the round is in the step of the agent's, or before it
            elif place < names.index(agent):
                turns -= self._turns_per_answer(name)
            rest[name] = turns
        return sum(turns * self._tokens_per_turn(name) for name, turns in rest.items())

    def _bound_call_tokens(self, agent: str, turn: int, answered: int) -> int:
        """Every message of the caller but its last one is followed by the answer of one called agent."""
        per_answer = {name: self._turns_per_answer(name) * self._tokens_per_turn(name) for name in self.limits}
        costliest = max(per_answer[name] for name in self._helpers)
        left = self._answers - 1 - answered  # messages of the caller after this one
        if agent == self._caller:
            own = self.limits[agent] - turn
            return own * self._tokens_per_turn(agent) + left * costliest
        own = (answered + 1) * self._turns_per_answer(agent) - turn  # of the present answer
        return own * self._tokens_per_turn(agent) + left * per_answer[self._caller] + (left - 1) * costliest

    @cached_property
    def _is_calls(self) -> bool:
        return self.config.task.built_in_protocol == "calls"

    @property
    def _caller(self) -> str:
        return next(iter(self.limits))

    @property
    def _helpers(self) -> list[str]:
        return list(self.limits)[1:]

    @property
    def _answers(self) -> int:
        """The most answers that an agent gives in a conversation."""
        assert self.config.task.max_answers is not None
        return self.config.task.max_answers

    def _turns_per_answer(self, name: str) -> int:
        agent = self.config.task.agents[name]
        return 1 if agent.tools is None else 1 + agent.max_tool_calls

    def _tokens_per_turn(self, name: str) -> int:
        return self.config.task.agents[name].rollout.max_new_tokens
