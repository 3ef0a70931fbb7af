"""Monte-Carlo values of states inside responses, for `algorithm.advantage=monte_carlo` (VinePPO, arXiv 2410.01679)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ippo_cli.agents.agent import Agent
from ippo_cli.algorithms.advantage_method import AdvantageMethod
from ippo_cli.algorithms.estimator import RowContext
from ippo_cli.algorithms.estimator import State as MethodState
from ippo_cli.algorithms.inputs import AdvantageInputs, AdvantageOutputs, Source
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.needs import Need
from ippo_cli.config.schema import Config, Truncation
from ippo_cli.engine import distributed
from ippo_cli.formulas import segment_gae
from ippo_cli.lab.continuation_plan import ContinuationPlan
from ippo_cli.lab.value_states import Keys, ValueStateChooser, ValueStates
from ippo_cli.planning.method_plan import MethodPlan
from ippo_cli.reporting.iteration_metrics import ratio
from ippo_cli.reporting.stopwatch import Stopwatch
from ippo_cli.rollout.branches import MAX_EPISODES, State
from ippo_cli.rollout.continuations import collect_continuations, state_key
from ippo_cli.rollout.generator import SamplingStream
from ippo_cli.training.methods.continued_returns import ReturnSource, estimate_means, state_columns
from ippo_cli.training.methods.method import Method, Outcome, Player, ScoredBuffer
from ippo_cli.training.targets import Algorithm
from ippo_cli.types import Episode, Experience, Rollout, Scores, Targets

Key = bytes
"""A hash that is equal for equal states of responses to the same prompt of the buffer."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The value of a state."""

    mean: float  # NaN without a usable continuation
    variance: float  # of the mean, from the spread of the continuations; 0 for a single one


@dataclass(frozen=True, slots=True, kw_only=True)
class StateValues:
    """Monte-Carlo values of chosen states in one agent's rows."""

    values: Tensor  # [B, R] float32: of the last chosen state before each action token; 0 without one
    starts: Tensor  # [B, R] bool: the action token after each chosen state with a value
    variance: Tensor  # [B, R] float32: sampling variance of the values where `starts`, else 0
    num_states: int  # chosen
    num_sampled: int  # of which this rank has sampled continuations: equal states of a prompt share theirs
    num_continuations: int  # sampled by this rank
    num_unusable: int  # of these: without a score, or from a state that was not reached
    num_tokens: int  # generated in these, by all agents


class MonteCarlo(AdvantageMethod):
    """GAE over the segments between states with a Monte-Carlo value."""

    name = "monte_carlo"
    Keys = Keys
    METRICS = {  # noqa: RUF012
        "<agent>/monte_carlo/states": "algorithm.advantage=monte_carlo: mean number of states with a value per trained "
        "response",
        "<agent>/monte_carlo/shared_fraction": "monte_carlo: fraction of states that share the continuations of an "
        "equal one, such as the prompt of a group",
        "<agent>/monte_carlo/tokens": "monte_carlo: tokens of all continuations, of all agents and ranks",
        "<agent>/monte_carlo/unusable_fraction": "monte_carlo: fraction of continuations without a score, truncated "
        "with truncation=mask, or from a state that a replay of the episode did not reach",
        "<agent>/monte_carlo/value": "monte_carlo: mean value of the states",
        "<agent>/monte_carlo/value_std": "monte_carlo: standard deviation of the values, their sampling error included",
        "<agent>/monte_carlo/standard_error": "monte_carlo: root mean squared standard error of the values",
        "time/continuations": "algorithm.advantage=monte_carlo: seconds of continuations and their rewards",
    }
    needs = (
        Need.current_weights,
        Need.current_policies,
        Need.fixed_scores,
        Need.own_rows,
        Need.equal_scores,
        Need.no_critic,
    )
    reads = {"gamma": "1.0", "gae_lambda": "0.95"}  # noqa: RUF012
    keys: Keys

    def check(self, config: Config) -> Iterator[ConfigError]:
        every, counts_tokens = self.keys.every, self.keys.states is ValueStates.tokens
        setting = f"algorithm.advantage_args.every={every or 'null'}"
        if counts_tokens and every is None:
            yield ConfigError(setting, "is needed by states=tokens", "use a number of tokens, such as 32")
        if every is not None and not counts_tokens:
            yield ConfigError(setting, "has no effect: only states=tokens counts tokens", "use null")

    def build_method(self, config: Config, algorithm: Algorithm) -> Method:
        return ContinuationValues(config, self.keys, algorithm)

    def build_plan(self, config: Config) -> MethodPlan:
        return ContinuationPlan(config, self.keys)

    def prepare(self, inputs: AdvantageInputs, rows: RowContext) -> AdvantageInputs:
        found = rows.experience.additions.get(self.name, {}).get(rows.source.agent)
        return inputs if found is None else replace(inputs, values=found.values)

    def estimate(
        self, inputs: Mapping[Source, AdvantageInputs], experience: Experience, state: MethodState
    ) -> tuple[dict[Source, AdvantageOutputs], MethodState]:
        values: Mapping[str, StateValues] = experience.additions[self.name]
        gamma, gae_lambda = self.config.gamma, self.config.gae_lambda
        assert gamma is not None
        assert gae_lambda is not None
        return {
            source: estimate_segments(own, values[source.agent].starts, gamma=gamma, gae_lambda=gae_lambda)
            for source, own in inputs.items()
        }, state


