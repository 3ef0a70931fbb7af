"""Train PPO with each kind of critic on the same tasks, per seed, and compare scores at equal samples and equal time.

    python scripts/bench/critics.py                                     missing runs: about two hours of one core
    python scripts/bench/critics.py --tasks copy --critics plain popart --seeds 0 1
    python scripts/bench/critics.py --tasks sums --model FOLDER --small-model OTHER        SmolLM2, some hours
    python scripts/bench/critics.py --report                            the table of recorded runs, no training

Each run is a process with one thread. Finished runs are recorded immediately in `data/critics.json` of the documents'
folder, and not repeated. Time is processor time of training, which other jobs on the machine hardly change. A
pretrained critic's samples and time count: its run trains the policy for fewer iterations. Writes the table into
`results.md`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from threading import Lock

import numpy as np
from algorithms import EVERY_RUN, QUICK, ROOT, Job, finished_run, run, with_common_arguments
from learning import Outcome, convert_to_processor_time, sampled_score, score_after, write_between
from record import Record
from reliable import Scores, bootstrap, interquartile_mean, probability_of_improvement

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config

MARKERS = ("<!-- critics -->", "<!-- /critics -->")
REFERENCE = "plain"
ByRun = dict[tuple[str, str, int], float]  # a number for each task, critic and seed
SUMS = "sums"  # the task that needs --model
_COMPOSING = Lock()  # Hydra composes one configuration at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task, with its critics' range of values."""

    about: str
    overrides: tuple[str, ...]
    iterations: int
    pretraining: int  # of these iterations, for a critic that is pretrained
    critic: str  # `critic=` of all variants that have one
    value_range: tuple[float, float]  # symmetric around a middling score, wider than the scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One kind of critic, as overrides in addition to a task's."""

    about: str
    overrides: tuple[str, ...] = ()
    is_pretrained: bool = False
    is_categorical: bool = False
    has_critic: bool = True
    by_task: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


TINY = (
    "algorithm=ppo",
    "algorithm.ppo_epochs=4",
    "algorithm.mini_batch_size=64",
    "rollout.buffer_size=256",
    "actor.alphabet=printable",
    "actor.num_layers=1",
    "actor.hidden_size=64",
    "actor.warm_start_steps=100",
    "actor.warm_start_learning_rate=3e-3",
)
COPY = (
    *TINY,
    "task=benchmark_pair",
    "task.environment=ippo_cli.benchmark.environments:copy",
    "+task.environment_args.turns=1",
    "+task.environment_args.length=2",
    "rollout.max_new_tokens=2",
    "actor.learning_rate=3e-3",
)
TASKS = {
    "grid": Task(
        about="`+experiment=probe_grid`: three moves, score at the end",
        overrides=("+experiment=probe_grid", "algorithm=ppo"),
        iterations=120,
        pretraining=10,
        critic="separate critic.learning_rate=5e-3",
        value_range=(-0.5, 1.5),
    ),
    "ladder": Task(
        about="`task=ladder`: five turns of one agent, score per turn, the rule is given in the first turn only",
        overrides=(*TINY, "task=ladder", "evaluation.num_generations=16", "actor.learning_rate=1e-3"),
        iterations=30,
        pretraining=4,
        critic="separate critic.learning_rate=1e-3",
        value_range=(-0.5, 1.5),
    ),
    "copy": Task(
        about="two agents copy or continue two letters, one joint score",
        overrides=COPY,
        iterations=40,
        pretraining=5,
        critic="separate critic.learning_rate=3e-3",
        value_range=(-0.5, 1.5),
    ),
    "copy_raw": Task(
        about="the same with scores of 500 to 600 in place of 0 to 1",
        overrides=(*COPY, "reward.processor=[scale,shift]", "reward.scale=100", "reward.shift=500"),
        iterations=40,
        pretraining=5,
        critic="separate critic.learning_rate=3e-3",
        value_range=(450.0, 650.0),
    ),
    SUMS: Task(
        about="`+experiment=smollm2_arithmetic algorithm=ppo`: sums with SmolLM2-135M-Instruct",
        overrides=("+experiment=smollm2_arithmetic", "algorithm=ppo", "task.eval_size=64"),
        iterations=10,
        pretraining=2,
        critic="value_head critic.learning_rate=1e-4",
        value_range=(-0.5, 1.5),
    ),
}
VARIANTS = {
    "plain": Variant(about="squared error"),
    "pretrained": Variant(about="`mode=critic` first, then `critic.warm_start`", is_pretrained=True),
    "categorical": Variant(about="HL-Gauss, `critic.value_bins=51`", is_categorical=True),
    "two_critics": Variant(
        about="AsyPPO, `critic.ensemble=2 critic.mask_agreement=0.2`",
        overrides=("critic.ensemble=2", "critic.mask_agreement=0.2"),
        by_task={
            "grid": ("critic.mask_entropy=0.2",),  # the others have no entropy bonus
            SUMS: ("critic=separate", "critic.model={small}", "critic.learning_rate=2e-5"),
        },
    ),
    "popart": Variant(about="`critic.popart_beta=0.9`", overrides=("critic.popart_beta=0.9",)),
    "monte_carlo": Variant(
        about="VinePPO: `algorithm.advantage=monte_carlo`, nine continuations per state, no critic",
        overrides=(
            "algorithm.advantage=monte_carlo",
            "algorithm.gae_lambda=0",
            "algorithm.advantage_args.continuations=9",
            "algorithm.advantage_args.states=tokens",
            "algorithm.advantage_args.every=1",
        ),
        has_critic=False,
        by_task={
            "ladder": ("algorithm.advantage_args.states=turns", "algorithm.advantage_args.every=null"),
            SUMS: ("algorithm.advantage_args.every=4",),  # one or two states of a response
        },
    ),
    "none": Variant(
        about="`algorithm.advantage=leave_one_out`, four responses per prompt, no critic",
        overrides=("algorithm.advantage=leave_one_out", "algorithm.gamma=null", "rollout.num_generations=4"),
        has_critic=False,
    ),
}


