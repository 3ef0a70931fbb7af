"""Which examples an iteration works on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from ippo_cli.types import Batch, Example


def share(total: int, rank: int, world_size: int) -> range:
    """The contiguous part of `range(total)` that a rank works on; parts differ by at most one."""
    return range(total * rank // world_size, total * (rank + 1) // world_size)


class ExampleSchedule:
    """The examples of any iteration, as a function of (seed, global index) alone.

    One pass over the data after another, each in an order of its own; the world size only decides which rank gets
    which rows.
    """

    def __init__(
        self, examples: Sequence[Example], *, seed: int, prompts_per_iteration: int, num_generations: int
    ) -> None:
        self.examples = examples
        self.seed = seed
        self.prompts_per_iteration = prompts_per_iteration
        self.num_generations = num_generations
        self._pass_order: tuple[int, list[int]] = (-1, [])

    def batch(self, iteration: int, rank: int, world_size: int) -> Batch:
        """This rank's rows of an iteration (counted from 0); episodes about one example lie together."""
        size = self.prompts_per_iteration * self.num_generations
        rows = share(size, rank, world_size)
        first = iteration * self.prompts_per_iteration
        return Batch(
            examples=[self._example(first + row // self.num_generations) for row in rows],
            index=torch.tensor([iteration * size + row for row in rows], dtype=torch.long),
        )

    def scheduled_examples(self, num_iterations: int) -> Iterator[tuple[int, Example]]:
        """The training rows that so many iterations work on, each once, with their places in the data."""
        count = num_iterations * self.prompts_per_iteration
        if count >= len(self.examples):
            return enumerate(self.examples)
        return ((row, self.examples[row]) for row in self._order(0)[:count])

    def _example(self, position: int) -> Example:
        number, offset = divmod(position, len(self.examples))
        return self.examples[self._order(number)[offset]]

    def _order(self, number: int) -> list[int]:
        """Rows in the order of one pass over the data."""
        if self._pass_order[0] != number:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
            self._pass_order = (number, torch.randperm(len(self.examples), generator=generator).tolist())
        return self._pass_order[1]
