"""Scores a buffer: calls the reward, combines team and agent numbers by turn, applies the processors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NoReturn

import torch
from torch import Tensor

from ippo_cli.config.errors import ConfigError, RewardError
from ippo_cli.config.schema import (
    CreditAssignment,
    MixRewardConfig,
    RewardConfig,
    RewardWeightsConfig,
)
from ippo_cli.engine import distributed
from ippo_cli.rewards.baselines import Baseline
from ippo_cli.rewards.contract import Reward, RewardFunction, validate_reward
from ippo_cli.rewards.episodes import turn_for_step, turn_steps
from ippo_cli.rewards.mix import normalize_mix
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.placed import find_reward_group, score_on_group
from ippo_cli.rewards.processors import apply_processors
from ippo_cli.rewards.retry import RewardRetry
from ippo_cli.rewards.streaming import StreamedRewards
from ippo_cli.types import Episode, Scores
from ippo_cli.user_code.errors import format_user_error

Weights = Mapping[str, RewardWeightsConfig]
"""The reward weights of all agents, in the task's order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawScores:
    """Rewards of a buffer as one number per turn of each agent, before the processors."""

    numbers: dict[str, Tensor]  # by agent: [B, K]
    failed: dict[str, Tensor]  # by agent: [B] bool, rows without a finite valid number
    parts: dict[str, Tensor]  # name -> [B]
    normalized: dict[str, Tensor] | None  # `numbers` with the mix's `normalize` applied; None without `normalize`
    failure: Exception | None  # the first failure on this rank


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """The result of scoring a buffer."""

    scores: dict[str, Scores]  # by agent
    moments: dict[str, ScoreMoments]  # by agent; updated with these rows if a running z-score is used
    failure: str | None  # failed rows and the reason on the first rank with a failure; equal on all ranks


def score(
    reward: RewardFunction,
    episodes: Sequence[Episode],
    config: RewardConfig,
    moments: Mapping[str, ScoreMoments],
    *,
    device: torch.device | str = "cpu",
    weights: Weights | None = None,
    observe: bool = True,
) -> ScoreResult:
    """Each agent's scores for this rank's episodes: call the reward, combine its numbers, apply the processors.

    `weights`: by agent; default: the weights in `config` for all agents.
    """
    weights = dict.fromkeys(moments, config) if weights is None else weights
    own = compute_raw_scores(reward, episodes, weights, list(moments), config)
    return process_scores(own, episodes, config, moments, device=device, observe=observe)


def compute_raw_scores(
    reward: RewardFunction,
    episodes: Sequence[Episode],
    weights: Weights,
    wanted: Sequence[str],
    config: RewardConfig,
) -> RawScores:
    """Call the reward for episodes of all agents in `weights`, and combine its numbers for the agents in `wanted`."""
    rewards, failure = call_reward(reward, episodes, list(weights), config)
    return combine_raw_scores(rewards, failure, episodes, weights, wanted, config)


def combine_raw_scores(
    rewards: Reward,
    failure: Exception | None,
    episodes: Sequence[Episode],
    weights: Weights,
    wanted: Sequence[str],
    config: RewardConfig,
) -> RawScores:
    """Combine a reward's numbers for the agents in `wanted`; `failure` as returned by `call_reward`. Collective."""
    numbers = combine_rewards(rewards, episodes, weights, wanted)
    normalized = None
    if isinstance(config, MixRewardConfig) and config.normalize:
        normalized = _combine_normalized(rewards, episodes, weights, wanted, config)
    return RawScores(
        numbers=numbers,
        failed={name: failed_rows(rewards, numbers[name]) for name in wanted},
        parts={name: torch.tensor(values, dtype=torch.float32) for name, values in rewards.parts.items()},
        normalized=normalized,
        failure=failure,
    )


def _combine_normalized(
    rewards: Reward, episodes: Sequence[Episode], weights: Weights, wanted: Sequence[str], config: MixRewardConfig
) -> dict[str, Tensor]:
    """`combine_rewards` of the normalized mix; the normalization depends on each agent's `turn_weight`."""
    numbers: dict[str, Tensor] = {}
    for turn_weight in dict.fromkeys(weights[name].turn_weight for name in wanted):
        normalized = normalize_mix(rewards, config, episodes, list(weights), turn_weight)
        same_weight = [name for name in wanted if weights[name].turn_weight == turn_weight]
        numbers |= combine_rewards(normalized, episodes, weights, same_weight)
    return {name: numbers[name] for name in wanted}


