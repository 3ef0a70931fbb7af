"""A ladder: a task of several turns that pays for every right one. The stride is told once and has to be remembered."""

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
    """One agent climbs: it is told a letter and writes the one that is a stride further on; then it is told that one.

    The first observation is the letter and the stride (`c2`), all later ones are the letter alone (`e`), whatever was
    written. After the last letter comes the first. Every right turn is paid its share of 1.
    """

    def __init__(self, config: LadderConfig) -> None:
        (self.agent,) = config.agents
        self.letters = sorted(set(config.alphabet))
        self.num_rungs = config.num_rungs

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        """Nothing is left to chance: the seed has no part in it."""
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
        """What may be written: any of the letters."""
        return {self.agent: self.letters}

    def close(self) -> None:
        """There is nothing to give back."""


def make_ladder_factory(config: LadderConfig) -> Callable[[], Ladder]:
    """What makes ladders of this configuration. Raises `ConfigError` where several agents are to climb."""
    if len(config.agents) != 1:
        raise ConfigError(
            "task.agents=" + ",".join(config.agents), "are several, and one climbs a ladder", "leave one of them"
        )
    return lambda: Ladder(config)


def ladder_examples(config: LadderConfig, seed: int) -> tuple[list[Example], list[Example]]:
    """Training and held-out examples with the fields `start` and `stride`, all of them different."""
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
