"""Train the runs that the forecast of collapse is fitted on, fit it, and judge it on tasks that no fit has seen.

    nice python scripts/bench/forecast_runs.py train        missing runs of 480: two hours of one idle core for all
    python scripts/bench/forecast_runs.py record            writes docs/data/forecast_runs.jsonl.gz
    python scripts/bench/forecast_runs.py fit               writes src/ippo_cli/forecast/weights.json
    python scripts/bench/forecast_runs.py judge             writes the tables of docs/forecast.md

Child processes train one run after another; a run's folder is removed once its metrics are read. Finished runs are not
repeated. `train` and `fit` need nothing beside the package.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import math
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from forecast_jobs import EVERY_RUN, TASKS, Job, list_jobs

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "docs" / "data" / "forecast_runs.jsonl.gz"
COUNT = 480
LIMIT_SECONDS = 240  # of one run
BATCH = 40  # runs of one child process: libraries are imported once for each
PREEMPTED = 75
DIGITS = 4  # significant digits of recorded numbers
READ_METRICS = re.compile(
    r"(?!.*/turn/)(?!eval/)(?:.*/(?:score/(?:mean|std|failed_fraction)|kl/reference"
    r"|rollout/(?:response_length|truncated_fraction|logprob|cut_fraction)"
    r"|(?:policy|joint)/(?:entropy|approx_kl|clip_fraction|ratio_max_deviation|grad_norm|grad_norm_spikes|steps"
    r"|skipped_steps)|value/(?:loss|explained_variance|grad_norm|grad_norm_spikes)"
    r"|targets/(?:advantage_std|zero_advantage_fraction)))"
)
Record = dict[str, Any]


def main() -> int:
    given = _arguments()
    os.chdir(ROOT)  # files of tasks are relative to this folder
    if given.command == "train":
        return train(list_jobs(given.count), given.output)
    if given.command == "record":
        jobs = list_jobs(given.count)
        known = {job.name: [text for text in job.overrides if text not in EVERY_RUN] for job in jobs}
        runs = _read_lines(given.output / "runs.jsonl")
        write_records([run for run in runs if known.get(run["name"]) == run["overrides"]], RECORD)
        return 0
    import forecast_judge

    return forecast_judge.main(given.command, read_records(RECORD))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("train", "record", "fit", "judge"))
    parser.add_argument("--count", type=int, default=COUNT, help="number of runs")
    parser.add_argument("--output", type=Path, default=ROOT / "outputs" / "forecast", help="finished runs")
    given = parser.parse_args()
    given.output = given.output.absolute()
    return given


def train(jobs: Sequence[Job], output: Path) -> int:
    """Train the jobs that are not recorded yet, in batches of one child process each; a new folder starts with the
    recorded runs.
    """
    output.mkdir(parents=True, exist_ok=True)
    file = output / "runs.jsonl"
    if not file.exists():
        file.write_text("".join(json.dumps(record) + "\n" for record in read_records()))
    while missing := _missing(jobs, file):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _train_batch(missing[:BATCH], file)
                code = 0
            except SystemExit as error:
                code = error.code
            finally:
                os._exit(code)
        if not _wait(pid, file):  # the first job without a record ended the process, or ran too long
            _add(_missing(jobs, file)[0], file, Path("/nonexistent"), -9, LIMIT_SECONDS)
    return 0


def _missing(jobs: Sequence[Job], file: Path) -> list[Job]:
    done = {record["name"] for record in _read_lines(file)}
    return [job for job in jobs if job.name not in done]


def _wait(pid: int, file: Path) -> bool:
    """Wait for a child process; False if it failed, or wrote no record for the time limit."""
    size, changed = -1, time.monotonic()
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            if os.waitstatus_to_exitcode(status) == PREEMPTED:
                sys.exit(PREEMPTED)
            return status == 0
        if (now := file.stat().st_size if file.exists() else 0) != size:
            size, changed = now, time.monotonic()
        if time.monotonic() - changed > LIMIT_SECONDS:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return False
        time.sleep(0.5)


def _train_batch(jobs: Sequence[Job], file: Path) -> None:
    shown = os.fdopen(os.dup(1), "w")
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    for job in jobs:
        began = time.monotonic()
        home = Path("/dev/shm" if Path("/dev/shm").is_dir() else file.parent) / f"forecast-{os.getpid()}"
        home.mkdir(parents=True)
        code = 0
        try:
            _train_here([*job.overrides, f"output_dir={home}", "name=run"])
        except Exception as error:
            (home / "error.txt").write_text(f"{type(error).__name__}: {error}")
            code = getattr(error, "exit_code", 1) or 1
        if code == PREEMPTED:  # this script is to end: the run is repeated later
            shutil.rmtree(home)
            sys.exit(code)
        print(_add(job, file, home, code, time.monotonic() - began), file=shown, flush=True)
        shutil.rmtree(home, ignore_errors=True)
        if job is jobs[0]:
            gc.collect()
            gc.freeze()  # the libraries: every run ends with full collections


def _train_here(overrides: Sequence[str]) -> None:
    """Train in this process; composes the configuration once, unlike `ippo_cli.train`."""
    from ippo_cli.compose.arguments import normalize_arguments
    from ippo_cli.compose.load import build_config, compose_node, resolve_config, to_yaml
    from ippo_cli.config.checks import check_config
    from ippo_cli.runs.folder import reserve_folder, write_start_files
    from ippo_cli.training.process import run_training

    arguments = normalize_arguments(overrides)
    plain = resolve_config(compose_node(arguments))
    config = build_config(plain)
    check_config(config, 1)
    folder = reserve_folder(Path(config.output_dir) / config.name)
    write_start_files(folder, to_yaml(plain), arguments, ["ippo-train", *overrides], resumed=False)
    run_training(config, folder, resumed=False)


def _add(job: Job, file: Path, home: Path, code: int, seconds: float) -> str:
    """Record a run; returns a line about it."""
    record: Record = read_run(job, home, code) | {"seconds": round(seconds, 1)}
    with file.open("a") as target:
        target.write(json.dumps(record, separators=(",", ":")) + "\n")
    scores = [score for score, _ in record["scores"].values()]
    shown = f"{scores[0]:.2f} {max(scores):.2f} {scores[-1]:.2f}" if scores else record["error"]
    return f"{job.name:<52} {seconds:5.1f} s  exit {code}  {shown}"


def read_run(job: Job, home: Path, code: int) -> Record:
    """What is recorded of a run: its settings, the metrics of each iteration, held-out scores with their errors."""
    error = (home / "error.txt").read_text() if (home / "error.txt").exists() else ""
    folders = [file.parent for file in home.glob("run/*/metrics.jsonl")]
    rows = list(_read_lines(folders[0] / "metrics.jsonl")) if folders else []
    metric = next((text.partition("=")[2] for text in job.overrides if "primary_metric" in text), "sampled/score")
    scores: dict[int, tuple[float, float]] = {}
    for row in rows:
        if (value := row.get(f"eval/{metric}")) is not None:
            sample = folders[0] / "samples" / f"eval_{row['iteration']:08d}.jsonl"
            scores[row["iteration"]] = (_round(value), _round(_standard_error(sample, metric)))
    trained = [row for row in rows if row["iteration"] > 0]
    names = dict.fromkeys(name for row in trained for name in row if READ_METRICS.fullmatch(name))
    return {
        "name": job.name,
        "task": job.task,
        "family": TASKS[job.task].family,
        "algorithm": job.algorithm,
        "arm": job.arm,
        "overrides": [text for text in job.overrides if text not in EVERY_RUN],
        "exit": code,
        "error": error[:300],
        "scores": scores,
        "metrics": {name: [_round(row.get(name)) for row in trained] for name in names},
    }


def _standard_error(sample: Path, metric: str) -> float:
    """Standard error of an evaluation's mean over held-out rows, one episode each."""
    name = metric.rpartition("/")[2]
    values = [_episode_score(episode, name) for episode in _read_lines(sample)]
    known = [value for value in values if value is not None]
    return stdev(known) / math.sqrt(len(known)) if len(known) > 1 else math.nan


