"""What the targets of an agent's rows are computed from: their source, inputs of the estimator, and masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from torch import Tensor

from ippo_cli.algorithms.inputs import AdvantageInputs, Source

T = TypeVar("T")


def group_by_author(rows: Mapping[Source, T]) -> dict[str, dict[str, T]]:
    """What belongs to rows that agents share, by agent and author."""
    shared: dict[str, dict[str, T]] = {}
    for source, part in rows.items():
        if source.is_shared:
            shared.setdefault(source.agent, {})[source.author] = part
    return shared


@dataclass(frozen=True, slots=True, kw_only=True)
class RowInputs:
    """What the targets of one agent's rows are computed from."""

    source: Source
    advantage: AdvantageInputs
    rewards: Tensor  # [B, R], without the bootstrap of truncated rows
    final_values: Tensor  # [B]
    value_std: Tensor  # [B, R]
    ref_logprobs: Tensor  # [B, R]
    score: Tensor  # [B, K], penalties of truncation included
    next_kl_coef: float


class RowMasks(NamedTuple):
    """The rows and tokens of an agent that are trained on."""

    trained: Tensor  # [B]
    loss: Tensor  # [B, R]
    actions: Tensor  # [B, R]: one token per action
