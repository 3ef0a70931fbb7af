"""Hashes of tensors that add up over the parts of a fused tensor."""

from __future__ import annotations

import pytest
import torch

from ippo_cli.rollout.content_hash import WORDS, content_hash


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_parts_add_up_and_padding_adds_nothing(dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(0)
    first, second = torch.randn(5, width).to(dtype), torch.randn(2, width).to(dtype)
    fused = torch.cat([first, second, torch.zeros(4, width, dtype=dtype)])
    assert content_hash(fused) == (content_hash(first) + content_hash(second)) % 2**64
    assert content_hash(torch.zeros(4, width, dtype=dtype)) == 0


def test_one_changed_bit_changes_the_hash() -> None:
    tensor = torch.randn(6, 8)
    before = content_hash(tensor)
    bits = tensor.view(torch.int32)
    for place in (0, 17, 47):
        for bit in (0, 9, 31):
            bits.view(-1)[place] ^= (1 << bit) if bit < 31 else -(1 << 31)
            assert content_hash(tensor) != before
            bits.view(-1)[place] ^= (1 << bit) if bit < 31 else -(1 << 31)
    assert content_hash(tensor) == before


def test_exchanged_values_of_two_tensors_change_both_hashes() -> None:
    one, other = torch.randn(4, 8), torch.randn(4, 8)
    assert content_hash(one) != content_hash(other)
    assert content_hash(one) != content_hash(-one)


def test_large_tensors_are_hashed_in_parts() -> None:
    tensor = torch.arange(2 * WORDS + 6, dtype=torch.int64)
    assert content_hash(tensor) == (content_hash(tensor[: WORDS + 2]) + content_hash(tensor[WORDS + 2 :])) % 2**64


def test_views_and_empty_tensors() -> None:
    tensor = torch.randn(4, 8)
    assert content_hash(tensor.T) == content_hash(tensor.T.contiguous())
    assert content_hash(torch.zeros(0, 8)) == 0
