"""Train each form of weight sharing and critic on tasks of two agents, per seed, and compare them as rliable does.

    python scripts/bench/teams.py                                 missing runs; some hours on two cores
    python scripts/bench/teams.py --jobs 2 --seeds 0 1 2 --tasks copy_1 copy_6_end --algorithms ippo_clipped mappo
    python scripts/bench/teams.py --scale pretrained --with actor.model=MODEL --output outputs/pretrained
    python scripts/bench/teams.py --report                        tables and pictures of recorded runs, no training
    python scripts/bench/teams.py --quick --output /tmp/try --docs /tmp/try

Each run is a separate process (`ippo-train`) with one thread. Finished runs are recorded immediately in
`data/teams.json` of the documents' folder. Recorded runs with equal settings are not repeated (`--again` repeats them);
interrupted runs start from the beginning. Writes tables into `results.md`, and pictures next to it. Algorithms with
settings that this version does not support are skipped, and the reason is printed.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from algorithms import EVERY_RUN, ROOT, Job, run, with_common_arguments
from hydra.errors import HydraException
from learning import Outcome, write_between
from record import Record, recorded_settings
from team_games import ALGORITHMS, SCALES, TASKS, find_score
from team_report import Run, tables

from ippo_cli.benchmark.baseline import list_settings
from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError

MARKERS = ("<!-- benchmark -->", "<!-- /benchmark -->")


def main() -> int:
    given = _arguments()
    os.chdir(ROOT)  # task files are relative to this folder
    record = Record(given.docs / "data" / "teams.json")
    if not given.report:
        given.output.mkdir(parents=True, exist_ok=True)
        skipped = _train(given, record)
        for reason in skipped:
            print(f"skipped: {reason}", flush=True)
    report(record, given)
    return any(result.error for result in record.outcomes.values())


def report(record: Record, given: argparse.Namespace) -> None:
    """Write tables and pictures of the recorded runs with the settings of this script."""
    from team_curves import draw  # needs matplotlib; nothing else here does

    docs = given.docs
    current = [one for one in record.outcomes.values() if is_current(one, given)]
    done = [_normalised(one) for one in current if one.error is None]
    failed = [one for one in current if one.error is not None]
    pictures = draw(done, docs / "pictures")
    shown = ["", *(f"![{file.stem}](pictures/{file.name})" for file in pictures)] if pictures else []
    text = "\n".join(
        [*tables(done), *shown, *(f"Failed: {one.task} {one.variant} {one.seed}: {one.error}" for one in failed)]
    )
    write_between(docs / "results.md", text, MARKERS)
    outdated = len(record.outcomes) - len(current)
    others = f" ({outdated} more with other settings)" if outdated else ""
    print(f"{len(done)} runs are recorded{others}; wrote {docs / 'results.md'} and {len(pictures)} pictures")


def is_current(outcome: Outcome, given: argparse.Namespace) -> bool:
    """Whether a recorded run has the settings of this script."""
    if outcome.task not in TASKS or outcome.variant not in ALGORITHMS:
        return False
    overrides = list_overrides(outcome.task, outcome.variant, outcome.seed, given)
    return list(outcome.overrides) == list(recorded_settings(overrides))


def _train(given: argparse.Namespace, record: Record) -> list[str]:
    """Run the missing jobs; return the reasons why some algorithms cannot run."""
    jobs: list[Job] = []
    skipped: dict[str, str] = {}
    for task in given.tasks:
        for algorithm in given.algorithms:
            if task in ALGORITHMS[algorithm].cannot:
                skipped[f"{algorithm} {task}"] = f"{algorithm} on {task}: {ALGORITHMS[algorithm].cannot[task]}"
                continue
            for seed in given.seeds:
                try:
                    found = job(task, algorithm, seed, given)
                except (ConfigError, HydraException) as error:
                    why = str(error).splitlines()[0]
                    skipped.setdefault(f"{algorithm}: {why}", f"{algorithm} (on {task}): {why}")
                    break
                if given.again or not record.has(found):
                    jobs.append(found)
    print(f"{len(jobs)} runs to do", flush=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(lambda one: record.add(run(one)), jobs))
    return list(skipped.values())


def job(task: str, algorithm: str, seed: int, given: argparse.Namespace) -> Job:
    """Return one training job. Raises `ConfigError` for an invalid job, before any job runs."""
    overrides = list_overrides(task, algorithm, seed, given)
    config = load_config(normalize_arguments(overrides))
    check_config(config, 1)
    score = find_score(task)
    return Job(task=task, variant=algorithm, seed=seed, overrides=tuple(overrides), config=config, score=score)


def list_overrides(task: str, algorithm: str, seed: int, given: argparse.Namespace) -> list[str]:
    """Return the overrides of one training."""
    return [
        *list_settings(TASKS[task], ALGORITHMS[algorithm], SCALES[given.scale], quick=given.quick),
        *given.more,
        *EVERY_RUN,
        f"seed={seed}",
        f"name={task}-{algorithm}-{seed}",
        f"output_dir={given.output / 'runs'}",
    ]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=list(TASKS))
    parser.add_argument("--algorithms", nargs="+", choices=tuple(ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument("--scale", choices=tuple(SCALES), default="small", help="size of models, number of episodes")
    parser.add_argument("--with", nargs="+", default=[], dest="more", metavar="OVERRIDE", help="overrides for all runs")
    parser.add_argument("--again", action="store_true", help="repeat recorded runs too")
    parser.add_argument("--report", action="store_true", help="write tables and pictures only")
    given = with_common_arguments(parser, folder="teams", page="results.md", seeds=range(5))
    if given.docs == ROOT / "docs" and (given.scale != "small" or given.more):
        given.docs = given.output  # the committed documents are about the small scale
    return given


def _normalised(result: Outcome) -> Run:
    bounds = TASKS[result.task].bounds()
    points = result.points(held_out=True)
    return Run(
        task=result.task,
        algorithm=result.variant,
        seed=result.seed,
        score=result.last,
        curve=[bounds.normalise(point.score) for point in points],
        seconds=result.cpu_seconds or None,
    )


if __name__ == "__main__":
    sys.exit(main())
