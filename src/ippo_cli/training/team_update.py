"""Team update: which policies learn in an iteration, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch

from ippo_cli.agents.team import Team
from ippo_cli.config.critic_fitting import policy_warmup
from ippo_cli.config.schema import Config, UpdateOrder
from ippo_cli.engine import distributed
from ippo_cli.reporting.stopwatch import ignore_phase
from ippo_cli.rollout.noise import uniforms
from ippo_cli.training.methods.method import Method
from ippo_cli.training.placed_updates import PlacedUpdates
from ippo_cli.training.update import UpdateStats
from ippo_cli.types import Episode, Experience, StepContext, Targets


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


def update_team(
    team: Team,
    experience: Experience,
    targets: Mapping[str, Targets],
    config: Config,
    context: StepContext,
    turns: Mapping[str, int] = MappingProxyType({}),
    show_phase: Callable[[str], None] = ignore_phase,
    *,
    shared: Mapping[str, Mapping[str, Targets]] = MappingProxyType({}),
    methods: Sequence[Method] = (),
) -> list[UpdateStats]:
    """Train every learner for one iteration; returns their metrics by full name, in the order of `team.learners`.

    `turns`: by agent, the number of first turns with metrics. `show_phase` receives the name of each update. `shared`:
    by agent and author, the targets of the rows in `experience.shared`.

    Critics learn in every iteration, from uncorrected targets. A policy with a value head updates neither when it is
    not its turn, because they share weights.
    """
    policies = {learner.name: learner for learner in team.learners if learner.is_policy}
    order = policy_update_order(config, list(policies), context.iteration)
    started = [method.start_correction(experience, context.iteration) for method in methods]
    corrections = [correction for correction in started if correction is not None]
    updates = PlacedUpdates(team, experience, context, turns, show_phase, shared, methods)
    if not corrections:
        updates.share_rows(team.learners, targets)
    for place, name in enumerate(order, start=1):
        learner = policies[name]
        if not corrections:
            updates.run(learner)
            continue
        corrected, metrics = targets, dict[str, float]()
        for correction in corrections:
            corrected, found = correction.correct(learner, corrected, turns)
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
