"""Extraction of prompts from preference data."""

from __future__ import annotations

from typing import Any

from ippo_cli.tasks.preferences import prompt_of


def chat(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(texts)]


def test_prompt_of_message_lists() -> None:
    row: dict[str, Any] = {
        "chosen": chat("hi", "hello", "sum?", "4"),
        "rejected": chat("hi", "hello", "sum?", "5"),
    }
    assert prompt_of({**row, "score": 1}) == {
        "score": 1,
        "prompt": "sum?",
        "history": "user: hi\nassistant: hello",
        "chosen": "4",
        "rejected": "5",
    }
    found = prompt_of({"chosen": chat("sum?", "4"), "rejected": chat("sum?", "4")})
    assert found is not None
    assert (found["prompt"], found["history"]) == ("sum?", "")


def test_prompt_of_texts() -> None:
    begin = "\n\nHuman: What is 2+2?\n\nAssistant: I think\n\nHuman: Sure?\n\nAssistant:"
    found = prompt_of({"chosen": f"{begin} It is 4.", "rejected": f"{begin} It is 5."})
    assert found is not None
    assert (found["prompt"], found["chosen"], found["rejected"]) == (begin, " It is 4.", " It is 5.")


def test_existing_prompt_is_kept() -> None:
    found = prompt_of({"prompt": "p", "chosen": "a", "rejected": "b"})
    assert found == {"prompt": "p", "history": "", "chosen": "a", "rejected": "b"}
    found = prompt_of(
        {
            "prompt": chat("one", "two", "three"),
            "chosen": chat("", "a"),
            "rejected": chat("", "b"),
        }
    )
    assert found is not None
    assert (found["prompt"], found["history"], found["chosen"]) == ("three", "user: one\nassistant: two", "a")


def test_rows_without_prompt_are_excluded() -> None:
    assert prompt_of({"chosen": "alike", "rejected": "alike"}) is None
    assert prompt_of({"chosen": chat("a", "b"), "rejected": chat("c", "d")}) is None
    assert prompt_of({"text": "x"}) is None
