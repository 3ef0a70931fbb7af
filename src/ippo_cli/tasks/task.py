"""A task: training examples and held-out examples, looked up by `task.kind`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ippo_cli.config.schema import JsonlConfig, TaskConfig, TaskKind
from ippo_cli.tasks.jsonl import held_out_rows, jsonl_examples
from ippo_cli.tasks.probes import grid_examples, letters_examples
from ippo_cli.tasks.protocols import dry_run
from ippo_cli.tasks.sorting import sorting_examples
from ippo_cli.tasks.templates import render_template
from ippo_cli.types import Example


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Examples by position. Generated tasks share none between the two; of files that is the user's to see to."""

    train: Sequence[Example]
    held_out: Sequence[Example]


SOURCES: dict[TaskKind, Callable[..., tuple[Sequence[Example], Sequence[Example]]]] = {
    TaskKind.sorting: sorting_examples,
    TaskKind.jsonl: jsonl_examples,
    TaskKind.probe_letters: letters_examples,
    TaskKind.probe_grid: grid_examples,
}


def load_task(config: TaskConfig, seed: int) -> Task:
    """Read or generate the examples of a task; every agent's templates are tried on the first ones."""
    train, held_out = SOURCES[config.kind](config, seed)
    _try_templates(config, (train[0], held_out[0]))
    return Task(train=train, held_out=held_out)


def load_held_out(config: TaskConfig, seed: int) -> Sequence[Example]:
    """The held-out examples of a task, for which files of training examples are not looked at."""
    held_out = held_out_rows(config) if isinstance(config, JsonlConfig) else SOURCES[config.kind](config, seed)[1]
    _try_templates(config, (held_out[0],))
    return held_out


def _try_templates(config: TaskConfig, examples: Sequence[Example]) -> None:
    for example in examples:
        dry_run(config, example)
        for name, agent in config.agents.items():
            render_template(agent.answer or "", example, f"task.agents.{name}.answer")
