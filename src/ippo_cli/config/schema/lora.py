"""Keys of LoRA adapters of actors and critics: rank, scale, target modules, initial values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from ippo_cli.config.constraints import LoraAlpha, PositiveInt

ALL_LINEAR = "all-linear"


class AdapterMismatch(str, Enum):
    error = "error"
    merge = "merge"


class AdapterInit(str, Enum):
    default = "default"
    gaussian = "gaussian"


@dataclass
class LoraConfig:
    """Low-rank matrices added to the linear layers of a frozen base: `W x + scale B A x`.

    With `use_dora`: `m * V x / ||V||` with `V = W + scale B A`; m (trained) and ||V|| have one value per row of V.
    """

    rank: PositiveInt  # rows of A and columns of B
    alpha: LoraAlpha  # scale = alpha / rank, or alpha / sqrt(rank) with use_rslora
    use_rslora: bool  # rank-stabilised scale (arXiv 2312.03732)
    use_dora: bool  # weight-decomposed: rows of W + scale B A have trained norms (arXiv 2402.09353); slower
    target_modules: Any  # all-linear (every linear layer except the head) | a list of module names: [q_proj,v_proj]
    rank_pattern: dict[str, int]  # rank by module name or regular expression, as in PEFT; {} = none
    alpha_pattern: dict[str, float]  # alpha by module name or regular expression, as in PEFT; {} = none
    adapter_mismatch: AdapterMismatch  # a loaded adapter has other settings: error | merge (larger rank, all modules)
    init: AdapterInit  # default (A as in nn.Linear, B = 0) | gaussian (A normal, B = 0): both start equal to the base
