"""Load a task by `task.kind`: examples, environment factory, dry run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import (
    Config,
    ContextMode,
    ConversationConfig,
    EnvironmentTaskConfig,
    TaskConfig,
    has_data,
    load_implementation,
)
from ippo_cli.tasks.dry_run import DryRun, run_dry_episode
from ippo_cli.tasks.environment import Environment, EnvironmentPool
from ippo_cli.tasks.environments.build import make_environment_factory
from ippo_cli.tasks.jsonl import held_out_rows
from ippo_cli.tasks.protocols import TemplatedEnvironment, make_protocol_factory
from ippo_cli.tasks.templates import render_template
from ippo_cli.tasks.tools.environment import add_tools
from ippo_cli.tasks.tools.runner import NUM_THREADS
from ippo_cli.tasks.warm_start import take_examples
from ippo_cli.types import Example

MAX_DRY_RUN_TURNS = 100  # limit of a dry run: a protocol may wait for a specific message
MAX_ENVIRONMENT_TURNS = 3  # limit of a dry run of an environment, which may be slow
BATCH_WINDOW_S = 2.0
"""Calls of programs wait for those of others, which make larger batches, until none has come for this time."""
NUM_TRIED_EXAMPLES = 3  # dry runs of an environment that may fail sometimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Examples of a task. Generated train and held-out examples are disjoint; for files, the user must ensure it."""

    train: Sequence[Example]
    held_out: Sequence[Example]
    dry_run: DryRun = field(default_factory=DryRun)  # the beginning of an episode with a training example


def make_examples(config: TaskConfig, seed: int) -> tuple[Sequence[Example], Sequence[Example]]:
    """Read or generate the training examples and the held-out examples."""
    return load_implementation("task", config.kind, "examples")(config, seed)


def load_task(config: TaskConfig, seed: int) -> Task:
    """Read or generate the examples of a task, and test templates and user code on the first ones.

    Raises `ConfigError`.
    """
    train, held_out = make_examples(config, seed)
    _check_templates(config, (train[0], held_out[0]))
    return Task(
        train=train, held_out=held_out, dry_run=dry_run_examples(config, take_examples(train, NUM_TRIED_EXAMPLES), seed)
    )


def load_held_out(config: TaskConfig, seed: int) -> Sequence[Example]:
    """Load only the held-out examples of a task; files of training examples are not read."""
    held_out = held_out_rows(config, seed) if has_data(config) else make_examples(config, seed)[1]
    _check_templates(config, (held_out[0],))
    return held_out


def make_task_factory(config: TaskConfig) -> Callable[[], Environment]:
    """Return a factory of a task's environments: its protocol, or its environment with the agents' templates."""
    if isinstance(config, ConversationConfig):
        return add_tools(make_protocol_factory(config), config.agents)
    if config.is_program:
        return load_implementation("task", config.kind, "environment")(config)
    assert isinstance(config, EnvironmentTaskConfig)
    make = make_environment_factory(config)
    return lambda: TemplatedEnvironment(make(), config.agents)


def dry_run_example(config: TaskConfig, example: Example, seed: int = 0) -> DryRun:
    """Play the beginning of an episode without a model (most conversations completely).

    Raises `ConfigError` for unavailable template fields and unknown environments.
    """
    max_turns = MAX_DRY_RUN_TURNS if config.is_conversation else MAX_ENVIRONMENT_TURNS
    return run_dry_episode(make_task_factory(config)(), example, seed, max_turns)


def dry_run_examples(config: TaskConfig, examples: Iterable[Example], seed: int = 0) -> DryRun:
    """Return the first dry run of these examples that succeeds, or that fails because of a placeholder answer.

    Raises `ConfigError` as `dry_run_example` does, and if the user's code fails on every example.
    """
    result = DryRun()
    for example in examples:
        result = dry_run_example(config, example, seed)
        if not result.is_user_error:
            return result
    raise ConfigError(task_setting(config), f"fails ({result.failure})", "fix the error there")


def task_setting(config: TaskConfig) -> str:
    """Return the setting that names the protocol or environment, such as `task.environment=guess.py:make`."""
    for key in ("protocol", "environment", "env_id", "program", "command", "dataset", "url"):
        if (value := getattr(config, key, None)) is not None:
            return f"task.{key}={value}"
    return f"task.kind={config.kind}"


def max_turns_by_agent(config: TaskConfig) -> dict[str, int | None]:
    """Return the maximal number of turns per agent in an episode, with those that call tools; None if unknown."""
    limit = config.max_answers
    if limit is None:
        return dict.fromkeys(config.agents)
    answers = dict.fromkeys(config.agents, limit)
    if config.built_in_protocol == "calls":
        _, *called = config.agents
        answers |= dict.fromkeys(called, limit - 1)  # the last message of the caller is not a call
    return {
        name: answers[name] * (1 if agent.tools is None else 1 + agent.max_tool_calls)
        for name, agent in config.agents.items()
    }


def agents_with_tools(config: TaskConfig) -> list[str]:
    """Return the agents that may call tools."""
    return [name for name, agent in config.agents.items() if agent.tools is not None]


def response_budgets(config: Config) -> dict[str, int]:
    """Return the maximal response tokens per agent in an episode; those of one turn if the turn limit is unknown."""
    agents = config.task.agents
    return {
        name: (turns or 1) * agents[name].rollout.max_new_tokens
        for name, turns in max_turns_by_agent(config.task).items()
    }


def multi_turn_agents(config: TaskConfig) -> list[str]:
    """Return the agents that may act more than once in an episode."""
    return [name for name, turns in max_turns_by_agent(config).items() if turns is None or turns > 1]


def example_only_agents(config: TaskConfig) -> list[str]:
    """Return the agents with a first message that depends only on the example, not on messages or an environment."""
    if config.built_in_protocol is None:
        return []
    count = len(config.agents) if config.built_in_protocol == "parallel" else 1
    return list(config.agents)[:count]


def can_reuse_prefix(config: Config) -> bool:
    """Whether later prompts extend earlier prompts and responses, so that a prefix cache helps."""
    return config.rollout.context is not ContextMode.last_only and bool(multi_turn_agents(config.task))


def make_environment_pool(config: TaskConfig) -> EnvironmentPool:
    """Return a pool of the task's environments, with its threads and its limit."""
    return EnvironmentPool(
        make_task_factory(config),
        workers=_num_workers(config),
        max_environments=config.max_environments,
        batch_window_s=BATCH_WINDOW_S if config.is_program else None,
    )


def _num_workers(config: TaskConfig) -> int:
    """Return the number of threads that step environments."""
    if config.episode_workers is not None:
        return config.episode_workers
    return NUM_THREADS if agents_with_tools(config) else 1


def _check_templates(config: TaskConfig, examples: Sequence[Example]) -> None:
    for example in examples:
        if config.is_conversation:  # observations of other environments are not known yet
            dry_run_examples(config, [example])
        for name, agent in config.agents.items():
            for leaf, template in (("answer", agent.answer), ("warm_start_answer", agent.warm_start_answer)):
                render_template(template or "", example, f"task.agents.{name}.{leaf}")
