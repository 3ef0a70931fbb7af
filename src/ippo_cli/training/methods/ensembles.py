"""`critic.ensemble`: tokens on which critics agree or disagree most are left out of terms of the loss."""

from __future__ import annotations

from dataclasses import replace

from ippo_cli.algorithms.estimator import CriticLimits, TargetPart
from ippo_cli.engine import distributed
from ippo_cli.formulas import disagreement_limits
from ippo_cli.types import Targets


class Disagreement(TargetPart):
    """`critic.mask_agreement` and `critic.mask_entropy`, over the buffer of all ranks."""

    name = "disagreement"

    def complete(self, targets: Targets, agent: CriticLimits) -> Targets:
        if agent.mask_agreement is None and agent.mask_entropy is None:
            return targets
        mask, spread = targets.loss_mask, targets.value_std
        everywhere = distributed.all_gather_rows(spread[mask])
        low, high = disagreement_limits(everywhere, agent.mask_agreement, agent.mask_entropy)
        agreed, disagreed = (spread < low) & mask, (spread > high) & mask
        return replace(targets, advantages=targets.advantages.masked_fill(agreed, 0.0), entropy_mask=~disagreed)
