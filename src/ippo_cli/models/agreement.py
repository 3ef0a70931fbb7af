"""Whether another way of reading the same tokens reads the same, told apart from one that is wrong on purpose.

In bf16 two right ways differ by rounding, and in hidden states that may be as much as a wrong position makes. What
attention is given (queries, keys and values of single tokens) and gives shows a mistake where it is made.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

TOLERANCES = {torch.float32: 1e-3}
HALF_PRECISION = 0.1
SHARE_OF_MISTAKE = 0.5


def deviation(actual: Tensor, expected: Tensor) -> float:
    """The largest relative error of a row, of `[n, D]`; infinite where something is no number."""
    actual, expected = actual.float(), expected.float()
    scale = expected.norm(dim=-1)
    error = (actual - expected).norm(dim=-1) / scale.clamp(min=1e-3 * float(scale.max()) + 1e-30)
    largest = float(error.max())
    return largest if largest == largest else float("inf")


def agree(actual: Sequence[Tensor], expected: Sequence[Tensor], wrong: Sequence[Tensor]) -> bool:
    """Whether `found` is `expected` but for rounding: everywhere near it, and, where the deliberate mistake of `wrong`
    shows most, at most half as far from it as that. Each entry is `[n, D]`, of the same n tokens."""
    if [part.shape for part in actual] != [part.shape for part in expected]:
        return False
    tolerance = TOLERANCES.get(expected[0].dtype, HALF_PRECISION)
    errors = [deviation(*parts) for parts in zip(actual, expected, strict=True)]
    mistakes = [deviation(*parts) for parts in zip(wrong, expected, strict=True)]
    largest = max(range(len(mistakes)), key=mistakes.__getitem__)
    told_apart = not mistakes[largest] or errors[largest] <= SHARE_OF_MISTAKE * mistakes[largest]
    return max(errors) <= tolerance and told_apart


def probe_ids(count: int, vocabulary: int, device: torch.device) -> Tensor:
    """`count` tokens from all over the vocabulary, `[1, count]`."""
    return (torch.arange(1, count + 1, device=device) * 7919 % vocabulary)[None]
