"""What the decoding loop asks of a model, and which of three ways a model allows."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from ippo_cli.engine import distributed
from ippo_cli.rollout.continuous import Continuous, language_model
from ippo_cli.rollout.waves import Recompute, Waves

_log = logging.getLogger(__name__)
_known: WeakKeyDictionary[nn.Module, type[Continuous] | type[Waves] | type[Recompute]] = WeakKeyDictionary()


class Forwards(Protocol):
    """Forwards of live rows, which stand in one order; new rows come last."""

    joins: bool  # whether rows may come while others are live

    def session(self) -> AbstractContextManager[None]:
        """What all the rest happens in."""
        ...

    def fill(self, ids: Tensor, lengths: np.ndarray) -> Tensor:
        """Reads left-padded prompts `[k, P]` as the last rows; logits `[k, V]` after each."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Reads one token for each row; logits `[n, V]` after it."""
        ...

    def keep(self, alive: np.ndarray) -> np.ndarray:
        """Drops the rows that are not alive `[n]`; returns, for each row now, which row it was."""
        ...

    def idle(self) -> None:
        """The smallest forward there is, for ranks that must take part in another rank's."""
        ...


def forwards_for(model: nn.Module) -> Forwards:
    """The fastest way of decoding that this model allows, decided once per model by trying on a few tokens."""
    if model not in _known:
        ways = (way for way in (Continuous, Waves) if way.serves(model) and _agrees(model, way(model)))
        _known[model] = next(ways, Recompute)
        if _known[model] is Recompute:
            name = type(language_model(model)).__name__
            message = f"{name}: no cache of its states works with padded prompts; decoding without one is slow"
            if distributed.first_to_say(message):
                _log.warning(message)
    return _known[model](model)


@torch.no_grad()
def _agrees(model: nn.Module, candidate: Forwards) -> bool:
    """Whether prompts of unlike lengths, read together, one dropped and one token stepped, give the logits of reading
    each sequence at once."""
    ids = torch.tensor([[0, 1, 2]], device=next(model.parameters()).device)
    expected = torch.cat([model(input_ids=part, use_cache=False).logits[:, -1] for part in (ids, ids[:, 1:])])
    try:
        with candidate.session():
            candidate.fill(ids[:, :2].expand(3, 2), np.array([2, 2, 1]))
            order = candidate.keep(np.array([False, True, True]))
            found = candidate.step(ids[0, 2:].expand(2))[np.argsort(order)]
    except Exception as error:  # whatever a model of unknown making does: it means that this way is closed
        _log.info("%s cannot be decoded by %s: %r", type(model).__name__, type(candidate).__name__, error)
        return False
    tolerance = 1e-3 if expected.dtype == torch.float32 else 0.05
    return bool((found - expected).abs().max() <= tolerance * expected.abs().max())
