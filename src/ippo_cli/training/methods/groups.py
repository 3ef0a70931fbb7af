"""Comparisons of responses to one prompt (`algorithm.advantage=group` and `leave_one_out`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ippo_cli.algorithms.advantages import broadcast_rows, row_scores
from ippo_cli.algorithms.estimator import Estimator, State
from ippo_cli.algorithms.inputs import AdvantageInputs, AdvantageOutputs, Source
from ippo_cli.config.schema import NormalizationScope
from ippo_cli.engine import distributed
from ippo_cli.formulas import capability_advantages, group_normalized, leave_one_out
from ippo_cli.types import Experience


class LeaveOneOut(Estimator):
    """The score of a response minus the mean of the others to its prompt (RLOO).

    Rows without a score are excluded; a row that remains alone in its group has no advantage.
    """

    name = "leave_one_out"

    def compare_scores(self, score: Tensor, group: Tensor, weight: Tensor) -> Tensor:
        """Scores, groups and weights of scores, `[n]` each, to advantages `[n]`."""
        return leave_one_out(score, group)

    def list_compared(self, inputs: Mapping[Source, AdvantageInputs]) -> list[list[Source]]:
        """The sets of rows that are compared with each other: all rows on which an agent is trained."""
        by_agent: dict[str, list[Source]] = {}
        for source in inputs:
            by_agent.setdefault(source.agent, []).append(source)
        return list(by_agent.values())

    def estimate(
        self, inputs: Mapping[Source, AdvantageInputs], experience: Experience, state: State
    ) -> tuple[dict[Source, AdvantageOutputs], State]:
        outputs: dict[Source, AdvantageOutputs] = {}
        for sources in self.list_compared(inputs):
            outputs |= zip(sources, self._compare_rows([inputs[source] for source in sources]), strict=True)
        return {source: outputs[source] for source in inputs}, state

    def estimate_rows(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        return self._compare_rows([inputs])[0]

    def _compare_rows(self, agents: Sequence[AdvantageInputs]) -> list[AdvantageOutputs]:
        """Compare each response with those of all given rows to its prompt, across ranks. Collective."""
        own = [row_scores(inputs) for inputs in agents]
        rows = (
            torch.cat(own),
            torch.cat([inputs.group for inputs in agents]),
            torch.cat([inputs.valid for inputs in agents]),
            torch.cat([torch.full_like(score, inputs.capability) for score, inputs in zip(own, agents, strict=True)]),
        )
        scores, groups, valid, weights = (distributed.all_gather_rows(part) for part in rows)
        _, slots = torch.unique(groups, return_inverse=True)
        sizes = torch.zeros_like(slots).scatter_add(0, slots, valid.long())
        usable = valid & (sizes[slots] > 1)
        advantages = torch.zeros_like(scores)
        advantages[usable] = self.compare_scores(scores[usable], groups[usable], weights[usable])
        here = distributed.local_row_slice(torch.cat(own))
        counts = [len(score) for score in own]
        results = zip(agents, advantages[here].split(counts), own, usable[here].split(counts), strict=True)
        return [broadcast_rows(*result) for result in results]


class GroupNormalized(LeaveOneOut):
    """The score of a response minus the mean of its group, divided by the group's deviation (GRPO) or not."""

    name = "group"

    def compare_scores(self, score: Tensor, group: Tensor, weight: Tensor) -> Tensor:
        scale_by_std = bool(self.config.scale_by_std)
        if self.config.cross_agent.capability_window is None:
            return group_normalized(score, group, scale_by_std=scale_by_std)
        return capability_advantages(score, group, weight, scale_by_std=scale_by_std)

    def list_compared(self, inputs: Mapping[Source, AdvantageInputs]) -> list[list[Source]]:
        if self.config.normalization_scope is NormalizationScope.team:
            return [list(inputs)]
        return super().list_compared(inputs)
