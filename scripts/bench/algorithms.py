"""Train every algorithm on the embedded task and the probes, per seed, and record the learning curves.

    python scripts/bench/algorithms.py --jobs 2                         missing runs: some hours on two cores
    python scripts/bench/algorithms.py --algorithms ippo ppo/value_head --tasks probe_grid --seeds 0 1
    python scripts/bench/algorithms.py --tasks sums --model FOLDER      SmolLM2-135M-Instruct
    python scripts/bench/algorithms.py --report                         the table of recorded runs, no training
    python scripts/bench/algorithms.py --quick --output /tmp/try --docs /tmp/try     three iterations of each

Each run is a separate process (`ippo-train`) with one thread. Finished runs are recorded immediately in
`data/learning.json` of the documents' folder, and not repeated. Writes the table of `results.md` and the curves into
the documents' folder. Algorithms that do not support a task are skipped, and the reason is printed.
An algorithm is named by its file in `conf/algorithm/`, for the critic of its preset, or as `algorithm/critic`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from learning import Outcome, convert_to_processor_time, outcome, sampled_score, tables, write_between

from ippo_cli.compose.load import config_dir, from_yaml, load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config

ROOT = Path(__file__).resolve().parents[2]
SUMS = "sums"  # the task that needs --model
TASKS: dict[str, tuple[str, ...]] = {
    "sorting": ("task=sorting", "evaluation.every=10"),
    "probe_constant": ("+experiment=probe_constant", "evaluation.every=3"),
    "probe_conditional": ("+experiment=probe_conditional", "evaluation.every=3"),
    "probe_grid": ("+experiment=probe_grid", "evaluation.every=10"),
    SUMS: (
        "+experiment=smollm2_arithmetic",
        "actor.dtype=bf16",
        "num_iterations=15",
        "evaluation.every=3",
        "evaluation.greedy=false",
        "task.eval_size=100",
    ),
}
EVERY_RUN = (
    "tracker.console=plain",
    "tracker.tensorboard=false",
    "tracker.samples_every=0",
    "checkpoint.every=0",
    "checkpoint.best=false",
    "launch.threads=1",
)
QUICK = ("num_iterations=3", "evaluation.every=1", "evaluation.greedy=false", "task.eval_size=16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """Overrides that some algorithms (`algorithm/critic`) need on some tasks in addition to their presets, and why."""

    variants: tuple[str, ...]  # patterns
    task: str  # a pattern
    overrides: tuple[str, ...]
    reason: str

    def fits(self, variant: str, task: str) -> bool:
        return fnmatchcase(task, self.task) and any(fnmatchcase(variant, pattern) for pattern in self.variants)


ADJUSTMENTS = (
    Adjustment(
        variants=("*/separate", "*/value_head"),
        task="probe_*",
        overrides=("critic.learning_rate=5e-3",),
        reason="with random initial weights the critic has to learn as much as its actor",
    ),
    Adjustment(
        variants=("*/value_head",),
        task=SUMS,
        overrides=("critic.learning_rate=1e-4",),
        reason="a head that starts at zero has only these steps",
    ),
    Adjustment(
        variants=("*/separate", "*/centralized"),
        task=SUMS,
        overrides=("critic.learning_rate=2e-5",),
        reason="the rate of the actor, which has equal weights at first",
    ),
    Adjustment(
        variants=("dapo/*",),
        task="probe_*",
        overrides=(
            "algorithm.truncation=none",
            "algorithm.truncation_penalty=null",
            "algorithm.truncation_ramp=null",
        ),
        reason="at a limit of 1 to 3 tokens most random responses are truncated, and the penalty outweighs the score",
    ),
    Adjustment(
        variants=("dr_grpo/*", "dppo/*", "rloo/*", "remax/*"),
        task="probe_grid",
        overrides=("algorithm.entropy_coef=0.03",),
        reason="their advantages are differences of scores, a fifth of whitened ones, so the bonus is a fifth too",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training."""

    task: str
    variant: str  # algorithm/critic
    seed: int
    overrides: tuple[str, ...]
    config: Config  # composed before threads start, since Hydra composes one configuration at a time
    score: Callable[[Mapping[str, float]], float] = sampled_score  # the score of an evaluation's metrics


