"""What the benchmark of teams has shown, as tables: scores, aggregates as in rliable, and one published claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

import numpy as np
from reliable import Scores, bootstrap, interquartile_mean, probability_of_improvement
from team_games import ALGORITHMS, TASKS, Kind

REFERENCE = "ippo_clipped"
# Tasks of the claim: how many turns, and when they are paid. Of arXiv 2601.21972.
HORIZONS: Mapping[str, tuple[str, ...]] = {
    "short, dense": ("copy_1",),
    "short, sparse": ("copy_1_all",),
    "middle, dense": ("copy_3",),
    "middle, sparse": ("copy_3_end",),
    "long, dense": ("copy_6", "meet"),
    "long, sparse": ("copy_6_end", "meet_end"),
    "short, dense, half hidden": ("copy_1_signs",),
    "long, dense, half hidden": ("copy_6_signs",),
    "long, sparse, half hidden": ("copy_6_end_signs",),
}
# The one with more knowledge or more values, less the other.
GAPS = (
    ("comlrl_cc", "comlrl_iac", "a centralised critic less a decentralised one, a value per response, on-policy"),
    ("response_value_centralized", "response_value", "the same, with a clipped ratio"),
    ("ippo_centralized", "ippo_clipped", "the same with a value per token and GAE over turns, with a clipped ratio"),
    ("mappo", "ippo_clipped", "MAPPO as published less IPPO"),
    (
        "ippo_clipped",
        "response_value",
        "a value per token and GAE less a value per response, both decentralised, clipped",
    ),
    ("ippo", "comlrl_iac", "the same, on-policy"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One finished training."""

    task: str
    algorithm: str
    seed: int
    score: float  # the last held-out one, as it was measured
    curve: list[float]  # held-out scores at equal distances from the first to the last, normalised
    seconds: float

    @property
    def last(self) -> float:
        return self.curve[-1]

    @property
    def mean(self) -> float:
        """Over the whole training: higher where it was learnt sooner."""
        return fmean((one + other) / 2 for one, other in zip(self.curve, self.curve[1:], strict=False))


def tables(runs: Sequence[Run]) -> list[str]:
    """Lines of Markdown."""
    lines = [*_bounds(), "", *_settings(), ""]
    if not runs:
        return [*lines, "Nothing is recorded yet."]
    return [*lines, *_scores(runs), "", *_aggregates(runs), "", *_claim(runs)]


def matrix(runs: Sequence[Run], algorithm: str, tasks: Sequence[str], key: str = "last") -> Scores:
    """Runs x tasks of the seeds that all these tasks have."""
    found = {(run.task, run.seed): run for run in runs if run.algorithm == algorithm}
    seeds = common_seeds(runs, [algorithm], tasks)
    return np.array([[getattr(found[task, seed], key) for task in tasks] for seed in seeds], dtype=np.float64)


def common_seeds(runs: Sequence[Run], algorithms: Sequence[str], tasks: Sequence[str]) -> list[int]:
    """The seeds that all of these have."""
    have = {(run.algorithm, run.task): set[int]() for run in runs}
    for run in runs:
        have[run.algorithm, run.task].add(run.seed)
    wanted = [have.get(pair, set()) for pair in product(algorithms, tasks)]
    return sorted(set.intersection(*wanted)) if wanted else []


def compared(runs: Sequence[Run], kinds: Sequence[Kind]) -> tuple[list[str], list[str], list[str]]:
    """The tasks that the reference has and all can do, the algorithms that have them all, and those that lack some."""
    seen = [name for name in ALGORITHMS if any(run.algorithm == name for run in runs)]
    possible = [name for name in TASKS if not any(name in ALGORITHMS[one].cannot for one in seen)]
    possible = [name for name in possible if TASKS[name].kind in kinds and not TASKS[name].about_critics]
    tasks = [name for name in possible if common_seeds(runs, [REFERENCE], [name])]
    whole = [name for name in seen if tasks and common_seeds(runs, [name], tasks)]
    return tasks, whole, [name for name in seen if name not in whole]


def _bounds() -> list[str]:
    lines = ["| task | what | interests | turns | episodes | random play | best |", "|---|---|---|---|---|---|---|"]
    for name, task in TASKS.items():
        bounds = task.bounds()
        lines.append(
            f"| `{name}` | {task.about} | {task.kind} | {task.turns} | {task.episodes} "
            f"| {bounds.random:.3f} | {bounds.best:.3f} |"
        )
    return lines


def _settings() -> list[str]:
    """What an algorithm's name stands for, beside what the scale and the task say."""
    lines = ["| in these tables | what | as overrides |", "|---|---|---|"]
    for name, one in ALGORITHMS.items():
        lines.append(f"| `{name}` | {one.about} | `{' '.join(one.overrides)}`, buffer {one.buffer} |")
    return lines


def _scores(runs: Sequence[Run]) -> list[str]:
    names = [name for name in ALGORITHMS if any(run.algorithm == name for run in runs)]
    lines = [
        "Held-out scores after training, normalised (0: random play, 1: the best): the mean over seeds (lowest to "
        "highest) of the tasks that are recorded so far, or one seed's.",
        "",
        "| task | " + " | ".join(f"`{name}`" for name in names) + " |",
        "|---|" + "---|" * len(names),
    ]
    for task in TASKS:
        of = {name: [run.last for run in runs if (run.task, run.algorithm) == (task, name)] for name in names}
        if any(of.values()):
            lines.append(f"| `{task}` | " + " | ".join(_spread(scores) for scores in of.values()) + " |")
    times = [fmean(run.seconds for run in runs if run.algorithm == name) for name in names]
    return [*lines, "| seconds of a run | " + " | ".join(f"{seconds:.0f}" for seconds in times) + " |"]


