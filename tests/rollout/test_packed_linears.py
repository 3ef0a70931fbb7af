"""Linear maps with packed weights: equal outputs, only where they pay, and restored afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ippo_cli.engine.number_formats import has_bf16_instructions
from ippo_cli.rollout import packed_linears
from ippo_cli.rollout.packed_linears import MIN_FORWARDS, is_packable, pack_linears, packed_bytes


def example(dtype: torch.dtype = torch.float32) -> tuple[nn.Sequential, Tensor]:
    """A large map with bias, a small one, a large one without bias; and states `[5, 1, 200]`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 300), nn.Linear(300, 20), nn.Linear(20, 2000, bias=False)).to(dtype)
    return model, torch.randn(5, 1, 200).to(dtype)


def packed_maps(model: nn.Sequential) -> list[bool]:
    return ["forward" in vars(part) for part in model]


@torch.no_grad()
def test_outputs_are_equal_and_maps_are_restored() -> None:
    model, states = example()
    expected = model(states)
    with pack_linears(model, 5, MIN_FORWARDS):
        assert packed_maps(model) == [True, False, True]
        torch.testing.assert_close(model(states), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(model(states.transpose(0, 1)), expected.transpose(0, 1), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(model[0](states[:1, 0]), model[0].__class__.forward(model[0], states[:1, 0]))
    assert packed_maps(model) == [False] * 3
    assert torch.equal(model(states), expected)


@torch.no_grad()
@pytest.mark.skipif(not has_bf16_instructions(), reason="this processor has no bf16 instructions")
def test_bf16_outputs_are_equal_to_the_bit() -> None:
    model, states = example(torch.bfloat16)
    expected = model(states)
    with pack_linears(model, 5, MIN_FORWARDS):
        assert packed_maps(model) == [True, False, True]
        assert torch.equal(model(states), expected)


def test_weights_of_other_kinds_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    large = nn.Linear(200, 300)
    assert is_packable(large)
    assert not is_packable(large.double())
    assert not is_packable(nn.Linear(200, 300, device="meta"))
    assert not is_packable(nn.Conv1d(200, 300, 1))
    sharded = nn.Linear(200, 300)
    sharded.weight.data = torch.empty(0)
    assert not is_packable(sharded)
    monkeypatch.setattr(packed_linears, "has_bf16_instructions", lambda: False)
    assert not is_packable(nn.Linear(200, 300, dtype=torch.bfloat16))


def test_few_forwards_change_nothing() -> None:
    model, _ = example()
    with pack_linears(model, 5, MIN_FORWARDS - 1):
        assert packed_maps(model) == [False] * 3


@torch.no_grad()
def test_missing_operation_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, states = example()
    expected = model(states)

    def refuse(*_: object) -> Tensor:
        raise RuntimeError("not implemented on this processor")

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", refuse)
    with pack_linears(model, 5, MIN_FORWARDS):
        assert packed_maps(model) == [False] * 3
        assert torch.equal(model(states), expected)


def test_maps_are_restored_after_an_error() -> None:
    model, _ = example()
    with pytest.raises(KeyError), pack_linears(model, 5, MIN_FORWARDS):
        raise KeyError("reward")
    assert packed_maps(model) == [False] * 3


def test_planned_bytes_cover_the_copies() -> None:
    model, _ = example()
    sizes = [part.numel() for part in model.parameters()]
    copied = sum(part.weight.nbytes for part in model if is_packable(part))
    assert packed_bytes(sizes, 4, MIN_FORWARDS) == copied == 4 * (200 * 300 + 20 * 2000)
    assert packed_bytes(sizes, 4, MIN_FORWARDS - 1) == 0
