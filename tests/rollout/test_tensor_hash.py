"""Hashes of tensors that add up over the parts of a tensor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ippo_cli.rollout.tensor_hash import WORDS, TensorHash, tensor_hash


def total(*hashes: TensorHash) -> TensorHash:
    return TensorHash(*(sum(values) % 2**64 for values in zip(*hashes, strict=True)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_rows_and_columns_add_up_and_padding_adds_nothing(dtype: torch.dtype, width: int) -> None:
    torch.manual_seed(0)
    whole = torch.randn(7, 2 * width).to(dtype)
    padded = torch.cat([whole, torch.zeros(4, 2 * width, dtype=dtype)])
    assert tensor_hash(padded) == tensor_hash(whole)
    assert tensor_hash(whole) == total(tensor_hash(whole[:5]), tensor_hash(whole[5:], row=5))
    if width == 8:  # otherwise the halves have other words
        assert tensor_hash(whole) == total(tensor_hash(whole[:, :8]), tensor_hash(whole[:, 8:], column=8))
        wide = torch.cat([whole, torch.zeros(7, 8, dtype=dtype)], dim=1)
        assert tensor_hash(wide) == tensor_hash(whole)
    assert tensor_hash(torch.zeros(4, width, dtype=dtype)) == (0, 0)


def test_one_changed_bit_changes_both_hashes() -> None:
    tensor = torch.randn(6, 8)
    before = tensor_hash(tensor)
    bits = tensor.view(torch.int32)
    for place in (0, 17, 47):
        for bit in (0, 9, 31):
            bits.view(-1)[place] ^= (1 << bit) if bit < 31 else -(1 << 31)
            after = tensor_hash(tensor)
            assert after.content != before.content
            assert after.position != before.position
            bits.view(-1)[place] ^= (1 << bit) if bit < 31 else -(1 << 31)
    assert tensor_hash(tensor) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "permute",
    [
        lambda one: one.roll(1, 0),
        lambda one: one.roll(1, 1),
        lambda one: one[[1, 0, *range(2, 16)]],
        lambda one: torch.cat([one[8:], one[:8]]),
        lambda one: one.view(4, 4, 16)[[0, 2, 1, 3]].reshape(16, 16),
        lambda one: one.T,
    ],
    ids=["shifted rows", "shifted columns", "exchanged rows", "exchanged halves", "exchanged heads", "transposed"],
)
def test_another_order_changes_the_position_hash(dtype: torch.dtype, permute: object) -> None:
    torch.manual_seed(1)
    tensor = torch.randn(16, 16).to(dtype)
    other: Tensor = permute(tensor)  # type: ignore[operator]
    assert tensor_hash(other).position != tensor_hash(tensor).position


def test_rows_in_another_order_have_the_same_content_hash() -> None:
    tensor = torch.randn(16, 16)
    assert tensor_hash(tensor.roll(1, 0)).content == tensor_hash(tensor).content


def test_exchanged_elements_of_a_vector_are_seen() -> None:
    tensor = torch.randn(5)
    other = tensor[[0, 1, 3, 2, 4]]
    assert tensor_hash(other).content == tensor_hash(tensor).content
    assert tensor_hash(other).position != tensor_hash(tensor).position


def test_large_tensors_are_hashed_in_parts() -> None:
    tensor = torch.arange(2 * WORDS + 6, dtype=torch.int64)
    parts = tensor_hash(tensor[: WORDS + 2]), tensor_hash(tensor[WORDS + 2 :], row=WORDS + 2)
    assert tensor_hash(tensor) == total(*parts)


def test_views_and_empty_tensors() -> None:
    tensor = torch.randn(4, 8)
    assert tensor_hash(tensor.T) == tensor_hash(tensor.T.contiguous())
    assert tensor_hash(torch.zeros(0, 8)) == (0, 0)
