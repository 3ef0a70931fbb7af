"""Decoding in fixed slots: equal to decoding in groups, with steps that a CUDA graph can replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ippo_cli.rollout import decode as decoding
from ippo_cli.rollout import fixed_slots, noise, prompt_queue, slot_decode
from ippo_cli.rollout.fixed_slots import FixedSlots
from ippo_cli.rollout.kv_cache import KVCacheGroup
from ippo_cli.rollout.model_runner import matches_full_forward
from ippo_cli.rollout.slot_decode import GraphedStep, SlotState

FILTERED = {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.3}
STOPS = ("dc", "q", *(2 * letter for letter in "abcdefghijklmnopqrstuvwxyz"))
READS = {"_local_scalar_dense", "nonzero", "masked_select", "unique", "item", "is_nonzero", "lift_fresh"}


class Operations(TorchDispatchMode):
    """Records the operations inside, with the shapes of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        shape = tuple(result.shape) if isinstance(result, torch.Tensor) else None
        self.found.append((str(func), shape))
        return result


@pytest.fixture
def recorded_steps(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[str, Any]]]:
    """The operations of every step that is decoded in slots, with the noise of a GPU."""
    steps: list[list[tuple[str, Any]]] = []
    plain = SlotState.step

    def step(self: SlotState, **options: bool) -> None:
        with Operations() as operations:
            plain(self, **options)
        steps.append(operations.found)

    monkeypatch.setattr(SlotState, "step", step)
    monkeypatch.setattr(decoding, "uses_slots", lambda _: True)
    monkeypatch.setattr(noise, "TABLE_WORDS", 0)
    monkeypatch.setattr(noise, "_choose_by_blocks", noise._choose_densely)
    return steps


@pytest.mark.parametrize("sampling", [{}, FILTERED | {"min_new_tokens": 3}, {"greedy": True}], ids=str)
def test_steps_have_equal_operations(
    asked: Any, llama: Any, recorded_steps: list[list[tuple[str, Any]]], sampling: dict[str, Any]
) -> None:
    """Rows end, wait and join in between: no operation and no shape depends on them, and no value is read."""
    found = asked.decoded(llama, batch_size=5, **sampling)
    assert len(recorded_steps) > 10
    assert len(set(found.response_mask.sum(dim=1).tolist())) > 2
    first = recorded_steps[0]
    assert len(first) > 50
    assert all(step == first for step in recorded_steps)
    assert not {name for name, _ in first if name.split(".")[1] in READS}


