"""`algorithm.advantage=function`: advantages from a user's Python function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ippo_cli.algorithms.estimator import Estimator
from ippo_cli.algorithms.inputs import AdvantageInputs, AdvantageOutputs
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import AlgorithmConfig
from ippo_cli.engine import distributed
from ippo_cli.user_code.errors import format_user_error
from ippo_cli.user_code.load import load_function

KEY = "algorithm.advantage_function"
UserFunction = Callable[[AdvantageInputs, AlgorithmConfig], Any]
"""Takes the rows of all ranks; returns advantages `[B, R]`, or a pair of advantages and returns, both `[B, R]`.

    def estimate(inputs, config):  # the score of a response, minus the mean over all responses
        score = (inputs.rewards * inputs.mask).sum(dim=1)
        return (score - score[inputs.valid].mean())[:, None] * inputs.mask
"""


def load_estimator(function: str) -> UserFunction:
    """Load the function. Raises `ConfigError` if it does not exist or does not take inputs and configuration."""
    found = load_function(function, KEY)
    setting = f"{KEY}={function}"
    if inspect.iscoroutinefunction(found):
        raise ConfigError(setting, "is async, but calls are not awaited", "use a function without async")
    try:
        inspect.signature(found).bind(None, None)
    except TypeError as error:
        raise ConfigError(
            setting, f"cannot be called as function(inputs, config) ({error})", "let it take these two arguments"
        ) from None
    except ValueError:  # some C functions have no signature
        pass
    return found


class UserEstimator(Estimator):
    """`algorithm.advantage=function`."""

    name = "function"

    def estimate_rows(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        return call_function(inputs, self.config)


def call_function(inputs: AdvantageInputs, config: AlgorithmConfig) -> AdvantageOutputs:
    """Call the user's function with the rows of all ranks, and return those of this rank.

    Without returns, the critic is trained on the sum of advantages and values, as with GAE. Raises `ConfigError` for an
    exception, a wrong shape, and numbers that are not finite.
    """
    assert config.advantage_function is not None
    setting = f"{KEY}={config.advantage_function}"
    everyone = _gather_inputs(inputs)
    try:
        result = load_estimator(config.advantage_function)(everyone, config)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(setting, f"raised {format_user_error(error)}", "fix the function") from error
    parts = result if isinstance(result, tuple) else (result, None)
    if len(parts) != 2:
        raise ConfigError(setting, f"returned {len(parts)} values", "return advantages, or (advantages, returns)")
    advantages = _check_tensor(setting, "advantages", parts[0], everyone)
    returns = (
        advantages + everyone.values if parts[1] is None else _check_tensor(setting, "returns", parts[1], everyone)
    )
    rows, columns = distributed.local_row_slice(inputs.baseline), slice(inputs.rewards.shape[1])
    return AdvantageOutputs(
        advantages=advantages[rows, columns].contiguous(),
        returns=(returns * everyone.mask)[rows, columns].contiguous(),
        usable=inputs.valid,
    )


def _gather_inputs(inputs: AdvantageInputs) -> AdvantageInputs:
    """The rows of all ranks, with as many columns as the longest response of any rank."""
    width = max(distributed.gather_objects(inputs.rewards.shape[1]))
    gathered = {
        field.name: distributed.all_gather_rows(_pad_columns(value, width, -1 if field.name == "turn" else 0))
        for field in fields(inputs)
        if isinstance(value := getattr(inputs, field.name), Tensor)
    }
    return replace(inputs, **gathered)


def _pad_columns(tensor: Tensor, width: int, value: int) -> Tensor:
    return tensor if tensor.dim() == 1 else pad(tensor, (0, width - tensor.shape[1]), value=value)


def _check_tensor(setting: str, name: str, value: Any, inputs: AdvantageInputs) -> Tensor:
    """The result as a float tensor that is 0 off the mask."""
    shape = tuple(inputs.rewards.shape)
    if not isinstance(value, Tensor) or tuple(value.shape) != shape:
        found = f"a tensor of shape {[*value.shape]}" if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(setting, f"returned {found} as {name}", f"return a tensor of shape [B, R] = {[*shape]}")
    found = torch.where(inputs.mask, value.detach().to(inputs.rewards), 0.0)
    if not bool(found[inputs.valid].isfinite().all()):
        raise ConfigError(setting, f"returned {name} that are not finite", "return finite numbers for valid rows")
    return torch.where(inputs.valid[:, None], found, 0.0)