def process_scores(
    own: RawScores,
    episodes: Sequence[Episode],
    config: RewardConfig,
    moments: Mapping[str, ScoreMoments],
    baselines: Mapping[CreditAssignment, Mapping[str, Baseline]] = MappingProxyType({}),
    *,
    device: torch.device | str = "cpu",
    observe: bool = True,
) -> ScoreResult:
    """Subtract the baseline of `credit_assignment` from each agent's scores, and apply the processors.

    Raises `RewardError` on all ranks if the failure budget is exceeded. `moments` has every agent. `baselines`: by
    method of credit assignment and agent; methods other than `credit_assignment` are only logged as credit. A running
    z-score first updates the moments with these rows, unless `observe` is False.

    A row of an agent without turns is neither valid nor failed: it scores 0 and is excluded from training. A row
    fails if its required baseline is unknown.
    """
    subtracted = baselines.get(config.credit_assignment, {})
    turns = {name: turn_counts(episodes, name) for name in own.numbers}
    failed = dict(own.failed)
    for name, baseline in subtracted.items():
        failed[name] = failed[name] | (~baseline.known & (turns[name] > 0))
    failures = [own.failure, *(baseline.failure for baseline in subtracted.values())]
    failure = next((error for error in failures if error is not None), None)
    reason = check_failure_budget(torch.stack(list(failed.values())).any(dim=0), failure, config)
    scores: dict[str, Scores] = {}
    observed: dict[str, ScoreMoments] = {}
    for name, numbers in own.numbers.items():
        valid = ~failed[name] & (turns[name] > 0)
        raw = numbers.where(valid[:, None], 0.0).to(device)
        whole = numbers if own.normalized is None else own.normalized[name]
        baseline = subtracted.get(name)
        learning = whole if baseline is None else baseline.subtract_from(whole)
        final, observed[name] = apply_processors(learning, turns[name], valid, config, moments[name], observe=observe)
        measured = {how: by_agent[name] for how, by_agent in baselines.items() if name in by_agent}
        scores[name] = Scores(
            score=raw
            if baseline is None and not config.processor and own.normalized is None
            else (final if baseline is None else baseline.scores_of_credit(final)).to(device),
            raw=raw,
            parts=own.parts,
            valid=valid.to(device),
            failed=failed[name].to(device),
            credit={
                how.value: compute_credit(numbers, ~own.failed[name] & (turns[name] > 0), baseline).to(device)
                for how, baseline in measured.items()
            },
            measured=(torch.ones_like(raw, dtype=torch.bool) if baseline is None else baseline.turn_mask).to(device),
        )
    return ScoreResult(scores=scores, moments=observed, failure=reason)


def compute_credit(numbers: Tensor, valid: Tensor, baseline: Baseline) -> Tensor:
    """An agent's `numbers` `[B, K]` minus its baseline; NaN where it is not measured, and in rows without a score."""
    known = (valid & baseline.known)[:, None] & baseline.turn_mask
    return baseline.subtract_from(numbers).where(known, math.nan)


def call_reward(
    reward: RewardFunction,
    episodes: Sequence[Episode],
    agents: Sequence[str],
    config: RewardConfig,
    streamed: StreamedRewards | None = None,
    earlier_rows: int = 0,
) -> tuple[Reward, Exception | None]:
    """Call the reward with retries; returns its numbers, with failed rows not valid, and the first failure.

    Failed episodes have no reward and are not passed to it. Rows of `streamed` are retried only if they failed. All
    ranks return the same `parts`, with NaN for parts that a rank does not have. `earlier_rows`: rows of all ranks that
    were scored before and count for the failure budget. Collective.
    """
    group = find_reward_group(reward)
    if group is None:
        return _call_reward(reward, episodes, agents, config, streamed, earlier_rows)
    return score_on_group(
        group, episodes, agents, lambda part: _call_reward(reward, part, agents, config, None, earlier_rows)
    )


