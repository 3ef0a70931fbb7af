"""The torch optimizers of engines; for stage 0 in fp32, with non-finite checks and gradient clipping."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def make_client_optimizer(
    name: str, groups: list[dict[str, Any]], *, max_grad_norm: float | None, device: torch.device
) -> torch.optim.Optimizer:
    """A torch optimizer; with `max_grad_norm` it checks and clips its own gradients."""
    if name == "adamw":
        kind = torch.optim.AdamW if max_grad_norm is None else _GuardedAdamW
        client = kind(groups, fused=True)
    elif name == "sgd":
        keys = ("params", "lr", "weight_decay")
        kind = torch.optim.SGD if max_grad_norm is None else _GuardedSGD
        client = kind([{key: group[key] for key in keys} for group in groups])
    else:
        raise ValueError(f"optimizer={name}; use one of adamw sgd")
    if max_grad_norm is not None:
        client.max_grad_norm = max_grad_norm  # pyright: ignore[reportAttributeAccessIssue]
    return client


class _Guard:
    """Computes the gradient norm and skips non-finite steps, as ZeRO's optimizers do; stage 0 in fp32 lacks both.

    DeepSpeed reads `overflow` and `_global_grad_norm` from any optimizer.
    """

    param_groups: list[dict[str, Any]]
    max_grad_norm: float
    overflow = False
    _global_grad_norm: Tensor

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        self._global_grad_norm = nn.utils.get_total_norm([p.grad for p in params])
        self.overflow = not bool(self._global_grad_norm.isfinite())
        if self.overflow:
            return
        if self.max_grad_norm > 0:
            nn.utils.clip_grads_with_norm_(params, self.max_grad_norm, self._global_grad_norm)
        super().step()  # pyright: ignore[reportAttributeAccessIssue]  (that of the optimizer mixed in)


class _GuardedAdamW(_Guard, torch.optim.AdamW):
    pass


class _GuardedSGD(_Guard, torch.optim.SGD):
    pass
