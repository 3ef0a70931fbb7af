"""`reward.processor`: the chain of transformations of scores before advantages are computed."""

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
PROBE_SCORES = (0.0, 1.0)  # test inputs for users' functions before training


def check_processor_functions(processors: Sequence[str]) -> None:
    """Raise `ConfigError` if a user's function in the chain cannot be loaded or does not return a finite number."""
    for name in processors:
        if name in {step.value for step in Processor}:
            continue
        function = load_function(name, KEY)
        for score in PROBE_SCORES:
            try:
                result = float(function(score))
            except (Exception, SystemExit) as error:  # raised by user code
                raise ConfigError(
                    f"{KEY}=[{name}]",
                    f"fails for the score {score} ({format_user_error(error)})",
                    "the function must take a number and return a number",
                ) from error
            if not math.isfinite(result):
                raise ConfigError(
                    f"{KEY}=[{name}]",
                    f"returns {result} for the score {score}",
                    "the function must return a finite number",
                )


@cache
def _load_processor(name: str) -> Callable[..., Any]:
    return load_function(name, KEY)


def _apply_function(name: str, numbers: Tensor, own: Tensor) -> Tensor:
    """Apply a user's function to the elements of `numbers` `[B, K]` in the mask `own`; `RewardError` if it fails."""
    function, failure = _load_processor(name), None
    found = numbers.clone()
    try:
        for row, column in own.nonzero().tolist():
            found[row, column] = float(function(float(numbers[row, column])))
        if not torch.isfinite(found[own]).all():
            raise ValueError("it returned NaN or an infinite number")
    except (Exception, SystemExit) as error:
        failure = error
    if distributed.any_rank(failure is not None):  # all ranks raise together
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
    """Apply `config.processor` in order to `numbers` `[B, K]`; returns them, 0 for invalid rows, and the moments.

    `scale` and `clip` apply to the number of every turn. `shift` and the means of z-scores belong to the whole row and
    are applied once, to its last turn. z-scores divide every turn by the standard deviation of row totals over the
    valid rows of all ranks (`running_zscore`: of all buffers so far). A user's function maps the number of every turn.
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
    """Subtract the mean at the last turn and divide by the deviation; unchanged if it is at most `norm_eps`."""
    return numbers if deviation <= norm_eps else torch.where(last, numbers - mean, numbers) / deviation
