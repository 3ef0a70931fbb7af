"""PopArt: the output layer of a value function with normalised targets."""

from __future__ import annotations

from torch import Tensor


def rescale_output(
    weight: Tensor, bias: Tensor, old: tuple[float, float], new: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Weight and bias of a linear output layer after a change of mean and standard deviation, in float32.

    With `(m, s)` before and `(m', s')` after: `w' = w s / s'`, `b' = (s b + m - m') / s'`. The values
    `s (w h + b) + m` are the same for every input `h`.

    w = 2, b = 1, from (0, 1) to (5, 4): w' = 0.5, b' = -1, so h = 3 gives 7 = 4 (0.5 * 3 - 1) + 5.

    Source: van Hasselt et al. 2016 (arXiv 1602.07714), proposition 1.
    """
    (old_mean, old_std), (new_mean, new_std) = old, new
    if not new_std > 0:
        raise ValueError(f"standard deviation {new_std}; must be positive")
    return weight.float() * (old_std / new_std), (bias.float() * old_std + (old_mean - new_mean)) / new_std
