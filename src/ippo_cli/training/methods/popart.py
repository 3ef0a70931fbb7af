"""Normalisation of a critic's returns (PopArt): its moments follow the returns, and its values remain."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ippo_cli.agents.learner import Learner
from ippo_cli.agents.team import Team
from ippo_cli.formulas import rescale_output
from ippo_cli.training.methods.method import Method
from ippo_cli.types import Experience, Scores, Targets


class ReturnNormalization(Method):
    """Normalises the returns of critics with `critic.popart_beta`; their moments are saved with the critics."""

    def prepare_values(self, team: Team, experience: Experience) -> None:
        start_normalization(team, experience.scores)

    def before_update(self, learner: Learner, targets: Mapping[str, Targets]) -> dict[str, float]:
        return update_normalization(learner, targets)


def start_normalization(team: Team, scores: Mapping[str, Scores]) -> None:
    """Give new critics the moments of the first buffer's scores, before their values are read. Collective.

    The zero head of a new critic then has the mean score as its value. Without that, advantages of the first iteration
    would be computed from values of 0, whatever the scores, and the first rescaled bias would be far from 0.
    """
    for learner in team.learners:
        moments = learner.return_moments
        if moments is None or moments.weight or not learner.has_new_head:
            continue
        rows = [scores[name] for name in learner.agent_names]
        totals = torch.cat([own.score.sum(dim=1) for own in rows])
        learner.set_return_moments(moments.start_from(totals, torch.cat([own.valid for own in rows])))


def update_normalization(learner: Learner, targets: Mapping[str, Targets]) -> dict[str, float]:
    """Add a buffer's returns to a critic's moments, and rescale its output layer so that its values remain.

    The logits of bins are not rescaled, so their values move with the moments. Returns its metrics. Collective over the
    ranks that hold the critic.
    """
    if learner.return_moments is None or learner.popart_beta is None:
        return {}
    own = [targets[name] for name in learner.agent_names]
    trained = [part.value_mask & (part.sample_counts > 0)[:, None] for part in own]
    returns = torch.cat([part.returns[mask] for part, mask in zip(own, trained, strict=True)])
    before = learner.return_moments
    after = before.update(returns, torch.ones_like(returns, dtype=torch.bool), learner.popart_beta)
    head = learner.engine.module.value_head
    if head.bins is None:
        learner.engine.change_parameters(
            [head.out.weight, head.out.bias],
            lambda values: rescale_output(values[0], values[1], (before.mean, before.std), (after.mean, after.std)),
        )
    learner.set_return_moments(after)
    return {f"{learner.name}/value/return_mean": after.mean, f"{learner.name}/value/return_std": after.std}
