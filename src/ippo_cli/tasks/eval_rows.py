"""Which held-out rows an evaluation asks about, and how often."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ippo_cli.config.schema import EvaluationConfig


def select_eval_rows(count: int, config: EvaluationConfig) -> list[int]:
    """The places of the rows among `count` held-out ones, in their order: all, or those that the seed draws."""
    if config.size is None or config.size >= count:
        return list(range(count))
    generator = torch.Generator().manual_seed(config.seed)
    return sorted(torch.randperm(count, generator=generator)[: config.size].tolist())


def generations_by_mode(config: EvaluationConfig) -> dict[str, int]:
    """How often each row is asked about, by mode."""
    sampled = {"sampled": config.num_generations} if config.sampled else {}
    return sampled | ({"greedy": 1} if config.greedy else {})


def count_eval_episodes(count: int, config: EvaluationConfig) -> Mapping[str, int]:
    """How many episodes that is, by mode, over all ranks."""
    rows = count if config.size is None else min(config.size, count)
    return {mode: rows * often for mode, often in generations_by_mode(config).items()}
