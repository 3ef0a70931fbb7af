"""Weights of linear maps in the block layout of oneDNN while a CPU decodes: few rows are then multiplied faster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

import torch
from torch import Tensor, nn

from ippo_cli.engine.number_formats import has_bf16_instructions

MIN_WEIGHTS = 1 << 15
"""Weights of a map from which the layout saves more than the operation costs."""
MIN_FORWARDS = 16
"""Forwards that repay the copy of the weights: with SmolLM2 on two cores it takes .1 s, and saves 40 ms per forward."""


@contextmanager
def pack_linears(model: nn.Module, rows: int, forwards: int) -> Iterator[None]:
    """Inside, linear maps of a model on a CPU use copies of their weights for batches of about `rows` rows.

    Nothing changes on a GPU, for a small map, for fewer than `MIN_FORWARDS` forwards, for weights that are sharded, or
    where torch or the processor lack the operation. Weights must not change inside. In bf16 outputs are equal to the
    bit; in float32 they may differ by rounding, since torch uses another library.
    """
    maps = [part for part in model.modules() if isinstance(part, nn.Linear) and is_packable(part)]
    maps = maps if forwards >= MIN_FORWARDS else []
    packed: list[nn.Module] = []
    try:
        with suppress(RuntimeError):  # a processor or a build without the operation: the remaining maps are unchanged
            for part in maps:
                weight = torch.ops.mkldnn._reorder_linear_weight(part.weight.detach(), max(rows, 1))
                vars(part)["forward"] = partial(_multiply, weight, part.bias)
                packed.append(part)
        yield
    finally:
        for part in packed:
            del vars(part)["forward"]


def packed_bytes(sizes: Iterable[int], width: int, forwards: int) -> float:
    """Bytes of the copies on a CPU, at most, for parameters of these sizes with `width` bytes per weight."""
    if forwards < MIN_FORWARDS or (width < 4 and not has_bf16_instructions()):
        return 0.0
    return float(width * sum(size for size in sizes if size >= MIN_WEIGHTS))


def is_packable(part: nn.Module) -> bool:
    """Whether the weights of this module are copied."""
    if type(part) is not nn.Linear or part.weight.device.type != "cpu" or part.weight.numel() < MIN_WEIGHTS:
        return False
    is_supported = part.weight.dtype is torch.float32 or (
        part.weight.dtype is torch.bfloat16 and has_bf16_instructions()
    )
    return is_supported and _has_operation() and "forward" not in vars(part)


def _has_operation() -> bool:
    operations = torch.ops.mkldnn
    return torch.backends.mkldnn.is_available() and all(
        hasattr(operations, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )


def _multiply(weight: Tensor, bias: Tensor | None, states: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
