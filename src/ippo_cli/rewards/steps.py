"""A reward for calculations written step by step: `17 + 5 = 22, 22 - 4 = 18`.

`reward=function reward.function=ippo_cli.rewards.steps:score`. The field `steps` of an example lists the results of the
steps; the last one is the answer. Partial credit gives a learning signal to models with few correct answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from ippo_cli.rewards.contract import mean_over_agents
from ippo_cli.rewards.number import nearness
from ippo_cli.rewards.number_text import NUMBER, last_number, parse_number

STEPS, NEAR, RIGHT = 0.5, 0.25, 0.25
_RESULT = re.compile(r"=\s*(" + NUMBER + ")")


def score(examples: Sequence[Mapping[str, Any]], responses: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The score and its parts, each from 0 to 1, averaged over agents.

    The n-th number after an equals sign is the result of the n-th step. `steps` is the fraction of correct results,
    `near` the mean of `nearness` over steps (0 for a step without a result), `right` whether the text's last number is
    the answer (false if the text continues after the answer with other numbers). The weights are 0.5, 0.25 and 0.25.
    """
    rows = {
        name: [_score_text(example["steps"], text) for example, text in zip(examples, texts, strict=True)]
        for name, texts in responses.items()
    }
    means = {
        part: mean_over_agents([[row[part] for row in own] for own in rows.values()])
        for part in ("score", "steps", "near", "right")
    }
    return {"team": means.pop("score"), "parts": means}


def _score_text(results: Sequence[int | float | str], text: str) -> dict[str, float]:
    wanted = [Decimal(str(result)) for result in results]
    found = [number for result in _RESULT.findall(text) if (number := parse_number(result)) is not None]
    written = list(zip(found, wanted, strict=False))  # extra results are ignored
    steps = sum(number == step for number, step in written) / len(wanted)
    near = sum(nearness(number, step) for number, step in written) / len(wanted)
    right = float(last_number(text) == wanted[-1])
    return {"score": STEPS * steps + NEAR * near + RIGHT * right, "steps": steps, "near": near, "right": right}
