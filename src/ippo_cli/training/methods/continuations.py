"""Monte-Carlo values of states inside responses, for `algorithm.advantage=monte_carlo` (VinePPO, arXiv 2410.01679)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ippo_cli.agents.agent import Agent
from ippo_cli.algorithms.estimator import Estimator, RowContext
from ippo_cli.algorithms.inputs import AdvantageInputs, AdvantageOutputs
from ippo_cli.config.schema import Advantage, Config, Truncation
from ippo_cli.engine import distributed
from ippo_cli.formulas import segment_gae
from ippo_cli.planning.agent_shapes import AgentShapes
from ippo_cli.planning.episode_length import response_tokens
from ippo_cli.planning.method_plan import MethodPlan
from ippo_cli.reporting.stopwatch import Stopwatch
from ippo_cli.rollout.branches import MAX_EPISODES, State
from ippo_cli.rollout.continuations import collect_continuations, state_key
from ippo_cli.rollout.generator import SamplingStream
from ippo_cli.rollout.value_states import ValueStateChooser
from ippo_cli.training.methods.continued_returns import compute_returns, estimate_means, state_columns
from ippo_cli.training.methods.method import Method, Player, ScoredBuffer
from ippo_cli.training.targets import Algorithm
from ippo_cli.types import Episode, Experience, Rollout, Scores, StateValues

Key = bytes
"""A hash that is equal for equal states of responses to the same prompt of the buffer."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The value of a state."""

    mean: float  # NaN without a usable continuation
    variance: float  # of the mean, from the spread of the continuations; 0 for a single one


