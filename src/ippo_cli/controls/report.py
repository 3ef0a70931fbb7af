"""The report of a comparison: a table for the terminal, a Markdown page, and JSON with everything."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import ConfigError, ResumeError, convert_storage_errors
from ippo_cli.config.secrets import mask_secrets
from ippo_cli.config.text import format_table
from ippo_cli.controls.arms import OTHER_SEEDS, SINGLE_SAMPLES, SINGLE_TOKENS, TEAM, ControlPlan
from ippo_cli.controls.assess import MAX_SEEDS, UNDECIDED, ArmResult, minimum_seeds, run_name
from ippo_cli.controls.runs import Runs
from ippo_cli.runs.folder import write_atomically

JSON_FILE, PAGE_FILE = "controls.json", "controls.md"
HEADINGS = ("arm", "seeds", "mean difference", "interval", "verdict", "tokens", "to decide")
SOURCE = "hedged betting, Waudby-Smith and Ramdas (2024), arXiv 2010.09686"


def write_report(plan: ControlPlan, folder: Path, results: Mapping[str, ArmResult], runs: Runs) -> None:
    """Write JSON and the page into the folder."""
    with convert_storage_errors(str(folder)):
        data = mask_secrets(_to_json(plan, results, runs))
        write_atomically(folder / JSON_FILE, json.dumps(data, indent=1) + "\n")
        write_atomically(folder / PAGE_FILE, format_page(plan, results, runs))


def check_same_comparison(plan: ControlPlan, folder: Path) -> None:
    """Raise `ConfigError` if a folder has a comparison with other statistics, which are fixed before the first seed."""
    try:
        known = json.loads((folder / JSON_FILE).read_text())
    except FileNotFoundError:
        return
    except ValueError as error:
        raise ResumeError(f"{folder / JSON_FILE} cannot be read ({error})") from error
    remedy = "use the earlier value, or another folder: controls.to=FOLDER"
    if known["alpha"] != plan.alpha:
        raise ConfigError(f"controls.alpha={plan.alpha:g}", f"was {known['alpha']:g} before the first seed", remedy)
    if list(known["arms"]) != list(plan.arms):
        names = ",".join(known["arms"])
        raise ConfigError(f"controls.arms=[{','.join(plan.arms)}]", f"was [{names}] before the first seed", remedy)
    (low, high), (old_low, old_high) = plan.score_range, known["range"]
    if low > old_low or high < old_high:
        rule = f"is narrower than [{old_low:g},{old_high:g}], which was chosen before the first seed"
        raise ConfigError(f"controls.range=[{low:g},{high:g}]", rule, remedy)


def format_terminal(plan: ControlPlan, results: Mapping[str, ArmResult], runs: Runs) -> str:
    """The table and notes for a terminal."""
    table = format_table([HEADINGS, *_rows(plan, results, runs)])
    return "\n".join([*table, "", *_notes(plan, results, runs)])


def format_page(plan: ControlPlan, results: Mapping[str, ArmResult], runs: Runs) -> str:
    """The table and notes as Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (HEADINGS, *_rows(plan, results, runs))]
    lines.insert(1, "|---" * len(HEADINGS) + "|")
    notes = [f"- {text}" for text in _notes(plan, results, runs)]
    arms = [f"- `{name}`: `{' '.join(_own_overrides(plan, name)) or 'as the team'}`" for name in plan.arms]
    team = f"- `{TEAM}`: `{' '.join(plan.team)}`"
    parts = ["# Was it the team?", *lines, "", *notes, "", "## Overrides", team, *arms]
    return str(mask_secrets("\n".join(parts))) + "\n"


