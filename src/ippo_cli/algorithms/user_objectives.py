"""`algorithm.objective=path.py:name`: a loss per token of a user's Python function or class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import AlgorithmConfig, has_own_loss
from ippo_cli.user_code.errors import format_user_error
from ippo_cli.user_code.load import check_call, load_component, read_state, restore_state, try_state
from ippo_cli.user_code.part_names import part_name

KEY = "algorithm.objective"
PARAMETERS = ("logprobs", "old_logprobs", "advantages", "mask")


class UserLoss:
    """A user's loss of one policy.

        def loss(logprobs, old_logprobs, advantages, mask):  # each [B, R], of action tokens where mask is True
            return -(logprobs - old_logprobs).exp() * advantages

    A class may have `Keys`, `observe(metrics)` after each iteration, and a state, which only `observe` may change:
    calls see the rows of one rank, metrics are of all ranks.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        self.setting = f"{KEY}={config.objective}"
        self.component = load_component(config.objective, KEY, config.objective_args)
        check_call(self.component, self.setting, PARAMETERS)
        try_state(self.component, self.setting)

    def compute(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and statistics of each token, `[B, R]`. Raises `ConfigError` for an exception or a wrong shape."""
        try:
            result = self.component(logprobs, old_logprobs, advantages, mask)
        except Exception as error:
            raise ConfigError(self.setting, f"raised {format_user_error(error)}", "fix the function") from error
        loss, statistics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        loss = self._check_tensor("the loss", loss, mask)
        if not isinstance(statistics, Mapping):
            raise ConfigError(
                self.setting, f"returned {type(statistics).__name__} as statistics", "return a mapping of tensors"
            )
        return loss, {
            f"objective/{part_name(name)}": self._check_tensor(f"statistic {name!r:.40}", value, mask).detach()
            for name, value in statistics.items()
        }

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Give the metrics of an iteration, by name within the policy, to a loss that has a state."""
        if hasattr(self.component, "observe"):
            try:
                self.component.observe(dict(metrics))  # type: ignore[attr-defined]
            except Exception as error:
                raise ConfigError(self.setting, f"raised {format_user_error(error)}", "fix its observe") from error

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint stores."""
        return read_state(self.component, self.setting)

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Restore the state."""
        restore_state(self.component, self.setting, stored)

    def _check_tensor(self, name: str, value: Any, mask: Tensor) -> Tensor:
        if not isinstance(value, Tensor) or value.shape != mask.shape:
            found = f"a tensor of shape {[*value.shape]}" if isinstance(value, Tensor) else type(value).__name__
            raise ConfigError(
                self.setting, f"returned {found} as {name}", f"return a tensor of shape [B, R] = {[*mask.shape]}"
            )
        return torch.where(mask, value.float(), 0.0)


def build_user_loss(config: AlgorithmConfig) -> UserLoss | None:
    """The loss of `algorithm.objective`; None for one of this package."""
    return UserLoss(config) if has_own_loss(config.objective) else None


def try_loss(loss: UserLoss) -> None:
    """Call a loss with made-up log-probabilities. Raises `ConfigError` as a call in training does, and for a loss that
    does not depend on them.
    """
    mask = torch.tensor([[True, True, True], [True, True, False]])
    old = torch.where(mask, torch.tensor([[-1.0, -2.0, -0.5], [-0.1, -3.0, 0.0]]), 0.0)
    logprobs = (old + 0.01).requires_grad_()
    before = loss.state_dict()
    found, _ = loss.compute(logprobs, old, torch.where(mask, torch.tensor([[1.0], [-1.0]]), 0.0), mask)
    if not bool(found.isfinite().all()):
        raise ConfigError(
            loss.setting, "returned a loss that is not finite", "return finite numbers where mask is True"
        )
    if not found.requires_grad:
        raise ConfigError(
            loss.setting, "returned a loss without a gradient", "compute it from logprobs, which are not detached"
        )
    if loss.state_dict() != before:
        raise ConfigError(
            loss.setting,
            "changes its state in a call, which sees the rows of one rank",
            "change it in observe(metrics)",
        )
