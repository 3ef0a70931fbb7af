"""The cost of Monte-Carlo values: states, continuations and tokens of an iteration, at most."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ippo_cli.config.schema import Advantage, Config
from ippo_cli.planning.agent_shapes import AgentShapes
from ippo_cli.planning.episode_length import response_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuationCost:
    """Upper limits for the continuations from the states of one agent, in one iteration on all ranks."""

    states: int  # of a response
    continuations: int  # of a state
    episodes: int  # equal prompts of a group count once
    tokens: int  # of all agents, for states that are evenly spread over episodes of maximum length


def continuation_costs(config: Config, shapes: Mapping[str, AgentShapes]) -> dict[str, ContinuationCost | None]:
    """The costs by trained agent, None where the number of states has no known limit; empty without continuations."""
    count, size = config.algorithm.monte_carlo.continuations, config.rollout.buffer_size
    if config.algorithm.estimator is not Advantage.monte_carlo or count is None:
        return {}
    prompts = size // config.rollout.num_generations
    tokens = {name: response_tokens(config, name, agent.length) for name, agent in shapes.items()}
    total = sum(tokens.values())
    costs: dict[str, ContinuationCost | None] = {}
    for name, agent in shapes.items():
        if config.task.agents[name].frozen:
            continue
        limit = config.task.agents[name].rollout.max_new_tokens
        states = config.algorithm.monte_carlo.count_states(agent.length.turns, limit)
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


def describe_continuations(config: Config, shapes: Mapping[str, AgentShapes]) -> Iterator[str]:
    """A line of text for each agent with Monte-Carlo values."""
    own = config.rollout.buffer_size * sum(response_tokens(config, name, one.length) for name, one in shapes.items())
    for name, cost in continuation_costs(config, shapes).items():
        count = config.algorithm.monte_carlo.continuations
        if cost is None:
            yield f"{name}: {count} continuations from each state; the number of states depends on the responses"
            continue
        yield (
            f"{name}: at most {cost.states} states of a response x {count} continuations, {cost.episodes} episodes per "
            f"iteration; at most {cost.tokens} tokens, {cost.tokens / own:.1f} times those of the responses"
        )
