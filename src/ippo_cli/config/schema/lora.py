"""What every LoRA adapter has, an actor's and a critic's: rank, scale, where it sits, how it starts."""

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
    """Low-rank matrices beside the linear maps of a frozen base: `W x + scale B A x`.

    With `use_dora`: `m * V x / ||V||` with `V = W + scale B A`, a trained number m and a norm for every row of V.
    """

    rank: PositiveInt  # rows of A and columns of B, of every map
    alpha: LoraAlpha  # scale = alpha / rank, or alpha / sqrt(rank) with use_rslora
    use_rslora: bool  # rank-stabilised scale (arXiv 2312.03732)
    use_dora: bool  # weight-decomposed: rows of W + scale B A get trained norms (arXiv 2402.09353); slower
    target_modules: Any  # all-linear (every linear map but the head) | a list of module names, such as [q_proj,v_proj]
    rank_pattern: dict[str, int]  # other ranks by module name or regular expression, as PEFT has them; {} = none
    alpha_pattern: dict[str, float]  # the same of alpha
    adapter_mismatch: AdapterMismatch  # an earlier adapter of other settings: error | merge (larger rank, all modules)
    init: AdapterInit  # default (A as of a linear map, B = 0) | gaussian (A normal, B = 0): both start as the base
