"""What Monte-Carlo values add to a plan: states, continuations and tokens of an iteration."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ippo_cli.config.schema import Config
from ippo_cli.lab.value_states import Keys
from ippo_cli.planning.agent_shapes import AgentShapes
from ippo_cli.planning.episode_length import response_tokens
from ippo_cli.planning.method_plan import MethodPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuationCost:
    """Upper limits for the continuations from the states of one agent, in one iteration on all ranks."""

    states: int  # of a response
    continuations: int  # of a state
    episodes: int  # equal prompts of a group count once
    tokens: int  # of all agents, for states that are evenly spread over episodes of maximum length


def continuation_costs(
    config: Config, keys: Keys, shapes: Mapping[str, AgentShapes]
) -> dict[str, ContinuationCost | None]:
    """The costs by trained agent, None where the number of states has no known limit."""
    count, size = keys.continuations, config.rollout.buffer_size
    prompts = size // config.rollout.num_generations
    tokens = {name: response_tokens(config, name, agent.length) for name, agent in shapes.items()}
    total = sum(tokens.values())
    costs: dict[str, ContinuationCost | None] = {}
    for name, agent in shapes.items():
        if config.task.agents[name].frozen:
            continue
        limit = config.task.agents[name].rollout.max_new_tokens
        states = keys.count_states(agent.length.turns, limit)
        costs[name] = None
        if states is not None:
            # After state j of n come (n - j) / n of the agent's tokens. Others repeat their turn of the same step.
            turn, others = 1 / (agent.length.turns or math.inf), total - tokens[name]
            ahead = [(states - number) / states for number in range(1, states)]
            later = sum(part * tokens[name] + min(part + turn, 1.0) * others for part in ahead)
            costs[name] = ContinuationCost(
                states=states,
                continuations=count,
                episodes=count * (prompts + size * (states - 1)),
                tokens=int(count * (prompts * total + size * later)),
            )
    return costs


class ContinuationPlan(MethodPlan):
    """The states, continuations and tokens of Monte-Carlo values, at most."""

    def __init__(self, config: Config, keys: Keys) -> None:
        super().__init__(config)
        self._keys = keys

    @property
    def rows_per_sample(self) -> int:
        return self._keys.continuations

    def describe(self, shapes: Mapping[str, AgentShapes]) -> Iterator[tuple[str, str]]:
        for number, text in enumerate(describe_continuations(self.config, self._keys, shapes)):
            yield "" if number else "values", text


def describe_continuations(config: Config, keys: Keys, shapes: Mapping[str, AgentShapes]) -> Iterator[str]:
    """A line of text for each agent with Monte-Carlo values."""
    own = config.rollout.buffer_size * sum(response_tokens(config, name, one.length) for name, one in shapes.items())
    for name, cost in continuation_costs(config, keys, shapes).items():
        count = keys.continuations
        if cost is None:
            yield f"{name}: {count} continuations from each state; the number of states depends on the responses"
            continue
        yield (
            f"{name}: at most {cost.states} states of a response x {count} continuations, {cost.episodes} episodes per "
            f"iteration; at most {cost.tokens} tokens, {cost.tokens / own:.1f} times those of the responses"
        )
