"""The critic's objective per token, to be minimised and not yet reduced."""

from __future__ import annotations

import torch
from torch import Tensor

from ippo_cli.formulas.masked import as_real
from ippo_cli.formulas.shapes import Real


def value_loss(
    new_values: Real,
    values: Real,
    returns: Real,
    *,
    value_clip_range: float | None = None,
    huber_delta: float | None = None,
) -> Real:
    """Squared (or Huber) error of the new values against the returns, the larger of clipped and unclipped, `[B, R]`.

    With `V_clip = V_old + clamp(V - V_old, -c, c)`: `max(h(V - R), h(V_clip - R))`, where `h(e) = 0.5 e^2`, or with
    `huber_delta=d`, `0.5 e^2` if `|e| < d` else `d (|e| - 0.5 d)`. Without `value_clip_range`, `h(V - R)` alone.

    V_old = 0, V = 1, R = 2, c = 0.2: max(0.5, 0.5 * 1.8^2) = 1.62, and no gradient.

    Source: PPO2 of OpenAI Baselines (see Engstrom et al. 2020, arXiv 2005.12729, section 3); Huber 1964.
    """
    for name, setting in (("value_clip_range", value_clip_range), ("huber_delta", huber_delta)):
        if setting is not None and not setting > 0:
            raise ValueError(f"{name}={setting}; must be positive, or none to switch it off")
    new_values, values, returns = as_real(new_values), as_real(values), as_real(returns)
    loss = _error_cost(new_values - returns, huber_delta)
    if value_clip_range is None:
        return loss
    clipped = values + (new_values - values).clamp(-value_clip_range, value_clip_range)
    return torch.maximum(loss, _error_cost(clipped - returns, huber_delta))


def _error_cost(error: Tensor, huber_delta: float | None) -> Tensor:
    squared = 0.5 * error.square()
    if huber_delta is None:
        return squared
    size = error.abs()
    return torch.where(size < huber_delta, squared, huber_delta * (size - 0.5 * huber_delta))
