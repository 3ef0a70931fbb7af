"""Scoring a buffer: call the reward, mix team and own numbers, run the processor chain."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ippo_cli.config.errors import IppoError, RewardError
from ippo_cli.config.schema import Processor, RewardConfig
from ippo_cli.engine import distributed
from ippo_cli.rewards.contract import Responses, Reward, RewardFunction, checked
from ippo_cli.types import Example, PromptBatch, Rollout, Scores

ATTEMPTS = 3


def score(
    reward: RewardFunction, batch: Mapping[str, PromptBatch], rollouts: Mapping[str, Rollout], config: RewardConfig
) -> dict[str, Scores]:
    """Each agent's scores of the rows of this rank. Raises `RewardError` beyond the failure budget (all ranks do)."""
    examples = next(iter(batch.values())).examples
    responses = {name: rollout.texts for name, rollout in rollouts.items()}
    given, failure = attempt(reward, examples, responses)
    device = next(iter(rollouts.values())).response_ids.device
    raw = {name: mixed(given, name, config, len(examples)).to(device) for name in rollouts}
    valid = torch.tensor(given.valid or [True] * len(examples), dtype=torch.bool, device=device)
    valid = valid & torch.stack([torch.isfinite(numbers) for numbers in raw.values()]).all(dim=0)
    stop_beyond_budget(valid, failure, config)
    parts = {name: torch.tensor(numbers, dtype=torch.float32) for name, numbers in given.parts.items()}
    return {
        name: Scores(score=processed(numbers.where(valid, 0.0), valid, config)[:, None], parts=parts, valid=valid)
        for name, numbers in raw.items()
    }


def attempt(
    reward: RewardFunction, examples: Sequence[Example], responses: Responses
) -> tuple[Reward, Exception | None]:
    """The reward's answer; after failing attempts, an answer without a valid row and what went wrong."""
    failure: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            return checked(reward(examples, responses), list(responses), len(examples)), None
        except IppoError:
            raise
        except Exception as error:  # a user's function may raise anything: it is counted, shown, and ends the run
            failure = error
    rows = len(examples)
    return Reward(team=[math.nan] * rows, agent={}, valid=[False] * rows), failure


def mixed(given: Reward, agent: str, config: RewardConfig, rows: int) -> Tensor:
    """`team_weight * team + agent_weight * own`; what a reward does not give counts nothing. `[B]` float32."""
    total = torch.zeros(rows, dtype=torch.float64)
    if given.team is not None:
        total += config.team_weight * torch.tensor([_number(x) for x in given.team], dtype=torch.float64)
    if agent in given.agent and config.agent_weight:
        total += config.agent_weight * torch.tensor([_number(x) for x in given.agent[agent]], dtype=torch.float64)
    return total.float()


def processed(numbers: Tensor, valid: Tensor, config: RewardConfig) -> Tensor:
    """The processor chain, in the order given; z-scores use the valid rows of all ranks."""
    steps: dict[Processor, Callable[[Tensor], Tensor]] = {
        Processor.scale: lambda x: x * config.scale,
        Processor.shift: lambda x: x + config.shift,
        Processor.clip: lambda x: x.clamp(config.clip_low, config.clip_high),
        Processor.zscore: lambda x: _zscore(x, valid, config.norm_eps),
    }
    for step in config.processor:
        numbers = steps[step](numbers)
    return numbers.where(valid, 0.0)


def stop_beyond_budget(valid: Tensor, failure: Exception | None, config: RewardConfig) -> None:
    """Raise on every rank when more than `reward.failure_budget` of the buffer's rows have no reward."""
    counts = distributed.all_sum(torch.tensor([float((~valid).sum()), float(len(valid))], device=valid.device))
    failed, rows = counts.tolist()
    if failed > config.failure_budget * rows:
        reasons = [reason for reason in distributed.gather_objects(_reason(failure)) if reason]
        raise RewardError(
            f"reward.kind={config.kind.value}: {int(failed)} of {int(rows)} rows have no reward "
            f"(reward.failure_budget={config.failure_budget}); {reasons[0] if reasons else 'they are not finite'}"
        )


def _reason(failure: Exception | None) -> str:
    return f"{type(failure).__name__}: {failure}" if failure is not None else ""


def _zscore(numbers: Tensor, valid: Tensor, norm_eps: float) -> Tensor:
    mean, variance = distributed.masked_moments(numbers, valid)
    deviation = variance.sqrt()
    return numbers if deviation < norm_eps else (numbers - mean) / deviation


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float | bool) or hasattr(value, "__float__") else math.nan  # type: ignore[arg-type]
