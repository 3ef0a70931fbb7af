"""Examples of environments: seeds, computed on access."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from ippo_cli.config.schema import EnvironmentTaskConfig
from ippo_cli.types import Example

SEED_STRIDE = 1_000_003  # distance between the first seeds of consecutive run seeds
MAX_SEED = 2**31  # with sizes up to this, every seed is below 2**32, which all generators accept


class SeedExamples(Sequence[Example]):
    """Rows `{"seed": 17, "dataset_seed": 10, "index": 7}`, created on access.

    `seed` is unique per row and seeds the episode. `dataset_seed` is the same in all rows; `index` counts held-out and
    then training rows. Together they identify an item of a dataset that is generated from one seed.
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
    """Return training and held-out rows with disjoint seeds; held-out seeds do not depend on `train_size`."""
    return make_seed_examples(config.train_size, config.eval_size, seed)


def make_seed_examples(train_size: int, eval_size: int, seed: int) -> tuple[SeedExamples, SeedExamples]:
    """Return training and held-out rows of these sizes for a run's seed."""
    start, total = seed * SEED_STRIDE % MAX_SEED, eval_size + train_size
    return SeedExamples(start, range(eval_size, total)), SeedExamples(start, range(eval_size))
