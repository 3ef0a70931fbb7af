"""Select the held-out rows of an evaluation and the number of episodes per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from ippo_cli.config.schema import EvaluationConfig


def select_eval_rows(count: int, config: EvaluationConfig) -> list[int]:
    """Return the sorted indices of the evaluated rows among `count` held-out rows: all, or a seeded random subset."""
    size = count if config.size is None else config.size
    return sample_rows(range(count), size, config.seed)


def sample_rows(rows: Sequence[int], size: int, seed: int) -> list[int]:
    """Return a sorted random subset of rows, or all if `size` is not smaller.

    Rows at equal distances would be rows of one kind in tasks with cyclic rows.
    """
    if size >= len(rows):
        return list(rows)
    places = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:size]
    return [rows[place] for place in sorted(places.tolist())]


def generations_by_mode(config: EvaluationConfig) -> dict[str, int]:
    """Return the number of generations per row, by mode."""
    sampled = {"sampled": config.num_generations} if config.sampled else {}
    return sampled | ({"greedy": 1} if config.greedy else {})


def count_eval_episodes(count: int, config: EvaluationConfig) -> Mapping[str, int]:
    """Return the number of episodes over all ranks, by mode."""
    rows = count if config.size is None else min(config.size, count)
    return {mode: rows * generations for mode, generations in generations_by_mode(config).items()}