def _rows(plan: ControlPlan, results: Mapping[str, ArmResult], runs: Runs) -> Iterator[list[str]]:
    team = [run for (name, _), run in runs.items() if name == TEAM and run.score is not None]
    yield [TEAM, str(len(team)), "-", "-", "-", format_tokens(sum(run.tokens for run in team)), "-"]
    for name, result in results.items():
        yield [
            name,
            f"{len(result.differences)}{' pairs' if name == OTHER_SEEDS else ''}",
            "-" if result.mean is None else f"{result.mean:+.3f}",
            f"[{result.lower[-1]:+.3f}, {result.upper[-1]:+.3f}]" if result.lower else "-",
            result.verdict,
            "same runs" if _has_runs_of_samples(plan, name, runs) else format_tokens(result.tokens),
            _to_decide(result),
        ]


def _has_runs_of_samples(plan: ControlPlan, name: str, runs: Runs) -> bool:
    return name == SINGLE_TOKENS and run_name(plan, name, runs) == SINGLE_SAMPLES


def _to_decide(result: ArmResult) -> str:
    if result.verdict != UNDECIDED:
        return "-"
    unit = "pairs of seeds" if result.name == OTHER_SEEDS else "seeds"
    if result.more is None:
        return f"more than {MAX_SEEDS} more {unit}"
    about = "about" if result.differences else "at least"
    cost = "" if result.more_tokens is None else f", {format_tokens(result.more_tokens)} tokens"
    return f"{about} {result.more} more {unit}{cost}"


def _notes(plan: ControlPlan, results: Mapping[str, ArmResult], runs: Runs) -> Iterator[str]:
    low, high = plan.score_range
    level = 100 * (1 - plan.alpha_per_arm)
    yield f"differences: final {plan.metric}, team minus arm, paired by seed; scores are in [{low:g}, {high:g}]"
    yield (
        f"intervals: {level:.4g} % confidence sequences ({SOURCE}), valid at any seed; the error probability "
        f"{plan.alpha:g} is split over {len(plan.arms)} arms (Bonferroni)"
    )
    yield f"no verdict is possible before seed {minimum_seeds(plan.alpha_per_arm)}, however large the difference"
    if OTHER_SEEDS in plan.arms:
        yield f"{OTHER_SEEDS}: agents trained together minus agents of two seeds; one difference for two seeds"
    for name, result in results.items():
        if _has_runs_of_samples(plan, name, runs):
            yield f"{name} has the runs of {SINGLE_SAMPLES}, which generate as many tokens as the team"
        if result.failed:
            yield f"{name}: no score for seeds {' '.join(map(str, result.failed))}, which are not counted"
    for run in runs.values():
        if run.is_finished and run.score is None:
            yield f"{run.folder.name} failed: {' '.join((run.error or 'no message').split())[:200]}"
    for name, reason in plan.refused.items():
        yield f"{name} is not trained: {reason}"


def _own_overrides(plan: ControlPlan, name: str) -> list[str]:
    return [text for text in plan.arms[name] if text not in plan.team]


def format_tokens(count: float) -> str:
    """A number of tokens with three digits."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f}"


def _to_json(plan: ControlPlan, results: Mapping[str, ArmResult], runs: Runs) -> dict[str, Any]:
    return {
        "metric": plan.metric,
        "range": list(plan.score_range),
        "alpha": plan.alpha,
        "alpha_per_arm": plan.alpha_per_arm,
        "minimum_seeds": minimum_seeds(plan.alpha_per_arm),
        "first_seed": plan.first_seed,
        "seeds": plan.seeds,
        "team": list(plan.team),
        "arms": {name: list(overrides) for name, overrides in plan.arms.items()},
        "not_trained": dict(plan.refused),
        "results": {
            name: asdict(result) | {"mean": result.mean, "verdict": result.verdict} for name, result in results.items()
        },
        "runs": [
            asdict(run) | {"folder": run.folder.name, "state": _state(run.is_finished, run.score)}
            for run in runs.values()
        ],
    }


def _state(is_finished: bool, score: float | None) -> str:
    if score is not None:
        return "done"
    return "failed" if is_finished else "unfinished"
