"""Updates of learners on the ranks that hold them: learners on different ranks are updated at the same time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ippo_cli.agents.grad_norms import GradNorms
from ippo_cli.agents.learner import Learner
from ippo_cli.agents.routing import share_rows
from ippo_cli.agents.team import Team
from ippo_cli.engine import distributed
from ippo_cli.training.methods.method import Method
from ippo_cli.training.minibatches import iterate_steps
from ippo_cli.training.update import UpdateStats, update_learner
from ippo_cli.types import CriticView, Experience, Rollout, StepContext, Targets


class LearnerRows(NamedTuple):
    """What a learner is trained on, by agent or author: this rank's rows."""

    rollouts: dict[str, Rollout]
    targets: dict[str, Targets]
    views: dict[str, CriticView]


@dataclass
class PlacedUpdates:
    """The updates of one iteration. Every rank calls the methods, in the same order."""

    team: Team
    experience: Experience
    context: StepContext
    turns: Mapping[str, int]  # by agent, the number of first turns with metrics
    show_phase: Callable[[str], None]
    shared: Mapping[str, Mapping[str, Targets]] = field(default_factory=dict)  # by agent and author of shared rows
    methods: Sequence[Method] = ()
    stats: dict[int, UpdateStats] = field(default_factory=dict)  # by learner; empty on ranks that do not hold it
    rows: dict[int, LearnerRows] = field(default_factory=dict)  # by learner: its shared rows

    def share_rows(self, learners: Sequence[Learner], targets: Mapping[str, Targets]) -> None:
        """Send the rows of these learners to the ranks that hold them. Collective.

        Rows of several learners are sent before their updates, so that no update waits for another.
        """
        for learner in learners:
            self.rows[id(learner)] = self._share_rows(learner, targets)

    def _share_rows(self, learner: Learner, targets: Mapping[str, Targets]) -> LearnerRows:
        experience, result = self.experience, LearnerRows({}, {}, {})
        if learner.member is not None:
            index = experience.batch.index
            targets = {name: learner.member.select_rows(targets[name], index) for name in learner.agent_names}

        def share(name: str, source: Mapping[str, Any], target: dict[str, Any]) -> None:
            rollout = experience.rollouts[name]
            if name in source:
                device = rollout.response_ids.device
                part = share_rows(learner.group, source[name], len(rollout.texts), device)
                if part is not None:
                    target[name] = part

        for name in learner.agent_names:
            share(name, experience.rollouts, result.rollouts)
            share(name, targets, result.targets)
            if learner.layout is not None:
                share(name, experience.views, result.views)
            for author in learner.shared_authors:
                share(author, experience.shared[name], result.rollouts)
                share(author, self.shared[name], result.targets)
        return result

    def run(self, learner: Learner, metrics: Mapping[str, float] | None = None, *, is_resting: bool = False) -> None:
        """Update a learner on the ranks that hold it; `metrics` are added to its own."""
        self.show_phase(f"update {learner.name} {learner.stage}")
        rows, self.stats[id(learner)] = self.rows.pop(id(learner)), dict(metrics or {})
        if not learner.group.is_member:
            return
        with nullcontext() if learner.group.is_world else learner.group.activate():
            if not is_resting and learner.objective.is_active(self.context):
                for method in self.methods:
                    self.stats[id(learner)] |= method.before_update(learner, rows.targets)
            steps = iterate_steps(learner, rows.rollouts, rows.targets, self.context, rows.views)
            for method in self.methods:
                steps = method.wrap_steps(learner, steps, self.context)
            self.stats[id(learner)] |= update_learner(
                learner, steps, self.context, turns=self.turns, is_resting=is_resting
            )

    def collect_stats(self) -> list[UpdateStats]:
        """The metrics of every learner, on every rank, which learners then observe. Collective."""
        found = self._gather_stats()
        for learner, stats in zip(self.team.learners, found, strict=True):
            learner.observe(stats)
        return found

    def _gather_stats(self) -> list[UpdateStats]:
        own = [
            (self.stats[id(learner)], learner.consecutive_skips, learner.grad_norms.recent, learner.return_moments)
            for learner in self.team.learners
        ]
        if all(learner.group.is_world for learner in self.team.learners):
            return [stats for stats, *_ in own]
        gathered = distributed.gather_objects(own)
        found: list[UpdateStats] = []
        for place, learner in enumerate(self.team.learners):
            stats, learner.consecutive_skips, norms, learner.return_moments = gathered[learner.group.ranks[0]][place]
            learner.grad_norms = GradNorms(norms)
            found.append(stats)
        return found
