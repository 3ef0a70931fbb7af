"""The examples of worlds: seeds, counted rather than stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from ippo_cli.config.schema import EnvironmentTaskConfig
from ippo_cli.types import Example

SEED_STRIDE = 1_000_003  # consecutive run seeds begin far from each other
MAX_SEED = 2**31  # sizes below it keep every seed below 2**32, which all generators take


class SeedExamples(Sequence[Example]):
    """Rows `{"seed": 17, "dataset_seed": 10, "index": 7}`, made when they are asked for.

    `seed` is the row's own and begins an episode. `dataset_seed` is the same in all rows; together with `index`, which
    counts through held-out and training rows, it names an item of a dataset that is made from one seed.
    """

    def __init__(self, start: int, positions: range) -> None:
        self.start = start
        self.positions = positions

    def __len__(self) -> int:
        return len(self.positions)

    @overload
    def __getitem__(self, position: int) -> Example: ...
    @overload
    def __getitem__(self, position: slice) -> SeedExamples: ...
    def __getitem__(self, position: int | slice) -> Example | SeedExamples:
        if isinstance(position, slice):
            return SeedExamples(self.start, self.positions[position])
        index = self.positions[position]
        return {"seed": self.start + index, "dataset_seed": self.start, "index": index}


def seed_examples(config: EnvironmentTaskConfig, seed: int) -> tuple[SeedExamples, SeedExamples]:
    """Training and held-out rows, which share no seed. Held-out ones come first: more training rows change none."""
    start = seed * SEED_STRIDE % MAX_SEED
    held_out, total = config.eval_size, config.eval_size + config.train_size
    return SeedExamples(start, range(held_out, total)), SeedExamples(start, range(held_out))
