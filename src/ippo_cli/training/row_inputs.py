"""What the targets of an agent's rows are computed from: their source, inputs of the estimator, and masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ippo_cli.agents.agent import Agent
from ippo_cli.algorithms.inputs import AdvantageInputs, Source
from ippo_cli.engine import distributed
from ippo_cli.formulas import disagreement_limits

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


@dataclass(frozen=True, slots=True)
class DisagreementMasks:
    """Tokens on which an ensemble of critics agrees most and least, `[B, R]` each."""

    agreed: Tensor
    disagreed: Tensor

    @classmethod
    def compute(cls, agent: Agent, value_std: Tensor, loss_mask: Tensor) -> DisagreementMasks:
        """The masks of `critic.mask_agreement` and `critic.mask_entropy`, over the buffer of all ranks. Collective."""
        if agent.mask_agreement is None and agent.mask_entropy is None:
            nothing = torch.zeros_like(loss_mask)
            return cls(nothing, nothing)
        everywhere = distributed.all_gather_rows(value_std[loss_mask])
        low, high = disagreement_limits(everywhere, agent.mask_agreement, agent.mask_entropy)
        return cls((value_std < low) & loss_mask, (value_std > high) & loss_mask)
