"""Tokenizers and warm start of tiny models."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from ippo_cli.compose.load import load_config
from ippo_cli.config.schema import Alphabet, TinyActorConfig
from ippo_cli.models.actor import load_tokenizer
from ippo_cli.models.tiny import character_tokenizer, make_lesson_tokenizer, supervised_batch, tiny_config, warm_start
from ippo_cli.types import Lesson

COMMON, RARE = ("ab>", "x"), ("cd>", "y")  # prompt, answer


Model = tuple[LlamaForCausalLM, PreTrainedTokenizerFast]


@pytest.fixture
def lessons_learnt() -> Callable[..., Model]:
    """A small model after a few supervised steps on these lessons."""
    actor = load_config([]).actor
    assert isinstance(actor, TinyActorConfig)
    small = replace(actor, hidden_size=32, num_layers=1, num_heads=2, warm_start_batch_size=32)

    def make(lessons: list[Lesson], steps: int = 25) -> Model:
        actor = replace(small, warm_start_steps=steps)
        tokenizer = character_tokenizer("abcdxy>")
        torch.manual_seed(0)
        lm = LlamaForCausalLM(tiny_config(actor, len(tokenizer)))
        warm_start(lm, tokenizer, lessons, actor, 0, lambda step, steps, loss: None)
        return lm, tokenizer

    return make


def probability(lm: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, pair: tuple[str, str]) -> float:
    """Probability of the first character of the answer."""
    prompt, answer = pair
    with torch.no_grad():
        logits = lm(input_ids=torch.tensor([tokenizer(prompt).input_ids])).logits[0, -1]
    return float(logits.softmax(-1)[tokenizer(answer).input_ids[0]])


def test_rare_and_common_answers_equally_probable(lessons_learnt) -> None:
    lm, tokenizer = lessons_learnt([*[[COMMON]] * 49, [RARE]])
    rare, common = probability(lm, tokenizer, RARE), probability(lm, tokenizer, COMMON)
    assert rare > 0.5 * common


ODD = ["two  spaces ", "a\nb\r\n\tc", "süß 東京 🙂", "<eos>", "<pad>x", "", "\x00\x7f", " .", "I 'm ."]


@pytest.mark.parametrize("text", ODD)
def test_byte_tokenizer_lossless(text: str) -> None:
    tokenizer = make_lesson_tokenizer(Alphabet.printable, [])
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len(ids) == len(text.encode())
    assert not set(ids) & set(tokenizer.all_special_ids)
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == text


def test_byte_tokenizer_reloads(tmp_path: Path) -> None:
    made = make_lesson_tokenizer(Alphabet.printable, [])
    assert len(made) == 256 + 3
    assert [made.pad_token_id, made.eos_token_id, made.unk_token_id] == [0, 1, 2]
    made.save_pretrained(tmp_path)
    loaded = load_tokenizer(str(tmp_path), None)
    for text in ODD:
        assert loaded(text).input_ids == made(text).input_ids
        assert loaded.decode(loaded(text).input_ids, skip_special_tokens=True) == text


def test_alphabet_from_all_turns() -> None:
    tokenizer = make_lesson_tokenizer(Alphabet.auto, [[("ab", "x"), ("c", "y")], [("d", "")]])
    assert sorted(tokenizer.get_vocab()) == sorted(["<pad>", "<eos>", "<unk>", *"abcdxy"])


def test_lesson_encoding_matches_conversation() -> None:
    tokenizer = character_tokenizer("abxy>")
    ids, answered = supervised_batch(tokenizer, [[("a>", "x"), ("b>", "yy")], [("b>", "")]])
    eos = tokenizer.eos_token_id
    a, b, x, y, more = (tokenizer.get_vocab()[character] for character in "abxy>")
    assert ids.tolist() == [[a, more, x, eos, b, more, y, y, eos], [b, more, eos, 0, 0, 0, 0, 0, 0]]
    assert answered.int().tolist() == [[0, 0, 1, 1, 0, 0, 1, 1, 1], [0, 0, 1, 0, 0, 0, 0, 0, 0]]


def test_long_lesson_cut_after_whole_turn() -> None:
    tokenizer = character_tokenizer("ax")
    ids, answered = supervised_batch(tokenizer, [[("a" * 98, "x")] * 4])
    assert ids.shape == (1, 200)
    assert int(answered.sum()) == 4
    ids, _ = supervised_batch(tokenizer, [[("a" * 400, "x")] * 2])
    assert ids.shape == (1, 402), "the first turn is always kept"


def test_second_turn_learned(lessons_learnt) -> None:
    lm, tokenizer = lessons_learnt([[("ab>", "x"), ("cd>", "y")]], steps=120)
    eos = tokenizer.eos_token
    second = probability(lm, tokenizer, (f"ab>x{eos}cd>", "y"))
    assert second > 0.8
    single, _ = lessons_learnt([[("ab>", "x")]], steps=120)
    assert probability(single, tokenizer, (f"ab>x{eos}cd>", "y")) < 0.5


def test_no_lessons(lessons_learnt) -> None:
    lm, _ = lessons_learnt([])
    torch.manual_seed(0)
    untouched = LlamaForCausalLM(lm.config)
    assert all(torch.equal(one, other) for one, other in zip(lm.parameters(), untouched.parameters(), strict=True))


def test_saved_tokenizer_does_not_depend_on_how_it_was_loaded(tmp_path: Path) -> None:
    character_tokenizer("abc").save_pretrained(tmp_path / "source")
    load_tokenizer(str(tmp_path / "source"), None).save_pretrained(tmp_path / "saved")
    settings = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    assert not {"is_local", "local_files_only"} & settings.keys()
