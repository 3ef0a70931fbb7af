"""Team update: which policies learn in an iteration, in which order, and on which ranks.

Learners on different ranks are updated at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ippo_cli.agents.grad_norms import GradNorms
from ippo_cli.agents.learner import Learner
from ippo_cli.agents.routing import share_rows
from ippo_cli.agents.team import Team
from ippo_cli.config.critic_fitting import policy_warmup
from ippo_cli.config.schema import Config, UpdateOrder
from ippo_cli.engine import distributed
from ippo_cli.reporting.stopwatch import ignore_phase
from ippo_cli.rollout.noise import uniforms
from ippo_cli.training.methods.method import Method
from ippo_cli.training.minibatches import iterate_steps
from ippo_cli.training.update import UpdateStats, update_learner
from ippo_cli.types import CriticView, Episode, Experience, Rollout, StepContext, Targets


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
    turns: Mapping[str, int] = field(default_factory=dict)  # by agent, the number of first turns with metrics
    show_phase: Callable[[str], None] = ignore_phase  # receives the name of each update
    # By agent and author: of the rows in `experience.shared`.
    shared: Mapping[str, Mapping[str, Targets]] = field(default_factory=dict)
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


def policy_update_order(config: Config, policies: Sequence[str], iteration: int) -> list[str]:
    """The policies that learn in an iteration (counted from 0), in update order; depends on (seed, iteration) only.

    While no policy is updated (`policy_warmup`), the order is that of `policies`.
    """
    order, after_warmup = config.team.update_order, iteration - policy_warmup(config)
    if order is UpdateOrder.simultaneous or after_warmup < 0:
        return list(policies)
    if order is UpdateOrder.round_robin:
        assert config.team.round_robin_every is not None
        return [policies[after_warmup // config.team.round_robin_every % len(policies)]]
    numbers = uniforms(config.seed, "update_order", torch.tensor([iteration]), len(policies))[0]
    return [policies[int(place)] for place in numbers.argsort(stable=True)]


def update_team(updates: PlacedUpdates, targets: Mapping[str, Targets], config: Config) -> list[UpdateStats]:
    """Train every learner for one iteration; returns their metrics by full name, in the order of `team.learners`.

    Critics learn in every iteration, from uncorrected targets. A policy with a value head updates neither when it is
    not its turn, because they share weights.
    """
    team, iteration = updates.team, updates.context.iteration
    policies = {learner.name: learner for learner in team.learners if learner.is_policy}
    order = policy_update_order(config, list(policies), iteration)
    started = [method.start_correction(updates.experience, iteration) for method in updates.methods]
    corrections = [correction for correction in started if correction is not None]
    if not corrections:
        updates.share_rows(team.learners, targets)
    for place, name in enumerate(order, start=1):
        learner = policies[name]
        if not corrections:
            updates.run(learner)
            continue
        corrected, metrics = targets, dict[str, float]()
        for correction in corrections:
            corrected, found = correction.correct(learner, corrected, updates.turns)
            metrics |= found
            if place < len(order):
                correction.before_update(team, learner)
        updates.share_rows([learner], corrected)
        updates.run(learner, metrics | {f"{name}/policy/order": float(place)})
        for correction in corrections if place < len(order) else ():
            correction.after_update(team, learner)
    remaining = [learner for learner in team.learners if id(learner) not in updates.stats]
    if corrections:
        updates.share_rows(remaining, targets)
    for learner in remaining:
        updates.run(learner, is_resting=learner.is_policy and learner.name not in order)
    return updates.collect_stats()


def has_joint_actions(team: Team, episodes: Sequence[Episode]) -> bool:
    """Whether agents of different policies act at the same step in any episode, on any rank. Collective."""
    holder_of = {name: learner.name for learner in team.learners for name in learner.agent_names}

    def is_joint(episode: Episode) -> bool:
        acting = {(turn.step, holder_of[turn.agent]) for turn in episode.turns if turn.agent in holder_of}
        return len({step for step, _ in acting}) < len(acting)

    return distributed.any_rank(any(map(is_joint, episodes)))