def main() -> int:
    from record import Record  # imports this module

    given = _arguments()
    record = Record(given.docs / "data" / "learning.json")
    if not given.report:
        given.output.mkdir(parents=True, exist_ok=True)
        jobs = [job for job in _jobs(given) if not record.has(job)]
        print(f"{len(jobs)} runs to do", flush=True)
        with ThreadPoolExecutor(given.jobs) as pool:
            list(pool.map(lambda job: record.add(run(job)), jobs))
    places = {name: place for place, name in enumerate(TASKS)}
    if not record.outcomes:
        raise SystemExit(f"{record.file} has no runs; the table remains as it is")
    outcomes = [convert_to_processor_time(one) for one in record.outcomes.values()]
    outcomes.sort(key=lambda one: (one.variant, places[one.task], one.seed))
    done = [result for result in outcomes if result.error is None]
    from curves import draw  # needs matplotlib; nothing else here does

    pictures = draw(done, given.docs / "pictures")
    write_between(given.docs / "results.md", tables(outcomes, _notes(outcomes), pictures))
    print(f"{len(done)} runs are recorded; wrote {given.docs / 'results.md'} and {len(pictures)} pictures")
    return len(done) < len(outcomes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    small = [name for name in TASKS if name != SUMS]
    parser.add_argument("--algorithms", nargs="+", default=["*"], help="names, algorithm/critic, or patterns")
    parser.add_argument(
        "--critics", choices=("own", "all"), default="own", help="the critic of the preset, or all supported critics"
    )
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=small, help=f"default: all but {SUMS}")
    parser.add_argument("--model", type=Path, help=f"folder of the model of {SUMS}")
    parser.add_argument("--report", action="store_true", help="write the table and the curves only")
    given = with_common_arguments(parser, folder="learning", page="results.md")
    if SUMS in given.tasks and given.model is None and not given.report:
        parser.error(f"--tasks {SUMS} needs --model FOLDER")
    return given


def with_common_arguments(
    parser: argparse.ArgumentParser, *, folder: str, page: str, seeds: Sequence[int] = (0, 1, 2)
) -> argparse.Namespace:
    """Add the options of every training benchmark (seeds, jobs, folders), and parse the arguments."""
    parser.add_argument("--seeds", nargs="+", type=int, default=list(seeds))
    parser.add_argument("--jobs", type=int, default=1, help="parallel trainings, one thread each")
    parser.add_argument("--quick", action="store_true", help="three iterations of each run, to try the script")
    parser.add_argument("--output", type=Path, default=ROOT / "outputs" / folder, help="runs and results.json")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help=f"folder of {page} and pictures/")
    given = parser.parse_args()
    given.output, given.docs = given.output.absolute(), given.docs.absolute()
    if given.quick and given.docs == ROOT / "docs":
        given.docs = given.output  # a trial is not recorded
    return given


def _variants(patterns: Sequence[str], critics: str) -> list[str]:
    """Return `algorithm/critic` for every algorithm that matches a pattern, in the order of the files."""
    found: list[str] = []
    for file in sorted((config_dir() / "algorithm").glob("*.yaml")):
        by_name = any(fnmatchcase(file.stem, text) for text in patterns)
        if not by_name and not any(text.startswith(f"{file.stem}/") for text in patterns):
            continue  # composition is the slowest step here
        own = f"{file.stem}/{load_config([f'algorithm={file.stem}']).critic.kind.value}"
        allowed = [f"{file.stem}/{critic.stem}" for critic in sorted((config_dir() / "critic").glob("*.yaml"))]
        for name in [own, *(other for other in allowed if other != own)]:
            is_selected = name in patterns or (by_name and (name == own or critics == "all"))
            if is_selected and (name == own or _works(name)):
                found.append(name)
    if not found:
        raise SystemExit(f"no algorithm is named {' or '.join(patterns)}")
    return found


