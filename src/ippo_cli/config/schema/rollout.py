"""`rollout=`: how responses are sampled."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from ippo_cli.config.constraints import NonNegativeInt, PositiveInt, Range, RepetitionPenalty, Temperature
from ippo_cli.config.marks import Changeable, EvalCompute, Frozen, InEval
from ippo_cli.config.schema.registry import option


class ContextMode(str, Enum):
    append = "append"
    retokenize = "retokenize"
    last_only = "last_only"


class Zero3Gather(str, Enum):
    all = "all"
    layer = "layer"


@dataclass
class SamplingConfig:
    """How tokens are sampled: the keys of `rollout` that an agent may override."""

    temperature: InEval[Changeable[Temperature]]  # divides the logits, also in log-probs, entropy and KL
    top_p: InEval[Changeable[Annotated[float, Range(0.0, 1.0, open_low=True)]]]  # nucleus filter; 1 = off
    top_k: InEval[Changeable[NonNegativeInt]]  # keep the k most likely tokens; 0 = off
    min_p: InEval[Changeable[Annotated[float, Range(0.0, 1.0, open_high=True)]]]
    # minimum probability relative to the top token; 0 = off
    repetition_penalty: InEval[Changeable[RepetitionPenalty]]
    # divides the logits of tokens that occurred before; 1 = off
    max_new_tokens: InEval[Changeable[PositiveInt]]  # maximum tokens of a response
    min_new_tokens: InEval[Changeable[NonNegativeInt]]  # no stop token before this many tokens
    stop_strings: InEval[Changeable[list[str]]]  # strings that end a response

    @property
    def has_filters(self) -> bool:
        """Whether the sampling distribution differs from the softmax at this temperature."""
        changes_logits = self.repetition_penalty != 1 or self.min_new_tokens > 0
        return changes_logits or self.top_p < 1 or self.top_k > 0 or self.min_p > 0


@option("rollout", "hf", schema="rollout", generator="ippo_cli.rollout.generator:HfGenerator")
@dataclass
class RolloutConfig(SamplingConfig):
    """How responses are sampled."""

    kind: str  # hf: batched decoding with the training model
    buffer_size: Frozen[PositiveInt]  # joint samples per iteration over all ranks: prompts x num_generations
    num_generations: Frozen[PositiveInt]  # responses per prompt and agent, aligned by index across agents
    decode_batch_size: EvalCompute[PositiveInt]
    # rows decoded in one batch, per rank; changes samples by rounding only (in bf16)
    max_prompt_tokens: InEval[PositiveInt]
    # a longer first prompt is an error; later (context=last_only) it ends the episode
    context_limit: InEval[Annotated[int, Range(2)] | None]
    # limit of prompt + response; null = the model's context length
    context: InEval[ContextMode]  # of later turns: append | retokenize (if rewritten by the chat template) | last_only
    recompute_logprobs: bool  # old log-probs from a forward of the training model, not from the sampler
    zero3_gather: Zero3Gather  # ZeRO stage 3: all (whole weights while decoding) | layer (one layer at a time)
