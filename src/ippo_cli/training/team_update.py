"""Team update: which policies learn in an iteration, in which order, and HAPPO's sequential correction."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import Tensor

from ippo_cli.agents.learner import Learner
from ippo_cli.agents.team import Team
from ippo_cli.config.critic_fitting import policy_warmup
from ippo_cli.config.schema import Config, SequentialCorrectionConfig, UpdateOrder
from ippo_cli.engine import distributed
from ippo_cli.formulas import sequential_factor, step_logratio
from ippo_cli.reporting.iteration_metrics import ratio
from ippo_cli.reporting.stopwatch import ignore_phase
from ippo_cli.rollout.sampling import uniforms
from ippo_cli.training.placed_updates import PlacedUpdates
from ippo_cli.training.update import UpdateStats
from ippo_cli.types import Episode, Experience, Rollout, StepContext, Targets


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
    shared: Mapping[str, Mapping[str, Targets]] = MappingProxyType({}),
) -> list[UpdateStats]:
    """Train every learner for one iteration; returns their metrics by full name, in the order of `team.learners`.

    `turns`: by agent, the number of first turns with metrics. `show_phase` receives the name of each update. `shared`:
    by agent and author, the targets of the rows in `experience.shared`.

    Critics learn in every iteration, from uncorrected targets. A policy with a value head updates neither when it is
    not its turn, because they share weights.
    """
    policies = {learner.name: learner for learner in team.learners if learner.is_policy}
    order = policy_update_order(config, list(policies), context.iteration)
    changes = None
    if config.team.update_order is UpdateOrder.sequential and context.iteration >= policy_warmup(config):
        changes = SequentialCorrection(config.algorithm.sequential_correction, experience)
    updates = PlacedUpdates(team, experience, context, turns, show_phase, shared)
    if changes is None:
        updates.share_rows(team.learners, targets)
    for place, name in enumerate(order, start=1):
        learner = policies[name]
        if changes is None:
            updates.run(learner)
            continue
        corrected, correction_metrics = changes.correct_advantages(learner, targets, turns)
        before = None if place == len(order) else changes.compute_logprobs(team, learner)
        updates.share_rows([learner], corrected)
        updates.run(learner, correction_metrics | {f"{name}/policy/order": float(place)})
        if before is not None:
            changes.record_update(learner, before, changes.compute_logprobs(team, learner))
    remaining = [learner for learner in team.learners if id(learner) not in updates.stats]
    if changes is not None:
        updates.share_rows(remaining, targets)
    for learner in remaining:
        updates.run(learner, is_resting=learner.is_policy and learner.name not in order)
    return updates.collect_stats()


@dataclass
class SequentialCorrection:
    """Log-ratios of the policies updated so far in an iteration, per step, for HAPPO's factor."""

    correction: SequentialCorrectionConfig
    experience: Experience
    steps: dict[str, Tensor] = field(init=False)  # by agent: the step of each action token, `[B, R]`, -1 elsewhere
    logratio: Tensor = field(init=False)  # [B, S], summed over all agents updated so far

    def __post_init__(self) -> None:
        episodes, rollouts = self.experience.episodes, self.experience.rollouts
        self.steps = {name: environment_steps(episodes, name, rollout) for name, rollout in rollouts.items()}
        self.num_steps = 1 + max([0, *(int(steps.max()) for steps in self.steps.values() if steps.numel())])
        first = next(iter(rollouts.values()))
        self.logratio = first.logprobs.new_zeros(len(first.texts), self.num_steps)

    def correct_advantages(
        self, learner: Learner, targets: Mapping[str, Targets], turns: Mapping[str, int]
    ) -> tuple[Mapping[str, Targets], UpdateStats]:
        """The targets with a learner's advantages multiplied by its agents' factors, and the factors' metrics.

        `turns`: by agent, the number of first turns with metrics.
        """
        cap = math.inf if self.correction.cap is None else self.correction.cap
        corrected_targets: dict[str, Targets] = {}
        factors: dict[str, list[Tensor]] = {}  # by metric name
        for name in learner.agent_names:
            rollout, mask = self.experience.rollouts[name], targets[name].loss_mask
            factor = sequential_factor(self.logratio, rollout.response_mask, self.steps[name], cap=cap)
            corrected_targets[name] = replace(targets[name], advantages=targets[name].advantages * factor)
            for holder in dict.fromkeys((learner.name, name)):
                factors.setdefault(f"{holder}/policy/correction", []).append(factor[mask])
            for turn in range(turns.get(name, 0)):
                factors[f"{name}/policy/correction/turn/{turn + 1}"] = [factor[mask & (rollout.turn == turn)]]
        joint = {key: torch.cat(numbers).double() for key, numbers in factors.items()}
        sums = [torch.stack([numbers.sum(), numbers.new_tensor(float(len(numbers)))]) for numbers in joint.values()]
        total = distributed.all_sum(torch.stack(sums)).tolist()
        metrics = {key: ratio(*both) for key, both in zip(joint, total, strict=True)}
        all_factors = joint[f"{learner.name}/policy/correction"]
        largest = distributed.all_max(torch.cat([all_factors, all_factors.new_zeros(1)]).max())
        known = not math.isnan(metrics[f"{learner.name}/policy/correction"])
        return {**targets, **corrected_targets}, metrics | {
            f"{learner.name}/policy/correction_max": float(largest) if known else math.nan
        }

    def compute_logprobs(self, team: Team, learner: Learner) -> dict[str, Tensor]:
        """Log-probabilities of the agents' actions under the current policy, by agent.

        Both sides of a ratio use this forward pass, so an unchanged policy has ratio 1.
        """
        return {
            name: team[name].recompute_logprobs(self.experience.rollouts[name]).logprobs for name in learner.agent_names
        }

    def record_update(self, learner: Learner, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
        """Add the log-ratio of an update to `logratio`."""
        pooling = self.correction.pooling
        assert pooling is not None
        for name in learner.agent_names:
            self.logratio = self.logratio + step_logratio(
                after[name],
                before[name],
                self.experience.rollouts[name].response_mask,
                self.steps[name],
                steps=self.num_steps,
                pooling=pooling.value,
            )


def environment_steps(episodes: Sequence[Episode], agent: str, rollout: Rollout) -> Tensor:
    """The environment step of each of an agent's action tokens, `[B, R]`; -1 elsewhere."""
    own = [[turn.step for turn in episode.trainable_turns(agent)] for episode in episodes]
    width = max([1, *map(len, own)])
    steps = torch.tensor([row + [-1] * (width - len(row)) for row in own], dtype=torch.long).reshape(len(own), width)
    turn = rollout.turn
    found = steps.to(turn.device).gather(1, turn.clamp(min=0))
    return found.where(rollout.response_mask, -1)


def has_joint_actions(team: Team, episodes: Sequence[Episode]) -> bool:
    """Whether agents of different policies act at the same step in any episode, on any rank. Collective."""
    holder_of = {name: learner.name for learner in team.learners for name in learner.agent_names}

    def is_joint(episode: Episode) -> bool:
        acting = {(turn.step, holder_of[turn.agent]) for turn in episode.turns if turn.agent in holder_of}
        return len({step for step, _ in acting}) < len(acting)

    return distributed.any_rank(any(map(is_joint, episodes)))
