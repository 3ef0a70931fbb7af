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
from ippo_cli.rewards.rows import mean_over_agents

STEPS, NEAR, RIGHT = 0.5, 0.25, 0.25
_RESULT = re.compile(r"=\s*(" + NUMBER + ")")


def score(examples: Sequence[Mapping[str, Any]], responses: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """From 0 to 1, the mean over the agents where there are several, with its parts, each from 0 to 1 as well.

    The n-th number behind an equals sign is the result of the n-th step. `steps` is the share of steps whose result is
    right, `near` the mean of how near the results are (1 less the error as a share of the right one, 0 for a step
    without a result), `right` whether the text's last number is the answer, which it is not where a text runs on. Their
    weights are a half and a quarter each.
    """
    rows = {
        name: [_score_text(example["steps"], text) for example, text in zip(examples, texts, strict=True)]
        for name, texts in responses.items()
    }
    means = {
        part: mean_over_agents([[row[part] for row in each] for each in rows.values()])
        for part in ("score", "steps", "near", "right")
    }
    return {"team": means.pop("score"), "parts": means}


def _score_text(results: Sequence[int | float | str], text: str) -> dict[str, float]:
    wanted = [Decimal(str(result)) for result in results]
    found = [number for result in _RESULT.findall(text) if (number := last_number(result)) is not None]
    written = list(zip(found, wanted, strict=False))  # further results are no steps
    steps = sum(number == step for number, step in written) / len(wanted)
    near = sum(nearness(number, step) for number, step in written) / len(wanted)
    right = float(last_number(text) == wanted[-1])
    return {"score": STEPS * steps + NEAR * near + RIGHT * right, "steps": steps, "near": near, "right": right}
