"""The embedded model's warm start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from ippo_cli.config.load import load_config
from ippo_cli.config.schema import TinyActorConfig
from ippo_cli.models.tiny import character_tokenizer, tiny_config, warm_start

COMMON, RARE = ("ab>", "x"), ("cd>", "y")  # prompt, answer


@pytest.fixture
def warmed_up() -> Callable[[list[tuple[str, str]]], tuple[LlamaForCausalLM, PreTrainedTokenizerFast]]:
    """A small model after a few supervised steps on these pairs."""
    actor = load_config([]).actor
    assert isinstance(actor, TinyActorConfig)
    actor = replace(actor, hidden_size=32, num_layers=1, num_heads=2, warm_start_steps=25, warm_start_batch_size=32)

    def make(pairs: list[tuple[str, str]]) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
        tokenizer = character_tokenizer("abcdxy>")
        torch.manual_seed(0)
        lm = LlamaForCausalLM(tiny_config(actor, len(tokenizer)))
        warm_start(lm, tokenizer, pairs, actor, 0, lambda step, steps, loss: None)
        return lm, tokenizer

    return make


def probability(lm: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, pair: tuple[str, str]) -> float:
    """Of the first character of the answer."""
    prompt, answer = pair
    with torch.no_grad():
        logits = lm(input_ids=torch.tensor([tokenizer(prompt).input_ids])).logits[0, -1]
    return float(logits.softmax(-1)[tokenizer(answer).input_ids[0]])


def test_a_rare_answer_is_left_as_probable_as_a_common_one(warmed_up) -> None:
    lm, tokenizer = warmed_up([*[COMMON] * 49, RARE])
    rare, common = probability(lm, tokenizer, RARE), probability(lm, tokenizer, COMMON)
    assert rare > 0.5 * common
