"""A reward for calculations that are written down: `17 + 5 = 22, 22 - 4 = 18`.

`reward=function reward.function=ippo_cli.rewards.steps:score`, for examples whose `steps` are the results of the steps,
the last of them the answer. A model that is seldom right at the end is told which step went wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from ippo_cli.rewards.gsm8k import NUMBER, last_number
from ippo_cli.rewards.number import nearness
from ippo_cli.rewards.rows import mean_rows

RIGHT, NEAR = 0.75, 0.25
_RESULT = re.compile(r"=\s*(" + NUMBER + ")")


def score(examples: Sequence[Mapping[str, Any]], responses: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The mean over the steps, from 0 to 1, with its parts, and over the agents where there are several.

    The n-th number behind an equals sign is the result of the n-th step: a right one earns three quarters, and up to a
    quarter is for being near, 1 less the error as a share of the right result. A step without a result earns nothing.
    Parts: `steps`, the share of steps whose result is right, and `right`, whether the text's last number is the answer.
    """
    rows = {
        name: [_row(example["steps"], text) for example, text in zip(examples, texts, strict=True)]
        for name, texts in responses.items()
    }
    means = {
        part: mean_rows([[row[part] for row in each] for each in rows.values()]) for part in ("score", "steps", "right")
    }
    return {"team": means.pop("score"), "parts": means}


def _row(steps: Sequence[int | float | str], text: str) -> dict[str, float]:
    wanted = [Decimal(str(step)) for step in steps]
    found = [number for result in _RESULT.findall(text) if (number := last_number(result)) is not None]
    written = list(zip(found, wanted, strict=False))  # further results are no steps
    right = [number == step for number, step in written]
    near = [nearness(number, step) for number, step in written]
    return {
        "score": (RIGHT * sum(right) + NEAR * sum(near)) / len(wanted),
        "steps": sum(right) / len(wanted),
        "right": float(last_number(text) == wanted[-1]),
    }
