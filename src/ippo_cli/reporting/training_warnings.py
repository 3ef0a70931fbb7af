"""Warnings about a run: the live conditions of `diagnosis` on the last rows, and rules about the configuration."""

from __future__ import annotations

from collections.abc import Iterable

from ippo_cli.config.batch_sizes import BatchSizes
from ippo_cli.config.config_warnings import WarningInputs, config_warnings
from ippo_cli.config.schema import Config, Dtype, EnvironmentTaskConfig
from ippo_cli.diagnosis.finding import Finding, Observations, Row
from ippo_cli.diagnosis.registry import CONDITIONS
from ippo_cli.engine.number_formats import has_gpu, measure_bf16_slowdown
from ippo_cli.tasks.environments.build import newer_environment
from ippo_cli.tasks.task import Task

WINDOW = 50  # rows that live conditions read


def training_warnings(recent: Iterable[Row], config: Config) -> dict[str, str]:
    """Warnings by condition about the last iterations (oldest first, at most `WINDOW`)."""
    observations = Observations(config=config, rows=list(recent))
    if not observations.rows:
        return {}
    outcomes = {condition.name: condition.warn(observations) for condition in CONDITIONS if condition.warn}
    return {name: outcome.line for name, outcome in outcomes.items() if isinstance(outcome, Finding)}


def startup_warnings(config: Config, plan: BatchSizes, task: Task) -> dict[str, str]:
    """Warnings by rule about the configuration, before the first iteration."""
    return config_warnings(
        WarningInputs(
            config=config,
            batch_sizes=plan,
            train_rows=len(task.train),
            held_out_rows=len(task.held_out),
            dry_run_failure=task.dry_run.failure,
            bf16_slowdown=measure_bf16_slowdown() if _computes_in_bf16_on_cpu(config) else None,
            newer_environment=newer_environment(config.task)
            if isinstance(config.task, EnvironmentTaskConfig)
            else None,
        )
    )


def _computes_in_bf16_on_cpu(config: Config) -> bool:
    """Whether a model of an agent computes in bf16 on the processor of this machine."""
    if config.plan.devices is not None or has_gpu():
        return False
    models = (model for agent in config.task.agents.values() for model in (agent.actor, agent.critic))
    return any(getattr(model, "dtype", None) is Dtype.bf16 for model in models)
