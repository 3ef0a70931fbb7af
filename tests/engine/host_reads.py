"""Counts reads of tensors by the host, which on a GPU wait for all queued work. Tests import this by its path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

READS = {
    Tensor.cpu,
    Tensor.item,
    Tensor.tolist,
    Tensor.nonzero,
    torch.nonzero,
    torch.argwhere,
    Tensor.unique,
    torch.unique,
    Tensor.masked_select,
    torch.masked_select,
    Tensor.__bool__,
    Tensor.__int__,
    Tensor.__index__,
    Tensor.__float__,
}
SIZED_BY_VALUES = {Tensor.repeat_interleave, torch.repeat_interleave}  # without a known output size
INDEXED = {Tensor.__getitem__, Tensor.__setitem__}


class HostReads(TorchFunctionMode):
    """Number of reads inside, and of copies that may cross between host and device.

    Tensors are on the CPU here, so reads and copies of CPU tensors count as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.copies = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        sized = (
            func in SIZED_BY_VALUES
            and "output_size" not in given
            and any(map(_is_tensor, [*args[1:], *given.values()]))
        )
        masked = func in INDEXED and _has_mask(args[1])
        self.count += func in READS or sized or masked
        self.copies += func is Tensor.to and any(
            isinstance(one, torch.device | str) for one in [*args, *given.values()]
        )
        return func(*args, **given)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _has_mask(index: Any) -> bool:
    """Whether an index is a mask, which the host must count."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(_is_tensor(part) and part.dtype == torch.bool for part in parts)
