"""Example schedules: a function of seed and index only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ippo_cli.tasks.rows import ExampleRows, JoinedRows, identity
from ippo_cli.tasks.schedule import ExampleSchedule, Mixture, rank_range

ROWS = [{"letters": "abcdefghij"[: row % 7 + 1], "n": row} for row in range(10)]
Make = Callable[..., ExampleSchedule]


@pytest.fixture
def schedule() -> Make:
    """A factory of schedules over ten rows, with four prompts of two generations per iteration."""
    settings = {"seed": 3, "prompts_per_iteration": 4, "num_generations": 2}
    return lambda **changes: ExampleSchedule(ROWS, **{**settings, **changes})


@pytest.mark.parametrize(("total", "ranks"), [(10, 3), (8, 2), (3, 4), (0, 2), (7, 7)])
def test_rank_ranges_partition_rows_evenly(total: int, ranks: int) -> None:
    parts = [rank_range(total, rank, ranks) for rank in range(ranks)]
    assert [row for part in parts for row in part] == list(range(total))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_each_pass_is_a_new_permutation(schedule: Make) -> None:
    made = schedule(prompts_per_iteration=5, num_generations=1)
    passes = [
        [row["n"] for half in (0, 1) for row in made.batch(2 * number + half, 0, 1).examples] for number in range(4)
    ]
    assert all(sorted(order) == list(range(10)) for order in passes)
    assert len({tuple(order) for order in passes}) == 4


def test_pass_may_end_within_an_iteration(schedule: Make) -> None:
    made = schedule(prompts_per_iteration=4, num_generations=1)
    seen = [row["n"] for iteration in range(5) for row in made.batch(iteration, 0, 1).examples]
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))


def test_batch_larger_than_data_takes_whole_passes(schedule: Make) -> None:
    made = schedule(prompts_per_iteration=25, num_generations=1)
    seen = [row["n"] for row in made.batch(0, 0, 1).examples]
    assert sorted(seen[:10]) == sorted(seen[10:20]) == list(range(10))
    assert len(set(seen[20:])) == 5


def test_batches_depend_only_on_seed_and_index(schedule: Make) -> None:
    made = schedule()
    ahead = made.batch(7, 0, 1)
    for iteration in (0, 3, 7):
        again = made.batch(iteration, 0, 1)
    fresh = schedule().batch(7, 0, 1)
    assert ahead.examples == again.examples == fresh.examples
    assert torch.equal(ahead.index, fresh.index)
    assert schedule(seed=4).batch(7, 0, 1).examples != ahead.examples


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_together_match_one_rank(ranks: int, schedule: Make) -> None:
    made = schedule()
    for iteration in (0, 2):
        whole = made.batch(iteration, 0, 1)
        parts = [schedule().batch(iteration, rank, ranks) for rank in range(ranks)]
        assert [row for part in parts for row in part.examples] == whole.examples
        assert torch.cat([part.index for part in parts]).tolist() == whole.index.tolist()


def test_generations_of_one_prompt_are_adjacent(schedule: Make) -> None:
    first, second = (schedule().batch(iteration, 0, 1) for iteration in (0, 1))
    assert first.index.tolist() == list(range(8))
    assert second.index.tolist() == list(range(8, 16))
    numbers = [row["n"] for row in first.examples]
    assert numbers[::2] == numbers[1::2]
    assert len(set(numbers)) == 4


@pytest.mark.parametrize(("iterations", "rows"), [(1, 4), (2, 8), (3, 10), (9, 10)])
def test_scheduled_examples_are_those_of_the_iterations(iterations: int, rows: int, schedule: Make) -> None:
    made = schedule(num_generations=1)
    asked = dict(made.scheduled_examples(iterations))
    seen = [row["n"] for number in range(iterations) for row in made.batch(number, 0, 1).examples]
    assert sorted(asked) == sorted(set(seen))
    assert len(asked) == rows
    assert all(example["n"] == row for row, example in asked.items())


def two_sources(weights: list[float] | None, sizes: tuple[int, int] = (30, 700)) -> JoinedRows:
    tables = [[{"of": name, "n": row} for row in range(size)] for name, size in zip("ab", sizes, strict=True)]
    return JoinedRows([ExampleRows(table, identity, range(len(table))) for table in tables], weights)


def asked(rows: JoinedRows, prompts: int, first: int = 0, count: int = 0, seed: int = 3) -> list[tuple[str, int]]:
    schedule = ExampleSchedule(rows, seed=seed, prompts_per_iteration=prompts, num_generations=1)
    return [
        (row["of"], row["n"])
        for number in range(first, first + (count or 1000 // prompts))
        for row in schedule.batch(number, 0, 1).examples
    ]


def test_mixture_has_exact_shares_and_full_passes() -> None:
    seen = asked(two_sources([3, 1]), prompts=50, count=40)
    assert [sum(of == "a" for of, _ in seen[part : part + 1000]) for part in (0, 1000)] == [750, 750]
    of_a, of_b = ([row for name, row in seen if name == of] for of in "ab")
    passes = [of_a[start : start + 30] for start in range(0, 1500, 30)]
    assert all(sorted(order) == list(range(30)) for order in passes)
    assert len(set(map(tuple, passes))) > 40, "each pass has its own order"
    assert len(set(of_b)) == len(of_b) == 500
    assert sum(of == "a" for of, _ in seen[:200]) != 200, "sources are interleaved"


def test_mixture_depends_only_on_seed_and_position() -> None:
    rows = two_sources([2.0, 1.0])
    whole = asked(rows, prompts=50, count=30)
    assert asked(rows, prompts=50, first=17, count=3) == whole[850:1000], "a resumed run"
    assert asked(rows, prompts=10, first=99, count=5) == whole[990:1040], "other prompts per iteration"
    assert asked(rows, prompts=50, count=2, seed=4) != whole[:100]
    schedule = ExampleSchedule(rows, seed=3, prompts_per_iteration=50, num_generations=1)
    assert {(row["of"], row["n"]) for _, row in schedule.scheduled_examples(4)} == set(whole[:200])
    assert all(rows[place] == row for place, row in schedule.scheduled_examples(4))


def test_mixture_shares_are_rounded_to_whole_prompts() -> None:
    assert Mixture([5, 5, 5], [1, 1, 1], 0).prompts_per_source == [334, 333, 333]
    assert Mixture([5, 5], [0.7, 0.3], 0).prompts_per_source == [700, 300]


def test_sources_without_weights_are_concatenated() -> None:
    seen = asked(two_sources(None, (4, 6)), prompts=10, count=3)
    assert all(len(set(seen[part : part + 10])) == 10 for part in (0, 10, 20))