def _episode_score(episode: Mapping[str, Any], name: str) -> float | None:
    if name != "score":
        return episode["parts"].get(name)
    scores = [own["score"] for own in episode["agents"].values() if own["score"] is not None]
    return fmean(scores) if scores else None


def _round(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}")


def _read_lines(file: Path) -> Iterator[Record]:
    if file.exists():
        with file.open() as lines:
            yield from (json.loads(line) for line in lines)


def write_records(records: Sequence[Record], file: Path) -> None:
    """Write the runs that have metrics; the same runs give the same file."""
    complete = [record for record in records if record["metrics"] and len(record["scores"]) > 1]
    known = sorted(complete, key=lambda record: record["name"])
    bests = {task: _best_end([one for one in known if one["task"] == task]) for task in TASKS}
    known = [record | {"outcome": classify(record["scores"], bests[record["task"]])} for record in known]
    write_packed(known, file)
    print(f"{len(known)} of {len(records)} runs, {file.stat().st_size / 1e6:.2f} MB: {file}")


def write_packed(records: Sequence[Record], file: Path) -> None:
    """Write compressed JSON lines; the same records give the same file."""
    with gzip.GzipFile(file, "wb", compresslevel=9, mtime=0) as packed:
        for record in records:
            packed.write((json.dumps(record, separators=(",", ":")) + "\n").encode())


def classify(scores: Mapping[Any, Sequence[float]], best_end: float) -> str:
    """How a run ended: `learned`, `slow`, `never` or `collapsed`. `best_end`: of all runs of the task.

    Collapsed: the last two evaluations are below the start, or below the best two in a row by half of the gain or more.
    Learned: it gained half of the way to the best end, or is there. All by more than two standard errors.
    """
    means = [mean for mean, _ in scores.values()]
    noise = 2 * math.sqrt(2) * max(error or 0.0 for _, error in scores.values())
    pairs = [(one + other) / 2 for one, other in pairwise(means)]
    first, last, best = means[0], pairs[-1], max(pairs)
    if first - last > noise or (best - last > noise and last - first < (best - first) / 2):
        return "collapsed"
    if last > best_end - noise or (last - first > noise and last - first > (best_end - first) / 2):
        return "learned"
    return "slow" if last - first > noise else "never"


def _best_end(records: Sequence[Record]) -> float:
    ends = [list(record["scores"].values())[-2:] for record in records if len(record["scores"]) > 1]
    return max((sum(mean for mean, _ in end) / 2 for end in ends), default=0.0)


def read_records(file: Path = RECORD) -> list[Record]:
    """Return the records of a compressed file."""
    with gzip.open(file, "rt") as lines:
        return [json.loads(line) for line in lines]


if __name__ == "__main__":
    sys.exit(main())
