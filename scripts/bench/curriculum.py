"""Train on word problems of unlike difficulty with and without `task.curriculum`, per seed, and count responses.

    python scripts/bench/curriculum.py --model FOLDER        SmolLM2-135M-Instruct: 6 runs of a quarter of an hour
    python scripts/bench/curriculum.py --report              the table of recorded runs, no training

Two of three training problems are too hard for the model (`hard_problems.py`); held-out problems are not. Each run is a
process with one thread. Finished runs are recorded immediately in `data/curriculum.json` of the documents' folder, and
not repeated. Writes the table into `results.md`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean

from algorithms import EVERY_RUN, ROOT, Job, run, with_common_arguments
from learning import Outcome, sampled_score, write_between
from record import Record

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config

TASK = "hard_problems"
MARKERS = ("<!-- curriculum -->", "<!-- /curriculum -->")
SETTINGS = (
    "+experiment=smollm2_word_problems",
    "task.train=scripts/bench/hard_problems.py:train",
    "task.eval_size=128",
    "actor.dtype=bf16",
    "rollout.num_generations=4",
    "num_iterations=20",
    "evaluation.every=4",
    "evaluation.greedy=false",
)
VARIANTS: dict[str, tuple[str, ...]] = {
    "without": (),
    "with": (
        "task.curriculum.band_low=0.1",
        "task.curriculum.band_high=1",
        "task.curriculum.success_score=0.15",  # numbers near the right ones; the first scores are .1 on average
    ),
}
LEVELS = (0.2, 0.25, 0.3)  # scores of which the table says when they are reached


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of the model")
    parser.add_argument("--report", action="store_true", help="write the table only")
    given = with_common_arguments(parser, folder="curriculum", page="results.md")
    if given.model is None and not given.report:
        parser.error("training needs --model FOLDER")
    os.chdir(ROOT)  # the file of problems is relative to this folder
    record = Record(given.docs / "data" / "curriculum.json")
    if not given.report:
        jobs = [_job(name, seed, given) for seed in given.seeds for name in VARIANTS]
        with ThreadPoolExecutor(given.jobs) as pool:
            list(pool.map(lambda job: record.add(run(job)), (job for job in jobs if not record.has(job))))
    outcomes = list(record.outcomes.values())
    lines = render([one for one in outcomes if one.error is None])
    failed = [f"Failed: {one.variant} {one.seed}: {one.error}" for one in outcomes if one.error is not None]
    write_between(given.docs / "results.md", "\n".join([*lines, "", *failed] if failed else lines), MARKERS)
    return bool(failed)


def _job(variant: str, seed: int, given: argparse.Namespace) -> Job:
    """Return one training. Raises `ConfigError` for invalid settings."""
    overrides = [*SETTINGS, *VARIANTS[variant], *EVERY_RUN, f"actor.model={given.model}", f"seed={seed}"]
    if given.quick:
        overrides += ["num_iterations=2", "evaluation.every=1", "task.eval_size=4", "rollout.buffer_size=16"]
    overrides += [f"name={variant}-{seed}", f"output_dir={given.output / 'runs'}"]
    config = load_config(normalize_arguments(overrides))
    check_config(config, 1)
    return Job(task=TASK, variant=variant, seed=seed, overrides=tuple(overrides), config=config, score=sampled_score)


def responses_until(result: Outcome, level: float) -> float | None:
    """Return the number of responses at which the held-out score first reaches a level; None if it never does.

    Evaluations are connected by straight lines.
    """
    for before, after in itertools.pairwise(result.points(held_out=True)):
        if before.score < level <= after.score:
            share = (level - before.score) / (after.score - before.score)
            return before.samples + share * (after.samples - before.samples)
    return None


def render(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the table as lines of Markdown."""
    seeds = sorted({one.seed for one in outcomes})
    heads = [f"responses until {level:g}" for level in LEVELS]
    lines = [f"| curriculum | seed | {' | '.join(heads)} | held-out score at the end |", "|---" * 6 + "|"]
    for name in VARIANTS:
        own = {one.seed: one for one in outcomes if one.variant == name}
        for seed in (seed for seed in seeds if seed in own):
            found = (responses_until(own[seed], level) for level in LEVELS)
            cells = ["not reached" if number is None else f"{number:.0f}" for number in found]
            lines.append(f"| {name} | {seed} | {' | '.join(cells)} | {own[seed].last:.3f} |")
        if own:
            lines.append(f"| {name} | mean | | | | {fmean(one.last for one in own.values()):.3f} |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
