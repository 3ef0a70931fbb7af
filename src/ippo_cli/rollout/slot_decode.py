"""Decoding in fixed slots: a step is one sequence of operations on the device, which a GPU replays as a CUDA graph.

The host learns a few steps late which rows have ended; until then the slot of such a row repeats its last token and
writes nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from ippo_cli.rollout.decode_state import DecodeHooks, DecodeState
from ippo_cli.rollout.fixed_slots import FixedSlots
from ippo_cli.rollout.prompt_queue import PrefixCacheSession, PromptQueue, prefill_count
from ippo_cli.rollout.sampling import sample_tokens
from ippo_cli.types import Completion

_log = logging.getLogger(__name__)
STEPS_LATE = 2
"""Steps that a GPU has queued when the host reads the outcome of an earlier one."""
uncapturable_models: set[str] = set()
"""Classes of models with a step that cannot be captured."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What the host learns of one step."""

    rows: np.ndarray  # [slots] the row of each slot at that time; -1: free
    values: Tensor  # [4, slots] int64 on the host: newest token, length of the response, whether the row is live,
    # and whether its token is unknown
    event: torch.cuda.Event | None  # the end of the copy


@dataclass(frozen=True, slots=True)
class SlotRows:
    """The rows of some slots, `[n]` each; a step changes the tensors in place."""

    tokens: Tensor  # int64: the newest token
    places: Tensor  # int64: where the next token goes, flat, in the buffers
    lengths: Tensor  # int64: tokens of the response
    limits: Tensor  # int64
    live: Tensor  # bool
    seen: Tensor | None  # [n, V] bool, with a repetition penalty


class SlotState:
    """The tensors of a step, of fixed shapes and addresses: the newest token of every slot and where the next one goes.

    Tokens and log-probabilities are written to the buffers of a `DecodeState`.
    """

    def __init__(self, state: DecodeState, runner: FixedSlots, vocabulary: int) -> None:
        self._state, self._runner = state, runner
        device = state.ids.device
        zeros = torch.zeros(4, len(runner), dtype=torch.long, device=device)
        is_penalized = state.sampling.repetition_penalty != 1
        self.rows = SlotRows(
            *zeros.unbind(),
            live=torch.zeros(len(runner), dtype=torch.bool, device=device),
            seen=torch.zeros(len(runner), vocabulary, dtype=torch.bool, device=device) if is_penalized else None,
        )
        self.outcome = torch.zeros_like(zeros)
        self.stops = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        self.stops[list(state.stop_ids)] = True

    def step(self, *, with_fixed_shapes: bool = True) -> None:
        """Read the newest token of every slot and sample the next one.

        `with_fixed_shapes`: no value is read by the host, and a row does not advance while its next token is unknown.
        """
        live = self.rows.live.clone()
        logits = self._runner.read_tokens(self.rows.tokens)
        advances = self._sample_tokens(logits, self.rows, with_fixed_shapes=with_fixed_shapes)
        self._runner.num_tokens += advances
        self._write_outcome(live & ~advances)

    def join(self, rows: np.ndarray, slots: np.ndarray, logits: Tensor) -> None:
        """Give slots to rows after their prompts, and sample their first tokens from `logits [n, V]`."""
        state, device = self._state, self.stops.device
        to = torch.from_numpy(slots).to(device)
        first = torch.from_numpy(state.lengths[rows]).to(device)
        places = torch.from_numpy(rows).to(device) * state.ids.shape[1] + first
        new = SlotRows(
            tokens=torch.zeros_like(places),
            places=places,
            lengths=first,
            limits=torch.from_numpy(state.limits[rows]).to(device),
            live=torch.ones_like(places, dtype=torch.bool),
            seen=None if self.rows.seen is None else state.find_seen_tokens(rows, len(self.stops)),
        )
        self._sample_tokens(logits, new, with_fixed_shapes=False)
        for field in fields(SlotRows):
            part = getattr(self.rows, field.name)
            if part is not None:
                part[to] = getattr(new, field.name)
        self._write_outcome(torch.zeros_like(self.rows.live))

    def _sample_tokens(self, logits: Tensor, rows: SlotRows, *, with_fixed_shapes: bool) -> Tensor:
        """Sample a token for each row and write it where the row is live and the token known; returns these rows,
        `[n]` bool.
        """
        state, banned = self._state, None
        if state.sampling.min_new_tokens > 0:
            banned = (rows.lengths < state.sampling.min_new_tokens)[:, None] & self.stops
        choice = sample_tokens(
            logits,
            state.sampling,
            noise=state.noise,
            places=rows.places,
            seen=rows.seen,
            banned=banned,
            with_fixed_shapes=with_fixed_shapes,
        )
        advances = rows.live.clone() if choice.known is None else rows.live & choice.known
        written = [(state.ids, choice.tokens), (state.logprobs, choice.logprobs)]
        if state.behavior_logprobs is not state.logprobs:
            written.append((state.behavior_logprobs, choice.behavior_logprobs))
        for buffer, new in written:
            flat = buffer.view(-1)
            flat[rows.places] = torch.where(advances, new, flat[rows.places])  # no two slots share a cell
        if rows.seen is not None:
            newest = choice.tokens[:, None]
            rows.seen.scatter_(1, newest, rows.seen.gather(1, newest) | advances[:, None])
        rows.lengths.add_(advances)
        rows.live.logical_and_(~(advances & (self.stops[choice.tokens] | (rows.lengths >= rows.limits))))
        rows.places.add_(advances & rows.live)
        rows.tokens.copy_(torch.where(advances, choice.tokens, rows.tokens))
        return advances

    def _write_outcome(self, unknown: Tensor) -> None:
        for place, values in enumerate((self.rows.tokens, self.rows.lengths, self.rows.live, unknown)):
            self.outcome[place] = values


