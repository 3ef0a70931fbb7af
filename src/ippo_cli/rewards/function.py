"""`reward=function`: a Python function of the user's, named explicitly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from ippo_cli.rewards.contract import Responses, Reward
from ippo_cli.tasks.user_code import load_function
from ippo_cli.types import Example

NAMES = tuple(field.name for field in fields(Reward))


class FunctionReward:
    """Calls `function(examples, responses)`, which returns a dict with the names of `Reward` (or a `Reward`).

    `examples` is a list of rows, `responses` a dict from agent to the list of its texts:

        def reward(examples, responses):
            return {"team": [float(text == row["answer"]) for row, text in zip(examples, responses["solo"])]}
    """

    def __init__(self, function: str) -> None:
        self.name = function
        self.function = load_function(function)

    def __call__(self, examples: Sequence[Example], responses: Responses) -> Reward:
        result = self.function(list(examples), {name: list(texts) for name, texts in responses.items()})
        if isinstance(result, Reward):
            return result
        if not isinstance(result, Mapping) or set(result) - set(NAMES):
            given = sorted(result) if isinstance(result, Mapping) else type(result).__name__
            raise TypeError(f"{self.name} must return a dict with names among {', '.join(NAMES)}, not {given}")
        return Reward(**result)