def _spread(scores: Sequence[float]) -> str:
    if len(scores) < 2:
        return "".join(f"{score:.2f}" for score in scores)
    return f"{fmean(scores):.2f} ({min(scores):.2f} to {max(scores):.2f})"


def _aggregates(runs: Sequence[Run]) -> list[str]:
    lines: list[str] = []
    for title, kinds in (("where both are paid the same", (Kind.team,)), ("of all kinds", tuple(Kind))):
        tasks, names, incomplete = compared(runs, kinds)
        if not names:
            continue
        scores = {name: matrix(runs, name, tasks) for name in names}
        lines += [
            f"Over the {len(tasks)} recorded tasks {title}: interquartile mean of normalised scores, that of the means "
            f"over the whole training, and how likely a run beats one of `{REFERENCE}` on a task "
            "(95 % intervals, stratified bootstrap over seeds).",
            "",
            f"| algorithm | seeds | interquartile mean | over the training | better than `{REFERENCE}` |",
            "|---|---|---|---|---|",
        ]
        for name in names:
            during = matrix(runs, name, tasks, "mean")
            beats = "" if name == REFERENCE else _improvement(scores[name], scores[REFERENCE])
            cells = [f"`{name}`", str(len(scores[name])), _estimate(scores[name]), _estimate(during), beats]
            lines.append("| " + " | ".join(cells) + " |")
        refused = [(one, task) for one in (*names, *incomplete) for task in ALGORITHMS[one].cannot]
        for name, task in refused:
            lines += ["", f"Without `{task}`, which `{name}` cannot do: {ALGORITHMS[name].cannot[task]}."]
        if incomplete:
            lines += ["", "Not on all of these tasks yet: " + ", ".join(f"`{name}`" for name in incomplete) + "."]
        lines.append("")
    tasks, names, _ = compared(runs, (Kind.team,))
    return [*lines, *_pairwise({name: matrix(runs, name, tasks) for name in names})]


def _pairwise(scores: Mapping[str, Scores]) -> list[str]:
    if len(scores) < 2:
        return []
    lines = [
        "How likely a run of the row beats one of the column, where both are paid the same:",
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
    """One seed has no interval: it would always be drawn again."""
    return f"{point:.2f} [{low:.2f}, {high:.2f}]" if seeds > 1 else f"{point:.2f}"


def difference(scores: Scores, others: Scores) -> float:
    """Of the means over runs and tasks."""
    return float(scores.mean() - others.mean())


def growth(long: Scores, long_others: Scores, short: Scores, short_others: Scores) -> float:
    """How much larger the difference is on the long tasks than on the short ones."""
    return difference(long, long_others) - difference(short, short_others)


def _claim(runs: Sequence[Run]) -> list[str]:
    """Differences between critics by horizon and pay, of last scores and of means over the training."""
    lines = [
        "Differences of normalised scores by horizon and pay, after training and (in brackets) as a mean over it, each "
        "with its 95 % interval. The claim (arXiv 2601.21972) is that the first line is near 0 where tasks are short "
        "and dense, and large where they are long or sparse.",
        "",
        "| | " + " | ".join(HORIZONS) + " | long, sparse less short, dense |",
        "|---|" + "---|" * (len(HORIZONS) + 1),
    ]
    found = False
    for name, other, about in GAPS:
        cells = []
        recorded = {kind: _recorded(runs, (name, other), tasks) for kind, tasks in HORIZONS.items()}
        for tasks in recorded.values():
            if tasks:
                found = True
                cells.append(" ".join(_gap(runs, name, other, tasks, key) for key in ("last", "mean")))
            else:
                cells.append("")
        ends = [recorded["long, sparse"], recorded["short, dense"]]
        cells.append(_growth(runs, name, other, *ends) if all(ends) else "")
        lines.append(f"| {about} (`{name}` less `{other}`) | " + " | ".join(cells) + " |")
    return lines if found else []


def _recorded(runs: Sequence[Run], algorithms: Sequence[str], tasks: Sequence[str]) -> list[str]:
    """Those of the tasks that all of the algorithms have runs of, with a seed in common."""
    return [task for task in tasks if common_seeds(runs, algorithms, [task])]


def _gap(runs: Sequence[Run], name: str, other: str, tasks: Sequence[str], key: str) -> str:
    text = _signed(difference, *_both(runs, name, other, tasks, key))
    return text if key == "last" else f"({text})"


def _growth(runs: Sequence[Run], name: str, other: str, long: Sequence[str], short: Sequence[str]) -> str:
    return _signed(growth, *_both(runs, name, other, long), *_both(runs, name, other, short))


def _both(runs: Sequence[Run], name: str, other: str, tasks: Sequence[str], key: str = "last") -> list[Scores]:
    """Of the seeds that both have: one may be lucky for all."""
    seeds = common_seeds(runs, (name, other), tasks)
    there = [run for run in runs if run.seed in seeds]
    return [matrix(there, one, tasks, key) for one in (name, other)]


def _signed(statistic: Callable[..., float], *samples: Scores) -> str:
    point = f"{statistic(*samples):+.2f}"
    if min(map(len, samples)) < 2:
        return point
    low, high = bootstrap(statistic, *samples)
    return f"{point} [{low:+.2f}, {high:+.2f}]"
