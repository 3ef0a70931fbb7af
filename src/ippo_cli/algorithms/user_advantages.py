"""`algorithm.advantage=path.py:name`: advantages from a user's Python function or class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ippo_cli.algorithms.advantage_method import AdvantageMethod, check_advantage_method
from ippo_cli.algorithms.estimator import Estimator, State
from ippo_cli.algorithms.inputs import AdvantageInputs, AdvantageOutputs, Source
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.needs import check_own_needs
from ippo_cli.config.schema import AlgorithmConfig, Config
from ippo_cli.engine import distributed
from ippo_cli.types import Experience
from ippo_cli.user_code.errors import format_user_error
from ippo_cli.user_code.keys import build_keys
from ippo_cli.user_code.load import (
    check_call,
    load_component,
    load_function,
    read_state,
    restore_state,
    try_state,
)
from ippo_cli.user_code.part_names import part_name

KEY = "algorithm.advantage"
UserFunction = Callable[[AdvantageInputs, AlgorithmConfig], Any]
"""Takes the rows of all ranks; returns advantages `[B, R]`, or a pair of advantages and returns, both `[B, R]`.

    def estimate(inputs, config):  # the score of a response, minus the mean over all responses
        score = (inputs.rewards * inputs.mask).sum(dim=1)
        return (score - score[inputs.valid].mean())[:, None] * inputs.mask
"""


class UserEstimator(Estimator):
    """`algorithm.advantage=path.py:name`: a function, or an instance of a class that may have keys and a state."""

    name = "function"

    def __init__(self, config: AlgorithmConfig) -> None:
        super().__init__(config)
        self.setting = f"{KEY}={config.advantage}"
        self.component = load_component(config.advantage, KEY, config.advantage_args)
        check_call(self.component, self.setting, ("inputs", "config"))
        self._first_state = try_state(self.component, self.setting)

    def estimate(
        self, inputs: Mapping[Source, AdvantageInputs], experience: Experience, state: State
    ) -> tuple[dict[Source, AdvantageOutputs], State]:
        stored = self._first_state if state is None else state
        restore_state(self.component, self.setting, stored)  # evaluations and abandoned iterations leave no trace
        outputs = {source: self.estimate_rows(own) for source, own in inputs.items()}
        has_state = hasattr(self.component, "state_dict")
        return outputs, read_state(self.component, self.setting) if has_state else None

    def estimate_rows(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        """Call the user's function with the rows of all ranks, and return those of this rank.

        Without returns, the critic is trained on the sum of advantages and values, as with GAE. Raises `ConfigError`
        for an exception, a wrong shape, and numbers that are not finite.
        """
        setting, everyone = self.setting, _gather_inputs(inputs)
        try:
            result = self.component(everyone, self.config)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(setting, f"raised {format_user_error(error)}", "fix the function") from error
        parts = result if isinstance(result, tuple) else (result, None)
        if len(parts) != 2:
            raise ConfigError(setting, f"returned {len(parts)} values", "return advantages, or (advantages, returns)")
        advantages = _check_tensor(setting, "advantages", parts[0], everyone)
        returns = advantages + everyone.values
        if parts[1] is not None:
            returns = _check_tensor(setting, "returns", parts[1], everyone)
        rows, columns = distributed.local_row_slice(inputs.baseline), slice(inputs.rewards.shape[1])
        return AdvantageOutputs(
            advantages=advantages[rows, columns].contiguous(),
            returns=(returns * everyone.mask)[rows, columns].contiguous(),
            usable=inputs.valid,
        )

    def metrics(self, state: State) -> dict[str, float]:
        return read_metrics(self.component, self.setting, "targets/advantage")


def build_user_estimator(config: AlgorithmConfig) -> UserEstimator | AdvantageMethod:
    """The estimator of a user or a package that `algorithm.advantage` names. Raises `ConfigError`."""
    return find_advantage_method(config) or UserEstimator(config)


def find_advantage_method(config: AlgorithmConfig) -> AdvantageMethod | None:
    """The estimator that `algorithm.advantage` names if it is an `AdvantageMethod`. Raises `ConfigError`."""
    found: Any = load_function(config.advantage, KEY)
    if not (inspect.isclass(found) and issubclass(found, AdvantageMethod)):
        return None
    keys = build_keys(found, f"{KEY}={config.advantage}", f"{KEY}_args", config.advantage_args)
    try:
        return found(config, keys)
    except ConfigError:
        raise
    except Exception as error:
        rule = f"cannot be built ({format_user_error(error)})"
        raise ConfigError(f"{KEY}={config.advantage}", rule, "fix the class") from error


def check_estimator(config: Config, estimator: UserEstimator | AdvantageMethod) -> None:
    """Check what an estimator needs, and call it with made-up rows if it needs no episodes. Raises `ConfigError`."""
    if isinstance(estimator, AdvantageMethod):
        check_advantage_method(config, estimator)
        return
    check_own_needs(config, estimator.setting, getattr(estimator.component, "needs", ()))
    try_estimator(estimator)


def read_metrics(component: Any, setting: str, prefix: str) -> dict[str, float]:
    """The numbers of a component's optional method `metrics`, by full name."""
    if not hasattr(component, "metrics"):
        return {}
    try:
        return {f"{prefix}/{part_name(name)}": float(value) for name, value in component.metrics().items()}
    except Exception as error:
        raise ConfigError(setting, f"raised {format_user_error(error)}", "fix its metrics") from error


def try_estimator(estimator: UserEstimator) -> None:
    """Call an estimator with made-up rows. Raises `ConfigError` as a call in training does."""
    mask = torch.tensor([[True, True, True], [True, True, False]] * 2)
    rewards = torch.where(mask, torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.5, 0.0], [0.0] * 3, [0.0, -1.0, 0.0]]), 0.0)
    estimator.estimate_rows(
        AdvantageInputs(
            rewards=rewards,
            values=0.1 * mask,
            mask=mask,
            turn=torch.where(mask, 0, -1),
            is_by_turn=False,
            group=torch.tensor([0, 0, 1, 1]),
            baseline=torch.zeros(4),
            valid=torch.ones(4, dtype=torch.bool),
        )
    )
    read_metrics(estimator.component, estimator.setting, "")


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
