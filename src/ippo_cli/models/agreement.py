"""Whether another way of reading the same tokens reads the same, told apart from one that is wrong on purpose.

In bf16 two right ways differ by rounding, and in hidden states that may be as much as a wrong position makes. What
attention is given (queries, keys and values of single tokens) and gives shows a mistake where it is made. Through
thirty layers of a trained model even that is lost in rounding, and both readings are repeated in float32 (`alike`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_log = logging.getLogger(__name__)

TOLERANCES = {torch.float32: 1e-3}
HALF_PRECISION = 0.1
HALF_DTYPES = (torch.bfloat16, torch.float16)
MISTAKE_FRACTION = 0.5


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """The largest relative error of a row, of `[n, D]`; infinite where something is no number."""
    actual, expected = actual.float(), expected.float()
    scale = expected.norm(dim=-1)
    error = (actual - expected).norm(dim=-1) / scale.clamp(min=1e-3 * float(scale.max()) + 1e-30)
    largest = float(error.max())
    return largest if largest == largest else float("inf")


def outputs_match(actual: Sequence[Tensor], expected: Sequence[Tensor], wrong: Sequence[Tensor]) -> bool:
    """Whether `found` is `expected` but for rounding: everywhere near it, and, where the deliberate mistake of `wrong`
    shows most, at most half as far from it as that. Each entry is `[n, D]`, of the same n tokens."""
    if [part.shape for part in actual] != [part.shape for part in expected]:
        return False
    tolerance = TOLERANCES.get(expected[0].dtype, HALF_PRECISION)
    errors = [relative_error(*parts) for parts in zip(actual, expected, strict=True)]
    mistakes = [relative_error(*parts) for parts in zip(wrong, expected, strict=True)]
    largest = max(range(len(mistakes)), key=mistakes.__getitem__)
    is_distinguished = not mistakes[largest] or errors[largest] <= MISTAKE_FRACTION * mistakes[largest]
    return max(errors) <= tolerance and is_distinguished


Readings = tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]
"""What `agree` compares: of the way that is tried, of the plain one, and of a deliberate mistake."""


def readings_match(model: nn.Module, readings: Callable[[], Readings], method: str) -> bool:
    """Whether the readings of a model agree as it is, or, where rounding may be all that parts them, in float32.

    An error of a reading, in either precision, closes the `way` that is tried and is logged; too little memory is
    raised, since it says nothing of the way.
    """
    try:
        first = readings()
        if outputs_match(*first):
            return True
        rounds = any(each.dtype in HALF_DTYPES for each in model.parameters())
        if not rounds or not all(part.isfinite().all() for part in first[0]):
            return False
        with compute_in_float32(model):
            return outputs_match(*readings())
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # whatever a model of unknown making does
        _log.info("%s cannot be read by %s: %r", type(model).__name__, method, error)
        return False


@contextmanager
def compute_in_float32(model: nn.Module) -> Iterator[None]:
    """Forwards inside compute in float32 with the same weights. Each layer has its weights cast while it is called,
    so that there is never a second copy of all: those of a large model may lie in files."""
    originals: list[dict[Tensor, Tensor]] = []

    def cast(module: nn.Module, _: Any) -> None:
        originals.append({each: each.data for each in _tensors_used_by(module) if each.dtype in HALF_DTYPES})
        for each in originals[-1]:
            each.data = each.data.float()

    def restore(*_: Any) -> None:
        for each, data in originals.pop().items():
            each.data = data

    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(cast))
        handles.append(module.register_forward_hook(restore, prepend=True, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        while originals:  # an interruption ends forwards without their hooks
            restore()


def _tensors_used_by(module: nn.Module) -> Iterator[Tensor]:
    """What a forward of a module may use before it calls another: its weights and those of its parts, but not of
    layers, which stand in lists, nor what ZeRO stage 3 gathers for each call."""
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)
    for part in module.children():
        if not isinstance(part, nn.ModuleList):
            yield from (each for each in _tensors_used_by(part) if not hasattr(each, "ds_id"))


def probe_ids(count: int, vocabulary: int, device: torch.device) -> Tensor:
    """`count` tokens from all over the vocabulary, `[1, count]`."""
    return (torch.arange(1, count + 1, device=device) * 7919 % vocabulary)[None]
