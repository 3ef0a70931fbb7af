"""Rules of `task=program`."""

from __future__ import annotations

import re
import shlex

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, ContextMode, ProgramConfig

PROGRAM = "program"  # the kind of the task
TEMPLATE = "{observation}"  # the template of its agents, which has no other value


def check_program(config: Config, task: ProgramConfig) -> None:
    """Raise `ConfigError` for the first broken rule."""
    if (task.program is None) == (task.command is None):
        raise ConfigError(
            f"task.program={task.program} task.command={task.command}",
            "must name one program",
            "set task.program=path.py:function, or task.command to a command line",
        )
    if task.program is not None and not re.fullmatch(r"[^:]+:[A-Za-z_]\w*", task.program):
        raise ConfigError(
            f"task.program={task.program}", "names no function", "use path/to/file.py:function or module:function"
        )
    if task.command is not None:
        try:
            is_empty = not shlex.split(task.command)
        except ValueError as error:
            raise ConfigError(f"task.command={task.command}", f"is no command line ({error})", "quote it") from error
        if is_empty:
            raise ConfigError("task.command=''", "is empty", "set it to a command line such as 'python play.py'")
    for name, agent in task.agents.items():
        for leaf, at_rest in (("template", TEMPLATE), ("turn_template", None), ("system", None)):
            if (value := getattr(agent, leaf)) != at_rest:
                raise ConfigError(
                    f"task.agents.{name}.{leaf}={value!r}",
                    "has no effect: the program writes the messages",
                    f"set it to {'null' if at_rest is None else at_rest!r}",
                )
    if config.rollout.context is not ContextMode.append:
        raise ConfigError(
            f"rollout.context={config.rollout.context.value}",
            "has no effect: the program decides which messages it sends",
            "use rollout.context=append",
        )
