"""Decoding in which no bit of a row depends on the other rows of its batch: `rollout.batch_invariant`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from ippo_cli.config.engines import TILE_ROWS
from ippo_cli.config.errors import ConfigError
from ippo_cli.models.agreement import probe_ids
from ippo_cli.rollout.continuous_batching import ContinuousBatching, language_model, text_config
from ippo_cli.rollout.fixed_slots import SMALLEST_WIDTH, FixedSlots
from ippo_cli.rollout.packed_linears import MIN_FORWARDS, pack_linears

PROBE_TOKENS, PROBE_STEPS = (9, 12), 3
"""Prompt lengths of the test rows, and tokens after each."""

_tested: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


class InvariantSlots(FixedSlots):
    """Fixed slots with a number of rows that is a multiple of `TILE_ROWS`.

    Libraries select the order of a sum by the number of rows: with AMX, 33 rows of a head have other bits than 16.
    Every row starts in the first column of its slot, so that attention sums its tokens in one order whatever the width
    of the cache. A prompt is read alone. Linear maps of a step have `TILE_ROWS` rows each; on a CPU their weights are
    packed, as in `pack_linears`, for any number of steps.
    """

    def __init__(self, model: nn.Module, slots: int = 1, max_columns: int | None = None) -> None:
        super().__init__(model, slot_count(slots), max_columns)

    @contextmanager
    def session(self, max_new_tokens: int | None = None) -> Iterator[None]:
        """See `ContinuousBatching`."""
        with (
            super().session(max_new_tokens),
            pack_linears(self._model, TILE_ROWS, MIN_FORWARDS),
            self._split_linears(),
        ):
            yield

    def prefill(self, ids: Tensor, lengths: np.ndarray, copies: np.ndarray | None = None) -> Tensor:
        """See `ModelRunner`. One forward for each prompt, without padding."""
        prompts = np.arange(len(ids)) if copies is None else copies
        logits = []
        for prompt in np.unique(prompts).tolist():
            alone = ids[prompt : prompt + 1, ids.shape[1] - int(lengths[prompt]) :]
            rows = np.zeros((prompts == prompt).sum(), dtype=np.int64)
            logits.append(super().prefill(alone, lengths[prompt : prompt + 1], rows))
        places = prompts.argsort(kind="stable").argsort()  # of each row among the rows by prompt
        self._rows[-len(places) :] = self._rows[-len(places) :][places]
        return torch.cat(logits)[torch.from_numpy(places).to(self._device)]

    @contextmanager
    def _split_linears(self) -> Iterator[None]:
        """Inside, linear maps process the rows of a step in parts of `TILE_ROWS`."""
        maps = [(part, vars(part).get("forward")) for part in self._model.modules() if type(part) is nn.Linear]
        for part, _ in maps:
            vars(part)["forward"] = self._split_rows(part.forward)
        try:
            yield
        finally:
            for part, former in maps:
                if former is None:
                    del vars(part)["forward"]
                else:
                    vars(part)["forward"] = former

    def _split_rows(self, multiply: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def forward(states: Tensor) -> Tensor:
            if not self._decoding or len(states) == TILE_ROWS:
                return multiply(states)
            return torch.cat([multiply(part) for part in states.split(TILE_ROWS)])

        return forward


def slot_count(rows: int) -> int:
    """Slots that are allocated for so many rows."""
    return -(-rows // TILE_ROWS) * TILE_ROWS


def check_invariance(model: nn.Module) -> None:
    """Raise `ConfigError` if a row's logits depend on other rows, tested once per model on its device."""
    if model not in _tested:
        _tested[model] = ContinuousBatching.supports(model) and rows_are_invariant(model)
    if not _tested[model]:
        raise ConfigError(
            "rollout.batch_invariant=true",
            f"is not possible with {type(language_model(model)).__name__} on this device: its logits of one row depend "
            "on the other rows of a batch",
            "use false",
        )


@torch.no_grad()
def rows_are_invariant(model: nn.Module) -> bool:
    """Whether one row has the same bits alone and as the last of `TILE_ROWS + 1`, in a wider cache."""
    length, device = max(PROBE_TOKENS) + PROBE_STEPS, next(model.parameters()).device
    ids = probe_ids(length + 1, text_config(model).vocab_size, device)[0]
    rows = ids[:length], ids[1 : length + 1]
    alone = _read_row(model, rows[:1], np.zeros(1, dtype=np.int64))
    beside = _read_row(model, rows[::-1], np.repeat([0, 1], [TILE_ROWS, 1]), width=2 * SMALLEST_WIDTH)
    return all(torch.equal(one, other) for one, other in zip(alone, beside, strict=True))


def _read_row(
    model: nn.Module, rows: tuple[Tensor, ...], copies: np.ndarray, width: int = SMALLEST_WIDTH
) -> list[Tensor]:
    """Logits `[V]` of the last row after its prompt and after each of its next tokens; `width`: of the cache."""
    runner = InvariantSlots(model, len(copies))
    lengths = np.array(PROBE_TOKENS[: len(rows)][::-1])  # the last row has the same length in both cases
    prompts = [row[:length] for row, length in zip(rows, lengths.tolist(), strict=True)]
    padded = [nn.functional.pad(prompt, (int(lengths.max()) - len(prompt), 0)) for prompt in prompts]
    with runner.session():
        found = [runner.prefill(torch.stack(padded), lengths, copies)[-1]]
        runner._resize(width)
        for step in range(PROBE_STEPS):
            tokens = torch.stack([row[length + step] for row, length in zip(rows, lengths.tolist(), strict=True)])
            found.append(runner.decode(tokens[torch.from_numpy(copies).to(tokens.device)])[-1])
    return found