class GraphedStep:
    """A step that a GPU replays as one CUDA graph for each width of the cache; elsewhere a plain call.

    The first two steps of a width run as plain calls: libraries prepare their workspaces in them, and the second one
    raises where the host would wait for the device. Such a model runs plainly: a failed capture would leave the
    allocator in an undefined state.
    """

    def __init__(self, step: Callable[[], None], runner: FixedSlots, *, name: str) -> None:
        self._step, self._runner, self._name = step, runner, name
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._plain_steps: dict[int, int] = {}
        self._is_gpu = runner.num_tokens.device.type == "cuda"

    def __call__(self) -> None:
        width = self._runner.width
        if width in self._graphs:
            self._graphs[width].replay()
            return
        plain = self._plain_steps.get(width, 0)
        self._plain_steps[width] = plain + 1
        if plain == 0 or not self._is_gpu or self._name in uncapturable_models:
            self._step()
        elif plain == 1:
            self._try_step()
        else:
            self._graphs.clear()  # a cache only widens
            self._graphs[width] = self._capture()
            self._graphs[width].replay()

    def _try_step(self) -> None:
        """A plain step; a model that reads a value on the host is not captured, and takes the step again.

        An operation that waits raises before it ends, and a step changes no state before its last operations, so that
        the same step can be taken again.
        """
        try:
            with _raise_where_host_waits():
                self._step()
        except RuntimeError as error:
            uncapturable_models.add(self._name)
            _log.warning("%s decodes without CUDA graphs: %s", self._name, str(error).splitlines()[0])
            self._step()

    def _capture(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Threads of rewards and environments may use the device meanwhile.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._step()
        return graph


@contextmanager
def _raise_where_host_waits() -> Iterator[None]:
    former = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(former)


def steps_late(is_gpu: bool) -> int:
    """Queued steps with an outcome that the host has not read. A CPU overwrites the outcome in the next step."""
    return STEPS_LATE if is_gpu else 0


class SlotDecoder:
    """The loop of the host: it fills free slots, queues steps and collects rows that have ended."""

    def __init__(
        self,
        runner: FixedSlots,
        state: DecodeState,
        waiting: PromptQueue,
        turns: PrefixCacheSession | None,
        hooks: DecodeHooks,
    ) -> None:
        self._runner, self._state, self._waiting, self._turns = runner, state, waiting, turns
        self._poll, self._on_finished = hooks.poll, hooks.on_finished
        self._slots: SlotState | None = None
        self._rows = np.full(len(runner), -1, dtype=np.int64)  # by slot; -1: free
        self._tokens: dict[int, list[int]] = {}  # the newest tokens by row, where there are stop strings
        self._queued: deque[StepOutcome] = deque()
        self._has_unknown_tokens = False  # of rows that a step with fixed shapes does not advance
        self._is_gpu = state.ids.device.type == "cuda"
        self._total = len(state.lengths)

    def run(self, name: str) -> dict[int, Completion]:
        """Decode all rows; returns the completions that `on_finished` received, by row."""
        reported: dict[int, Completion] = {}
        step = GraphedStep(self._step, self._runner, name=name)
        while True:
            live = int((self._rows >= 0).sum())
            places = prefill_count(live, len(self._waiting), len(self._rows))
            if places:
                self._fill(places)
            elif not live:
                return reported
            else:
                self._runner.reserve_column()
                if self._has_unknown_tokens:
                    self._has_unknown_tokens = False
                    self._step(with_fixed_shapes=False)
                else:
                    step()
            self._queue_outcome()
            while len(self._queued) > steps_late(self._is_gpu):
                self._collect(self._queued.popleft(), reported)
            if self._poll is not None:
                self._poll(self._total - len(self._waiting) - int((self._rows >= 0).sum()), self._total)

    def _step(self, *, with_fixed_shapes: bool = True) -> None:
        assert self._slots is not None
        self._slots.step(with_fixed_shapes=with_fixed_shapes)

    def _fill(self, places: int) -> None:
        while places:
            new = self._waiting.pop_prefill(places)
            if self._turns is None:
                logits = self._runner.prefill(new.ids, new.lengths, new.prompt_index)
            else:
                logits = self._turns.prefill(new)
            slots = self._runner.live_slots[-len(new.rows) :]
            self._rows[slots] = new.rows
            if self._slots is None:
                self._slots = SlotState(self._state, self._runner, logits.shape[1])
            self._slots.join(new.rows, slots, logits)
            places = min(places - len(new.rows), len(self._waiting))

    def _queue_outcome(self) -> None:
        assert self._slots is not None
        outcome, event = self._slots.outcome, None
        if self._is_gpu:
            outcome = torch.empty(outcome.shape, dtype=outcome.dtype, pin_memory=True).copy_(outcome, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._queued.append(StepOutcome(self._rows.copy(), outcome, event))

    def _collect(self, outcome: StepOutcome, reported: dict[int, Completion]) -> None:
        """Take note of the rows that have ended."""
        if outcome.event is not None:
            outcome.event.synchronize()
        tokens, lengths, live, unknown = outcome.values.numpy()
        is_current = (outcome.rows >= 0) & (outcome.rows == self._rows)
        self._has_unknown_tokens |= bool((is_current & (unknown != 0)).any())
        ended = is_current & (live == 0)
        if self._state.has_stop_strings:
            ended |= self._end_at_stop_strings(np.flatnonzero(is_current), tokens, lengths)
        slots = np.flatnonzero(ended)
        if not len(slots):
            return
        rows = self._rows[slots]
        self._state.lengths[rows] = lengths[slots]
        self._state.finished[rows] |= np.isin(tokens[slots], self._state.stop_ids)
        self._release(slots, rows, reported)

    def _end_at_stop_strings(self, slots: np.ndarray, tokens: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """End rows with newest tokens that complete a stop string; `[slots]` bool."""
        ended = np.zeros(len(self._rows), dtype=bool)
        rows = self._rows[slots].tolist()
        for slot, row in zip(slots.tolist(), rows, strict=True):
            newest = self._tokens.setdefault(row, self._state.given_tokens(row))
            if len(newest) < lengths[slot]:  # other rows may have joined, or its token be unknown
                newest.append(int(tokens[slot]))
        ended[slots] = self._state.find_stop_strings(rows, [self._tokens[row] for row in rows])
        if ended.any():
            assert self._slots is not None
            self._state.finished[self._rows[ended]] = True
            live = self._slots.rows.live
            live[torch.from_numpy(np.flatnonzero(ended)).to(live.device)] = False
        return ended

    def _release(self, slots: np.ndarray, rows: np.ndarray, reported: dict[int, Completion]) -> None:
        """Free the slots of rows that have ended, after their completions and caches are taken."""
        state = self._state
        if self._on_finished is not None:
            completions = state.completions(rows)
            reported.update(zip(rows.tolist(), completions, strict=True))
            self._on_finished(rows.tolist(), completions)
        if self._turns is not None:
            self._turns.park_slots(state, rows, slots)
        self._runner.free(slots)
        self._rows[slots] = -1
        for row in rows.tolist():
            self._tokens.pop(row, None)
