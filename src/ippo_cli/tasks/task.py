"""A task: training examples and held-out examples, looked up by `task.kind`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ippo_cli.config.checks import PROTOCOLS
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import (
    Config,
    ConversationConfig,
    EnvironmentTaskConfig,
    History,
    JsonlConfig,
    LadderConfig,
    ReasoningGymConfig,
    SteppedEnvironmentConfig,
    TaskConfig,
    TaskKind,
)
from ippo_cli.tasks.dry_run import DryRun, run_dry_episode
from ippo_cli.tasks.environment import Environment
from ippo_cli.tasks.environments.build import make_environment_factory
from ippo_cli.tasks.environments.examples import seed_examples
from ippo_cli.tasks.jsonl import held_out_rows, jsonl_examples
from ippo_cli.tasks.ladder import ladder_examples, make_ladder_factory
from ippo_cli.tasks.probes import grid_examples, letters_examples
from ippo_cli.tasks.protocols import TemplatedEnvironment, make_protocol_factory
from ippo_cli.tasks.relay import relay_examples
from ippo_cli.tasks.signalling import signalling_examples
from ippo_cli.tasks.sorting import sorting_examples
from ippo_cli.tasks.templates import render_template
from ippo_cli.tasks.warm_start import take_examples
from ippo_cli.types import Example

MAX_DRY_RUN_TURNS = 100  # turns of a dry run: a protocol may go on until somebody says a certain thing
MAX_ENVIRONMENT_TURNS = 3  # of a world: it may be slow
NUM_TRIED_EXAMPLES = 3  # examples on which an environment that may fail now and then is tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Examples by position. Generated tasks share none between the two; of files that is the user's to see to."""

    train: Sequence[Example]
    held_out: Sequence[Example]
    dry_run: DryRun = field(default_factory=DryRun)  # the beginning of an episode about a training example


SOURCES: dict[TaskKind, Callable[..., tuple[Sequence[Example], Sequence[Example]]]] = {
    TaskKind.sorting: sorting_examples,
    TaskKind.jsonl: jsonl_examples,
    TaskKind.probe_letters: letters_examples,
    TaskKind.probe_grid: grid_examples,
    TaskKind.signalling: signalling_examples,
    TaskKind.relay: relay_examples,
    TaskKind.ladder: ladder_examples,
    TaskKind.gymnasium: seed_examples,
    TaskKind.pettingzoo: seed_examples,
    TaskKind.reasoning_gym: seed_examples,
    TaskKind.environment: seed_examples,
}


def load_task(config: TaskConfig, seed: int) -> Task:
    """Read or generate the examples of a task; templates and the user's code are tried on the first ones.

    Raises `ConfigError` for what cannot work.
    """
    train, held_out = SOURCES[config.kind](config, seed)
    _check_templates(config, (train[0], held_out[0]))
    return Task(
        train=train, held_out=held_out, dry_run=dry_run_examples(config, take_examples(train, NUM_TRIED_EXAMPLES), seed)
    )


def load_held_out(config: TaskConfig, seed: int) -> Sequence[Example]:
    """The held-out examples of a task, for which files of training examples are not looked at."""
    held_out = held_out_rows(config, seed) if isinstance(config, JsonlConfig) else SOURCES[config.kind](config, seed)[1]
    _check_templates(config, (held_out[0],))
    return held_out


def make_task_factory(config: TaskConfig) -> Callable[[], Environment]:
    """What makes environments of a task: of its world, told through the agents' templates, or of its protocol."""
    if isinstance(config, ConversationConfig):
        return make_protocol_factory(config)
    assert isinstance(config, EnvironmentTaskConfig)
    make = make_ladder_factory(config) if isinstance(config, LadderConfig) else make_environment_factory(config)
    return lambda: TemplatedEnvironment(make(), config.agents)


def dry_run_example(config: TaskConfig, example: Example, seed: int = 0) -> DryRun:
    """The beginning of an episode before there is any model: the whole of most conversations.

    Raises `ConfigError` where a template names what does not exist by then, and where there is no such environment.
    """
    max_turns = MAX_DRY_RUN_TURNS if isinstance(config, ConversationConfig) else MAX_ENVIRONMENT_TURNS
    return run_dry_episode(make_task_factory(config)(), example, seed, max_turns)


def dry_run_examples(config: TaskConfig, examples: Iterable[Example], seed: int = 0) -> DryRun:
    """The first attempt at these examples that does not fail, or fails on what stands for answers.

    Raises `ConfigError` as `attempt` does, and where the user's code fails on every example.
    """
    result = DryRun()
    for example in examples:
        result = dry_run_example(config, example, seed)
        if not result.is_user_error:
            return result
    raise ConfigError(task_setting(config), f"fails ({result.failure})", "correct it there")


def task_setting(config: TaskConfig) -> str:
    """What the user wrote to name a protocol or environment: `task.environment=guess.py:make`."""
    for key in ("protocol", "environment", "env_id", "dataset"):
        if (value := getattr(config, key, None)) is not None:
            return f"task.{key}={value}"
    return f"task.kind={config.kind.value}"


def max_turns_by_agent(config: TaskConfig) -> dict[str, int | None]:
    """How many turns each agent may have in an episode; None: no limit is known."""
    limit = None
    if isinstance(config, ConversationConfig):
        limit = config.num_turns if config.protocol in PROTOCOLS else None  # others may go on as answers have it
    elif isinstance(config, SteppedEnvironmentConfig):
        limit = config.max_turns
    elif isinstance(config, ReasoningGymConfig):
        limit = config.num_turns
    elif isinstance(config, LadderConfig):
        limit = config.num_rungs
    return dict.fromkeys(config.agents, limit)


def response_budgets(config: Config) -> dict[str, int]:
    """Tokens that an agent may write in an episode: of one turn where no limit of turns is known."""
    agents = config.task.agents
    return {
        name: (turns or 1) * agents[name].rollout.max_new_tokens
        for name, turns in max_turns_by_agent(config.task).items()
    }


def multi_turn_agents(config: TaskConfig) -> list[str]:
    """Agents that may speak more than once in an episode."""
    return [name for name, turns in max_turns_by_agent(config).items() if turns is None or turns > 1]


def example_only_agents(config: TaskConfig) -> list[str]:
    """Agents whose first message depends on the example alone, and not on what was said or on a world."""
    if not isinstance(config, ConversationConfig):
        return []
    count = {"parallel": len(config.agents), "sequential": 1, "dialogue": 1}.get(config.protocol, 0)
    return list(config.agents)[:count]


def can_reuse_prefix(config: Config) -> bool:
    """Whether later prompts begin with what was read and written before, so that it need not be read again."""
    return config.rollout.history is not History.latest and bool(multi_turn_agents(config.task))


def get_num_workers(config: TaskConfig) -> int:
    """Threads that may step environments."""
    return config.num_workers if isinstance(config, EnvironmentTaskConfig) else 1


def _check_templates(config: TaskConfig, examples: Sequence[Example]) -> None:
    for example in examples:
        if isinstance(config, ConversationConfig):  # what a world tells is known when it does
            dry_run_examples(config, [example])
        for name, agent in config.agents.items():
            for leaf, template in (("answer", agent.answer), ("warm_start_answer", agent.warm_start_answer)):
                render_template(template or "", example, f"task.agents.{name}.{leaf}")
