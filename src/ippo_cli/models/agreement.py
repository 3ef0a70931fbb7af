"""Tests whether two implementations of a forward pass agree, against a deliberate error as the yardstick.

In bf16 two correct implementations differ by rounding, which in hidden states may be as large as the effect of a wrong
position. Inputs (queries, keys and values of single tokens) and outputs of attention show an error in the layer of its
origin. Through thirty layers of a trained model even these drown in rounding; both runs are then repeated in float32
(`readings_match`).
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
    """The largest relative error of a row, of `[n, D]`; infinite for non-finite values."""
    actual, expected = actual.float(), expected.float()
    scale = expected.norm(dim=-1)
    error = (actual - expected).norm(dim=-1) / scale.clamp(min=1e-3 * float(scale.max()) + 1e-30)
    largest = float(error.max())
    return largest if largest == largest else float("inf")


def outputs_match(actual: Sequence[Tensor], expected: Sequence[Tensor], wrong: Sequence[Tensor]) -> bool:
    """Whether `actual` equals `expected` up to rounding: close everywhere, and at the entry with the largest effect of
    the deliberate error `wrong`, at most half as far away as that. Each entry is `[n, D]`, of the same n tokens.
    """
    if [part.shape for part in actual] != [part.shape for part in expected]:
        return False
    tolerance = TOLERANCES.get(expected[0].dtype, HALF_PRECISION)
    errors = [relative_error(*parts) for parts in zip(actual, expected, strict=True)]
    mistakes = [relative_error(*parts) for parts in zip(wrong, expected, strict=True)]
    largest = max(range(len(mistakes)), key=mistakes.__getitem__)
    is_distinguished = not mistakes[largest] or errors[largest] <= MISTAKE_FRACTION * mistakes[largest]
    return max(errors) <= tolerance and is_distinguished


Readings = tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]
"""States for `readings_match`: of the tested method, of the plain one, and of a deliberate error."""


def readings_match(model: nn.Module, readings: Callable[[], Readings], method: str) -> bool:
    """Whether the readings of a model agree in its own dtype or, if rounding may be the cause, in float32.

    An exception of a reading, in either precision, means False and is logged. Raised are out-of-memory errors, since
    they do not concern the method, and missing names or attributes of this package, which are faults of it.
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
    except Exception as error:  # any exception: custom models may raise anything
        if isinstance(error, NameError) or (
            isinstance(error, AttributeError) and type(error.obj).__module__.startswith("ippo_cli.")
        ):
            raise
        _log.info("%s cannot be read by %s: %r", type(model).__name__, method, error)
        return False


@contextmanager
def compute_in_float32(model: nn.Module) -> Iterator[None]:
    """Run the forwards inside in float32 with the same weights. Each layer's weights are cast during its call, so that
    there is never a second copy of the whole model: a large model may be memory-mapped.
    """
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
    """Tensors that a module's forward may use before it calls another layer: its own weights and those of its parts,
    without layers in lists and without weights that ZeRO stage 3 gathers per call.
    """
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)
    for part in module.children():
        if not isinstance(part, nn.ModuleList):
            yield from (each for each in _tensors_used_by(part) if not hasattr(each, "ds_id"))


def probe_ids(count: int, vocabulary: int, device: torch.device) -> Tensor:
    """`count` tokens spread over the vocabulary, `[1, count]`."""
    return (torch.arange(1, count + 1, device=device) * 7919 % vocabulary)[None]
