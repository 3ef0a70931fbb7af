"""`reward=function`: a Python function of the user's, named explicitly."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.responses import Responses
from ippo_cli.tasks.user_code import load_function
from ippo_cli.types import Episode, Example

NAMES = tuple(field.name for field in fields(Reward))


class FunctionReward:
    """Calls `function(examples, responses)`, which returns a dict with the names of `Reward` (or a `Reward`).

    `examples` is a list of rows, `responses` a dict from agent to the list of its texts:

        def reward(examples, responses):
            return {"team": [float(text == row["answer"]) for row, text in zip(examples, responses["solo"])]}

    A response is what an agent said last, and empty where it never spoke. A function with a parameter named `episodes`
    gets all that was said, and may give numbers for every turn; here longer answers cost more:

        def reward(examples, responses, episodes):
            turns = [[turn.completion.text for turn in episode.of("solo")] for episode in episodes]
            return {"agent_by_turn": {"solo": [[-0.1 * len(text) for text in texts] for texts in turns]}}

    An episode tells its `example`, its `turns` (each with `agent`, `step`, `observation`, and `completion.text`; those
    of one agent: `of(name)`), its `rewards` by step and `parts`, whether it was `terminated`, and its `truncation`.
    """

    def __init__(self, function: str) -> None:
        self.name = function
        self.function = load_function(function)
        self.with_episodes = _takes_episodes(self.function, f"reward.function={function}")

    def __call__(
        self, examples: Sequence[Example], responses: Responses, episodes: Sequence[Episode] | None = None
    ) -> Reward:
        further = {"episodes": episodes} if self.with_episodes else {}
        result = self.function(list(examples), {name: list(texts) for name, texts in responses.items()}, **further)
        if isinstance(result, Reward):
            return result
        if not isinstance(result, Mapping) or set(result) - set(NAMES):
            returned = sorted(result) if isinstance(result, Mapping) else type(result).__name__
            raise TypeError(f"{self.name} must return a dict with names among {', '.join(NAMES)}, not {returned}")
        return Reward(**result)


def _takes_episodes(function: Callable[..., Any], setting: str) -> bool:
    """Whether it has a parameter of that name; `ConfigError` where it cannot be called as it will be."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some that are written in C do not tell
        return False
    with_episodes = "episodes" in signature.parameters
    try:
        signature.bind([], {}, **({"episodes": []} if with_episodes else {}))
    except TypeError as error:
        raise ConfigError(
            setting,
            f"cannot be called as function(examples, responses) ({error})",
            "let it take these two, and 'episodes' if it reads them",
        ) from None
    return with_episodes
