"""`algorithm.advantage_normalization`: advantages of mean 0 and variance 1, by agent or over the team."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ippo_cli.algorithms.estimator import TargetPart
from ippo_cli.algorithms.inputs import Source
from ippo_cli.config.schema import NormalizationScope
from ippo_cli.engine import distributed
from ippo_cli.formulas import masked_whiten


class Whitening(TargetPart):
    """Whitens advantages over the actions of all ranks; a turn counts once, whatever its length."""

    name = "whitening"

    def transform(
        self, advantages: Mapping[Source, Tensor], masks: Mapping[Source, Tensor], actions: Mapping[Source, Tensor]
    ) -> Mapping[Source, Tensor]:
        """Mean and variance are those of the agent's own rows: only these are samples of its policy."""
        own = {source.agent: source for source in advantages if not source.is_shared}
        if self.config.normalization_scope is NormalizationScope.agent:
            moments = {
                name: distributed.masked_moments(advantages[source], actions[source]) for name, source in own.items()
            }
        else:
            joint = distributed.masked_moments(
                torch.cat([advantages[source].flatten() for source in own.values()]),
                torch.cat([actions[source].flatten() for source in own.values()]),
            )
            moments = dict.fromkeys(own, joint)
        return {
            source: masked_whiten(rows, masks[source], moments=moments[source.agent])
            for source, rows in advantages.items()
        }
