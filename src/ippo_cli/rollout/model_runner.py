"""The model interface of the decoding loop, and the selection of the fastest implementation that a model supports."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from ippo_cli.engine import distributed
from ippo_cli.models.agreement import Readings, probe_ids, readings_match
from ippo_cli.models.packing import Attention
from ippo_cli.rollout.continuous_batching import ContinuousBatching, language_model, text_config
from ippo_cli.rollout.fixed_slots import FixedSlots
from ippo_cli.rollout.prefix_cache import Prefix
from ippo_cli.rollout.static_batching import Recompute, StaticBatching

_log = logging.getLogger(__name__)
runner_types: WeakKeyDictionary[nn.Module, type[ContinuousBatching] | type[StaticBatching] | type[Recompute]] = (
    WeakKeyDictionary()
)
_SLOW_REASONS = {
    StaticBatching: "rows cannot join its batch while others are live; finished rows keep their places empty "
    "until all of rollout.decode_batch_size have finished, so decoding takes as long as the longest of them",
    Recompute: "no cache of its states works with padded prompts; decoding without one is slow",
}
resumable: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
slotted: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


class ModelRunner(Protocol):
    """Forward passes over live rows, which keep one order; new rows come last."""

    can_join: bool  # whether rows may come while others are live
    can_copy: bool  # whether rows may start from copies of one prompt

    def session(self, max_new_tokens: int | None = None) -> AbstractContextManager[None]:
        """The context of all other calls; rows are expected to grow by at most `max_new_tokens`."""
        ...

    def prefill(self, ids: Tensor, lengths: np.ndarray, copies: np.ndarray | None = None) -> Tensor:
        """Read left-padded prompts `[k, P]` and append one row per entry of `copies` `[n]`, the prompt index of each
        row (None, or 0 to k - 1: one of each). Logits `[n, V]` after the rows' prompts.
        """
        ...

    def decode(self, tokens: Tensor) -> Tensor:
        """Read one token for each row; logits `[n, V]` after it."""
        ...

    def keep(self, alive: np.ndarray) -> np.ndarray:
        """Drop the rows that are not alive `[n]`; return the previous index of each remaining row."""
        ...

    def dummy_forward(self) -> None:
        """Run the smallest possible forward, for ranks that must join another rank's collective."""
        ...


def model_runner_for(model: nn.Module) -> ModelRunner:
    """The fastest implementation that this model supports, tested once per model on a few tokens."""
    if model not in runner_types:
        ways = (
            way
            for way in (ContinuousBatching, StaticBatching)
            if way.supports(model) and matches_full_forward(model, way)
        )
        runner_types[model] = next(ways, Recompute)
        if runner_types[model] in _SLOW_REASONS:
            message = f"{type(language_model(model)).__name__}: {_SLOW_REASONS[runner_types[model]]}"
            if distributed.claim_log_once(message):
                _log.warning(message)
    return runner_types[model](model)


def uses_slots(model: nn.Module) -> bool:
    """Whether rows are decoded in fixed slots: on a GPU, where a step costs the launches of its kernels. Tested once
    per model.
    """
    if next(model.parameters()).device.type != "cuda" or not ContinuousBatching.supports(model):
        return False
    if model not in slotted:
        slotted[model] = matches_full_forward(model, FixedSlots)
    return slotted[model]


def can_resume(model: nn.Module) -> bool:
    """Whether rows of `ContinuousBatching` can resume from cached keys and values, tested once per model."""
    if model not in resumable:
        resumable[model] = resume_matches_full_forward(model)
        if not resumable[model]:
            name = type(language_model(model)).__name__
            message = f"{name}: the cache of earlier turns cannot be reused; every prompt is read whole"
            if distributed.claim_log_once(message):
                _log.warning(message)
    return resumable[model]


PROMPTS, STEPS = (12, 12, 7, 9), 3
"""Test prompts of a runner, and tokens after each: the first row is dropped, the last joins later."""
EARLIER, REUSED = (7, 8, 3, 5), (8, 6, 4)
"""Prompt lengths of an earlier turn within these, and how many tokens of that turn's first rows are reused."""