def _call_reward(
    reward: RewardFunction,
    episodes: Sequence[Episode],
    agents: Sequence[str],
    config: RewardConfig,
    streamed: StreamedRewards | None,
    earlier_rows: int,
) -> tuple[Reward, Exception | None]:
    def ask(part: list[int]) -> Reward:
        selected = [episodes[row] for row in part]
        return validate_reward(reward(selected), agents, selected)

    rows = len(episodes)
    whole = config.compares_rows  # a mix splits its parts itself
    max_rows = earlier_rows + (rows + 1) * distributed.world_size()  # ranks differ by at most one row
    retry = RewardRetry(call=ask, splittable=not whole, failure_limit=config.failure_budget * max_rows)
    with distributed.synchronize_errors():
        early = streamed() if streamed is not None else []
        known = {row for part, _ in early for row in part}
        for row, episode in enumerate(episodes):
            if episode.failure is not None:
                retry.note_failure(episode.failure)
                known.add(row)
        for part, answer in early:
            retry.score_rows(part, answer)
        if rest := [row for row in range(rows) if row not in known]:
            retry.score_rows(rest)
    rewards = retry.merge(agents, episodes)
    all_parts = sorted({name for names in distributed.gather_objects(list(rewards.parts)) for name in names})
    return replace(
        rewards, parts={name: rewards.parts.get(name, [math.nan] * rows) for name in all_parts}
    ), retry.failure


def combine_rewards(
    rewards: Reward, episodes: Sequence[Episode], weights: Weights, wanted: Sequence[str]
) -> dict[str, Tensor]:
    """The numbers of the agents in `wanted`, combined with each agent's weights. Collective."""
    same_weights = all(own == next(iter(weights.values())) for own in weights.values())
    with distributed.synchronize_errors():
        return {
            name: combine_rewards_for_agent(
                rewards, name, episodes, weights[name], "reward" if same_weights else f"task.agents.{name}.reward"
            )
            for name in wanted
        }


def combine_rewards_for_agent(
    rewards: Reward, agent: str, episodes: Sequence[Episode], weights: RewardWeightsConfig, setting: str = "reward"
) -> Tensor:
    """An agent's numbers by turn, `[B, K]` float32, padded with 0:

        team_weight * (team + turn_weight * team_by_step) + agent_weight * (agent + turn_weight * agent_by_turn)

    K is the agent's largest number of turns in a row, at least 1. Missing kinds of numbers count as 0. Raises
    `ConfigError` if no kind has an effect, since every score would be 0; `setting` is the key prefix in its message.
    """
    by_turn = weights.turn_weight
    has_team = rewards.team is not None or bool(by_turn and rewards.team_by_step is not None)
    has_own = bool(rewards.agent or (by_turn and rewards.agent_by_turn))
    counts_team, counts_own = has_team and bool(weights.team_weight), has_own and bool(weights.agent_weight)
    if not counts_team and not counts_own:
        _raise_no_effect(rewards, weights, setting)
    steps = [turn_steps(episode, agent) for episode in episodes]
    width = max([1, *map(len, steps)])
    total = torch.zeros(len(episodes), width, dtype=torch.float64)
    for counts, weight, numbers_of in (
        (counts_team, weights.team_weight, _team_by_turn),
        (counts_own, weights.agent_weight, _agent_by_turn),
    ):
        if counts:
            rows = [numbers_of(rewards, agent, row, own, by_turn) for row, own in enumerate(steps)]
            padded = [numbers + [0.0] * (width - len(numbers)) for numbers in rows]
            total += weight * torch.tensor(padded, dtype=torch.float64).reshape(len(rows), width)
    return total.float()


def check_unused_weights(rewards: Reward, weights: Weights, config: RewardConfig) -> None:
    """Raise `ConfigError` on all ranks if an agent sets a weight of numbers that the reward lacks. Collective."""
    by_turn = rewards.team_by_step is not None or bool(rewards.agent_by_turn)
    available = {
        "team_weight": rewards.team is not None or rewards.team_by_step is not None,
        "agent_weight": bool(rewards.agent or rewards.agent_by_turn),
        "turn_weight": by_turn,
    }
    answered = rewards.valid is None or any(rewards.valid)
    with distributed.synchronize_errors():
        for name, own in weights.items():
            for key, is_available in available.items():
                if answered and not is_available and getattr(own, key) != getattr(config, key):
                    unit = {"team_weight": "for the team", "agent_weight": "for agents", "turn_weight": "by turn"}[key]
                    raise ConfigError(
                        f"task.agents.{name}.reward.{key}={getattr(own, key)}",
                        f"has no effect: the reward returns no numbers {unit}",
                        "remove it",
                    )


