"""The engine of a model that is not trained: forwards only, without an optimizer and without DeepSpeed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ippo_cli.engine.zero import Engine, M


class ForwardEngine(Engine[M]):
    """A module in eval mode, whole on each of its ranks. It has no optimizer: it can neither step nor save."""

    def __init__(self, module: M, device: torch.device) -> None:
        assert isinstance(module, nn.Module)
        self.module = module.to(device).eval().requires_grad_(False)
        self._stage, self._is_split, self._is_gathered, self.updates = 0, False, False, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def destroy(self) -> None:
        """Nothing to remove from the module."""
