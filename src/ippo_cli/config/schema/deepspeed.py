"""`deepspeed=`: sharding of models over ranks, and sizes of forward and backward passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ippo_cli.config.constraints import NonNegativeInt, PositiveInt, Range
from ippo_cli.config.marks import Frozen
from ippo_cli.config.schema.registry import option


@option("deepspeed")
@dataclass
class DeepspeedConfig:
    """Sharding of models over ranks, and sizes of forward and backward passes."""

    stage: Frozen[Annotated[int, Range(0, 3)]]  # ZeRO stage: 0 | 1 | 2 | 3
    offload_optimizer: Frozen[bool]  # keep optimizer state in host memory (stages 1 to 3)
    offload_params: Frozen[bool]  # keep parameters in host memory (stage 3)
    reduce_bucket_size: PositiveInt  # elements per gradient reduction
    persistence_threshold: NonNegativeInt  # stage 3: smaller parameters are not sharded
    max_live_parameters: NonNegativeInt | None  # stage 3: gathered elements, plus one parameter; null = 1/8, <= 10^9
    tensor_parallel: Frozen[PositiveInt]  # ranks that split each trained model's linear maps (DeepSpeed's AutoTP)
    sequence_parallel: PositiveInt  # ranks that share each training pass, its tokens split among them; rounding only
    micro_batch_tokens: PositiveInt  # tokens per training pass, of a rank or of sequence_parallel ranks; rounding only
    forward_batch_tokens: PositiveInt  # tokens per forward without gradient (values, references); changes rounding only
    pack_sequences: bool  # pack rows instead of padding them, if the model's attention supports it
    share_prefixes: bool  # compute shared prefixes of packed rows once; changes rounding only
    logit_chunk_tokens: PositiveInt | None  # response tokens per chunk of logits; null = chunks of 64 million logits

    @property
    def ranks_per_group(self) -> int:
        """Ranks that train the same rows: those of a model-parallel group."""
        return max(self.tensor_parallel, self.sequence_parallel)