def _raise_no_effect(rewards: Reward, weights: RewardWeightsConfig, setting: str) -> NoReturn:
    kind = "team" if rewards.team is not None or rewards.team_by_step is not None else "agent"
    if not getattr(weights, f"{kind}_weight"):
        raise ConfigError(
            f"{setting}.team_weight={weights.team_weight} {setting}.agent_weight={weights.agent_weight}",
            f"make every score 0: the reward returns {kind!r} numbers, and their weight is 0",
            f"set {setting}.{kind}_weight=1.0",
        )
    raise ConfigError(
        f"{setting}.turn_weight={weights.turn_weight}",
        "makes every score 0: the reward returns only numbers by turn",
        f"set {setting}.turn_weight=1.0",
    )


def _team_by_turn(rewards: Reward, _: str, row: int, steps: Sequence[int], turn_weight: float) -> list[float]:
    numbers = [0.0] * len(steps)
    if steps and rewards.team is not None:
        numbers[-1] += rewards.team[row]
    if steps and rewards.team_by_step is not None and turn_weight:
        for step, number in enumerate(rewards.team_by_step[row]):
            numbers[turn_for_step(steps, step)] += turn_weight * number
    return numbers


def _agent_by_turn(rewards: Reward, agent: str, row: int, steps: Sequence[int], turn_weight: float) -> list[float]:
    numbers = [0.0] * len(steps)
    if rewards.agent_by_turn and turn_weight:
        numbers = [turn_weight * number for number in rewards.agent_by_turn[agent][row]]
    if steps and rewards.agent:
        numbers[-1] += rewards.agent[agent][row]
    return numbers


def failed_rows(rewards: Reward, numbers: Tensor) -> Tensor:
    """Mask `[B]` of rows that the reward marks as not valid, or with a combined number `[B, K]` that is not finite."""
    finite = torch.isfinite(numbers.sum(dim=1))
    return ~finite if rewards.valid is None else ~(finite & torch.tensor(rewards.valid, dtype=torch.bool))


def turn_counts(episodes: Sequence[Episode], agent: str) -> Tensor:
    """The agent's turns in each episode, `[B]`; 0 if an opponent snapshot acted for the agent."""
    return torch.tensor([len(episode.trainable_turns(agent)) for episode in episodes], dtype=torch.long)


def check_failure_budget(failed: Tensor, failure: Exception | None, config: RewardConfig) -> str | None:
    """Raise `RewardError` on all ranks if more than `reward.failure_budget` of the buffer's rows have no reward.

    Otherwise returns a message with the number of failed rows and the first reason; None without failed rows.
    Collective.
    """
    counts = distributed.all_sum(torch.tensor([float(failed.sum()), float(len(failed))], device=failed.device))
    num_failed, rows = counts.tolist()
    if not num_failed:
        return None
    reason = first_failure_message(failure)
    if num_failed > config.failure_budget * rows:
        raise RewardError(
            f"{reward_name(config)}: {int(num_failed)} of {int(rows)} rows have no reward "
            f"(reward.failure_budget={config.failure_budget}); {reason}"
        ) from failure
    return f"{int(num_failed)} of {int(rows)} rows have no reward and are excluded from training; {reason}"


def reward_name(config: RewardConfig) -> str:
    """The reward's overrides, as on the command line: `reward=function reward.function=my.py:score`."""
    own = f" reward.function={config.user_function}" if config.user_function is not None else ""
    return f"reward={config.kind}{own}"


def first_failure_message(failure: Exception | None) -> str:
    """The failure message of the first rank with a failure; equal on all ranks. Collective."""
    messages = distributed.gather_objects(None if failure is None else format_user_error(failure))
    return next(
        (reason for reason in messages if reason is not None),
        "its numbers are NaN or infinite, or marked as not valid",
    )
