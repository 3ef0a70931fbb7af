"""`rollout=`: how responses are sampled."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from ippo_cli.config.constraints import NonNegativeInt, PositiveFloat, PositiveInt, Range


class RolloutKind(str, Enum):
    hf = "hf"


class History(str, Enum):
    prefix = "prefix"
    turns = "turns"
    latest = "latest"


class Zero3Gather(str, Enum):
    all = "all"
    layer = "layer"


GREEDY = (
    "a policy without randomness learns nothing, and greedy decoding is for evaluation: evaluation.greedy=true (and "
    "evaluation.sampled=false for nothing else), or greedy=true in ippo-chat"
)
Temperature = Annotated[float, Range(0.0, open_low=True, at_low=GREEDY)]


@dataclass
class SamplingConfig:
    """How tokens are chosen: the keys of `rollout` that an agent may have values of its own for."""

    temperature: Temperature  # divides the logits; log-probs, entropy and KL use it as well
    top_p: Annotated[float, Range(0.0, 1.0, open_low=True)]  # nucleus filter; 1 = off
    top_k: NonNegativeInt  # keep the k likeliest tokens; 0 = off
    min_p: Annotated[float, Range(0.0, 1.0, open_high=True)]  # drop tokens below this share of the likeliest; 0 = off
    repetition_penalty: PositiveFloat  # divide the logits of tokens already seen; 1 = off
    max_new_tokens: PositiveInt  # response limit
    min_new_tokens: NonNegativeInt  # no stop token before this many tokens
    stop_strings: list[str]  # text that ends a response

    @property
    def filters(self) -> bool:
        """Whether tokens are drawn from anything else than the tempered distribution."""
        changes_logits = self.repetition_penalty != 1 or self.min_new_tokens > 0
        return changes_logits or self.top_p < 1 or self.top_k > 0 or self.min_p > 0


@dataclass
class RolloutConfig(SamplingConfig):
    """How responses are sampled."""

    kind: RolloutKind  # hf: batched decoding with the training model itself
    buffer_size: PositiveInt  # joint samples per iteration over all ranks: prompts x num_generations
    num_generations: PositiveInt  # responses per prompt and agent, aligned by index across agents
    decode_batch_size: PositiveInt  # rows decoded together, per rank; changes samples by rounding only (seen in bf16)
    max_prompt_tokens: PositiveInt  # more in a first prompt is an error; later, with history=latest, it cuts an episode
    context_limit: Annotated[int, Range(2)] | None  # prompt + response limit; null = what the model was made for
    history: History  # what agents read later: prefix (all so far) | turns (anew, where rewritten) | latest (told last)
    recompute_logprobs: bool  # take the ratio against a forward of the training model, not the sampler's own numbers
    zero3_gather: Zero3Gather  # ZeRO stage 3: all (whole weights while decoding) | layer (one layer at a time)