def test_step_reads_and_writes_the_same_tensors(asked: Any, llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replayed graph uses the addresses of its recording."""
    addresses = set()
    plain = SlotState.step

    def step(self: SlotState, **options: bool) -> None:
        plain(self, **options)
        buffers = (*self._runner._keys.values(), *self._runner._values.values(), self._runner.num_tokens)
        rows = self.rows
        state = (rows.tokens, rows.places, rows.lengths, rows.limits, rows.live, self.outcome)
        written = (self._state.ids, self._state.logprobs)
        addresses.add(tuple(tensor.data_ptr() for tensor in (*buffers, *state, *written)))

    monkeypatch.setattr(SlotState, "step", step)
    monkeypatch.setattr(decoding, "uses_slots", lambda _: True)
    asked.decoded(llama, batch_size=5)
    assert len(addresses) == 1


@pytest.mark.parametrize("late", [0, 1, 2, 5])
@pytest.mark.parametrize("sampling", [{}, FILTERED, {"stop_strings": STOPS}], ids=["plain", "filtered", "stops"])
def test_samples_do_not_depend_on_when_the_host_reads(
    asked: Any, llama: Any, monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any], late: int
) -> None:
    """As on a GPU, where outcomes are copies that the host reads some steps late."""
    expected = asked.decoded(llama, batch_size=4, **sampling)
    queue = slot_decode.SlotDecoder._queue_outcome

    def queue_copy(self: slot_decode.SlotDecoder) -> None:
        queue(self)
        newest = self._queued.pop()
        self._queued.append(slot_decode.StepOutcome(newest.rows, newest.values.clone(), None))

    monkeypatch.setattr(slot_decode.SlotDecoder, "_queue_outcome", queue_copy)
    monkeypatch.setattr(slot_decode, "steps_late", lambda _: late)
    monkeypatch.setattr(decoding, "uses_slots", lambda _: True)
    monkeypatch.setattr(prompt_queue, "REFILL_FRACTION", 0.0)
    found = asked.decoded(llama, batch_size=4, **sampling)
    for one, two in zip(found.completions, expected.completions, strict=True):
        assert torch.equal(one.ids, two.ids)
        assert (one.text, one.finished) == (two.text, two.finished)
        torch.testing.assert_close(one.logprobs, two.logprobs, atol=1e-5, rtol=0)


def test_unknown_tokens_are_found_with_all_noise(asked: Any, llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token outside of the blocks that a step tries: its row waits until the host has asked for all noise."""
    expected, steps = asked.decoded(llama, batch_size=4, **FILTERED), []
    plain, tried = SlotState.step, noise.GumbelNoise.try_choose

    def step(self: SlotState, *, with_fixed_shapes: bool = True) -> None:
        steps.append(with_fixed_shapes)
        plain(self, with_fixed_shapes=with_fixed_shapes)

    def try_choose(self: noise.GumbelNoise, logits: torch.Tensor, places: torch.Tensor) -> Any:
        tokens, _ = tried(self, logits, places)
        known = places % 3 > 0
        return torch.where(known, tokens, 1), known

    monkeypatch.setattr(SlotState, "step", step)
    monkeypatch.setattr(noise.GumbelNoise, "try_choose", try_choose)
    monkeypatch.setattr(decoding, "uses_slots", lambda _: True)
    found = asked.decoded(llama, batch_size=4, **FILTERED)
    assert torch.equal(found.response_ids, expected.response_ids)
    assert 0 < steps.count(False) < steps.count(True)


def test_cache_is_no_wider_than_the_longest_row(asked: Any, llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that have ended are counted until the host knows it; they need no further columns."""
    widths: list[int] = []
    plain, queue = FixedSlots.read_tokens, slot_decode.SlotDecoder._queue_outcome

    def read_tokens(self: FixedSlots, tokens: torch.Tensor) -> torch.Tensor:
        widths.append(self.width)
        return plain(self, tokens)

    def queue_copy(self: slot_decode.SlotDecoder) -> None:
        queue(self)
        newest = self._queued.pop()
        self._queued.append(slot_decode.StepOutcome(newest.rows, newest.values.clone(), None))

    monkeypatch.setattr(FixedSlots, "read_tokens", read_tokens)
    monkeypatch.setattr(fixed_slots, "SMALLEST_WIDTH", 1)
    monkeypatch.setattr(slot_decode.SlotDecoder, "_queue_outcome", queue_copy)
    monkeypatch.setattr(slot_decode, "steps_late", lambda _: 3)
    monkeypatch.setattr(decoding, "uses_slots", lambda _: True)
    limit = 16 - asked.ids.shape[1]  # the longest row fills 16 columns
    asked.decoded(llama, max_new_tokens=limit, min_new_tokens=limit)
    assert max(widths) == 16


def test_free_slots_return_to_position_zero(llama: Any) -> None:
    runner = FixedSlots(llama, 3)
    with runner.session():
        runner.prefill(torch.tensor([[5, 6, 7], [0, 8, 9]]), np.array([3, 2]))
        runner.keep(np.array([False, True]))
    assert runner.num_tokens.tolist() == [0, 2, 0]


def test_prompts_are_stored_once_before_copies(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    plain = KVCacheGroup.store

    def store(self: KVCacheGroup, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        sizes.append(len(keys))
        plain(self, layer, keys, values)

    monkeypatch.setattr(KVCacheGroup, "store", store)
    runner = FixedSlots(llama, 5)
    with runner.session(), torch.no_grad():
        logits = runner.prefill(torch.tensor([[5, 6, 7], [0, 8, 9]]), np.array([3, 2]), np.array([1, 0, 1, 1, 0]))
    assert set(sizes) == {2}
    assert runner.num_tokens.tolist() == [2, 3, 2, 2, 3]
    assert torch.equal(logits[0], logits[3])


def test_cache_widens(asked: Any, llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = asked.decoded(llama, batch_size=4)
    monkeypatch.setattr(fixed_slots, "SMALLEST_WIDTH", 8)
    monkeypatch.setattr(decoding, "uses_slots", lambda _: True)
    found = asked.decoded(llama, batch_size=4)
    assert torch.equal(found.response_ids, expected.response_ids)
    torch.testing.assert_close(found.logprobs, expected.logprobs, atol=1e-5, rtol=0)


class FakeGraph:
    """A recording that a replay runs again."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.replay = step


@contextmanager
def nothing_waits() -> Iterator[None]:
    yield


def test_graphs_are_captured_once_per_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_decode, "_raise_where_host_waits", nothing_waits)
    runner: Any = SimpleNamespace(width=256, num_tokens=SimpleNamespace(device=SimpleNamespace(type="cuda")))
    steps, recorded = [], []
    step = GraphedStep(lambda: steps.append(runner.width), runner, name="Model")
    monkeypatch.setattr(GraphedStep, "_capture", lambda self: recorded.append(runner.width) or FakeGraph(self._step))
    for width in (256, 512):
        runner.width = width
        for _ in range(5):
            step()
    assert steps == [256] * 5 + [512] * 5
    assert recorded == [256, 512]


def test_model_that_cannot_be_captured_runs_plainly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner: Any = SimpleNamespace(width=256, num_tokens=SimpleNamespace(device=SimpleNamespace(type="cuda")))
    steps, mode = [], ["default"]

    @contextmanager
    def raising() -> Iterator[None]:
        mode.append("error")
        yield

    def take_step() -> None:
        if mode[-1] == "error":
            mode.pop()
            raise RuntimeError("called a synchronizing CUDA operation\nmore")
        steps.append(1)

    monkeypatch.setattr(slot_decode, "uncapturable_models", set())
    monkeypatch.setattr(slot_decode, "_raise_where_host_waits", raising)
    monkeypatch.setattr(GraphedStep, "_capture", lambda _: pytest.fail("a failed capture cannot be undone"))
    for _ in range(2):
        step = GraphedStep(take_step, runner, name="Model")
        for _ in range(4):
            step()
    assert len(steps) == 8
    assert [record.message for record in caplog.records] == [
        "Model decodes without CUDA graphs: called a synchronizing CUDA operation"
    ]


def test_slots_match_full_forward(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert matches_full_forward(llama, FixedSlots)
    plain = FixedSlots._build_mask

    def shift_mask(self: FixedSlots, dtype: torch.dtype, window: int | None) -> torch.Tensor:
        return plain(self, dtype, window).roll(1, dims=-1)

    monkeypatch.setattr(FixedSlots, "_build_mask", shift_mask)
    assert not matches_full_forward(llama, FixedSlots)


def test_slots_of_ended_rows_are_reused(llama: Any) -> None:
    runner = FixedSlots(llama, 3)
    with runner.session():
        ids = torch.tensor([[5, 6, 7], [0, 8, 9]])
        runner.prefill(ids, np.array([3, 2]))
        assert runner.live_slots.tolist() == [0, 1]
        runner.free(np.array([0]))
        runner.prefill(ids[:1], np.array([3]), np.array([0, 0]))
        assert runner.live_slots.tolist() == [1, 0, 2]
        assert runner.num_tokens.tolist() == [3, 2, 3]
        with pytest.raises(AssertionError, match="no free slot"):
            runner.prefill(ids[:1], np.array([3]))
