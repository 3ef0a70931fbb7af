"""Read learning curves of runs from their folders, and format them as tables."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from omegaconf import OmegaConf

MARKERS = ("<!-- learning table -->", "<!-- end of learning table -->")
# Algorithms that are also compared at equal wall time; all except the first use formulas of other projects.
COMPARED = ("ippo", "comlrl_ippo", "comlrl_iac")
EMBEDDED = ("sorting", "ippo/separate")  # task and algorithm/critic of `ippo-train` without arguments
AT_EQUAL_TIME = "learning-equal-time"  # name of the picture
# Algorithm and task -> why the algorithm cannot reach the optimum, even in principle.
LIMITS = dict.fromkeys(
    (("comlrl_ippo", "sorting"), ("comlrl_ippo", "probe_grid")),
    "its baseline is computed after the response, predicts much of the score, and so removes much of the credit; "
    "the baseline of `comlrl_iac` is computed before the response",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One point of a learning curve."""

    samples: int  # joint samples used for training so far
    seconds: float  # of training, without start and evaluations
    score: float  # of the buffer, or of the held-out data if `held_out`
    held_out: bool


@dataclass(kw_only=True)
class Outcome:
    """The result of one training, or its error."""

    task: str
    variant: str  # algorithm/critic
    seed: int
    overrides: Sequence[str]
    error: str | None = None
    first: float = 0.0  # held-out scores
    last: float = 0.0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0  # of the same time, estimated from the whole process; 0 if an earlier run is read
    curve: list[Point] = field(default_factory=list)

    def points(self, *, held_out: bool) -> list[Point]:
        """Return the held-out points of the curve, or those of the training buffers."""
        return [point for point in self.curve if point.held_out == held_out]


def sampled_score(metrics: Mapping[str, float]) -> float:
    """Return the default score of an evaluation."""
    return metrics["sampled/score"]


def outcome(
    folder: Path,
    *,
    task: str,
    variant: str,
    seed: int,
    overrides: Sequence[str],
    held_out_score: Callable[[Mapping[str, float]], float] = sampled_score,
) -> Outcome:
    """Read the outcome from a finished run's folder."""
    state = json.loads((folder / "run.json").read_text())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    curve: list[Point] = []
    seconds, size = 0.0, OmegaConf.load(folder / "config.yaml").rollout.buffer_size
    for row in rows:
        samples = row["iteration"] * size
        trained = [value for key, value in row.items() if key.endswith("/score/mean") and value is not None]
        if trained:  # the row of iteration 0 has only an evaluation
            seconds += row["time/iteration"]
            score = statistics.fmean(trained)
            curve.append(Point(samples=samples, seconds=seconds, score=score, held_out=False))
        if "eval/sampled/score" in row:
            evaluated = {key.removeprefix("eval/"): value for key, value in row.items() if key.startswith("eval/")}
            score = held_out_score(evaluated)
            curve.append(Point(samples=samples, seconds=seconds, score=score, held_out=True))
    held_out = state["evaluation"]
    return Outcome(
        task=task,
        variant=variant,
        seed=seed,
        overrides=overrides,
        first=held_out_score(held_out["first"]),
        last=held_out_score(held_out["last"]),
        wall_seconds=state["wall_seconds"],
        curve=curve,
    )


def convert_to_processor_time(result: Outcome) -> Outcome:
    """Return the outcome with processor time in its curve, which other work on the machine changes less than wall time.

    A run that an interrupted benchmark finished has an unknown processor time, and is returned unchanged.
    """
    share = result.cpu_seconds / result.wall_seconds if result.cpu_seconds else 1.0
    return replace(result, curve=[replace(point, seconds=point.seconds * share) for point in result.curve])


def score_after(result: Outcome, seconds: float) -> float:
    """Return the held-out score after some seconds of training, interpolated linearly between evaluations."""
    points = result.points(held_out=True)
    if seconds <= points[0].seconds:
        return points[0].score
    for before, after in itertools.pairwise(points):
        if before.seconds <= seconds <= after.seconds:
            share = (seconds - before.seconds) / max(after.seconds - before.seconds, 1e-9)
            return before.score + share * (after.score - before.score)
    return points[-1].score