def _works(variant: str) -> bool:
    """Whether the checks accept this algorithm with this critic."""
    algorithm, critic = variant.split("/")
    try:
        check_config(load_config([f"algorithm={algorithm}", f"critic={critic}"]), 1)
    except ConfigError:
        return False
    return True


def _jobs(given: argparse.Namespace) -> list[Job]:
    """Return all trainings, the first seed's first; print why some algorithms are skipped."""
    found: list[Job] = []
    skipped: dict[str, str] = {}
    variants = _variants(given.algorithms, given.critics)
    for seed, task, variant in itertools.product(given.seeds, given.tasks, variants):
        if f"{variant} {task}" in skipped:
            continue
        try:
            found.append(_job(task, variant, seed, given))
        except ConfigError as error:
            skipped[f"{variant} {task}"] = " ".join(str(error).split())
    for name, reason in skipped.items():
        print(f"skipped: {name}: {reason}", flush=True)
    return found


def _job(task: str, variant: str, seed: int, given: argparse.Namespace) -> Job:
    """Return one training job. Raises `ConfigError` for an invalid job, before any job runs."""
    algorithm, critic = variant.split("/")
    overrides = [*TASKS[task], f"algorithm={algorithm}", f"critic={critic}", f"seed={seed}", *EVERY_RUN]
    overrides += [f"actor.model={given.model}"] if task == SUMS else []
    for adjustment in ADJUSTMENTS:
        if adjustment.fits(variant, task):
            overrides += adjustment.overrides
    name = f"name={task}-{variant.replace('/', '-')}-{seed}"
    overrides += [*(QUICK if given.quick else ()), name, f"output_dir={given.output / 'runs'}"]
    config = load_config(overrides)
    check_config(config, 1)
    return Job(task=task, variant=variant, seed=seed, overrides=tuple(overrides), config=config)


def run(job: Job) -> Outcome:
    """Return the outcome of a job; train it unless its folder has a finished run of it."""
    found = finished_run(job.config)
    share = 0.0
    if found is None:
        code, output, share = _train(job.overrides)
        found = finished_run(job.config)
        if found is None:
            error = f"exit code {code}: {output[-1] if output else 'no output'}"
            print(f"{job.config.name}: {error}", file=sys.stderr, flush=True)
            return Outcome(task=job.task, variant=job.variant, seed=job.seed, overrides=job.overrides, error=error)
    result = outcome(
        found,
        task=job.task,
        variant=job.variant,
        seed=job.seed,
        overrides=job.overrides,
        held_out_score=job.score,
    )
    result.cpu_seconds = share * result.wall_seconds
    print(f"{job.config.name}: {result.first:.3f} -> {result.last:.3f} in {result.wall_seconds:.0f} s", flush=True)
    return result


def _train(overrides: Sequence[str]) -> tuple[int, list[str], float]:
    """Train in a process with one thread: its exit code, the lines of its output, processor time per wall time."""
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "ippo_cli.cli.train", *overrides],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        file.seek(0)
        share = (usage.ru_utime + usage.ru_stime) / (time.monotonic() - start)
        return process.returncode, file.read().strip().splitlines(), share


def finished_run(config: Config) -> Path | None:
    """Return the newest finished run of an equal configuration: values in `conf/` change without an override."""
    for file in sorted((Path(config.output_dir) / config.name).glob("*/run.json"), reverse=True):
        if json.loads(file.read_text())["state"] == "done" and from_yaml(file.parent / "config.yaml") == config:
            return file.parent
    return None


def _notes(outcomes: Sequence[Outcome]) -> list[str]:
    """Describe the overrides in addition to the presets, and why they are needed."""
    used = [one for one in ADJUSTMENTS if any(one.fits(result.variant, result.task) for result in outcomes)]
    return [f"`{' '.join(one.variants)}` on `{one.task}`: `{' '.join(one.overrides)}` ({one.reason})" for one in used]


if __name__ == "__main__":
    sys.exit(main())
