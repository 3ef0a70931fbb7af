"""Ladder task: several turns with a reward per correct turn; only the first observation shows the stride."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import product

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import LadderConfig
from ippo_cli.tasks.environment import Action, Step
from ippo_cli.tasks.unique_examples import check_num_examples, split_examples
from ippo_cli.types import Example


class Ladder:
    """One agent observes a letter and must write the letter that is a stride later; that letter is observed next.

    The first observation is the letter and the stride (`c2`), later ones only the correct letter (`e`), regardless of
    the response. The alphabet is cyclic. Each correct turn has the reward 1 / num_rungs.
    """

    def __init__(self, config: LadderConfig) -> None:
        (self.agent,) = config.agents
        self.letters = sorted(set(config.alphabet))
        self.num_rungs = config.num_rungs

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        """Begin an episode; it is deterministic, so the seed is unused."""
        self.stride = int(example["stride"])
        self.rung = str(example["start"])
        self.turns = self.right = 0
        return {self.agent: f"{self.rung}{self.stride}"}

    def step(self, actions: Mapping[str, Action]) -> Step:
        self.rung = self.letters[(self.letters.index(self.rung) + self.stride) % len(self.letters)]
        right = actions[self.agent].text == self.rung
        self.turns += 1
        self.right += right
        return Step(
            observations={self.agent: self.rung},
            rewards={self.agent: right / self.num_rungs},
            terminated=self.turns == self.num_rungs,
            parts={"rungs": self.right / self.turns},
        )

    def actions(self) -> Mapping[str, Sequence[str]]:
        """Return all letters as legal actions."""
        return {self.agent: self.letters}

    def close(self) -> None:
        """Do nothing: there are no resources."""


def make_ladder_factory(config: LadderConfig) -> Callable[[], Ladder]:
    """Return a factory of ladders. Raises `ConfigError` for more than one agent."""
    if len(config.agents) != 1:
        raise ConfigError(
            "task.agents=" + ",".join(config.agents), "names several agents, but a ladder has one", "keep one agent"
        )
    return lambda: Ladder(config)


def ladder_examples(config: LadderConfig, seed: int) -> tuple[list[Example], list[Example]]:
    """Return distinct training and held-out examples with the fields `start` and `stride`."""
    letters = sorted(set(config.alphabet))
    examples: list[Example] = [
        {"start": start, "stride": stride} for start, stride in product(letters, range(1, config.strides + 1))
    ]
    sizes = config.train_size, config.eval_size
    check_num_examples(
        len(examples), "pairs of a letter and a stride", *sizes, "lower the sizes, or use a longer task.alphabet"
    )
    random.Random(f"ladder {seed}").shuffle(examples)
    return split_examples(examples, *sizes)