class ContinuationValues(Method):
    """Samples continuations from chosen states of an iteration's responses with the policies before the update."""

    def __init__(self, config: Config, algorithm: Algorithm) -> None:
        self._config, self._algorithm = config, algorithm

    def extend(self, player: Player, scored: ScoredBuffer, clock: Stopwatch) -> Experience:
        """Add the values of each trained agent's chosen states. Collective."""
        experience = scored.experience
        with clock("continuations"):
            values = {
                name: self._estimate_agent(
                    player,
                    agent,
                    experience.episodes,
                    experience.rollouts[name],
                    experience.scores[name],
                    scored.buffer.prompts.draws,
                )
                for name, agent in player.team.items()
            }
        return replace(experience, state_values=values)

    def _estimate_agent(
        self,
        player: Player,
        agent: Agent,
        episodes: Sequence[Episode],
        rollout: Rollout,
        scores: Scores,
        draws: SamplingStream,
    ) -> StateValues:
        trained = scores.valid
        if self._config.algorithm.truncation is Truncation.mask:
            trained = trained & rollout.finished
        chooser = ValueStateChooser(self._config.algorithm.monte_carlo, agent.tokenizer)
        states = chooser.choose(episodes, trained.nonzero()[:, 0].tolist(), agent.name)
        keys = [self._state_key(episodes[state.episode], state) for state in states]
        own = assign_states(keys, [episodes[state.episode].index for state in states])
        returns, num_tokens = self._sample_returns(player, agent, episodes, [states[place] for place in own], draws)
        estimates = dict(zip([keys[place] for place in own], summarize_returns(returns), strict=True))
        known = {key: found for part in distributed.gather_objects(estimates) for key, found in part.items()}
        values, starts, variance = place_estimates([known[key] for key in keys], states, rollout)
        return StateValues(
            values=values,
            starts=starts,
            variance=variance,
            num_states=len(states),
            num_sampled=len(own),
            num_continuations=returns.numel(),
            num_unusable=int(returns.isnan().sum()),
            num_tokens=num_tokens,
        )

    def _state_key(self, episode: Episode, state: State) -> Key:
        prompt = episode.index // self._config.rollout.num_generations
        return hashlib.blake2b(repr((prompt, state_key(episode, state))).encode(), digest_size=16).digest()

    def _sample_returns(
        self, player: Player, agent: Agent, episodes: Sequence[Episode], states: Sequence[State], draws: SamplingStream
    ) -> tuple[Tensor, int]:
        """Returns of continuations `[n, count]` float64, NaN where not usable, and the tokens generated. Collective.

        Some states at a time, so that rows of continuations take little memory.
        """
        count = self._config.algorithm.monte_carlo.continuations
        assert count is not None
        size = max(1, MAX_EPISODES // count)
        parts = int(distributed.all_max(torch.tensor(math.ceil(len(states) / size))).item())
        returns, num_tokens = [torch.empty(0, count, dtype=torch.float64)], 0
        for number in range(parts):
            part = states[number * size : (number + 1) * size]
            continuations = collect_continuations(
                player.environments,
                player.formats,
                episodes,
                part,
                count,
                player.generator,
                draws,
                poll=player.preemption.raise_if_requested,
            )
            num_tokens += continuations.num_tokens
            returns.append(
                compute_returns(
                    self._config,
                    self._algorithm,
                    agent,
                    player.rewards.interruptible,
                    continuations,
                    part,
                    count,
                    is_by_turn=False,
                    device=player.device,
                )
            )
            player.preemption.raise_if_any_rank_requested()
        return torch.cat(returns), num_tokens


class MonteCarloEstimator(Estimator):
    """GAE over the segments between states with a Monte-Carlo value.

    Rows of which the first state has no value are excluded.
    """

    name = "monte_carlo"

    def prepare(self, inputs: AdvantageInputs, rows: RowContext) -> AdvantageInputs:
        if (found := rows.experience.state_values.get(rows.source.agent)) is None:
            return inputs
        return replace(inputs, values=found.values, starts=found.starts)

    def estimate_rows(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        gamma, gae_lambda = self.config.gamma, self.config.gae_lambda
        assert gamma is not None
        assert gae_lambda is not None
        advantages, returns = segment_gae(
            inputs.rewards, inputs.values, inputs.mask, inputs.starts, gamma=gamma, gae_lambda=gae_lambda
        )
        is_first = inputs.mask & (inputs.mask.cumsum(dim=1) == 1)
        usable = inputs.valid & (inputs.starts & is_first).any(dim=1)
        return AdvantageOutputs(advantages=advantages, returns=returns, usable=usable)


def assign_states(keys: Sequence[Key], indices: Sequence[int]) -> list[int]:
    """Positions of the states of which this rank samples continuations: one of all equal states on all ranks.

    It is the one with the smallest sample index in `indices`, so that the choice does not depend on the number of
    ranks. Collective.
    """
    smallest: dict[Key, tuple[int, int]] = {}  # sample index, position
    for place, (key, index) in enumerate(zip(keys, indices, strict=True)):
        smallest[key] = min(smallest.get(key, (index, place)), (index, place))
    everywhere: dict[Key, int] = {}
    for part in distributed.gather_objects({key: index for key, (index, _) in smallest.items()}):
        for key, index in part.items():
            everywhere[key] = min(everywhere.get(key, index), index)
    return sorted(place for key, (index, place) in smallest.items() if everywhere[key] == index)


def summarize_returns(returns: Tensor) -> list[Estimate]:
    """The estimates of states from the returns of their continuations `[n, count]`; NaN: not usable."""
    means, variances = estimate_means(returns)
    return [Estimate(mean, variance) for mean, variance in zip(means.tolist(), variances.tolist(), strict=True)]


def place_estimates(
    estimates: Sequence[Estimate], states: Sequence[State], rollout: Rollout
) -> tuple[Tensor, Tensor, Tensor]:
    """Values of the last state before each action token, the tokens after states, and their variances: `[B, R]` each.

    States without a value are left out: the segment before them continues.
    """
    starts, zeros = torch.zeros_like(rollout.response_mask), torch.zeros_like(rollout.logprobs)
    values, variance = zeros.clone(), zeros.clone()
    rows = [state.episode for state in states]
    columns = state_columns(rollout, states, rows)
    place = torch.tensor(rows, dtype=torch.long, device=zeros.device), columns
    means = torch.tensor([found.mean for found in estimates], dtype=zeros.dtype, device=zeros.device)
    starts[place] = means.isfinite()
    values[place] = means.nan_to_num()
    variance[place] = torch.tensor([found.variance for found in estimates], dtype=zeros.dtype, device=zeros.device)
    numbers = torch.arange(zeros.shape[1], device=zeros.device).expand_as(zeros)
    last = torch.where(starts, numbers, -1).cummax(dim=1).values
    spread = values.gather(1, last.clamp(min=0)).masked_fill((last < 0) | ~rollout.response_mask, 0.0)
    return spread, starts, variance.masked_fill(~starts, 0.0)


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


class ContinuationPlan(MethodPlan):
    """The states, continuations and tokens of Monte-Carlo values, at most."""

    @property
    def rows_per_sample(self) -> int:
        return self.config.algorithm.monte_carlo.continuations or 1

    def describe(self, shapes: Mapping[str, AgentShapes]) -> Iterator[tuple[str, str]]:
        for number, text in enumerate(describe_continuations(self.config, shapes)):
            yield "" if number else "values", text


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
