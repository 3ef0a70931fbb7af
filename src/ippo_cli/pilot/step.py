"""One optimizer step of a policy on half of a sample: how far it moves the policy, and what it gains on the other half.

Afterwards the weights are those before it; the optimizer keeps the step in its moments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice

from torch import Tensor, nn

from ippo_cli.agents.learner import Learner
from ippo_cli.config.critic_fitting import policy_warmup
from ippo_cli.engine import distributed
from ippo_cli.pilot.change import HALVES, StepChange, measure_change, measure_gain, read_logprobs
from ippo_cli.pilot.gradient import start_updates
from ippo_cli.pilot.sample import PilotSample
from ippo_cli.pilot.statistics import Estimate
from ippo_cli.training.methods.method import Method
from ippo_cli.training.minibatches import OptimizerStep
from ippo_cli.training.trainer import Trainer
from ippo_cli.training.update import UpdateStats
from ippo_cli.types import StepContext

MAX_RATES = 4  # measured learning rates, the configured one included
NEAR = 1.5  # ratio of a measured KL to `pilot.kl` that needs no further rate
SCALES = (1e-4, 1e4)  # limits of measured learning rates, in configured ones
EXPONENTS = (1.0, 3.0)  # limits of the exponent of KL in the learning rate: 2 for a small step in a fixed direction
LOWEST_KL = 1e-9  # nats per token; a smaller one is rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStep:
    """The first step of a policy at its peak learning rate."""

    learning_rate: float
    changes: Sequence[StepChange]  # at the configured rate, and nearer to `pilot.kl` if the step changes anything
    gain: Estimate  # of the score per episode at the configured rate, to first order, on prompts that it has not seen
    rate_at_limit: float  # the learning rate at which a step has the KL of `pilot.kl`, estimated; NaN if unknown
    stats: UpdateStats

    @property
    def at_configured_rate(self) -> StepChange:
        """The change at the configured rate."""
        return self.changes[0]


class FirstStep(Method):
    """Ends an update after its first optimizer step."""

    def wrap_steps(
        self, learner: Learner, steps: Iterator[OptimizerStep], context: StepContext
    ) -> Iterator[OptimizerStep]:
        return islice(steps, 1)


@dataclass
class Displacement:
    """Trained weights before a step, and their change by it, on the CPU in float32."""

    learner: Learner
    start: list[Tensor] = field(default_factory=list)
    change: list[Tensor] = field(default_factory=list)

    def record_start(self) -> None:
        """Copy the weights before the step. Collective over the ranks that hold them, as are the other methods."""
        self._visit(lambda place, values: self.start.append(values.cpu().clone()))

    def record_change(self) -> None:
        """Copy the change by the step."""
        self._visit(lambda place, values: self.change.append(values.cpu() - self.start[place]))

    def write(self, scale: float) -> None:
        """Set the weights to those before the step and `scale` times its change."""
        for place, param in enumerate(self._parameters()):
            value = self.start[place] + scale * self.change[place] if scale else self.start[place]
            self.learner.engine.change_parameters([param], lambda values, value=value: [value.to(values[0])])

    def _visit(self, read: Callable[[int, Tensor], None]) -> None:
        for place, param in enumerate(self._parameters()):

            def keep(values: list[Tensor], place: int = place) -> list[Tensor]:
                read(place, values[0])
                return values

            self.learner.engine.change_parameters([param], keep)

    def _parameters(self) -> list[nn.Parameter]:
        return [param for param in self.learner.engine.module.parameters() if param.requires_grad]


def measure_step(trainer: Trainer, sample: PilotSample, learner: Learner) -> PolicyStep:
    """Take a policy's first step, measure its change at two learning rates, and undo it. Collective."""
    generations = trainer.config.rollout.num_generations
    context = StepContext(
        seed=trainer.config.seed,
        iteration=first_full_iteration(trainer, learner),
        num_iterations=trainer.plan.num_iterations,
    )
    before = read_logprobs(trainer, sample, learner)
    moved = Displacement(learner)
    _on_holders(learner, moved.record_start)
    half = sample.select_part(0, HALVES, generations)
    updates = start_updates(trainer, half, context, [FirstStep()])
    updates.share_rows([learner], half.own_targets)
    updates.run(learner)
    stats = distributed.gather_objects(updates.stats[id(learner)])[learner.group.ranks[0]]
    _on_holders(learner, moved.record_change)
    used = stats.get(f"{learner.name}/{learner.stage}/learning_rate", math.nan)
    rate = learner.optimizer.learning_rate
    peak = rate / used if used > 0 else 1.0  # a step with a warm-up's rate is scaled to the peak rate

    def read_at(scale: float) -> dict[str, Tensor]:
        _on_holders(learner, lambda: moved.write(peak * scale))
        return read_logprobs(trainer, sample, learner)

    def measure(scale: float) -> StepChange:
        return measure_change(trainer, sample, learner, before, read_at(scale), scale)

    changes, limit = [measure(1.0)], trainer.config.pilot.kl
    while len(changes) < MAX_RATES and _needs_another_rate(changes, limit):
        changes.append(measure(min(max(estimate_scale(changes, limit), SCALES[0]), SCALES[1])))
    small = min(changes[-1].scale, 1.0)
    gain = measure_gain(trainer, sample, learner, read_at(-small), read_at(small))
    _on_holders(learner, lambda: moved.write(0.0))
    return PolicyStep(
        learning_rate=rate,
        changes=changes,
        rate_at_limit=rate * estimate_scale(changes, limit),
        gain=gain.transform(lambda value: value / small),
        stats=stats,
    )


def first_full_iteration(trainer: Trainer, learner: Learner) -> int:
    """The first iteration (counted from 0) that updates the policy at its peak learning rate."""
    return max(policy_warmup(trainer.config), learner.optimizer.warmup_iterations)


def _needs_another_rate(changes: Sequence[StepChange], limit: float) -> bool:
    """Whether a second rate is missing, or the last one has a KL that is far from the limit."""
    kl = changes[-1].kl.value
    return kl > LOWEST_KL and (len(changes) < 2 or not 1 / NEAR < kl / limit < NEAR)


def estimate_scale(changes: Sequence[StepChange], limit: float) -> float:
    """The multiple of the learning rate with this KL, by a power law through the last two rates; NaN if unknown.

    KL of a step in a fixed direction grows with the square of its length, and so of the learning rate: the directions
    of SGD and of Adam's first step do not depend on it.
    """
    known = [(change.scale, change.kl.value) for change in changes if change.kl.value > LOWEST_KL]
    if not known:
        return math.nan
    scale, kl = known[-1]
    exponent = 2.0
    if len(known) > 1 and (ratio := known[-2][0] / scale) != 1.0:
        exponent = min(max(math.log(known[-2][1] / kl) / math.log(ratio), EXPONENTS[0]), EXPONENTS[1])
    return scale * (limit / kl) ** (1.0 / exponent)


def _on_holders(learner: Learner, work: Callable[[], None]) -> None:
    if learner.group.is_member:
        with nullcontext() if learner.group.is_world else learner.group.activate():
            work()
