"""`ippo-train --new-task FILE`: write a task file to start from, and print the command that uses it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from ippo_cli.config.commands import expand_home, shell_command
from ippo_cli.config.errors import ConfigError

FLAG = "--new-task"
EVAL_EVERY = 5  # one of this many example rows is held out
TEMPLATE = """\
# A custom task: the data files, the agents, and the prompt of each agent.
defaults:
  - /base/jsonl@_here_ # default values of keys that are not set below
  - _self_

# Rows to train on, and rows held out for evaluation: .jsonl, .json, .csv, .tsv or .parquet files, a pattern such as
# 'data/*.jsonl', a list of these, a folder, or the id of a dataset on the hub. These are example rows, sums of digits;
# task.train=... and task.eval=... on the command line override the values here.
train: {train}
eval: {eval}
# protocol: sequential          agents answer one after the other, and later ones may read {{agents.solver}}
eval_size: null # number of held-out rows to use, from the first; null = all

# One entry per agent, with a name of your choice. {{field}} is replaced by that field of the row; {{{{ and }}}} are
# braces.
# Keep the quotes: without them YAML reads {{question}} as a mapping.
agents:
  solver:
    template: "{{question}}"
    answer: "{{answer}}" # the reference answer; only reward=exact_match and actor=tiny need it
  checker:
    template: "{{claim}}?"
    answer: "{{verdict}}" # yes or no
    # system: "..."               a system message; requires a chat template
    # actor: {{learning_rate: 1e-5}} values of actor= and critic= for this agent only
"""


def write_task_file(typed: Sequence[str]) -> str | None:
    """Write the task file and its example rows; return the message to print, or None without the flag."""
    flag_indices = [place for place, text in enumerate(typed) if text.partition("=")[0] == FLAG]
    if not flag_indices:
        return None
    _, equals, value = typed[flag_indices[0]].partition("=")
    following = typed[flag_indices[0] + 1 : flag_indices[0] + 2]
    name = value if equals else "".join(following)
    file = expand_home(name)
    if not name or name.startswith("-") or file.suffix != ".yaml" or not re.fullmatch(r"[\w-]+", file.stem):
        raise ConfigError(f"{FLAG} {name}".strip(), "must name a new .yaml file", f"use {FLAG} mine.yaml")
    rows = {part: file.with_name(f"{file.stem}_{part}.jsonl") for part in ("train", "eval")}
    for path in (file, *rows.values()):
        if path.exists():
            raise ConfigError(f"{FLAG} {name}", f"would overwrite {path}", "use another name")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        for part, path in rows.items():
            _write_new_file(path, _example_rows(held_out=part == "eval"))
        _write_new_file(
            file, TEMPLATE.format(**{part: _yaml_text(str(path.absolute())) for part, path in rows.items()})
        )
    except OSError as error:
        raise ConfigError(f"{FLAG} {name}", f"cannot be written ({error.strerror})", "use another folder") from error
    command = shell_command("ippo-train", ("task", str(file)))
    return f"written: {' '.join(map(str, (file, *rows.values())))}\ntry it with:\n  {command}\n"


def _example_rows(*, held_out: bool) -> str:
    sums = [(left, right) for left in range(10) for right in range(10)]
    rows = [
        {
            "question": f"{left} + {right} = ",
            "answer": str(left + right),
            "claim": f"{left} + {right} = {left + right + left % 2}",
            "verdict": "no" if left % 2 else "yes",
        }
        for place, (left, right) in enumerate(sums)
        if (place % EVAL_EVERY == 0) is held_out
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def _write_new_file(path: Path, text: str) -> None:
    """Write a file. Raises `FileExistsError` if it exists."""
    with path.open("x", encoding="utf-8") as out:
        out.write(text)


def _yaml_text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
