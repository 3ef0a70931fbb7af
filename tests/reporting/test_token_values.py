"""Tokens of sampled turns: their texts, and numbers by turn."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from spoken import episode
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ippo_cli.models.tiny import byte_tokenizer, character_tokenizer
from ippo_cli.reporting.token_values import round_value, token_texts, tokens_by_turn
from ippo_cli.types import Completion, Episode


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Words that begin with a space, which is dropped at the start of a text, as in SentencePiece."""
    raw = Tokenizer(models.WordLevel({"<unk>": 0, "▁one": 1, "▁two": 2, "s": 3}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>")


def test_texts_of_tokens_join_to_the_response() -> None:
    tokenizer = byte_tokenizer()
    text = "naïve 中🙂 x"
    texts = token_texts(tokenizer, tokenizer(text)["input_ids"])
    assert "".join(texts) == text
    assert texts[:5] == ["n", "a", "", "ï", "v"]
    assert texts[-6:] == ["", "", "", "🙂", " ", "x"]
    assert token_texts(word_tokenizer(), [1, 2, 3, 1]) == ["one", " two", "s", " one"]
    assert token_texts(tokenizer, []) == []


def test_incomplete_characters_do_not_hide_later_text() -> None:
    tokenizer = byte_tokenizer()
    broken = tokenizer("é")["input_ids"][:1]
    texts = token_texts(tokenizer, broken * 9 + tokenizer("ab")["input_ids"])
    assert len(texts) == 11
    assert "".join(texts[-2:]) == "\ufffdab"
    assert token_texts(tokenizer, broken) == ["\ufffd"]


def make_episode(*words: str, **changes: object) -> Episode:
    """An episode in which `low` writes one text per turn, with log-probabilities -1, -2, ..."""
    tokenizer, started = character_tokenizer("abc"), episode(*[("low", step, word) for step, word in enumerate(words)])
    turns = []
    for turn, word in zip(started.turns, words, strict=True):
        ids = torch.tensor([*tokenizer(word)["input_ids"], tokenizer.eos_token_id])
        logprobs = -torch.arange(1.0, len(ids) + 1)
        completion = Completion(ids=ids, logprobs=logprobs, behavior_logprobs=logprobs, text=word, finished=True)
        turns.append(replace(turn, completion=completion))
    return replace(started, turns=turns, **changes)  # type: ignore[arg-type]


def test_numbers_belong_to_their_turn() -> None:
    # The row of `ab`, two observed tokens, `c`, and padding.
    turn = torch.tensor([[0, 0, 0, -1, -1, 1, 1, -1]])
    numbers = torch.arange(8.0)[None]
    columns = {
        "logprob": -numbers,
        "behavior_logprob": -numbers,
        "value": numbers / 3,
        "advantage": numbers.where(numbers != 6, math.nan),
        "trained": turn == 0,
    }
    [turns] = tokens_by_turn([make_episode("ab", "c")], "low", character_tokenizer("abc"), 256, turn, columns)
    assert turns == [
        {
            "text": ["a", "b", "<eos>"],
            "logprob": [0.0, -1.0, -2.0],
            "value": [0.0, 0.3333, 0.6667],
            "advantage": [0.0, 1.0, 2.0],
        },
        {
            "text": ["c", "<eos>"],
            "logprob": [-5.0, -6.0],
            "value": [1.667, 2.0],
            "advantage": [5.0, None],
            "trained": [0, 0],
        },
    ]
    [short] = tokens_by_turn([make_episode("ab", "c")], "low", character_tokenizer("abc"), 2, turn, columns)
    assert [turn["text"] for turn in short] == [["a", "b"], ["c", "<eos>"]]
    assert short[0]["value"] == [0.0, 0.3333]


@pytest.mark.parametrize("frozen", [False, True])
def test_untrained_turns_have_log_probabilities_only(frozen: bool) -> None:
    columns = {"logprob": torch.zeros(1, 3), "behavior_logprob": torch.zeros(1, 3), "trained": torch.ones(1, 3)}
    others = make_episode("ab", partners=frozenset() if frozen else frozenset({"low"}))
    given = (None, None) if frozen else (torch.full((1, 3), -1), columns)
    [turns] = tokens_by_turn([others], "low", character_tokenizer("abc"), 256, *given)
    assert turns == [{"text": ["a", "b", "<eos>"], "logprob": [-1.0, -2.0, -3.0], "trained": [0, 0, 0]}]


def test_values_have_four_digits() -> None:
    assert [round_value(value) for value in (1 / 3, -0.0, 123456.0, 1e-9 / 3)] == [0.3333, 0.0, 123500.0, 3.333e-10]
    assert str(round_value(-0.0)) == "0.0"
    assert round_value(math.inf) is None
    assert round_value(math.nan) is None
