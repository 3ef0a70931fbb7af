"""Train runs that fail in a known way, and healthy runs, and check that `ippo-doctor` tells them apart.

    python scripts/bench/failing_runs.py /tmp/runs                         all runs: a quarter of an hour on one core
    python scripts/bench/failing_runs.py /tmp/runs --only 'failing/*' --seeds 1 2
    python scripts/bench/failing_runs.py /tmp/runs --record tests/diagnosis/recorded
    python scripts/bench/failing_runs.py /tmp/runs --typed --seeds 91      thirteen other runs, by commands: minutes

Every run of the list in `runs_to_diagnose.py` is trained in this process; with `--typed`, other runs are trained by
`ippo-train` and examined by `ippo-doctor`. Finished runs in the folder are not repeated.
`--record` writes what the conditions read of the runs, which the tests use: `failing.json.gz` and `healthy.json.gz`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from runs_to_diagnose import FIRST_SEED, Job, failing_jobs, healthy_jobs, typed_jobs

from ippo_cli.compose.load import build_config, compose_node, resolve_config, to_yaml
from ippo_cli.compose.resume import saved_config
from ippo_cli.config.checks import check_config
from ippo_cli.diagnosis.diagnose import Diagnosis, diagnose
from ippo_cli.diagnosis.finding import Observations
from ippo_cli.diagnosis.observe import observe_run
from ippo_cli.runs.folder import reserve_folder, write_start_files
from ippo_cli.runs.records import find_runs
from ippo_cli.training.process import run_training

DIGITS = 5  # significant digits of recorded metrics
READ_METRICS = re.compile(
    r"iteration|eval/sampled/.*score|.*/(?:score/(?:mean|std|processed/std|failed_fraction|part/\w+)|kl/(?:reference|reward_coef)"
    r"|rollout/(?:response_length|(?:truncated|cut|overflow)_fraction|logprob|prob_diff/sampler|ess_ratio)"
    r"|(?:policy|joint)/(?:entropy|approx_kl|clip_fraction|learning_rate|steps|grad_norm|skipped_steps"
    r"|ratio_first_step_deviation)|value/(?:loss|explained_variance|skipped_steps)|targets/(?:value|return)"
    r"|targets/zero_advantage_fraction|credit/\w+/zero_fraction)"
)
MAX_EPISODES = 40


def main() -> int:
    given = _arguments()
    if given.typed:
        jobs = list(typed_jobs(given.seeds[0], given.healthy_seed))
    else:
        jobs = [*failing_jobs(given.seeds), *healthy_jobs(given.healthy_seed)]
    jobs = [job for job in jobs if any(fnmatchcase(job.name, pattern) for pattern in given.only)]
    if given.model is None:
        jobs = [job for job in jobs if not job.needs_model]
    wrong = []
    for job in jobs:
        began = time.perf_counter()
        if given.typed:
            is_right, text, details = check_by_commands(job, given.folder)
        else:
            _, diagnosis = examine(train(job, given.folder, given.model))
            is_right, text = list(diagnosis.findings) == list(job.expected), describe(diagnosis)
            details = "\n".join(f"       {finding}" for finding in diagnosis.findings.values())
        wrong += [] if is_right else [job.name]
        seconds = time.perf_counter() - began
        print(f"{'right' if is_right else 'WRONG'}  {job.name:<36} {seconds:5.1f} s  {text}", flush=True)
        if not is_right and given.verbose:
            print(details, flush=True)
    print(f"{len(jobs) - len(wrong)} of {len(jobs)} as expected" + (f"; not: {' '.join(wrong)}" if wrong else ""))
    if given.record is not None:
        record([job for job in jobs if job.name.startswith("failing/")], given, given.record / "failing.json.gz")
        record([job for job in jobs if job.name.startswith("healthy/")], given, given.record / "healthy.json.gz")
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the runs")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of names")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="seeds of the failing runs")
    parser.add_argument("--healthy-seed", type=int, default=FIRST_SEED, help="first seed of the healthy runs")
    parser.add_argument("--typed", action="store_true", help="run the jobs that are trained and examined by commands")
    parser.add_argument("--record", type=Path, help="folder of the recorded runs")
    parser.add_argument("--model", type=Path, help="folder of an instruction-tuned model, for the run chat_template")
    parser.add_argument("--verbose", action="store_true", help="print wrong findings")
    return parser.parse_args()


def train(job: Job, root: Path, model: Path | None) -> Path:
    """Train a run, unless it is done already; returns its folder."""
    home = root / job.name
    if done := find_finished_runs(home):
        return done[-1]
    overrides = prepare_folder(job, home, model)
    plain = resolve_config(compose_node(overrides))
    config = build_config(plain)
    check_config(config, 1)
    folder = reserve_folder(home / config.name)
    write_start_files(folder, to_yaml(plain), overrides, ["ippo-train", *overrides], resumed=False)
    with (home / "log.txt").open("w") as log, redirect_stdout(log), job.fault():
        run_training(config, folder, resumed=False)
    return folder


def find_finished_runs(home: Path) -> list[Path]:
    """Folders of finished runs, oldest first."""
    return [run.folder for run in find_runs(home) if run.state.get("state") == "done"]


def prepare_folder(job: Job, home: Path, model: Path | None) -> list[str]:
    """Write the files of a run into its folder; returns its overrides."""
    home.mkdir(parents=True, exist_ok=True)
    for name, text in job.files.items():
        (home / name).write_text(text)
    if job.prepare is not None:
        job.prepare(home)
    place = str(home.absolute())
    return [
        text.replace("HOME", place).replace("MODEL", str(model)) for text in (*job.overrides, f"output_dir={place}")
    ]


def check_by_commands(job: Job, root: Path) -> tuple[bool, str, str]:
    """Whether the commands end a run as expected, the result in one line, and their output."""
    home = root / job.name
    if job.is_refused and find_runs(home):
        return False, "training started, and should have been refused", ""
    if not find_finished_runs(home):
        trained = run_command("train", *prepare_folder(job, home, None))
        if job.is_refused or trained.returncode:
            has_started = bool(find_runs(home))
            is_right = job.is_refused and trained.returncode == 2 and not has_started
            text = f"exit code {trained.returncode} {'after' if has_started else 'before'} the start of training"
            return is_right, text, trained.stdout + trained.stderr
    examined = run_command("doctor", str(find_finished_runs(home)[-1]), "--json")
    if examined.returncode:
        return False, f"ippo-doctor: exit code {examined.returncode}", examined.stderr
    findings = json.loads(examined.stdout)["findings"]
    text = ", ".join(finding["title"] for finding in findings) or "no problem found"
    return [finding["condition"] for finding in findings] == list(job.expected), text, examined.stdout


def run_command(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of this project and wait for its end."""
    command = [sys.executable, "-m", f"ippo_cli.cli.{name}", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def examine(folder: Path) -> tuple[Observations, Diagnosis]:
    """The observations and the diagnosis of a finished run."""
    (run,) = find_runs(folder)
    observations = observe_run(run, build_config(saved_config(folder)))
    return observations, diagnose(observations)


def describe(diagnosis: Diagnosis) -> str:
    """The findings with their consequences, in one line."""
    parts = [
        name + (f" (explains {' '.join(diagnosis.consequences[name])})" if name in diagnosis.consequences else "")
        for name in diagnosis.findings
    ]
    return ", ".join(parts) or "no problem found"


def record(jobs: Sequence[Job], given: argparse.Namespace, file: Path) -> None:
    """Write what the conditions read of finished runs."""
    entries = []
    for job in jobs:
        folder = train(job, given.folder, given.model)
        observations, _ = examine(folder)
        entries.append(
            {
                "name": job.name,
                "expected": list(job.expected),
                "config": json.loads(json.dumps(saved_config(folder)).replace(str(given.folder.absolute()), "runs")),
                "rows": [_read_metrics(row) for row in observations.rows],
                "initial": _read_metrics(observations.initial or {}),
                "episodes": [_shorten(episode) for episode in _spread(observations.episodes)],
                "train_rows": observations.train_rows,
                "held_out_rows": observations.held_out_rows,
                "chat_templates": dict(observations.chat_templates),
                "sampled_kl": {
                    name: {number: float(f"{kl:.{DIGITS}g}") for number, kl in values.items()}
                    for name, values in observations.sampled_kl.items()
                },
                "unchanged_adapters": list(observations.unchanged_adapters),
            }
        )
    if entries:
        file.parent.mkdir(parents=True, exist_ok=True)
        # mtime=0: the same runs give the same file
        with gzip.GzipFile(file, "wb", mtime=0) as packed:
            packed.write(json.dumps(entries, separators=(",", ":")).encode())


def _read_metrics(row: Any) -> dict[str, float | None]:
    return {
        name: None if math.isnan(value) else float(f"{value:.{DIGITS}g}")
        for name, value in row.items()
        if READ_METRICS.fullmatch(name)
    }


def _spread(episodes: Sequence[Any]) -> Iterable[Any]:
    """At most `MAX_EPISODES`, equally spaced."""
    step = max(len(episodes) // MAX_EPISODES, 1)
    return episodes[::step][:MAX_EPISODES]


def _shorten(episode: Any) -> dict[str, Any]:
    turns = [{key: turn[key] for key in ("agent", "step", "observation", "response")} for turn in episode["turns"]]
    return {"agents": {name: {"score": own["score"]} for name, own in episode["agents"].items()}, "turns": turns}


if __name__ == "__main__":
    sys.exit(main())
