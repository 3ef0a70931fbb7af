"""Observations that are far too long are cut; texts that no tokenizer encodes are errors."""

from __future__ import annotations

from string import printable
from typing import Any

import pytest

from ippo_cli.models.tiny import byte_tokenizer, character_tokenizer
from ippo_cli.tasks.call_history import append_call
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.messages import MessagesText
from ippo_cli.tasks.model_call import ModelCall
from ippo_cli.tasks.observations import check_text, cut_observation, describe_length

LIMIT = 256
LONG = "word " * 400_000
TOKENIZERS = {"characters": character_tokenizer(printable), "bytes": byte_tokenizer()}


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@pytest.mark.parametrize(
    "observation",
    [
        LONG,
        "x" * 2_000_000,
        MessagesText([{"role": "user", "content": "One?"}, {"role": "user", "content": LONG}]),
        ModelCall([{"role": "user", "content": LONG}]),
    ],
    ids=["words", "letters", "messages", "call"],
)
def test_long_observation_is_cut_and_still_too_long(tokenizer: Any, observation: str) -> None:
    cut = cut_observation(observation, tokenizer, LIMIT)
    assert isinstance(cut, ModelCall) == isinstance(observation, ModelCall)
    assert LIMIT < len(tokenizer(str(cut)).input_ids) < 50_000


def test_observation_that_may_fit_is_the_same_object() -> None:
    tokenizer = TOKENIZERS["bytes"]
    for length in (1, 20_000):
        text = "x" * length
        assert cut_observation(text, tokenizer, 20_000) is text
        assert cut_observation(text, tokenizer, LIMIT) is text or length > LIMIT


def test_length_of_a_long_call_is_not_that_of_its_beginning() -> None:
    prompt_format = PromptFormat("solo", TOKENIZERS["bytes"], max_prompt_tokens=LIMIT)
    call = ModelCall([{"role": "user", "content": LONG}])
    ids = append_call(prompt_format, None, None, call, LIMIT).ids
    assert describe_length(len(ids), LIMIT).startswith("the messages have more than 16384 tokens, and the context has")
    assert describe_length(300, LIMIT).startswith("the messages have 300 tokens")


def test_unpaired_surrogate_is_an_error() -> None:
    assert check_text("\U0001f600 \x00", "it") == "\U0001f600 \x00"
    with pytest.raises(ValueError, match=r"it has an unpaired surrogate \('\\ud800' after 2 characters\)"):
        check_text("ab\ud800c", "it")
