"""Which examples an iteration works on depends on seed and index alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ippo_cli.tasks.schedule import ExampleSchedule, share

ROWS = [{"letters": "abcdefghij"[: row % 7 + 1], "n": row} for row in range(10)]
Make = Callable[..., ExampleSchedule]


@pytest.fixture
def schedule() -> Make:
    """A maker of schedules over ten rows, four examples of two generations at a time."""
    settings = {"seed": 3, "prompts_per_iteration": 4, "num_generations": 2}
    return lambda **changes: ExampleSchedule(ROWS, **{**settings, **changes})


@pytest.mark.parametrize(("total", "ranks"), [(10, 3), (8, 2), (3, 4), (0, 2), (7, 7)])
def test_shares_cover_everything_once_and_differ_by_at_most_one(total: int, ranks: int) -> None:
    parts = [share(total, rank, ranks) for rank in range(ranks)]
    assert [row for part in parts for row in part] == list(range(total))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_each_pass_over_the_data_shows_every_row_once_in_an_order_of_its_own(schedule: Make) -> None:
    made = schedule(prompts_per_iteration=5, num_generations=1)
    passes = [
        [row["n"] for half in (0, 1) for row in made.batch(2 * number + half, 0, 1).examples] for number in range(4)
    ]
    assert all(sorted(order) == list(range(10)) for order in passes)
    assert len({tuple(order) for order in passes}) == 4


def test_a_pass_may_end_within_an_iteration(schedule: Make) -> None:
    made = schedule(prompts_per_iteration=4, num_generations=1)
    seen = [row["n"] for iteration in range(5) for row in made.batch(iteration, 0, 1).examples]
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))


def test_a_batch_larger_than_the_data_takes_whole_passes(schedule: Make) -> None:
    made = schedule(prompts_per_iteration=25, num_generations=1)
    seen = [row["n"] for row in made.batch(0, 0, 1).examples]
    assert sorted(seen[:10]) == sorted(seen[10:20]) == list(range(10))
    assert len(set(seen[20:])) == 5


def test_what_comes_depends_on_seed_and_index_and_not_on_what_was_asked_before(schedule: Make) -> None:
    made = schedule()
    ahead = made.batch(7, 0, 1)
    for iteration in (0, 3, 7):
        again = made.batch(iteration, 0, 1)
    fresh = schedule().batch(7, 0, 1)
    assert ahead.examples == again.examples == fresh.examples
    assert torch.equal(ahead.index, fresh.index)
    assert schedule(seed=4).batch(7, 0, 1).examples != ahead.examples


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ranks_together_see_what_one_rank_sees(ranks: int, schedule: Make) -> None:
    made = schedule()
    for iteration in (0, 2):
        whole = made.batch(iteration, 0, 1)
        parts = [schedule().batch(iteration, rank, ranks) for rank in range(ranks)]
        assert [row for part in parts for row in part.examples] == whole.examples
        assert torch.cat([part.index for part in parts]).tolist() == whole.index.tolist()


def test_responses_to_one_prompt_lie_together_under_indices_of_their_own(schedule: Make) -> None:
    first, second = (schedule().batch(iteration, 0, 1) for iteration in (0, 1))
    assert first.index.tolist() == list(range(8))
    assert second.index.tolist() == list(range(8, 16))
    numbers = [row["n"] for row in first.examples]
    assert numbers[::2] == numbers[1::2]
    assert len(set(numbers)) == 4


@pytest.mark.parametrize(("iterations", "rows"), [(1, 4), (2, 8), (3, 10), (9, 10)])
def test_only_rows_that_a_run_reaches_are_looked_at(iterations: int, rows: int, schedule: Make) -> None:
    made = schedule(num_generations=1)
    asked = dict(made.scheduled_examples(iterations))
    seen = [row["n"] for number in range(iterations) for row in made.batch(number, 0, 1).examples]
    assert sorted(asked) == sorted(set(seen))
    assert len(asked) == rows
    assert all(example["n"] == row for row, example in asked.items())
