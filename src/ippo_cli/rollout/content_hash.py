"""A hash of a tensor's elements that does not depend on their order, so that parts of a fused tensor can be added."""

from __future__ import annotations

import torch
from torch import Tensor

WORDS = 1 << 20
"""64-bit words that are hashed at once: they stay in a processor's cache."""
FACTORS = (-7046029254386353131, -4417276706812531889)  # odd: the finaliser of SplitMix64 (Steele et al. 2014)


@torch.no_grad()
def content_hash(tensor: Tensor) -> int:
    """The sum over 64-bit words of a mixed word, as a number in [0, 2**64). Zeros add nothing, so padding is ignored.

    The hash of rows that are concatenated is the sum of their hashes modulo 2**64. Elements of matrices are taken in
    words of 8 bytes where the last dimension is a multiple of that, and one by one otherwise: two matrices are
    comparable if their last dimensions agree. Those of vectors are taken one by one: biases may be padded.
    """
    tensor = tensor.detach().contiguous()
    if not tensor.numel():
        return 0
    size = tensor.element_size()
    whole = tensor.shape[-1] % (8 // size) == 0 if tensor.dim() > 1 else False
    if whole:
        words = tensor.reshape(-1).view(torch.int64)
    else:
        words = tensor.reshape(-1).view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    total = 0
    for part in words.split(WORDS):
        mixed = part.to(torch.int64) * FACTORS[0]
        mixed ^= (mixed >> 29) & 0x7FFFFFFFF
        mixed *= FACTORS[1]
        mixed ^= (mixed >> 32) & 0xFFFFFFFF
        total += int(mixed.sum())
    return total % 2**64
