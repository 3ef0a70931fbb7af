"""Train every algorithm on the embedded task and the probes, seed by seed, and write down what each has learnt.

    python scripts/bench/algorithms.py                                  everything: hours on two cores
    python scripts/bench/algorithms.py --algorithms ippo ppo/value_head --tasks probe_grid --seeds 0 1 --jobs 2
    python scripts/bench/algorithms.py --quick --output /tmp/try --docs /tmp/try     three iterations of each

Every run is a process of its own (`ippo-train`). What is finished in the output folder with the same configuration is
not run again; remove it there when the code has changed. Writes `results.json` there; into the documents' folder the
table of `algorithms.md`, and the curves.
An algorithm is named by its file in `conf/algorithm/`, with the critic of its preset, or as `algorithm/critic`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from learning import Outcome, outcome, sampled_score, tables, write_between

from ippo_cli.compose.load import config_dir, from_yaml, load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config

ROOT = Path(__file__).resolve().parents[2]
TASKS: dict[str, tuple[str, ...]] = {
    "sorting": ("task=sorting", "evaluation.every=10"),
    "probe_constant": ("+experiment=probe_constant", "evaluation.every=3"),
    "probe_conditional": ("+experiment=probe_conditional", "evaluation.every=3"),
    "probe_grid": ("+experiment=probe_grid", "evaluation.every=10"),
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
    """Overrides that some algorithms (`algorithm/critic`) need on some tasks beside their presets, and why."""

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
        reason="from random weights a critic has as much to learn as its actor",
    ),
    Adjustment(
        variants=("dr_grpo/*", "rloo/*", "remax/*"),
        task="probe_grid",
        overrides=("algorithm.entropy_coef=0.03",),
        reason="their advantages are differences of scores, a fifth as large as whitened ones: so is the bonus",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training."""

    task: str
    variant: str  # algorithm/critic
    seed: int
    overrides: tuple[str, ...]
    config: Config  # what they give; composed before threads start, as Hydra knows one composition at a time
    score: Callable[[Mapping[str, float]], float] = sampled_score  # what its evaluations are read for


def main() -> int:
    given = _arguments()
    given.output.mkdir(parents=True, exist_ok=True)
    variants = _variants(given.algorithms, given.critics)
    jobs = [_job(task, name, seed, given) for task in given.tasks for name in variants for seed in given.seeds]
    with ThreadPoolExecutor(given.jobs) as pool:
        outcomes = list(pool.map(run, jobs))
    results = [asdict(result) for result in outcomes]
    (given.output / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    done = [result for result in outcomes if result.error is None]
    from curves import draw  # matplotlib, which nothing else here needs

    pictures = draw(done, given.docs / "pictures")
    write_between(given.docs / "algorithms.md", tables(outcomes, _notes(jobs), pictures))
    print(f"wrote {given.output / 'results.json'}, {given.docs / 'algorithms.md'} and {len(pictures)} pictures")
    return len(done) < len(outcomes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", default=["*"], help="names, algorithm/critic, or patterns")
    parser.add_argument("--critics", choices=("own", "all"), default="own", help="the preset's, or all it allows")
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=list(TASKS))
    return with_common_arguments(parser, folder="learning", page="algorithms.md")


def with_common_arguments(parser: argparse.ArgumentParser, *, folder: str, page: str) -> argparse.Namespace:
    """What was typed, with what every benchmark of trainings takes: seeds, jobs, and where to write."""
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once, a thread each")
    parser.add_argument("--quick", action="store_true", help="three iterations of each, to try the script")
    parser.add_argument("--output", type=Path, default=ROOT / "outputs" / folder, help="runs and results.json")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help=f"where {page} and pictures/ lie")
    given = parser.parse_args()
    given.output, given.docs = given.output.absolute(), given.docs.absolute()
    return given


def _variants(patterns: Sequence[str], critics: str) -> list[str]:
    """`algorithm/critic` of every algorithm that a pattern names, in the order of the files."""
    found: list[str] = []
    for file in sorted((config_dir() / "algorithm").glob("*.yaml")):
        by_name = any(fnmatchcase(file.stem, text) for text in patterns)
        if not by_name and not any(text.startswith(f"{file.stem}/") for text in patterns):
            continue  # composing takes longer than everything else here
        own = f"{file.stem}/{load_config([f'algorithm={file.stem}']).critic.kind.value}"
        allowed = [f"{file.stem}/{critic.stem}" for critic in sorted((config_dir() / "critic").glob("*.yaml"))]
        for name in [own, *(other for other in allowed if other != own)]:
            asked = name in patterns or (by_name and (name == own or critics == "all"))
            if asked and (name == own or _works(name)):
                found.append(name)
    if not found:
        raise SystemExit(f"no algorithm is named {' or '.join(patterns)}")
    return found


def _works(variant: str) -> bool:
    """Whether the checks let this algorithm have this critic."""
    algorithm, critic = variant.split("/")
    try:
        check_config(load_config([f"algorithm={algorithm}", f"critic={critic}"]), 1)
    except ConfigError:
        return False
    return True


def _job(task: str, variant: str, seed: int, given: argparse.Namespace) -> Job:
    """Raises `ConfigError` for what cannot run, before anything does."""
    algorithm, critic = variant.split("/")
    overrides = [*TASKS[task], f"algorithm={algorithm}", f"critic={critic}", f"seed={seed}", *EVERY_RUN]
    for adjustment in ADJUSTMENTS:
        if adjustment.fits(variant, task):
            overrides += adjustment.overrides
    name = f"name={task}-{variant.replace('/', '-')}-{seed}"
    overrides += [*(QUICK if given.quick else ()), name, f"output_dir={given.output / 'runs'}"]
    config = load_config(overrides)
    check_config(config, 1)
    return Job(task=task, variant=variant, seed=seed, overrides=tuple(overrides), config=config)


def run(job: Job) -> Outcome:
    """The outcome of a job, trained now unless its folder has a finished run of it."""
    found = _finished(job.config)
    if found is None:
        ended = subprocess.run(
            [sys.executable, "-m", "ippo_cli.cli.train", *job.overrides],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        found = _finished(job.config)
        if found is None:
            said = (ended.stderr.strip() or ended.stdout.strip()).splitlines()
            error = f"exit code {ended.returncode}: {said[-1] if said else 'it said nothing'}"
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
    print(f"{job.config.name}: {result.first:.3f} -> {result.last:.3f} in {result.wall_seconds:.0f} s", flush=True)
    return result


def _finished(config: Config) -> Path | None:
    """The newest finished run of this very configuration: values in `conf/` change without any override."""
    for file in sorted((Path(config.output_dir) / config.name).glob("*/run.json"), reverse=True):
        if json.loads(file.read_text())["state"] == "done" and from_yaml(file.parent / "config.yaml") == config:
            return file.parent
    return None


def _notes(jobs: Sequence[Job]) -> list[str]:
    """What was set beside the presets, and why."""
    used = [one for one in ADJUSTMENTS if any(one.fits(job.variant, job.task) for job in jobs)]
    return [f"`{' '.join(one.variants)}` on `{one.task}`: `{' '.join(one.overrides)}` ({one.reason})" for one in used]


if __name__ == "__main__":
    sys.exit(main())