def estimate_segments(inputs: AdvantageInputs, starts: Tensor, *, gamma: float, gae_lambda: float) -> AdvantageOutputs:
    """GAE over segments; `starts` `[B, R]`: their first tokens.

    Rows of which the first state has no value are excluded.
    """
    advantages, returns = segment_gae(
        inputs.rewards, inputs.values, inputs.mask, starts, gamma=gamma, gae_lambda=gae_lambda
    )
    is_first = inputs.mask & (inputs.mask.cumsum(dim=1) == 1)
    usable = inputs.valid & (starts & is_first).any(dim=1)
    return AdvantageOutputs(advantages=advantages, returns=returns, usable=usable)


class ContinuationValues(Method):
    """Samples continuations from chosen states of an iteration's responses with the policies before the update."""

    def __init__(self, config: Config, keys: Keys, algorithm: Algorithm) -> None:
        self._config, self._keys, self._algorithm = config, keys, algorithm

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
        return replace(experience, additions={**experience.additions, MonteCarlo.name: values})

    def metrics(self, outcome: Outcome) -> dict[str, float]:
        values: Mapping[str, StateValues] = outcome.experience.additions[MonteCarlo.name]
        return {
            f"{agent}/{metric}": number
            for agent, found in values.items()
            for metric, number in state_value_metrics(found, outcome.targets[Source(agent, agent)]).items()
        }

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
        chooser = ValueStateChooser(self._keys, agent.tokenizer)
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
        count = self._keys.continuations
        size = max(1, MAX_EPISODES // count)
        parts = int(distributed.all_max(torch.tensor(math.ceil(len(states) / size))).item())
        returns, num_tokens = [torch.empty(0, count, dtype=torch.float64)], 0
        source = ReturnSource(
            config=self._config,
            algorithm=self._algorithm,
            agent=agent,
            reward=player.rewards.interruptible,
            is_by_turn=False,
            device=player.device,
        )
        for number in range(parts):
            part = states[number * size : (number + 1) * size]
            continuations = collect_continuations(
                lambda batch, generator: player.play_episodes(batch, draws, generator=generator),
                player.generator,
                episodes,
                part,
                count,
            )
            num_tokens += continuations.num_tokens
            returns.append(source.compute_returns(continuations, part, count))
            player.preemption.raise_if_any_rank_requested()
        return torch.cat(returns), num_tokens


def state_value_metrics(found: StateValues, targets: Targets) -> dict[str, float]:
    """One agent's metrics of Monte-Carlo values, over all ranks."""
    mask = found.starts & targets.loss_mask
    rows = targets.loss_mask.any(dim=1)
    counts = [found.num_states, found.num_sampled, found.num_continuations, found.num_unusable, found.num_tokens]
    sums = [mask.sum().double(), rows.sum().double(), found.variance.double().where(mask, 0.0).sum()]
    sums += [torch.tensor(float(count), dtype=torch.double, device=mask.device) for count in counts]
    states, responses, variance, chosen, sampled, continuations, unusable, tokens = distributed.all_sum(
        torch.stack(sums)
    ).tolist()
    mean, spread = distributed.masked_moments(found.values, mask)
    return {
        "monte_carlo/states": ratio(states, responses),
        "monte_carlo/shared_fraction": ratio(chosen - sampled, chosen),
        "monte_carlo/tokens": tokens,
        "monte_carlo/unusable_fraction": ratio(unusable, continuations),
        "monte_carlo/value": float(mean) if states else math.nan,
        "monte_carlo/value_std": float(spread) ** 0.5 if states else math.nan,
        "monte_carlo/standard_error": ratio(variance, states) ** 0.5,
    }


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
