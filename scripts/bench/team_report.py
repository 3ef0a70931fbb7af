"""Tables of the team benchmark: scores, aggregates as in rliable, and one published claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

import numpy as np
from reliable import Scores, bootstrap, interquartile_mean, probability_of_improvement, welch_interval
from team_games import ABOUT_CRITICS, ALGORITHMS, TASKS, Kind

REFERENCE = "ippo_clipped"
SOLVED = 0.9  # normalized score of a solved task
GROWTH = (1, -1, -1, 1)  # the difference on long tasks minus that on short ones
GROWTH_COLUMN = "long, sparse minus short, dense"
# Tasks for the claim of arXiv 2601.21972, by number of turns and time of the reward.
HORIZONS: Mapping[str, tuple[str, ...]] = {
    "short, dense": ("copy_1",),
    "short, sparse": ("copy_1_all",),
    "middle, dense": ("copy_3",),
    "middle, sparse": ("copy_3_end",),
    "long, dense": ("copy_6", "meet"),
    "long, sparse": ("copy_6_end", "meet_end"),
    "short, dense, signs": ("copy_1_signs",),
    "long, dense, signs": ("copy_6_signs",),
    "long, sparse, signs": ("copy_6_end_signs",),
}
# The algorithm with more information or more values, minus the other one.
GAPS = (
    ("comlrl_cc", "comlrl_iac", "centralised minus decentralised critic; one value per response, on-policy"),
    (
        "response_value_centralized",
        "response_value",
        "centralised minus decentralised critic; one value per response, clipped ratio",
    ),
    (
        "ippo_centralized",
        "ippo_clipped",
        "centralised minus decentralised critic; one value per token, GAE over turns, clipped ratio",
    ),
    ("mappo", "ippo_clipped", "MAPPO (Huber value loss of weight 1, no PopArt) minus PPO with decentralised critics"),
    ("ippo_clipped", "response_value", "one value per token and GAE minus one value per response; clipped ratio"),
    ("ippo", "comlrl_iac", "one value per token and GAE minus one value per response; on-policy"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One finished training."""

    task: str
    algorithm: str
    seed: int
    score: float  # the last held-out score, not normalized
    curve: list[float]  # normalized held-out scores at equal distances, from the first to the last
    seconds: float | None  # processor time of the training; None if it was not measured

    @property
    def last(self) -> float:
        return self.curve[-1]

    @property
    def mean(self) -> float:
        """The mean score over training: higher if learning is faster."""
        return fmean((one + other) / 2 for one, other in zip(self.curve, self.curve[1:], strict=False))


def tables(runs: Sequence[Run]) -> list[str]:
    """Return all tables as lines of Markdown."""
    lines = [*_bounds(runs), "", *_settings(), ""]
    if not runs:
        return [*lines, "Nothing is recorded yet."]
    return [*lines, *_scores(runs), "", *_aggregates(runs), "", *_claim(runs)]


def matrix(runs: Sequence[Run], algorithm: str, tasks: Sequence[str], key: str = "last") -> Scores:
    """Return runs x tasks, for the seeds that all these tasks have."""
    found = {(run.task, run.seed): run for run in runs if run.algorithm == algorithm}
    seeds = common_seeds(runs, [algorithm], tasks)
    return np.array([[getattr(found[task, seed], key) for task in tasks] for seed in seeds], dtype=np.float64)


def common_seeds(runs: Sequence[Run], algorithms: Sequence[str], tasks: Sequence[str]) -> list[int]:
    """Return the seeds that all these algorithms have on all these tasks."""
    have = {(run.algorithm, run.task): set[int]() for run in runs}
    for run in runs:
        have[run.algorithm, run.task].add(run.seed)
    wanted = [have.get(pair, set()) for pair in product(algorithms, tasks)]
    return sorted(set.intersection(*wanted)) if wanted else []


def compared(runs: Sequence[Run], kinds: Sequence[Kind]) -> tuple[list[str], list[str], list[str]]:
    """Return the tasks of comparisons, the algorithms with all of them, and the others.

    Tasks have runs of the reference and of another algorithm (if there is one) with a common seed, and all recorded
    algorithms support them.
    """
    seen = [name for name in ALGORITHMS if any(run.algorithm == name for run in runs)]
    others = [name for name in seen if name != REFERENCE] or [REFERENCE]
    possible = [name for name in TASKS if not any(name in ALGORITHMS[one].cannot for one in seen)]
    possible = [name for name in possible if TASKS[name].kind in kinds and name not in ABOUT_CRITICS]
    tasks = [name for name in possible if any(common_seeds(runs, (REFERENCE, one), [name]) for one in others)]
    whole = [name for name in seen if tasks and common_seeds(runs, [name], tasks)]
    return tasks, whole, [name for name in seen if name not in whole]


