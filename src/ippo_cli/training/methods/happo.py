"""HAPPO's sequential correction: a policy learns from the changes of those updated before it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ippo_cli.agents.learner import Learner
from ippo_cli.agents.team import Team
from ippo_cli.config.critic_fitting import policy_warmup
from ippo_cli.config.schema import Config, SequentialCorrectionConfig
from ippo_cli.engine import distributed
from ippo_cli.formulas import sequential_factor, step_logratio
from ippo_cli.reporting.iteration_metrics import ratio
from ippo_cli.training.methods.method import Correction, Method
from ippo_cli.types import Episode, Experience, Rollout, Targets


class SequentialUpdates(Method):
    """Corrects the advantages of policies that are updated one after another (`team.update_order=sequential`)."""

    def __init__(self, config: Config) -> None:
        self._settings, self._warmup = config.algorithm.sequential_correction, policy_warmup(config)

    def start_correction(self, experience: Experience, iteration: int) -> Correction | None:
        return SequentialCorrection(self._settings, experience) if iteration >= self._warmup else None


@dataclass
class SequentialCorrection(Correction):
    """Log-ratios of the policies updated so far in an iteration, per step, for HAPPO's factor."""

    correction: SequentialCorrectionConfig
    experience: Experience
    steps: dict[str, Tensor] = field(init=False)  # by agent: the step of each action token, `[B, R]`, -1 elsewhere
    logratio: Tensor = field(init=False)  # [B, S], summed over all agents updated so far
    before: dict[str, Tensor] = field(default_factory=dict)  # log-probabilities before the update in progress

    def __post_init__(self) -> None:
        episodes, rollouts = self.experience.episodes, self.experience.rollouts
        self.steps = {name: environment_steps(episodes, name, rollout) for name, rollout in rollouts.items()}
        self.num_steps = 1 + max([0, *(int(steps.max()) for steps in self.steps.values() if steps.numel())])
        first = next(iter(rollouts.values()))
        self.logratio = first.logprobs.new_zeros(len(first.texts), self.num_steps)

    def correct(
        self, learner: Learner, targets: Mapping[str, Targets], turns: Mapping[str, int]
    ) -> tuple[Mapping[str, Targets], dict[str, float]]:
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

    def before_update(self, team: Team, learner: Learner) -> None:
        self.before = self._compute_logprobs(team, learner)

    def after_update(self, team: Team, learner: Learner) -> None:
        self._add_logratio(learner, self.before, self._compute_logprobs(team, learner))
        self.before = {}

    def _compute_logprobs(self, team: Team, learner: Learner) -> dict[str, Tensor]:
        """Log-probabilities of the agents' actions under the current policy, by agent.

        Both sides of a ratio use this forward pass, so an unchanged policy has ratio 1.
        """
        return {
            name: team[name].recompute_logprobs(self.experience.rollouts[name]).logprobs for name in learner.agent_names
        }

    def _add_logratio(self, learner: Learner, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
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
