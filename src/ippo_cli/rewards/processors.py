"""`reward.processor`: what is done to scores before they become advantages, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ippo_cli.config.errors import ConfigError, RewardError
from ippo_cli.config.schema import Processor, RewardConfig
from ippo_cli.engine import distributed
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.user_code.errors import format_user_error
from ippo_cli.user_code.load import load_function

KEY = "reward.processor"
PROBE_SCORES = (0.0, 1.0)  # scores that a user's function is called with before training


def check_processor_functions(processors: Sequence[str]) -> None:
    """Raise `ConfigError` where a user's function in the chain cannot be loaded, or gives no number for a score."""
    for name in processors:
        if name in {step.value for step in Processor}:
            continue
        function = load_function(name, KEY)
        for score in PROBE_SCORES:
            try:
                result = float(function(score))
            except (Exception, SystemExit) as error:  # of the user's own code
                raise ConfigError(
                    f"{KEY}=[{name}]",
                    f"fails for the score {score} ({format_user_error(error)})",
                    "let it take a number and return one",
                ) from error
            if not math.isfinite(result):
                raise ConfigError(
                    f"{KEY}=[{name}]", f"gives {result} for the score {score}", "let it return a finite number"
                )


@cache
def _load_processor(name: str) -> Callable[..., Any]:
    return load_function(name, KEY)


def _apply_function(name: str, numbers: Tensor, own: Tensor) -> Tensor:
    """`numbers` `[B, K]` with each of `own` replaced by what the function returns; `RewardError` where it fails."""
    function, failure = _load_processor(name), None
    found = numbers.clone()
    try:
        for row, column in own.nonzero().tolist():
            found[row, column] = float(function(float(numbers[row, column])))
        if not torch.isfinite(found[own]).all():
            raise ValueError("it returned NaN or an infinite number")
    except (Exception, SystemExit) as error:
        failure = error
    if distributed.any_rank(failure is not None):  # every rank leaves at the same place
        reason = "failed on another rank" if failure is None else format_user_error(failure)
        raise RewardError(f"{KEY}=[{name}]: {reason}") from failure
    return found


def apply_processors(
    numbers: Tensor,
    num_turns: Tensor,
    valid: Tensor,
    config: RewardConfig,
    moments: ScoreMoments,
    *,
    observe: bool = True,
) -> tuple[Tensor, ScoreMoments]:
    """The processor chain in the order given over `numbers` `[B, K]`, and the moments; 0 for rows that are not valid.

    `scale` multiplies and `clip` bounds the number of every turn. `shift` and the means that z-scores subtract are of
    a row as a whole: they are added once, on its last turn. z-scores divide every turn by the deviation of the rows'
    totals, taken over the valid rows of all ranks (`running_zscore`: of all buffers so far). A user's function is
    called with the number of every turn, and returns the number that takes its place.
    """
    columns = torch.arange(numbers.shape[1], device=numbers.device)
    own, last = columns < num_turns[:, None], columns == num_turns[:, None] - 1
    for step in config.processor:
        match step:
            case Processor.scale:
                numbers = numbers * config.scale
            case Processor.shift:
                numbers = torch.where(last, numbers + config.shift, numbers)
            case Processor.clip:
                numbers = torch.where(own, numbers.clamp(config.clip_low, config.clip_high), numbers)
            case Processor.zscore:
                mean, variance = distributed.masked_moments(numbers.sum(dim=1), valid)
                numbers = _standardize(numbers, last, mean, variance.sqrt(), config.norm_eps)
            case Processor.running_zscore:
                moments = moments.update(numbers.sum(dim=1), valid) if observe else moments
                exact = _standardize(numbers.double(), last, moments.mean, moments.std, config.norm_eps)
                numbers = exact.float()
            case name:
                numbers = _apply_function(name, numbers, own & valid[:, None])
    return numbers.where(valid[:, None], 0.0), moments


def _standardize(
    numbers: Tensor, last: Tensor, mean: Tensor | float, deviation: Tensor | float, norm_eps: float
) -> Tensor:
    """Rows' distances from the mean in deviations; the numbers as they are where rows deviate by at most `norm_eps`."""
    return numbers if deviation <= norm_eps else torch.where(last, numbers - mean, numbers) / deviation
