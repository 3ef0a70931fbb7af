"""Measure what the literature claims about teams: eight tables, each from several seeds, with intervals.

    python scripts/bench/team_tables.py                                   missing measurements: hours of two cores
    python scripts/bench/team_tables.py --tables credit cross_play --seeds 0 1 --jobs 2
    python scripts/bench/team_tables.py --report                          tables of recorded measurements, no training

Each measurement is one training (`ippo-train`, a process with one thread) and the evaluations that its table needs.
Trainings are shared between tables. Measurements are recorded immediately in `data/team_tables.json` of the documents'
folder, and not repeated; an interrupted training starts again. Writes the tables into `team_tables.md`. The comparison
of critics is in `teams.md` (`teams.py`).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from threading import Lock
from typing import Any

import numpy as np
from algorithms import EVERY_RUN, ROOT, Job, finished_run, run, with_common_arguments
from learning import write_between
from record import common_settings, recorded_settings
from reliable import t_interval
from team_claims import AGENT_NAMES, TABLES, Training, Values, Variant, run_module
from team_games import ENUMERATED_TASKS, ROLE_TASKS, SCALES, TASKS, WARM_START, find_score

from ippo_cli.benchmark.baseline import list_settings
from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config

SCALE = "small"
GAMES = TASKS | ENUMERATED_TASKS | ROLE_TASKS
SEEDS = (0, 1, 2, 3, 4)
INTRODUCTION = """\
This page tests what papers claim about teams of agents. Each table is from `python scripts/bench/team_tables.py`
(`--tables NAME` for one), which records every measurement in `data/team_tables.json` and continues where it
stopped. The claim about centralised critics is tested in [results](results.md#team-benchmark).

Setting, unless a section states otherwise: `actor=tiny` with one layer of width 64, random initial weights and a warm
start of 100 supervised steps on valid answers (random ones; in `sorting` the partner's), so that initial partners are
valid players; PPO with clipped ratios, four epochs over buffers of 256 episodes, 40 to 80 buffers, learning rates of
3e-3 (`copy_*` and `meet`: 1e-3). Tasks are those of the [benchmark](results.md#team-benchmark), where `copy_1` and
`copy_3_end` have a shorter warm start, and `kuhn`, Kuhn poker with three cards. Scores are held-out scores, normalised
(0: random play, 1: optimal play). Cells are means over seeds with 95 % t intervals. Tasks and models are small: effect
sizes of large language models may differ."""
Measurement = tuple[str, str, str, int]  # table, task, variant, seed


class Measurements:
    """The file of recorded measurements, by table, task, variant and seed."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = Lock()
        self.rows = {_key(row): row for row in (json.loads(file.read_text()) if file.exists() else [])}

    def has(self, table: str, job: Job) -> bool:
        """Whether a measurement with these settings, by this version of the table's measure, is recorded."""
        row = self.rows.get((table, job.task, job.variant, job.seed))
        if row is None or row["version"] != TABLES[table].version:
            return False
        return row["overrides"] == list(recorded_settings(job.overrides))

    def add(self, table: str, job: Job, values: Values) -> None:
        """Record a measurement, also in the file. Those of other seeds with other settings or versions are dropped."""
        row = {
            "table": table,
            "version": TABLES[table].version,
            "task": job.task,
            "variant": job.variant,
            "seed": job.seed,
            "values": {name: None if np.isnan(value) else round(value, 5) for name, value in values.items()},
            "overrides": list(recorded_settings(job.overrides)),
        }
        with self._lock:
            for key, other in list(self.rows.items()):
                if key[:3] == _key(row)[:3] and _setting(other) != _setting(row):
                    del self.rows[key]
            self.rows[_key(row)] = row
            self.file.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.file.with_suffix(".new")
            lines = ",\n".join(json.dumps(self.rows[key]) for key in sorted(self.rows))
            temporary.write_text(f"[\n{lines}\n]\n")
            temporary.replace(self.file)


def _key(row: dict[str, Any]) -> tuple[object, ...]:
    return row["table"], row["task"], row["variant"], row["seed"]


def _setting(row: dict[str, Any]) -> tuple[object, ...]:
    return row["version"], common_settings(row["overrides"])


def main() -> int:
    given = _arguments()
    os.chdir(ROOT)  # task files are relative to this folder
    record = Measurements(given.docs / "data" / "team_tables.json")
    failures: list[str] = []
    trainer = Trainer(given.output, quick=given.quick)
    if not given.report:
        given.output.mkdir(parents=True, exist_ok=True)
        todo = [
            (name, task, variant, seed)
            for seed in given.seeds
            for name in given.tables
            for task in TABLES[name].tasks
            for variant in TABLES[name].variants
        ]
        with ThreadPoolExecutor(given.jobs) as pool:
            failures = [text for text in pool.map(lambda one: _measure(one, trainer, record), todo) if text is not None]
    page = given.docs / "team_tables.md"
    if not page.exists():
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(empty_page())
    current = [row for row in record.rows.values() if is_current(row, trainer)]
    write_between(page, INTRODUCTION, _markers("introduction"))
    for name, table in TABLES.items():
        rows = [row for row in current if row["table"] == name]
        about = textwrap.fill(table.about, 116, break_on_hyphens=False)
        write_between(page, "\n".join([about, "", *render(name, rows)]), _markers(name))
    outdated = len(record.rows) - len(current)
    print(f"{len(current)} measurements are recorded ({outdated} more with other settings); wrote {page}")
    for text in failures:
        print(f"failed: {text}", file=sys.stderr)
    return bool(failures)


def is_current(row: dict[str, Any], trainer: Trainer) -> bool:
    """Whether a recorded measurement is of this version of its measure, with the settings of this script."""
    table = TABLES.get(row["table"])
    if table is None or row["variant"] not in table.variants or row["version"] != table.version:
        return False
    overrides = trainer.list_overrides(row["task"], table.variants[row["variant"]], row["seed"])
    return row["overrides"] == list(recorded_settings(overrides))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", choices=tuple(TABLES), default=list(TABLES))
    parser.add_argument("--report", action="store_true", help="write the tables only")
    return with_common_arguments(parser, folder="team_tables", page="team_tables.md", seeds=SEEDS)


def _markers(block: str) -> tuple[str, str]:
    return f"<!-- {block} -->", f"<!-- /{block} -->"


def _measure(one: Measurement, trainer: Trainer, record: Measurements) -> str | None:
    """Record one measurement unless it is recorded; return the reason if it failed."""
    name, task, variant, seed = one
    table = TABLES[name]
    job = trainer.make_job(task, variant, table.variants[variant], seed)
    if record.has(name, job):
        return None
    try:
        values = table.measure(trainer.train(task, variant, table.variants[variant], seed))
    except (RuntimeError, ValueError, LookupError, subprocess.CalledProcessError) as error:
        return f"{name} {task} {variant} {seed}: {error}"
    record.add(name, job, values)
    shown = " ".join(f"{key} {value:.3f}" for key, value in values.items())
    print(f"{name} {task} {variant} {seed}: {shown}", flush=True)
    return None


class Trainer:
    """Trains each configuration once; concurrent measurements of the same training wait for it."""

    def __init__(self, output: Path, *, quick: bool = False) -> None:
        self._output, self._quick = output, quick
        self._composing = Lock()  # Hydra composes one configuration at a time
        self._running: defaultdict[str, Lock] = defaultdict(Lock)

    def make_job(self, task: str, name: str, variant: Variant, seed: int) -> Job:
        """Return the job of a training. Raises `ConfigError` for invalid settings."""
        overrides = self.list_overrides(task, variant, seed)
        with self._composing:
            config = load_config(normalize_arguments(overrides))
            check_config(config, 1)
        score = find_score(task)
        return Job(task=task, variant=name, seed=seed, overrides=tuple(overrides), config=config, score=score)

    def list_overrides(self, task: str, variant: Variant, seed: int) -> list[str]:
        """Return the overrides of a training."""
        overrides = [*EVERY_RUN, *self._settings(task, variant, seed), f"seed={seed}"]
        digest = hashlib.sha256(" ".join(recorded_settings(overrides)).encode()).hexdigest()[:8]
        folder = f"{task}-{seed}-{digest}"  # equal trainings of several tables have one folder
        return [*overrides, f"name={folder}", f"output_dir={self._output / 'runs'}"]

    def train(self, task: str, name: str, variant: Variant, seed: int) -> Training:
        """Return a finished training. Raises `RuntimeError` if it fails."""
        if variant.partner is not None:
            self._export_partner(task, variant, seed)
        job = self.make_job(task, name, variant, seed)
        with self._running[job.config.name]:
            outcome = run(job)
        folder = finished_run(job.config)
        if outcome.error is not None or folder is None:
            raise RuntimeError(outcome.error)
        return Training(
            outcome=outcome,
            folder=folder,
            bounds=GAMES[task].bounds(),
            variant=variant,
            train_other_seed=lambda: self.train(task, name, variant, _next_seed(seed)),
        )

    def _partner_folder(self, task: str, variant: Variant, seed: int) -> Path:
        """Return the folder of the exported agents of the run in which a variant's partner is trained."""
        overrides = self.list_overrides(task, replace(variant, partner=None), _next_seed(seed))
        (name,) = (text.removeprefix("name=") for text in overrides if text.startswith("name="))
        return self._output.absolute() / "partners" / name

    def _export_partner(self, task: str, variant: Variant, seed: int) -> None:
        """Train and export the partner of a variant unless it is exported."""
        folder = self._partner_folder(task, variant, seed)
        trained = self.train(task, "partner", replace(variant, partner=None), _next_seed(seed)).folder
        with self._running[folder.name]:
            if not folder.exists():
                run_module("export", f"run={trained}", f"to={folder}")

    def _settings(self, task: str, variant: Variant, seed: int) -> Iterator[str]:
        # Initial agents are partners and baselines: they give valid answers.
        game = replace(GAMES[task], warm_start_steps=WARM_START)
        own = list(list_settings(game, variant.algorithm, SCALES[SCALE], quick=self._quick))
        if variant.task:
            own = [*variant.task, *(text for text in own if text not in game.overrides)]
        yield from own
        first, second = AGENT_NAMES.get(task, ("first", "second"))
        yield from (
            text.replace("{first}", first).replace("{second}", second)
            for text in (*variant.overrides, *variant.by_task.get(task, ()))
        )
        if variant.partner is not None:
            partner = first if variant.partner == "first" else second
            yield f"task.agents.{partner}.frozen=true"
            yield f"task.agents.{partner}.actor=full"
            yield f"task.agents.{partner}.actor.dtype=fp32"
            yield f"task.agents.{partner}.actor.model={self._partner_folder(task, variant, seed) / partner}"


def _next_seed(seed: int) -> int:
    """Return the seed of the run with which a seed's run is combined."""
    return (seed + 1) % len(SEEDS)


def empty_page() -> str:
    """Return the page with empty blocks."""
    parts = ["# Claims about teams", "\n".join(_markers("introduction"))]
    for name, table in TABLES.items():
        parts += [f"## {table.title}", "\n".join(_markers(name))]
    return "\n\n".join(parts) + "\n"


def render(name: str, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a table as lines of Markdown: mean over seeds and 95 % interval of each value."""
    table = TABLES[name]
    if not rows:
        return ["Not measured."]
    names = list(dict.fromkeys(key for row in rows for key in row["values"]))
    columns = table.columns or {key: f"`{key}`" for key in names}
    lines = ["| task | variant | " + " | ".join(columns.values()) + " | seeds |", "|---" * (len(columns) + 3) + "|"]
    for task in table.tasks:
        for variant, about in table.variants.items():
            own = [row for row in rows if (row["task"], row["variant"]) == (task, variant)]
            if own:
                cells = [_cell([row["values"].get(key) for row in own]) for key in columns]
                lines.append(f"| `{task}` | {about.about} | " + " | ".join(cells) + f" | {len(own)} |")
    return lines


def _cell(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    if not numbers:
        return ""
    count = f"{len(numbers)} seed{'s' if len(numbers) > 1 else ''}"
    missing = f" ({count})" if len(numbers) < len(values) else ""
    if len(numbers) == 1:
        return f"{numbers[0]:.2f}{missing}"
    low, high = t_interval(numbers)
    return f"{fmean(numbers):.2f} [{low:.2f}, {high:.2f}]{missing}"


if __name__ == "__main__":
    sys.exit(main())
