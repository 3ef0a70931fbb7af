"""Rules of `task`: its own keys, its turns and its environment, and of evaluations during training."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ippo_cli.config.data import check_data
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.programs import check_program
from ippo_cli.config.python_names import missing_name_message
from ippo_cli.config.schema import (
    PROTOCOLS,
    Config,
    ContextMode,
    ConversationConfig,
    DataConfig,
    EnvironmentTaskConfig,
    Mode,
    ProgramConfig,
    TaskConfig,
)

# Keys that name an environment, with an example.
WORLD_NAMES = {
    "env_id": "FrozenLake-v1 (gymnasium) or classic/tictactoe_v3 (pettingzoo)",
    "dataset": "chain_sum",
    "environment": "my_env.py:make",
}


def check_task(task: TaskConfig, *, training: bool) -> Iterator[ConfigError]:
    """Rules between the keys of a task."""
    for mistake in task.find_mistakes():
        yield ConfigError(*mistake)
    if isinstance(task, DataConfig):
        check_data(task, training=training)


def check_turns(config: Config) -> None:
    """Rules of protocols, turns and environments. Raises `ConfigError`."""
    task, history = config.task, config.rollout.context
    if isinstance(task, EnvironmentTaskConfig):
        _check_world(task, history)
        return
    if isinstance(task, ProgramConfig):
        check_program(config, task)
        return
    assert isinstance(task, ConversationConfig)
    if task.protocol.endswith(".py"):
        raise ConfigError(*missing_name_message("task.protocol", task.protocol))
    if task.protocol not in PROTOCOLS and not re.fullmatch(r"[^:]+\.py:[A-Za-z_]\w*", task.protocol):
        raise ConfigError(
            f"task.protocol={task.protocol}",
            "is not known",
            f"use {', '.join(PROTOCOLS)}, or your own protocol as path.py:Name",
        )
    if task.protocol == "sequential" and task.num_turns > 1:
        raise ConfigError(
            f"task.num_turns={task.num_turns}",
            "is more than the one turn of each agent in task.protocol=sequential",
            "use task.protocol=dialogue, in which agents answer each other for any number of turns",
        )
    if task.protocol == "calls" and len(task.agents) == 1:
        raise ConfigError("task.protocol=calls", "calls other agents, and there is one", "use task.protocol=dialogue")
    if task.protocol == "calls" and task.num_turns == 1:
        raise ConfigError("task.num_turns=1", "leaves no call: a reply is read in the next turn", "use 2 or more")
    if not task.has_one_message_per_agent:
        return
    for name, agent in task.agents.items():
        if agent.turn_template is not None:
            raise ConfigError(
                f"task.agents.{name}.turn_template={agent.turn_template!r}",
                f"is used from the second turn on, and task.protocol={task.protocol} task.num_turns=1 have one turn",
                "set it to null, or use task.protocol=dialogue task.num_turns=2",
            )
    if history is not ContextMode.append and task.is_one_turn_per_agent:
        raise ConfigError(
            f"rollout.context={history.value}",
            f"has no effect: task.protocol={task.protocol} task.num_turns=1 have no later turns",
            "use rollout.context=append",
        )


def _check_world(task: EnvironmentTaskConfig, history: ContextMode) -> None:
    for key, example in WORLD_NAMES.items():
        if hasattr(task, key) and getattr(task, key) is None:
            raise ConfigError(f"task.{key}=null", "names no environment", f"set it, for example task.{key}={example}")
    # Tasks with the preset rollout.context=last_only keep it with one turn.
    at_rest = (ContextMode.append, *((ContextMode.last_only,) if task.forgets_earlier_turns else ()))
    for key in ("max_turns", "num_turns", "num_rungs"):
        if getattr(task, key, None) == 1 and history not in at_rest:
            raise ConfigError(
                f"rollout.context={history.value}",
                f"has no effect: task.kind={task.kind} task.{key}=1 has no later turns",
                "use rollout.context=append",
            )


def check_primary_metric(config: Config) -> None:
    """Raise `ConfigError` for a metric that no evaluation has."""
    mode, _, metric = config.task.primary_metric.partition("/")
    if mode not in ("sampled", "greedy") or not metric:
        raise ConfigError(
            f"task.primary_metric={config.task.primary_metric}",
            "is not an evaluation metric",
            "use sampled/METRIC or greedy/METRIC, such as sampled/score",
        )
    if mode == "greedy" and not config.evaluation.greedy:
        raise ConfigError(
            f"task.primary_metric={config.task.primary_metric}",
            "needs the greedy evaluation",
            "set evaluation.greedy=true, or a primary_metric that starts with sampled/",
        )
    if mode == "sampled" and not config.evaluation.sampled:
        raise ConfigError(
            f"task.primary_metric={config.task.primary_metric}",
            "needs the sampled evaluation",
            f"set evaluation.sampled=true, or task.primary_metric=greedy/{metric}",
        )


def check_patience(config: Config) -> None:
    """Raise `ConfigError` for `evaluation.patience` without evaluations during training."""
    if config.evaluation.patience is not None and not config.evaluation.every:
        raise ConfigError(
            f"evaluation.patience={config.evaluation.patience}",
            "has no effect with evaluation.every=0, which evaluates at both ends only",
            "use evaluation.every=10, or evaluation.patience=null",
        )


def check_stop_at_risk(config: Config) -> None:
    """Raise `ConfigError` for `evaluation.stop_at_risk` without policies that change."""
    limit = config.evaluation.stop_at_risk
    if limit is not None and config.mode is Mode.critic:
        raise ConfigError(
            f"evaluation.stop_at_risk={limit:g}",
            "has no effect with mode=critic, which forecasts no collapse because policies keep their weights",
            "use evaluation.stop_at_risk=null, or mode=train",
        )


STOP_RULES = (check_patience, check_stop_at_risk)