def _bounds(runs: Sequence[Run]) -> list[str]:
    """Describe the recorded tasks; all tasks if none is recorded."""
    recorded = {run.task for run in runs} or TASKS.keys()
    lines = [
        "| task | description | interests | turns | episodes | random play | optimal play |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in (name for name in TASKS if name in recorded):
        task, bounds = TASKS[name], TASKS[name].bounds()
        lines.append(
            f"| `{name}` | {task.about} | {task.kind.value} | {task.turns} | {task.episodes} "
            f"| {bounds.random:.3f} | {bounds.best:.3f} |"
        )
    return lines


def _settings() -> list[str]:
    """Describe each algorithm and its overrides, without those of the scale and the task."""
    lines = ["| name in the tables | description | overrides |", "|---|---|---|"]
    for name, one in ALGORITHMS.items():
        lines.append(f"| `{name}` | {one.about} | `{' '.join(one.overrides)}`, buffer {one.buffer} |")
    return lines


def _scores(runs: Sequence[Run]) -> list[str]:
    names = [name for name in ALGORITHMS if any(run.algorithm == name for run in runs)]
    lines = [
        "Held-out scores after training, normalized (0: random play, 1: optimal play): mean over seeds (lowest to "
        "highest), or the score of a single seed. Only recorded tasks are listed. The last column is the processor "
        "time of a run of the best algorithm, in seconds.",
        "",
        "| task | " + " | ".join(f"`{name}`" for name in names) + " | best, seconds |",
        "|---|" + "---|" * (len(names) + 1),
    ]
    best_scores = []
    for task in TASKS:
        found = {name: [run for run in runs if (run.task, run.algorithm) == (task, name)] for name in names}
        if not any(found.values()):
            continue
        means = {name: fmean(run.last for run in own) for name, own in found.items() if own}
        best = max(means, key=means.__getitem__)
        best_scores.append(means[best])
        cells = [_spread([run.last for run in own]) for own in found.values()]
        seconds = [run.seconds for run in found[best] if run.seconds is not None]
        lines.append(f"| `{task}` | {' | '.join(cells)} | {f'{fmean(seconds):.0f}' if seconds else ''} |")
    solved = sum(score >= SOLVED for score in best_scores)
    return [
        *lines,
        "",
        f"The best algorithm has a mean of at least {SOLVED:g} on {solved} of {len(best_scores)} tasks.",
    ]


def _spread(scores: Sequence[float]) -> str:
    if len(scores) < 2:
        return "".join(f"{score:.2f}" for score in scores)
    return f"{fmean(scores):.2f} ({min(scores):.2f} to {max(scores):.2f})"


def _aggregates(runs: Sequence[Run]) -> list[str]:
    lines: list[str] = []
    earlier: list[str] = []  # tasks of the table before
    for title, kinds in (("with equal rewards of both agents", (Kind.team,)), ("of all kinds", tuple(Kind))):
        tasks, names, incomplete = compared(runs, kinds)
        if not names or tasks == earlier:
            continue
        earlier = tasks
        scores = {name: matrix(runs, name, tasks) for name in names}
        lines += [
            f"Over the {len(tasks)} recorded tasks {title}: interquartile mean of normalized scores, interquartile "
            f"mean of the mean scores over training, and probability of improvement over `{REFERENCE}` "
            "(95 % intervals, stratified bootstrap over seeds).",
            "",
            f"| algorithm | seeds | interquartile mean | mean over training | improvement over `{REFERENCE}` |",
            "|---|---|---|---|---|",
        ]
        for name in names:
            during = matrix(runs, name, tasks, "mean")
            beats = "" if name == REFERENCE else _improvement(scores[name], scores[REFERENCE])
            cells = [f"`{name}`", str(len(scores[name])), _estimate(scores[name]), _estimate(during), beats]
            lines.append("| " + " | ".join(cells) + " |")
        if incomplete:
            lines += ["", "Not run on all of these tasks: " + ", ".join(f"`{name}`" for name in incomplete) + "."]
        lines.append("")
    recorded = {run.task for run in runs}
    for name in sorted({run.algorithm for run in runs}):
        for task, reason in ALGORITHMS[name].cannot.items():
            if task in recorded:
                lines += [f"Without `{task}`, which `{name}` cannot do: {reason}.", ""]
    tasks, names, _ = compared(runs, (Kind.team,))
    return [*lines, *_pairwise({name: matrix(runs, name, tasks) for name in names})]


def _pairwise(scores: Mapping[str, Scores]) -> list[str]:
    if len(scores) < 2:
        return []
    lines = [
        "Probability of improvement of the row over the column, on tasks with equal rewards of both agents:",
        "",
        "| | " + " | ".join(f"`{name}`" for name in scores) + " |",
        "|---|" + "---|" * len(scores),
    ]
    for name, own in scores.items():
        cells = ["" if other == name else f"{probability_of_improvement(own, scores[other]):.2f}" for other in scores]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def _estimate(scores: Scores) -> str:
    return _interval(interquartile_mean(scores), len(scores), *bootstrap(interquartile_mean, scores))


def _improvement(scores: Scores, others: Scores) -> str:
    point = probability_of_improvement(scores, others)
    return _interval(point, len(scores), *bootstrap(probability_of_improvement, scores, others))


def _interval(point: float, seeds: int, low: object, high: object) -> str:
    """Format a point and its interval; one seed has no interval, since every resample is equal."""
    return f"{point:.2f} [{low:.2f}, {high:.2f}]" if seeds > 1 else f"{point:.2f}"


def _claim(runs: Sequence[Run]) -> list[str]:
    """Tabulate differences between critics by horizon and reward density: last scores and means over training.

    Horizons and pairs of algorithms without runs are omitted.
    """
    recorded = {(gap, horizon): _recorded(runs, gap[:2], tasks) for gap in GAPS for horizon, tasks in HORIZONS.items()}
    gaps = [gap for gap in GAPS if any(recorded[gap, horizon] for horizon in HORIZONS)]
    tasks = {
        horizon: " ".join(f"`{task}`" for task in TASKS if any(task in recorded[gap, horizon] for gap in gaps))
        for horizon in HORIZONS
    }
    horizons = [horizon for horizon in HORIZONS if tasks[horizon]]
    has_growth = any(recorded[gap, "long, sparse"] and recorded[gap, "short, dense"] for gap in gaps)
    columns = [*(f"{name}: {tasks[name]}" for name in horizons), *([GROWTH_COLUMN] if has_growth else []), "time"]
    lines = [
        "Differences of normalized scores by horizon and reward density, after training and (in parentheses) as the "
        "mean over training, each with its 95 % interval (Welch's t), and the ratio of processor times. The claim "
        "(arXiv 2601.21972): a difference of centralised and decentralised critics is near 0 for short, dense tasks, "
        "and large for long or sparse tasks.",
        "",
        f"| | {' | '.join(columns)} |",
        "|---|" + "---|" * len(columns),
    ]
    for gap in gaps:
        name, other, about = gap
        cells = [
            " ".join(_gap(runs, name, other, recorded[gap, horizon], key) for key in ("last", "mean"))
            if recorded[gap, horizon]
            else ""
            for horizon in horizons
        ]
        ends = [recorded[gap, "long, sparse"], recorded[gap, "short, dense"]]
        if has_growth:
            cells.append(_growth(runs, name, other, *ends) if all(ends) else "")
        cells.append(_time_ratio(runs, name, other))
        lines.append(f"| {about} (`{name}` minus `{other}`) | " + " | ".join(cells) + " |")
    return lines if gaps else []


def _time_ratio(runs: Sequence[Run], name: str, other: str) -> str:
    """Return the processor time of an algorithm over that of another one, for the tasks and seeds that both have."""
    timed = {(run.algorithm, run.task, run.seed): run.seconds for run in runs if run.seconds is not None}
    common = [key[1:] for key in timed if key[0] == name and (other, *key[1:]) in timed]
    if not common:
        return ""
    own, theirs = (sum(timed[algorithm, *key] for key in common) for algorithm in (name, other))
    return f"{own / theirs:.2f}"


def _recorded(runs: Sequence[Run], algorithms: Sequence[str], tasks: Sequence[str]) -> list[str]:
    """Return the tasks on which all these algorithms have runs with a common seed."""
    return [task for task in tasks if common_seeds(runs, algorithms, [task])]


def _gap(runs: Sequence[Run], name: str, other: str, tasks: Sequence[str], key: str) -> str:
    text = _format_sum((1, -1), *_both(runs, name, other, tasks, key))
    return text if key == "last" else f"({text})"


def _growth(runs: Sequence[Run], name: str, other: str, long: Sequence[str], short: Sequence[str]) -> str:
    return _format_sum(GROWTH, *_both(runs, name, other, long), *_both(runs, name, other, short))


def _both(runs: Sequence[Run], name: str, other: str, tasks: Sequence[str], key: str = "last") -> list[Scores]:
    """Return the scores of both on their common seeds: a lucky seed then counts for both."""
    seeds = common_seeds(runs, (name, other), tasks)
    common = [run for run in runs if run.seed in seeds]
    return [matrix(common, one, tasks, key) for one in (name, other)]


def _format_sum(signs: Sequence[int], *samples: Scores) -> str:
    """Format a sum of means with signs, and its interval."""
    point = sum(sign * float(one.mean()) for sign, one in zip(signs, samples, strict=True))
    if min(map(len, samples)) < 2:
        return f"{point:+.2f}"
    low, high = welch_interval(samples, signs)
    return f"{point:+.2f} [{low:+.2f}, {high:+.2f}]"
