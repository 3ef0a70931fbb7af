"""A reward for GSM8K-like rows: `reward=function reward.function=scripts/examples/gsm8k_reward.py:solved`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def final_number(text: str) -> str | None:
    """The number after the last `####`, else the last number of the text."""
    found = NUMBER.findall(text.rsplit("####", 1)[-1])
    return found[-1].replace(",", "").removesuffix(".0") if found else None


def solved(examples: Sequence[Mapping[str, Any]], responses: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """1 for the reference's final number in the last agent's response, and 0.1 for any number at all."""
    texts = list(responses.values())[-1]
    numbers = [final_number(text) for text in texts]
    wanted = [final_number(example["answer"]) for example in examples]
    exact = [float(number is not None and number == right) for number, right in zip(numbers, wanted, strict=True)]
    formatted = [float(number is not None) for number in numbers]
    team = [max(right, 0.1 * some) for right, some in zip(exact, formatted, strict=True)]
    return {"team": team, "parts": {"exact": exact, "has_number": formatted}}
