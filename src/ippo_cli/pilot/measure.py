"""All measurements of a pilot, as plain numbers that are the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ippo_cli.agents.learner import Learner
from ippo_cli.config.schema import UpdateOrder
from ippo_cli.diagnosis.finding import Row
from ippo_cli.engine import distributed
from ippo_cli.pilot.critic import CriticFit, fit_critics
from ippo_cli.pilot.gradient import PolicyGradient, measure_bonus, measure_gradient
from ippo_cli.pilot.sample import PilotSample, collect_sample
from ippo_cli.pilot.size import PilotSize
from ippo_cli.pilot.statistics import Estimate, ScoreSpread, measure_repeatability, measure_spread
from ippo_cli.pilot.step import PolicyStep, first_full_iteration, measure_step
from ippo_cli.planning.trained_memory import has_whole_gradients
from ippo_cli.reporting.iteration_metrics import iteration_row
from ippo_cli.reporting.samples import SampleDetails, sample_rows
from ippo_cli.reporting.token_values import tokens_by_turn
from ippo_cli.tasks.templates import render_template
from ippo_cli.training.trainer import Trainer
from ippo_cli.types import StepContext

SAMPLES = 16  # episodes that conditions on responses read


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyMeasurement:
    """One trained policy; None where the run's sharding does not allow a measurement."""

    name: str
    agents: tuple[str, ...]
    steps: int  # optimizer steps of the run, at its full learning rate
    gradient: PolicyGradient | None
    bonus: float  # norm of the gradient of the entropy bonus, by that of the other terms; 0 without a bonus
    step: PolicyStep | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What a pilot has found."""

    size: PilotSize
    episodes: int
    tokens: int  # sampled by all agents, those of the run's methods included
    spreads: Mapping[str, ScoreSpread]  # by agent, frozen ones included
    repeatable: Mapping[str, Estimate]  # by agent: fraction of the variance within prompts that the reward repeats
    equal_prompts: Sequence[str]  # agents with equal prompts in all rows, although their reference answers differ
    policies: Sequence[PolicyMeasurement]
    critics: Mapping[str, CriticFit]  # by agent with values
    row: Row  # the metrics of an iteration with one step of each policy
    samples: Sequence[Mapping[str, Any]]  # the first episodes, as in `samples/`
    seconds: Mapping[str, float]  # by phase, on rank 0
    iterations: int  # of the run


def measure(trainer: Trainer, size: PilotSize) -> Measurement:
    """Sample with the initial policies, and measure scores, gradients, a step and critics. Collective.

    Weights and states of the trainer are changed: it can only be freed afterwards.
    """
    sample = collect_sample(trainer, size)
    team, config = trainer.state.team, trainer.config
    samples = collect_samples(trainer, sample)
    policies = [learner for learner in team.learners if learner.is_policy]
    measured = [_measure_policy(trainer, sample, learner) for learner in policies]
    critics, critic_stats = fit_critics(trainer, sample)
    stats = [*(policy.step.stats for policy in measured if policy.step is not None), *critic_stats]
    coefs = trainer.state.algorithm.active_kl_coefs(team)
    row = iteration_row(1, team, sample.experience, sample.own_targets, coefs, stats, trainer.max_turns)
    generated = sample.collected.buffer.generated_tokens
    in_buffer, repeated = _count_tokens(sample)
    return Measurement(
        size=size,
        episodes=len(sample.rows),
        tokens=round((in_buffer if generated is None else generated) + repeated),
        spreads={name: measure_spread(sample.scores_by_prompt(name)) for name in config.task.agents},
        repeatable={name: measure_repeatability(sample.pairs_by_prompt(name)) for name in config.task.agents},
        equal_prompts=find_equal_prompts(trainer, sample),
        policies=measured,
        critics=critics,
        row=row,
        samples=samples,
        seconds=sample.seconds,
        iterations=trainer.plan.num_iterations,
    )


def _measure_policy(trainer: Trainer, sample: PilotSample, learner: Learner) -> PolicyMeasurement:
    config, plan = trainer.config, trainer.plan
    begins = first_full_iteration(trainer, learner)
    context = StepContext(seed=config.seed, iteration=begins, num_iterations=plan.num_iterations)
    policies = sum(other.is_policy for other in trainer.state.team.learners)
    turns = policies if config.team.update_order is UpdateOrder.round_robin else 1  # iterations per update
    steps = max(plan.num_iterations - begins, 0) * plan.actor_steps[learner.agent_names[0]]
    has_gradients = has_whole_gradients(config)
    return PolicyMeasurement(
        name=learner.name,
        agents=learner.agent_names,
        steps=-(-steps // turns),
        gradient=measure_gradient(trainer, sample, learner, context) if has_gradients else None,
        bonus=measure_bonus(trainer, sample, learner, context) if has_gradients else math.nan,
        step=measure_step(trainer, sample, learner) if config.deepspeed.ranks_per_group == 1 else None,
    )


def find_equal_prompts(trainer: Trainer, sample: PilotSample) -> list[str]:
    """Agents with equal first prompts in all rows, although their reference answers differ. Collective."""
    found: list[str] = []
    for name, agent in trainer.config.task.agents.items():
        if agent.answer is None:
            continue
        own = [
            (tuple(turns[0].prompt), render_template(agent.answer, episode.example, f"task.agents.{name}.answer"))
            for episode in sample.experience.episodes
            if (turns := episode.turns_of_agent(name))
        ]
        pairs = {pair for part in distributed.gather_objects(own) for pair in part}
        if len({prompt for prompt, _ in pairs}) == 1 < len(pairs):
            found.append(name)
    return found


def _count_tokens(sample: PilotSample) -> tuple[int, int]:
    """Sampled tokens of the buffer, and of the repeated responses."""
    first: set[int] = set()
    counts = [0, 0]
    for row in sample.rows:
        counts[row.index in first] += row.tokens
        first.add(row.index)
    return counts[0], counts[1]


def collect_samples(trainer: Trainer, sample: PilotSample) -> list[dict[str, Any]]:
    """The first `SAMPLES` episodes of all ranks with scores, texts and tokens. Collective."""
    experience, config = sample.experience, trainer.config
    episodes = experience.episodes[:SAMPLES]
    raw: dict[str, Tensor] = {
        name: own.raw.where(own.valid[:, None], math.nan)[:SAMPLES] for name, own in experience.scores.items()
    }
    policies = trainer.state.team.generation_policies
    limit = max(config.tracker.sample_tokens, 1)
    details = SampleDetails(
        tokens={name: tokens_by_turn(episodes, name, policies[name].tokenizer, limit) for name in policies}
    )
    own = sample_rows("train", episodes, raw, SAMPLES, details)
    rows = [row for part in distributed.gather_objects(own) for row in part]
    return sorted(rows, key=lambda row: row["index"])[:SAMPLES]
