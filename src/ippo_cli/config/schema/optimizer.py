"""Keys of trained models: AdamW, learning-rate schedule, gradient clipping, number format."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from ippo_cli.config.constraints import Epsilon, GradNorm, LearningRate, NonNegativeInt, Range, UnitFloat, WeightDecay
from ippo_cli.config.marks import Changeable


class Dtype(str, Enum):
    fp32 = "fp32"
    bf16 = "bf16"


class Schedule(str, Enum):
    constant = "constant"
    linear = "linear"
    cosine = "cosine"


@dataclass
class OptimizerConfig:
    """Keys of trained models: AdamW, learning-rate schedule, gradient clipping."""

    learning_rate: Changeable[LearningRate]  # peak learning rate of AdamW
    lr_schedule: Changeable[Schedule]  # constant | linear | cosine decay over the run, after the warm-up
    warmup_iterations: Changeable[NonNegativeInt]  # iterations over which the learning rate rises linearly from 0
    min_lr_ratio: Changeable[UnitFloat]  # fraction of the peak learning rate at which linear and cosine schedules end
    weight_decay: Changeable[WeightDecay]
    # AdamW's decoupled weight decay (applied to matrices, not to biases and norms)
    adam_beta1: Changeable[Annotated[float, Range(0.0, 1.0, open_high=True)]]  # AdamW's first-moment decay
    adam_beta2: Changeable[Annotated[float, Range(0.0, 1.0, open_high=True)]]  # AdamW's second-moment decay
    adam_epsilon: Changeable[Epsilon]  # AdamW's epsilon
    max_grad_norm: Changeable[GradNorm]  # global gradient-norm clip; 0 switches it off
