"""`ippo-train --new-task FILE`: a task file to start from, and the command that uses it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from ippo_cli.config.commands import shell_command
from ippo_cli.config.errors import ConfigError

FLAG = "--new-task"
EVAL_EVERY = 5  # of so many example rows one is held out
TEMPLATE = """\
# A task of one's own: who works on the rows of which files, and how each agent is asked about a row.
defaults:
  - /schema/task_jsonl@_here_ # which keys there are, and of what type
  - /base/jsonl@_here_ # their values, where they are not given below
  - _self_

# Rows to train on, and rows held out for evaluation: .jsonl, .json, .csv, .tsv or .parquet files, a pattern such as
# 'data/*.jsonl', a list of these, a folder, or the id of a dataset on the hub. These are example rows, sums of digits;
# task.train=... and task.eval=... on the command line win over what stands here.
train: {train}
eval: {eval}
eval_size: null # only the first so many of the held-out rows; null = all

# One entry per agent, whatever its name. {{field}} is replaced by that field of the row; {{{{ and }}}} are braces.
# Keep the quotes: without them YAML reads {{question}} as a mapping.
agents:
  solver:
    template: "{{question}}"
    answer: "{{answer}}" # the reference answer: reward=exact_match and actor=tiny need one, others do not
  checker:
    template: "{{claim}}?"
    answer: "yes"
    # system: "..."               a system message, where prompts go through a chat template
    # actor: {{learning_rate: 1e-5}} this agent's own values of actor= and critic=
"""


def write_task_file(typed: Sequence[str]) -> str | None:
    """Write the file and its example rows; what to say about it. None where nobody asks for one."""
    flag_indices = [place for place, text in enumerate(typed) if text.partition("=")[0] == FLAG]
    if not flag_indices:
        return None
    _, equals, value = typed[flag_indices[0]].partition("=")
    following = typed[flag_indices[0] + 1 : flag_indices[0] + 2]
    name = value if equals else "".join(following)
    file = Path(name).expanduser()
    if not name or name.startswith("-") or file.suffix != ".yaml" or not re.fullmatch(r"[\w-]+", file.stem):
        raise ConfigError(
            f"{FLAG} {name}".strip(), "names no file to write", f"give one that ends in .yaml, such as {FLAG} mine.yaml"
        )
    rows = {part: file.with_name(f"{file.stem}_{part}.jsonl") for part in ("train", "eval")}
    for path in (file, *rows.values()):
        if path.exists():
            raise ConfigError(f"{FLAG} {name}", f"would overwrite {path}", "give another name")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        for part, path in rows.items():
            _write_new_file(path, _example_rows(held_out=part == "eval"))
        _write_new_file(
            file, TEMPLATE.format(**{part: _yaml_text(str(path.absolute())) for part, path in rows.items()})
        )
    except OSError as error:
        raise ConfigError(f"{FLAG} {name}", f"cannot be written ({error.strerror})", "give another place") from error
    command = shell_command("ippo-train", ("task", str(file)))
    return f"written: {' '.join(map(str, (file, *rows.values())))}\ntry it with:\n  {command}\n"


def _example_rows(*, held_out: bool) -> str:
    sums = [(left, right) for left in range(10) for right in range(10)]
    rows = [
        {"question": f"{left} + {right} = ", "answer": str(left + right), "claim": f"{left} + {right} = {left + right}"}
        for place, (left, right) in enumerate(sums)
        if (place % EVAL_EVERY == 0) is held_out
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def _write_new_file(path: Path, text: str) -> None:
    """Write a file that is not there yet."""
    with path.open("x", encoding="utf-8") as out:
        out.write(text)


def _yaml_text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