def main() -> int:
    given = _arguments()
    os.chdir(ROOT)  # task files are relative to this folder
    record = Record(given.docs / "data" / "critics.json")
    if not given.report:
        given.output.mkdir(parents=True, exist_ok=True)
        triples = [(task, name, seed) for seed in given.seeds for task in given.tasks for name in given.critics]
        with ThreadPoolExecutor(given.jobs) as pool:
            list(pool.map(lambda triple: _train(triple[0], triple[1], triple[2], record, given), triples))
    outcomes = [one for one in record.outcomes.values() if one.task in TASKS and one.variant in VARIANTS]
    write_between(given.docs / "results.md", "\n".join(tables(outcomes)), MARKERS)
    print(f"{len(outcomes)} runs are recorded; wrote {given.docs / 'results.md'}")
    return any(one.error for one in outcomes)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    small = [name for name in TASKS if name != SUMS]
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=small, help=f"default: all but {SUMS}")
    parser.add_argument("--critics", nargs="+", choices=tuple(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--model", type=Path, help=f"folder of the model of {SUMS}")
    parser.add_argument("--small-model", type=Path, help=f"folder of the small critics' model of {SUMS}")
    parser.add_argument("--report", action="store_true", help="write the table only")
    given = with_common_arguments(parser, folder="critics", page="results.md")
    if SUMS in given.tasks and given.model is None and not given.report:
        parser.error(f"--tasks {SUMS}; needs --model FOLDER")
    if SUMS in given.tasks and "two_critics" in given.critics and given.small_model is None and not given.report:
        parser.error(f"--tasks {SUMS}; two_critics needs --small-model FOLDER, or name other --critics")
    return given


def _train(task: str, variant: str, seed: int, record: Record, given: argparse.Namespace) -> None:
    """Train one run, with its critic before it if that is pretrained, and record the outcome."""
    job = make_job(task, variant, seed, given)
    if record.has(job):
        return
    before = Outcome(task=task, variant=variant, seed=seed, overrides=())
    if VARIANTS[variant].is_pretrained:
        critic_job = make_job(task, variant, seed, given, pretraining=True)
        before = run(critic_job)
        folder = finished_run(critic_job.config)
        if folder is None:
            record.add(replace(before, overrides=job.overrides))
            return
        job = make_job(task, variant, seed, given, warm_start=folder)
    record.add(_in_cpu_seconds(run(job), before))
    # Weights are gigabytes with a pretrained model. Without them a critic's run cannot be used again.
    shutil.rmtree(given.output / "runs" / f"{job.config.name}-critic", ignore_errors=True)
    for folder in given.output.glob(f"runs/{job.config.name}/*/checkpoints"):
        shutil.rmtree(folder)


def _in_cpu_seconds(result: Outcome, before: Outcome) -> Outcome:
    """The outcome with processor seconds in its curve, and with samples and seconds of the training before it."""
    if result.error is not None:
        return result
    result, before = convert_to_processor_time(result), convert_to_processor_time(before)
    samples, seconds = (before.curve[-1].samples, before.curve[-1].seconds) if before.curve else (0, 0.0)
    curve = [replace(one, samples=one.samples + samples, seconds=one.seconds + seconds) for one in result.curve]
    return replace(result, curve=curve)


def make_job(
    task: str,
    variant: str,
    seed: int,
    given: argparse.Namespace,
    *,
    pretraining: bool = False,
    warm_start: Path | None = None,
) -> Job:
    """Return one training, or the one before it of a critic. Raises `ConfigError` for an invalid job."""
    settings, kind = TASKS[task], VARIANTS[variant]
    total = 4 if given.quick else settings.iterations
    first = (1 if given.quick else settings.pretraining) if kind.is_pretrained else 0
    overrides = [*settings.overrides, *EVERY_RUN, "evaluation.greedy=false", f"seed={seed}"]
    overrides += [f"num_iterations={first if pretraining else total - first}"]
    overrides += [f"evaluation.every={max(1, (first if pretraining else total) // 6)}"]
    if kind.has_critic:
        name, *rates = settings.critic.split()
        overrides += [f"critic={name}", *rates, "algorithm.value_clip_range=null"]  # bins and ensembles have no clip
    else:
        none = ("gae_lambda", "value_loss_coef", "value_clip_range")
        overrides += ["critic=none", *(f"algorithm.{key}=null" for key in none)]
    if kind.is_categorical:
        low, high = settings.value_range
        overrides += ["critic.value_bins=51", f"critic.value_min={low}", f"critic.value_max={high}"]
    overrides += [*kind.overrides, *(text.format(small=given.small_model) for text in kind.by_task.get(task, ()))]
    if task == SUMS:
        overrides += [f"actor.model={given.model}"]
    if given.quick:
        overrides += [text for text in QUICK if text.startswith("task.eval_size")]
    if pretraining:
        overrides += ["mode=critic", "evaluation.patience=null"]
    if warm_start is not None:
        overrides += [f"critic.warm_start={warm_start}"]
    name = f"{task}-{variant}-{seed}{'-critic' if pretraining else ''}"
    overrides += [f"name={name}", f"output_dir={given.output / 'runs'}"]
    with _COMPOSING:
        config = load_config(normalize_arguments(overrides))
        check_config(config, 1)
    score = (lambda metrics: metrics["sampled/explained_variance"]) if pretraining else sampled_score
    return Job(task=task, variant=variant, seed=seed, overrides=tuple(overrides), config=config, score=score)


def tables(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the tables as lines of Markdown."""
    done = [one for one in outcomes if one.error is None]
    tasks = [name for name in TASKS if any(one.task == name for one in done)]
    names = [name for name in VARIANTS if any(one.variant == name for one in done)]
    lines = ["| task | description | iterations |", "|---|---|---|"]
    lines += [f"| `{name}` | {TASKS[name].about} | {TASKS[name].iterations} |" for name in tasks]
    lines += ["", "| critic | description |", "|---|---|"]
    lines += [f"| `{name}` | {VARIANTS[name].about} |" for name in names]
    for title, measure in (
        ("Held-out score at equal samples (a pretrained critic's count)", _at_equal_samples),
        ("Held-out score at equal processor time, that of the fastest critic on the task", _at_equal_time),
        ("Mean held-out score over all samples", _over_training),
    ):
        about = (
            "mean over seeds (lowest to highest); over all tasks the interquartile mean and the probability of "
            "improvement [95 % interval, stratified bootstrap over seeds]"
        )
        lines += ["", f"{title}: {about}.", ""]
        lines += _table(done, tasks, names, measure(done))
    failed = [f"Failed: {one.task} {one.variant} {one.seed}: {one.error}" for one in outcomes if one.error is not None]
    return [*lines, "", *failed] if failed else lines


def _table(
    outcomes: Sequence[Outcome],
    tasks: Sequence[str],
    names: Sequence[str],
    scores: ByRun,
) -> list[str]:
    """Return scores by critic and task; for critics with all tasks of the reference, statistics over these."""
    common = [task for task in tasks if _seeds(outcomes, task, REFERENCE)]
    lines = [
        "| critic | " + " | ".join(f"`{task}`" for task in tasks) + f" | all | better than `{REFERENCE}` |",
        "|---|" + "---|" * (len(tasks) + 2),
    ]
    for name in names:
        cells = []
        for task in tasks:
            seeds = _seeds(outcomes, task, name)
            cells.append(_mean([scores[task, name, seed] for seed in seeds]) if seeds else "")
        is_complete = all(_seeds(outcomes, task, name) for task in common)
        own, reference = (_matrix(outcomes, scores, common if is_complete else (), one) for one in (name, REFERENCE))
        cells.append(_interval(interquartile_mean, own))
        cells.append("" if name == REFERENCE else _interval(probability_of_improvement, own, reference))
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def _seeds(outcomes: Sequence[Outcome], task: str, name: str) -> list[int]:
    return sorted(one.seed for one in outcomes if (one.task, one.variant) == (task, name))


def _matrix(outcomes: Sequence[Outcome], scores: ByRun, tasks: Sequence[str], name: str) -> Scores:
    """Return scores of the seeds that all tasks have, runs x tasks."""
    seeds = sorted(set.intersection(*(set(_seeds(outcomes, task, name)) for task in tasks))) if tasks else []
    return np.array([[scores[task, name, seed] for task in tasks] for seed in seeds], dtype=np.float64)


def _mean(scores: Sequence[float]) -> str:
    if len(scores) < 2:
        return f"{scores[0]:.2f}"
    return f"{fmean(scores):.2f} ({min(scores):.2f} to {max(scores):.2f})"


def _interval(statistic: Callable[..., float], *samples: Scores) -> str:
    if not all(one.size for one in samples):
        return ""
    point = f"{statistic(*samples):.2f}"
    if min(map(len, samples)) < 2:
        return point
    low, high = bootstrap(statistic, *samples)
    return f"{point} [{low:.2f}, {high:.2f}]"


def _at_equal_samples(outcomes: Sequence[Outcome]) -> ByRun:
    return {_key(one): one.last for one in outcomes}


def _at_equal_time(outcomes: Sequence[Outcome]) -> ByRun:
    found = {}
    for task in {one.task for one in outcomes}:
        results = [one for one in outcomes if one.task == task]
        times = [
            fmean(one.curve[-1].seconds for one in results if one.variant == name)
            for name in {one.variant for one in results}
        ]
        found |= {_key(one): score_after(one, min(times)) for one in results}
    return found


def _over_training(outcomes: Sequence[Outcome]) -> ByRun:
    return {_key(one): _area(one) for one in outcomes}


def _area(one: Outcome) -> float:
    """The mean score over samples, linear between evaluations; the first score holds during a critic's pretraining."""
    points = one.points(held_out=True)
    found = points[0].samples * points[0].score
    for before, after in itertools.pairwise(points):
        found += (after.samples - before.samples) * (before.score + after.score) / 2
    return found / points[-1].samples


def _key(one: Outcome) -> tuple[str, str, int]:
    return one.task, one.variant, one.seed


if __name__ == "__main__":
    sys.exit(main())