def tables(outcomes: Sequence[Outcome], notes: Sequence[str], pictures: Sequence[Path]) -> str:
    """Return Markdown: results at equal samples, the comparison at equal wall time, and the curves."""
    lines = [
        "Held-out score (sampled) before -> after training, mean over seeds (lowest to highest) or the score of a "
        "single seed, and mean processor time of a whole run with one thread. On each task, all algorithms train on "
        "the same number of samples.",
        "",
        *_learning_table(outcomes),
        "",
    ]
    for (algorithm, task), reason in LIMITS.items():
        if any(_algorithm(result) == algorithm and result.task == task for result in outcomes):
            lines += [f"`{algorithm}` on `{task}`: {reason}.", ""]
    lines += ["Overrides in addition to the presets: " + "; ".join(notes) + ".", ""] if notes else []
    compared = _time_table(outcomes)
    if compared:
        lines += [
            "The same runs at equal time: held-out score after the processor time that training takes with the fastest "
            "of these algorithms.",
            "",
            *compared,
            "",
        ]
    lines += [f"![{picture.stem}](pictures/{picture.name})" for picture in pictures if picture.stem == AT_EQUAL_TIME]
    return "\n".join(lines).rstrip()


def picture_of(variant: str) -> str:
    """Return the name of the file with a variant's curves, without the suffix."""
    return f"learning-{variant.replace('/', '-')}"


def write_between(page: Path, text: str, markers: tuple[str, str] = MARKERS) -> None:
    """Replace the text between the markers of a page; create a missing page."""
    if not page.exists():
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"# {page.stem.capitalize()}\n\n" + "\n".join(markers) + "\n")
    before, found, rest = page.read_text().partition(markers[0])
    _, closed, after = rest.partition(markers[1])
    if not found or not closed:
        raise SystemExit(f"{page} lacks the lines {' and '.join(markers)}, between which the table goes")
    page.write_text(f"{before}{markers[0]}\n{text}\n{markers[1]}{after}")


def _learning_table(outcomes: Sequence[Outcome]) -> list[str]:
    tasks, variants = (list(dict.fromkeys(getattr(one, key) for one in outcomes)) for key in ("task", "variant"))
    lines = [
        "| algorithm / critic | " + " | ".join(f"`{task}`" for task in tasks) + " |",
        "|---|" + "---|" * len(tasks),
    ]
    for variant in variants:
        cells = [cell([one for one in outcomes if (one.task, one.variant) == (task, variant)]) for task in tasks]
        lines.append(f"| [`{variant}`](pictures/{picture_of(variant)}.svg) | " + " | ".join(cells) + " |")
    return lines


def cell(results: Sequence[Outcome]) -> str:
    """Format held-out scores before and after training, the processor time, and the number of failed runs."""
    done = [result for result in results if result.error is None]
    failed = [f"{len(results) - len(done)} failed"] if len(done) < len(results) else []
    if not done:
        return ", ".join(failed)
    first = statistics.fmean(one.first for one in done)
    seconds = statistics.fmean(one.cpu_seconds or one.wall_seconds for one in done)
    return ", ".join([f"{first:.2f} -> {_spread([one.last for one in done])}", f"{seconds:.0f} s", *failed])


def _time_table(outcomes: Sequence[Outcome]) -> list[str]:
    done = [one for one in outcomes if one.error is None and _algorithm(one) in COMPARED]
    variants = list(dict.fromkeys(one.variant for one in done))
    if not {_algorithm(one) for one in done} > {COMPARED[0]}:
        return []
    lines = [
        "| task | seconds | " + " | ".join(f"`{name}`" for name in variants) + " |",
        "|---|---|" + "---|" * len(variants),
    ]
    for task in dict.fromkeys(one.task for one in done):
        of = {name: [one for one in done if (one.task, one.variant) == (task, name)] for name in variants}
        times = [statistics.fmean(one.curve[-1].seconds for one in results) for results in of.values() if results]
        cells = [
            _spread([score_after(one, min(times)) for one in results]) if results else "" for results in of.values()
        ]
        lines.append(f"| `{task}` | {min(times):.0f} | " + " | ".join(cells) + " |")
    return lines


def _spread(numbers: Sequence[float]) -> str:
    if len(numbers) == 1:
        return f"{numbers[0]:.2f}"
    return f"{statistics.fmean(numbers):.2f} ({min(numbers):.2f} to {max(numbers):.2f})"


def _algorithm(result: Outcome) -> str:
    return result.variant.split("/")[0]
