"""Hashes of a tensor that add up over its parts: one of its elements in any order, one that depends on the order."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

WORDS = 1 << 20
"""64-bit words that are hashed at once: they stay in a processor's cache."""
FACTORS = (-7046029254386353131, -4417276706812531889)  # odd: the finaliser of SplitMix64 (Steele et al. 2014)
ROWS, COLUMNS = 0x51F15EED, 0x2545F491
"""Where the sequences of factors for rows and for columns begin."""


class TensorHash(NamedTuple):
    """Two numbers in [0, 2**64).

    `content`: the same for elements in another order. `position`: the sum over elements at a row and a column, each
    with a factor of its row and a factor of its column.
    """

    content: int
    position: int


@torch.no_grad()
def tensor_hash(tensor: Tensor, *, row: int = 0, column: int = 0) -> TensorHash:
    """The hash of a tensor, or of the part of a larger one that begins at `row` and `column` (elements).

    The hashes of parts add up modulo 2**64 to that of the whole, and zeros add nothing, so padding is ignored. All
    dimensions but the last are rows; a vector has one column. Elements of matrices are taken in words of 8 bytes where
    the last dimension is a multiple of that, and one by one otherwise: two matrices are comparable if their last
    dimensions agree. Those of vectors are taken one by one: biases may be padded.
    """
    tensor = tensor.detach().contiguous()
    if not tensor.numel():
        return TensorHash(0, 0)
    size, width = tensor.element_size(), tensor.shape[-1] if tensor.dim() > 1 else 1
    per_word = 8 // size if tensor.dim() > 1 and width % (8 // size) == 0 else 1
    kind = torch.int64 if per_word > 1 else {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    words = tensor.reshape(-1, width).view(kind)
    row_factors = _make_factors(ROWS, row, words.shape[0], tensor.device)
    column_factors = _make_factors(COLUMNS, column // per_word, words.shape[1], tensor.device)
    content = position = 0
    step = max(1, WORDS // words.shape[1])
    for start in range(0, words.shape[0], step):
        mixed = _mix(words[start : start + step].to(torch.int64))
        content += int(mixed.sum())
        position += int(((mixed * column_factors).sum(1) * row_factors[start : start + step]).sum())
    return TensorHash(content % 2**64, position % 2**64)


def _mix(words: Tensor) -> Tensor:
    mixed = words * FACTORS[0]
    mixed ^= (mixed >> 29) & 0x7FFFFFFFF
    mixed *= FACTORS[1]
    mixed ^= (mixed >> 32) & 0xFFFFFFFF
    return mixed


def _make_factors(sequence: int, start: int, count: int, device: torch.device) -> Tensor:
    """Odd numbers, so that one changed word always changes the sum: [count] int64."""
    return _mix(torch.arange(start, start + count, device=device) + (sequence << 32)) | 1
