"""`task=program`: programs that call agents at an OpenAI-compatible address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from ippo_cli.config.constraints import Name, PositiveFloat, PositiveInt
from ippo_cli.config.marks import Changeable, EvalCompute, InEval
from ippo_cli.config.schema.registry import option
from ippo_cli.config.schema.task import DataConfig, TaskConfig
from ippo_cli.config.schema.world import EnvironmentTaskConfig

PROGRAMS = "ippo_cli.tasks.programs"


@option(
    "task",
    "program",
    examples=f"{PROGRAMS}.environment:program_examples",
    environment=f"{PROGRAMS}.environment:make_program_factory",
)
@dataclass
class ProgramConfig(DataConfig):
    """A program plays each episode: it calls agents by chat completions and may return rewards."""

    program: InEval[Name | None]
    # path.py:function or module:function, called with (example, endpoint); it may be async
    command: InEval[Name | None]  # in place of program: a command line that is run for each episode
    max_turns: InEval[PositiveInt | None]  # calls of an agent after which an episode is truncated; null = no limit
    timeout_s: EvalCompute[Changeable[PositiveFloat]]
    # seconds that a program may take in an episode, without the time of its calls; then the episode fails
    num_workers: EvalCompute[PositiveInt]  # programs that start or compute at once
    max_programs: EvalCompute[PositiveInt | None]  # programs of a process that exist at once; null = one per episode

    @property
    def is_program(self) -> bool:
        return True

    @property
    def max_answers(self) -> int | None:
        return self.max_turns

    @property
    def episode_workers(self) -> int:
        return self.num_workers

    @property
    def max_environments(self) -> int | None:
        return self.max_programs


def has_seed_examples(task: TaskConfig) -> bool:
    """Whether examples are seeds of environments or programs, without fields to compare responses with."""
    return isinstance(task, EnvironmentTaskConfig) or (isinstance(task, ProgramConfig) and task.train is None)


def has_data(task: TaskConfig) -> TypeGuard[DataConfig]:
    """Whether examples are rows of data that the user names."""
    return isinstance(task, DataConfig) and not has_seed_examples(task)
