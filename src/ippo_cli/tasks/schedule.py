"""Example schedules: select the examples of each iteration and rank."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch

from ippo_cli.config.data import MIX_RESOLUTION
from ippo_cli.config.schema import Config
from ippo_cli.tasks.curriculum import Curriculum, build_curriculum
from ippo_cli.tasks.rows import JoinedRows
from ippo_cli.types import Batch, Example


def rank_range(total: int, rank: int, world_size: int) -> range:
    """Return the contiguous part of `range(total)` of a rank; sizes differ by at most one."""
    return range(total * rank // world_size, total * (rank + 1) // world_size)


def rank_of_row(row: int, total: int, world_size: int) -> int:
    """Return the rank that has a row in its `rank_range`."""
    return ((row + 1) * world_size - 1) // total


class Mixture:
    """Weighted mixture of sources: maps a prompt position to a row, as a function of (seed, position) only.

    In every block of `MIX_RESOLUTION` prompts, shuffled per block, each source has its share rounded to whole prompts.
    Each source is traversed in passes, shuffled per pass.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], seed: int) -> None:
        self.sizes, self.seed = list(sizes), seed
        self.starts = [sum(self.sizes[:number]) for number in range(len(self.sizes))]
        self.prompts_per_source = _allocate_prompts(weights)
        self._block: tuple[int, list[tuple[int, int]]] = (-1, [])
        self._orders: dict[int, tuple[int, torch.Tensor]] = {}

    def row_at(self, position: int) -> int:
        """Return the row's index in the concatenated sources."""
        block, offset = divmod(position, MIX_RESOLUTION)
        source, before = self._block_sources(block)[offset]
        passes, turn = divmod(block * self.prompts_per_source[source] + before, self.sizes[source])
        return self.starts[source] + int(self._source_order(source, passes)[turn])

    def _block_sources(self, block: int) -> list[tuple[int, int]]:
        """For each prompt of a block: its source, and the number of earlier prompts of that source in the block."""
        if self._block[0] != block:
            sources = torch.repeat_interleave(
                torch.arange(len(self.prompts_per_source)), torch.tensor(self.prompts_per_source)
            )
            shuffled = sources[
                torch.randperm(MIX_RESOLUTION, generator=_make_generator(self.seed, "block", block))
            ].tolist()
            seen = [0] * len(self.prompts_per_source)
            found: list[tuple[int, int]] = []
            for source in shuffled:
                found.append((source, seen[source]))
                seen[source] += 1
            self._block = (block, found)
        return self._block[1]

    def _source_order(self, source: int, passes: int) -> torch.Tensor:
        if self._orders.get(source, (-1,))[0] != passes:
            generator = _make_generator(self.seed, "source", source, passes)
            self._orders[source] = (passes, torch.randperm(self.sizes[source], generator=generator))
        return self._orders[source][1]


def _allocate_prompts(weights: Sequence[float]) -> list[int]:
    """Return the prompts per source in a block of `MIX_RESOLUTION`, by the largest remainder method."""
    exact = [MIX_RESOLUTION * weight / sum(weights) for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda number: (shares[number] - exact[number], number))
    for number in by_remainder[: MIX_RESOLUTION - sum(shares)]:
        shares[number] += 1
    return shares


def _make_generator(*key: object) -> torch.Generator:
    digest = hashlib.blake2b(repr(key).encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


class ExampleSchedule:
    """The examples of any iteration, as a function of (seed, global index) and, with a curriculum, of earlier scores.

    The data is traversed in passes, shuffled per pass; the world size only decides which rank gets which rows.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        *,
        seed: int,
        prompts_per_iteration: int,
        num_generations: int,
        refill_rounds: int = 0,
        curriculum: Curriculum | None = None,
    ) -> None:
        self.examples = examples
        self.seed = seed
        self.prompts_per_iteration = prompts_per_iteration
        self.num_generations = num_generations
        self.refill_rounds = refill_rounds
        self.curriculum = curriculum
        self._pass_order: tuple[int, torch.Tensor] = (-1, torch.empty(0))
        is_weighted = isinstance(examples, JoinedRows) and examples.weights is not None
        self._mixture = Mixture(examples.sizes, examples.weights, seed) if is_weighted else None  # pyright: ignore

    def batch(self, iteration: int, rank: int, world_size: int) -> Batch:
        """Return this rank's rows of an iteration (counted from 0); generations of one example are adjacent."""
        first = self.first_position(iteration)
        return self.batch_at(range(first, first + self.prompts_per_iteration), rank, world_size)

    def first_position(self, iteration: int) -> int:
        """Return the position of an iteration's first prompt, if earlier iterations have drawn no additional ones."""
        return iteration * self.prompts_per_iteration

    def select(self, start: int, count: int) -> tuple[list[int], int]:
        """Return the positions of the next `count` prompts from `start` on, and the position after the last one.

        A curriculum may skip prompts. After two passes without one, the next prompt is drawn.
        """
        if self.curriculum is None:
            return list(range(start, start + count)), start + count
        chosen: list[int] = []
        position, skipped = start, 0
        while len(chosen) < count:
            if skipped >= 2 * len(self.examples) or self.curriculum.accepts(position, self.row_at(position)):
                chosen.append(position)
                skipped = 0
            else:
                skipped += 1
            position += 1
        return chosen, position

    def batch_at(self, positions: Sequence[int], rank: int, world_size: int) -> Batch:
        """Return this rank's rows of the prompts at these positions of the schedule."""
        size = self.num_generations
        rows = [divmod(row, size) for row in rank_range(len(positions) * size, rank, world_size)]
        return Batch(
            examples=[self.example_at(positions[prompt]) for prompt, _ in rows],
            index=torch.tensor(
                [positions[prompt] * size + generation for prompt, generation in rows], dtype=torch.long
            ),
        )

    def example_at(self, position: int) -> Example:
        """Return the example at a position of the schedule."""
        return self.examples[self.row_at(position)]

    def row_at(self, position: int) -> int:
        """Return the example's index in the data, for a position of the schedule."""
        if self._mixture is not None:
            return self._mixture.row_at(position)
        number, offset = divmod(position, len(self.examples))
        return int(self._order_for_pass(number)[offset])

    def scheduled_examples(self, num_iterations: int) -> Iterator[tuple[int, Example]]:
        """Yield the distinct training rows that the first `num_iterations` may use, as (index, example)."""
        if self.curriculum is not None:
            return enumerate(self.examples)
        count = num_iterations * self.prompts_per_iteration * (1 + self.refill_rounds)
        if self._mixture is not None:
            places = dict.fromkeys(map(self._mixture.row_at, range(count)))
            return ((place, self.examples[place]) for place in sorted(places))
        if count >= len(self.examples):
            return enumerate(self.examples)
        return ((row, self.examples[row]) for row in self._order_for_pass(0)[:count].tolist())

    def _order_for_pass(self, number: int) -> torch.Tensor:
        """The row order of one pass over the data."""
        if self._pass_order[0] != number:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
            self._pass_order = (number, torch.randperm(len(self.examples), generator=generator))
        return self._pass_order[1]


def build_schedule(config: Config, rows: Sequence[Example], prompts_per_iteration: int) -> ExampleSchedule:
    """The schedule of a run's training rows."""
    return ExampleSchedule(
        rows,
        seed=config.seed,
        prompts_per_iteration=prompts_per_iteration,
        num_generations=config.rollout.num_generations,
        refill_rounds=config.rollout.refill_rounds,
        curriculum=build_curriculum(config.task.curriculum, rows, config.seed),
    )
