"""`deepspeed=`: how models are spread over ranks, and how much is computed at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ippo_cli.config.constraints import NonNegativeInt, PositiveInt, Range


@dataclass
class DeepspeedConfig:
    """How models are spread over ranks, and how much is computed at once."""

    stage: Annotated[int, Range(0, 3)]  # ZeRO stage: 0 | 1 | 2 | 3
    offload_optimizer: bool  # keep optimizer state in host memory (stages 1 to 3)
    offload_params: bool  # keep parameters in host memory (stage 3)
    reduce_bucket_size: PositiveInt  # elements per gradient reduction
    persistence_threshold: NonNegativeInt  # stage 3: smaller parameters stay whole on every rank
    max_live_parameters: NonNegativeInt | None  # stage 3: elements kept whole, plus one parameter; null = 1/8, to 10^9
    micro_batch_tokens: PositiveInt  # tokens per forward and backward pass, per rank; changes rounding only
    forward_batch_tokens: PositiveInt  # tokens per forward without gradient (values, references); changes rounding only
    pack_sequences: bool  # train on rows put one after another instead of padded, where a model's attention allows it
    share_prefixes: bool  # read what several packed rows begin with alike once; changes rounding only
    logit_chunk_tokens: PositiveInt | None  # response tokens whose logits exist at once; null = 64 million logits