class _AttentionTrace:
    """Records inputs and outputs of attention, of live rows in their order. A mixin of `ContinuousBatching`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)  # pyright: ignore[reportCallIssue]
        self.trace: list[Tensor] = []

    def forward_whole(self, ids: Tensor, positions: Tensor) -> None:
        """Read rows with the unmodified model, whatever rows are live."""
        self.compute_logits(ids, positions, torch.ones_like(ids))  # pyright: ignore[reportAttributeAccessIssue]

    def attend(
        self, plain: Attention, module: nn.Module, *inputs: Tensor, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        output, weights = super().attend(plain, module, *inputs, **options)  # pyright: ignore[reportAttributeAccessIssue]
        parts = [part.transpose(1, 2).flatten(2) for part in inputs[:3]] + [output.flatten(2)]
        self.trace += [self._order_rows(part) for part in parts]
        return output, weights

    def _order_rows(self, part: Tensor) -> Tensor:
        return part


class _TracedContinuousBatching(_AttentionTrace, ContinuousBatching):
    pass


class _TracedFixedSlots(_AttentionTrace, FixedSlots):
    def _order_rows(self, part: Tensor) -> Tensor:
        return part[torch.from_numpy(self.live_slots).to(part.device)] if self._decoding else part


_TRACED = {ContinuousBatching: _TracedContinuousBatching, FixedSlots: _TracedFixedSlots}


class _ProbeRecord:
    """The recorded states of each token: entries `[D]` by (row, position)."""

    def __init__(self, candidate: ModelRunner) -> None:
        self.traced = candidate if isinstance(candidate, _AttentionTrace) else None
        self.states: dict[tuple[int, int], list[Tensor]] = {}
        self.logits: dict[tuple[int, int], Tensor] = {}

    def record(
        self, rows: Sequence[int], ends: Sequence[int], logits: Tensor, starts: Sequence[int] | None = None
    ) -> None:
        """Record one forward with newest column token `ends[i] - 1` of row `rows[i]`, and first column token
        `starts[i]` of that row.
        """
        for place, (row, end) in enumerate(zip(rows, ends, strict=True)):
            self.logits[row, end - 1] = logits[place]
        if self.traced is None:
            return
        entries, self.traced.trace = self.traced.trace, []
        columns = entries[0].shape[1]
        for place, (row, end) in enumerate(zip(rows, ends, strict=True)):
            for back in range(min(columns, end - (starts[place] if starts else 0))):
                self.states[row, end - 1 - back] = [entry[place, columns - 1 - back] for entry in entries]

    def entries(self, like: _ProbeRecord) -> list[Tensor]:
        """The records of the tokens that `like` contains: `[n, D]` each."""
        states = zip(*(self.states[key] for key in sorted(like.states)), strict=True)
        return [*map(torch.stack, states), torch.stack([self.logits[key] for key in sorted(like.logits)])]


@torch.no_grad()
def matches_full_forward(model: nn.Module, way: type[ContinuousBatching] | type[StaticBatching]) -> bool:
    """Whether prompts of different lengths, of which one is dropped and one joins later, are read and continued as in a
    full forward of each sequence, and differ from a deliberate error.
    """
    rows = _probe_rows(model)

    def readings() -> Readings:
        candidate = _TRACED.get(way, way)(model)
        with candidate.session():
            actual = _run_decoding(candidate, rows)
        expected, wrong = (_run_full_forward(model, candidate, rows, mistaken=mistaken) for mistaken in (False, True))
        return actual.entries(actual), expected.entries(actual), wrong.entries(actual)

    return readings_match(model, readings, way.__name__)


@torch.no_grad()
def resume_matches_full_forward(model: nn.Module) -> bool:
    """Whether rows that end and resume from the cache, in whole or in part and beside a live row, are read and
    continued as in a full forward of each sequence, and differ from the same deliberate error.
    """
    rows = _probe_rows(model)

    def readings() -> Readings:
        candidate = _TracedContinuousBatching(model)
        with candidate.session():
            actual = _run_resumed_decoding(candidate, rows)
        expected, wrong = (
            _run_full_forward(model, candidate, rows, mistaken=mistaken, known=REUSED) for mistaken in (False, True)
        )
        return actual.entries(actual), expected.entries(actual), wrong.entries(actual)

    return readings_match(model, readings, "reused prefixes")


def _probe_rows(model: nn.Module) -> list[Tensor]:
    ids = probe_ids(
        len(PROMPTS) + max(PROMPTS) + STEPS, text_config(model).vocab_size, next(model.parameters()).device
    )[0]
    return [ids[row : row + length + STEPS] for row, length in enumerate(PROMPTS)]


def _left_pad(rows: Sequence[Tensor]) -> tuple[Tensor, np.ndarray]:
    """Left-padded rows, and their lengths."""
    lengths = np.array([len(row) for row in rows])
    return torch.stack([nn.functional.pad(row, (int(lengths.max()) - len(row), 0)) for row in rows]), lengths


def _run_resumed_decoding(candidate: _TracedContinuousBatching, rows: Sequence[Tensor]) -> _ProbeRecord:
    notes, ends = _ProbeRecord(candidate), [length + 1 for length in EARLIER]
    candidate.prefill(*_left_pad([row[:length] for row, length in zip(rows, EARLIER, strict=True)]))
    candidate.decode(torch.stack([row[length] for row, length in zip(rows, EARLIER, strict=True)]))
    ended = np.array([True, True, True, False])
    parked = candidate.park(ended)
    candidate.keep(~ended)
    candidate.trace.clear()
    known = [Prefix(prefix.block, prefix.first, length) for prefix, length in zip(parked, REUSED, strict=True)]
    news = [row[first:end] for row, first, end in zip(rows, REUSED, PROMPTS, strict=False)]
    ends[:3] = PROMPTS[:3]
    notes.record([0, 1, 2], ends[:3], candidate.resume(*_left_pad(news), known), starts=REUSED)
    live = [3, 0, 1, 2]
    for _ in range(STEPS):
        logits = candidate.decode(torch.stack([rows[row][ends[row]] for row in live]))
        for row in live:
            ends[row] += 1
        notes.record(live, [ends[row] for row in live], logits)
    return notes


def _run_decoding(candidate: ModelRunner, rows: Sequence[Tensor]) -> _ProbeRecord:
    notes, live, ends = _ProbeRecord(candidate), [0, 1, 2], list(PROMPTS)

    def fill(new: Sequence[int]) -> None:
        prompts, lengths = _left_pad([rows[row][: ends[row]] for row in new])
        notes.record(new, lengths.tolist(), candidate.prefill(prompts, lengths))

    fill(live)
    live = [live[place] for place in candidate.keep(np.array([False, True, True]))]
    for number in range(STEPS):
        if number == 1 and candidate.can_join:
            fill([3])
            live.append(3)
        logits = candidate.decode(torch.stack([rows[row][ends[row]] for row in live]))
        for row in live:
            ends[row] += 1
        notes.record(live, [ends[row] for row in live], logits)
    return notes


def _run_full_forward(
    model: nn.Module, candidate: ModelRunner, rows: Sequence[Tensor], *, mistaken: bool, known: Sequence[int] = PROMPTS
) -> _ProbeRecord:
    """Read every row in a full forward; with an error that decoding could make: the tokens after the `known` tokens of
    a row (default: after its prompt) are shifted by one position or, for a model without position ids, padding is
    read.
    """
    known = [*known, *PROMPTS[len(known) :]]
    notes = _ProbeRecord(candidate)
    takes_positions = "position_ids" in inspect.signature(language_model(model).forward).parameters
    for number, row in enumerate(rows):
        positions = torch.arange(len(row), device=row.device)[None]
        options: dict[str, Any] = {"use_cache": False}
        if mistaken and takes_positions:
            positions = positions + (positions >= known[number])
            options["position_ids"] = positions
            options["attention_mask"] = torch.ones_like(positions)  # without it, a gap would begin another sequence
        padding = max(PROMPTS) - PROMPTS[number] if mistaken and not takes_positions else 0
        logits = model(input_ids=nn.functional.pad(row, (padding, 0))[None], **options).logits[0, padding:]
        if notes.traced is not None:
            with candidate.session():
                notes.traced.forward_whole(row[None], positions)
        notes.record([number], [len(row)], logits[-1:])
        for end in range(len(row)):
            notes.logits[number, end] = logits[end]
    return notes
