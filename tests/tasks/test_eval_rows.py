"""Selection of held-out rows for evaluation."""

from __future__ import annotations

from ippo_cli.config.schema import EvaluationConfig
from ippo_cli.tasks.eval_rows import count_eval_episodes, generations_by_mode, sample_rows, select_eval_rows


def settings(size: int | None = None, seed: int = 1234, n: int = 1, greedy: bool = True) -> EvaluationConfig:
    return EvaluationConfig(
        every=0, patience=None, stop_at_risk=None, size=size, seed=seed, sampled=True, num_generations=n, greedy=greedy
    )


def test_all_rows_are_selected_without_smaller_size() -> None:
    assert select_eval_rows(5, settings()) == select_eval_rows(5, settings(size=5)) == list(range(5))
    assert select_eval_rows(5, settings(size=9)) == list(range(5))


def test_size_selects_seeded_random_rows() -> None:
    drawn = select_eval_rows(1000, settings(size=50))
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 50
    assert max(drawn) > 500, "not the first ones"
    assert drawn == select_eval_rows(1000, settings(size=50, n=8))
    assert drawn != select_eval_rows(1000, settings(size=50, seed=7))


def test_generations_by_mode_and_episode_count() -> None:
    assert generations_by_mode(settings(n=4)) == {"sampled": 4, "greedy": 1}
    assert count_eval_episodes(10, settings(size=3, n=4)) == {"sampled": 12, "greedy": 3}
    assert count_eval_episodes(2, settings(size=3, greedy=False)) == {"sampled": 2}


def test_sampled_rows_are_not_periodic() -> None:
    rows = sample_rows(range(100, 356), 32, seed=1234)
    assert rows == sorted(set(rows))
    assert len(rows) == 32
    assert {row % 8 for row in rows} == set(range(8)), "cyclic rows, such as those of task=signalling, all occur"
    assert rows == sample_rows(range(100, 356), 32, seed=1234) != sample_rows(range(100, 356), 32, seed=5)
    assert sample_rows([3, 1], 2, seed=0) == sample_rows([3, 1], 5, seed=0) == [3, 1]
