"""Scoring a buffer: call the reward, mix team and own numbers, run the processor chain."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ippo_cli.config.errors import ConfigError, RewardError
from ippo_cli.config.schema import FunctionRewardConfig, Processor, RewardConfig
from ippo_cli.engine import distributed
from ippo_cli.rewards.contract import Responses, Reward, RewardFunction, checked
from ippo_cli.rewards.located import located
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.retry import Answers
from ippo_cli.rewards.streaming import StreamedAnswers
from ippo_cli.types import Example, PromptBatch, Rollout, Scores


def score(
    reward: RewardFunction,
    batch: Mapping[str, PromptBatch],
    rollouts: Mapping[str, Rollout],
    config: RewardConfig,
    moments: Mapping[str, ScoreMoments],
    *,
    streamed: StreamedAnswers | None = None,
    observe: bool = True,
) -> dict[str, Scores]:
    """Each agent's scores of the rows of this rank. Raises `RewardError` beyond the failure budget (all ranks do).

    `streamed` holds what the reward was asked while rows were still being written. A running z-score takes these rows
    into the agents' `moments` first, unless told not to `observe` them.
    """
    examples = next(iter(batch.values())).examples
    responses = {name: rollout.texts for name, rollout in rollouts.items()}
    given, failure = attempt(reward, examples, responses, config, streamed)
    device = next(iter(rollouts.values())).response_ids.device
    allowed = torch.tensor([True] * len(examples) if given.valid is None else given.valid, dtype=torch.bool)
    with distributed.failing_together():
        raw = {name: mixed(given, name, config, len(examples)) for name in rollouts}
    valid = {name: allowed & torch.isfinite(numbers) for name, numbers in raw.items()}
    stop_beyond_budget(torch.stack(list(valid.values())).all(dim=0), failure, config)
    parts = {name: torch.tensor(numbers, dtype=torch.float32) for name, numbers in given.parts.items()}
    return {
        name: _scores(raw[name].to(device), valid[name].to(device), parts, config, moments[name], observe=observe)
        for name in rollouts
    }


def _scores(
    numbers: Tensor,
    valid: Tensor,
    parts: dict[str, Tensor],
    config: RewardConfig,
    moments: ScoreMoments,
    *,
    observe: bool,
) -> Scores:
    raw = numbers.where(valid, 0.0)[:, None]
    final = processed(numbers, valid, config, moments, observe=observe)[:, None] if config.processor else raw
    return Scores(score=final, raw=raw, parts=parts, valid=valid)


def attempt(
    reward: RewardFunction,
    examples: Sequence[Example],
    responses: Responses,
    config: RewardConfig,
    streamed: StreamedAnswers | None = None,
) -> tuple[Reward, Exception | None]:
    """The reward's answer, without a valid number where it kept failing, and what went wrong first.

    Rows that were asked about early are asked again only where that failed. Every rank's answer has the same parts:
    NaN where a rank's own has none.
    """

    def ask(part: list[int]) -> Reward:
        texts = {name: [said[row] for row in part] for name, said in responses.items()}
        return checked(reward([examples[row] for row in part], texts), list(responses), len(part))

    rows = len(examples)
    whole = isinstance(config, FunctionRewardConfig) and config.whole_batch
    most = (rows + 1) * distributed.world_size()  # ranks differ by one row at most
    answers = Answers(ask=ask, divisible=not whole, spare=config.failure_budget * most)
    with distributed.failing_together():
        begun = streamed() if streamed is not None else []
        for part, answer in begun:
            answers.take(part, answer)
        known = {row for part, _ in begun for row in part}
        if rest := [row for row in range(rows) if row not in known]:
            answers.take(rest)
    given = answers.merged(list(responses), rows)
    every = sorted({name for names in distributed.gather_objects(list(given.parts)) for name in names})
    return replace(given, parts={name: given.parts.get(name, [math.nan] * rows) for name in every}), answers.failure


def mixed(given: Reward, agent: str, config: RewardConfig, rows: int) -> Tensor:
    """`team_weight * team + agent_weight * own`, `[B]` float32; what a reward does not give counts nothing.

    Raises `ConfigError` where that leaves nothing at all: every score would be 0.
    """
    terms = [(config.team_weight, given.team), (config.agent_weight, given.agent.get(agent))]
    counted = [(weight, numbers) for weight, numbers in terms if weight and numbers is not None]
    if not counted:
        kind = "agent" if given.team is None else "team"
        raise ConfigError(
            f"reward.team_weight={config.team_weight} reward.agent_weight={config.agent_weight}",
            f"count nothing of this reward, which gives {kind!r} numbers",
            f"set reward.{kind}_weight=1.0",
        )
    total = torch.zeros(rows, dtype=torch.float64)
    for weight, numbers in counted:
        total += weight * torch.tensor(numbers, dtype=torch.float64)
    return total.float()


def processed(
    numbers: Tensor, valid: Tensor, config: RewardConfig, moments: ScoreMoments, *, observe: bool = True
) -> Tensor:
    """The processor chain in the order given, with z-scores over the valid rows of all ranks; 0 for all other rows."""

    def running_zscore(numbers: Tensor) -> Tensor:
        if observe:
            moments.observe(numbers, valid)
        return moments.standardised(numbers, config.norm_eps)

    steps: dict[Processor, Callable[[Tensor], Tensor]] = {
        Processor.scale: lambda x: x * config.scale,
        Processor.shift: lambda x: x + config.shift,
        Processor.clip: lambda x: x.clamp(config.clip_low, config.clip_high),
        Processor.zscore: lambda x: _zscore(x, valid, config.norm_eps),
        Processor.running_zscore: running_zscore,
    }
    for step in config.processor:
        numbers = steps[step](numbers)
    return numbers.where(valid, 0.0)


def stop_beyond_budget(valid: Tensor, failure: Exception | None, config: RewardConfig) -> None:
    """Raise on every rank when more than `reward.failure_budget` of the buffer's rows have no reward."""
    counts = distributed.all_sum(torch.tensor([float((~valid).sum()), float(len(valid))], device=valid.device))
    failed, rows = counts.tolist()
    if failed > config.failure_budget * rows:
        raise RewardError(
            f"reward.kind={config.kind.value}: {int(failed)} of {int(rows)} rows have no reward "
            f"(reward.failure_budget={config.failure_budget}); {why(failure)}"
        ) from failure


def why(failure: Exception | None) -> str:
    """What went wrong on the first rank where a reward failed, known to all ranks."""
    told = distributed.gather_objects(None if failure is None else located(failure))
    return next((reason for reason in told if reason is not None), "they are not finite, or not valid")


def _zscore(numbers: Tensor, valid: Tensor, norm_eps: float) -> Tensor:
    mean, variance = distributed.masked_moments(numbers, valid)
    deviation = variance.sqrt()
    return numbers if deviation <= norm_eps else (numbers - mean) / deviation
