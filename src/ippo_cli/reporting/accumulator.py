"""Accumulates an update's loss metrics: means over tokens, also by agent and turn, with one reduction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ippo_cli.algorithms.losses import Loss
from ippo_cli.engine import distributed
from ippo_cli.formulas.masked import keep
from ippo_cli.reporting.iteration_metrics import ratio
from ippo_cli.types import Minibatch


@dataclass(kw_only=True)
class MetricAccumulator:
    """Sums and maxima over micro-batches, by metric name.

    Also by agent if the learner trains several agents, and by turn for agents with several turns.
    """

    learner: str
    turns: Mapping[str, int]  # by agent, in the order of the rows: the number of first turns with metrics
    sums: dict[str, Tensor] = field(default_factory=dict)
    breakdowns: dict[str, Tensor] = field(default_factory=dict)  # [2, agents, turns + 1]: sums and counts of entries
    maxima: dict[str, Tensor] = field(default_factory=dict)
    tokens: int = 0  # over all ranks and steps
    first_epoch_tokens: int = 0

    @classmethod
    def for_learner(cls, learner: str, agents: Sequence[str], turns: Mapping[str, int]) -> MetricAccumulator:
        """An empty accumulator for a learner that trains these agents."""
        return cls(learner=learner, turns={name: turns.get(name, 0) for name in agents})

    def add(self, prefix: str, loss: Loss, batch: Minibatch, *, first_epoch: bool, first_step: bool) -> None:
        """Add the metrics of a micro-batch's loss, under `<prefix>/`."""
        logged = [name for name in loss.per_token if name != "ratio" or first_epoch]
        sums = loss.sums
        for name in logged:
            _add_to(self.sums, f"{prefix}/{name}", sums[name])
        if len(self.turns) > 1 or any(self.turns.values()):
            numbers = torch.stack([loss.per_token[name] for name in logged])
            for name, part in zip(logged, self._breakdown_sums(numbers, loss, batch), strict=True):
                _add_to(self.breakdowns, f"{prefix}/{name}", part)
        for name, value in loss.maxima.items():
            for kept, wanted in (
                (f"{prefix}/{name}_max_deviation", first_epoch),
                (f"{prefix}/{name}_first_step_deviation", first_step),
            ):
                if wanted:
                    self.maxima[kept] = torch.maximum(self.maxima.get(kept, torch.zeros_like(value)), value)

    def count_tokens(self, num_tokens: int, *, first_epoch: bool) -> None:
        """Count the tokens of a step, over all ranks: the means divide by them."""
        self.tokens += num_tokens
        if first_epoch:
            self.first_epoch_tokens += num_tokens

    def step_sum(self, name: str) -> Tensor:
        return self.sums.get(name, torch.zeros((), dtype=torch.float64))

    def means(self) -> dict[str, float]:
        """The metrics by full name, over all ranks. Collective."""
        sums, parts = self._reduced_totals()
        found: dict[str, float] = {}
        for name, total in sums.items():
            tokens = self.first_epoch_tokens if name.endswith("/ratio") else self.tokens
            found[f"{self.learner}/{name}"] = float(total) / max(tokens, 1)
        for name, both in parts.items():
            for (agent, turns), total, count in zip(self.turns.items(), *both, strict=True):
                if len(self.turns) > 1:
                    found[f"{agent}/{name}"] = ratio(float(total.sum()), float(count.sum()))
                for turn in range(turns):
                    found[f"{agent}/{name}/turn/{turn + 1}"] = ratio(float(total[turn]), float(count[turn]))
        for name, value in sorted(self.maxima.items()):
            found[f"{self.learner}/{name}"] = float(distributed.all_max(value))
        return found

    def _reduced_totals(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Sums and parts over all ranks, with one reduction."""
        tensors = [table[name] for table in (self.sums, self.breakdowns) for name in sorted(table)]
        if not tensors:
            return {}, {}
        flat = distributed.all_sum_groups(torch.cat([tensor.flatten() for tensor in tensors])).cpu()
        total = [
            part.view_as(tensor) for part, tensor in zip(flat.split([t.numel() for t in tensors]), tensors, strict=True)
        ]
        count = len(self.sums)
        sums, parts = total[:count], total[count:]
        return dict(zip(sorted(self.sums), sums, strict=True)), dict(zip(sorted(self.breakdowns), parts, strict=True))

    def _breakdown_sums(self, numbers: Tensor, loss: Loss, batch: Minibatch) -> Tensor:
        """Sums and counts of quantities `[q, b, R]` by agent and turn: `[q, 2, agents, turns + 1]`.

        The last column collects later turns. Uses matrix products, because indexed additions are not deterministic
        on a GPU.
        """
        shown = max(self.turns.values())
        of_turn = one_hot(batch.rollout.turn.clamp(0, shown), shown + 1).double()
        of_agent = one_hot(batch.agent, len(self.turns)).double()
        kept = keep(torch.cat([numbers.double(), torch.ones_like(numbers[:1])]), loss.mask)
        by_turn = torch.einsum("qbr,brt->qbt", kept, of_turn)
        total = torch.einsum("qbt,ba->qat", by_turn, of_agent)
        return torch.stack([total[:-1], total[-1:].expand_as(total[:-1])], dim=1)


def _add_to(table: dict[str, Tensor], name: str, value: Tensor) -> None:
    before = table.get(name)
    table[name] = (torch.zeros_like(value, dtype=torch.float64) if before is None else before) + value
