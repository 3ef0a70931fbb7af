"""Counts how often the host reads tensors: on a GPU it waits for all that is queued. Tests import this by its path."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

READS = {
    torch.Tensor.cpu,
    torch.Tensor.item,
    torch.Tensor.tolist,
    torch.Tensor.nonzero,
    torch.nonzero,
    torch.Tensor.__bool__,
    torch.Tensor.__int__,
    torch.Tensor.__index__,
    torch.Tensor.__float__,
}


class HostReads(TorchFunctionMode):
    """How many reads there were in it. Tensors lie on the CPU here, so reads of what is there anyway count as well."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.count += func in READS
        return func(*args, **(kwargs or {}))
