"""The report of a comparison: a table for the terminal, a Markdown page, and JSON with everything."""

from __future__ import annotations

import json
import math
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
from ippo_cli.controls.settings import Differences
from ippo_cli.runs.folder import display_path, write_atomically

JSON_FILE, PAGE_FILE = "controls.json", "controls.md"
HEADINGS = ("arm", "seeds", "difference", "verdict", "tokens", "to decide")
SOURCES = {
    Differences.bounded: "bounded differences: hedged betting, arXiv 2010.09686",
    Differences.normal: "normal differences: t statistics, arXiv 2310.03722",
}


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
        alpha, arms, differences, limits = (known[key] for key in ("alpha", "arms", "differences", "range"))
        former: dict[str, list[str]] = {TEAM: known["team"], **arms}
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError) as error:
        raise ResumeError(f"{folder / JSON_FILE} cannot be read ({error})") from error
    _check_same_overrides(plan, former, folder)
    remedy = "use the earlier value, or another folder: controls.to=FOLDER"
    if alpha != plan.alpha:
        raise ConfigError(f"controls.alpha={plan.alpha:g}", f"was {alpha:g} before the first seed", remedy)
    if list(arms) != list(plan.arms):
        rule = f"was [{','.join(arms)}] before the first seed"
        raise ConfigError(f"controls.arms=[{','.join(plan.arms)}]", rule, remedy)
    if differences != plan.differences.value:
        rule = f"was {differences} before the first seed"
        raise ConfigError(f"controls.differences={plan.differences.value}", rule, remedy)
    low, high = plan.score_range or (-math.inf, math.inf)
    if limits is not None and (low > limits[0] or high < limits[1]):
        rule = f"is narrower than [{limits[0]:g},{limits[1]:g}], which was chosen before the first seed"
        raise ConfigError(f"controls.range=[{low:g},{high:g}]", rule, remedy)


def _check_same_overrides(plan: ControlPlan, former: Mapping[str, list[str]], folder: Path) -> None:
    """Raise `ConfigError` if a folder has runs of another team, or of arms with other overrides."""
    own = {TEAM: plan.team, **plan.arms}
    for name in own.keys() & former.keys():
        if changed := set(mask_secrets(list(own[name]))) ^ set(former[name]):
            raise ConfigError(
                f"controls.to={display_path(folder)}",
                f"has runs of {name} with other overrides: {' '.join(sorted(changed))}",
                "use these again, or another folder: controls.to=FOLDER",
            )


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
    yield [TEAM, str(len(team)), "-", "-", format_tokens(sum(run.tokens for run in team)), "-"]
    for name, result in results.items():
        yield [
            name,
            f"{len(result.differences)}{' pairs' if name == OTHER_SEEDS else ''}",
            "-" if result.mean is None else f"{result.mean:.3f} [{result.lower[-1]:.3f}, {result.upper[-1]:.3f}]",
            result.verdict,
            "same runs" if _has_runs_of_samples(plan, name, runs) else format_tokens(result.tokens),
            _to_decide(result),
        ]


def _has_runs_of_samples(plan: ControlPlan, name: str, runs: Runs) -> bool:
    return name == SINGLE_TOKENS and run_name(plan, name, runs) == SINGLE_SAMPLES


def _to_decide(result: ArmResult) -> str:
    if result.verdict != UNDECIDED:
        return "-"
    unit = "pairs" if result.name == OTHER_SEEDS else "seeds"
    count = f">{MAX_SEEDS}" if result.more is None else str(result.more)
    cost = "" if result.more_tokens is None else f", {format_tokens(result.more_tokens)}"
    return f"{count} {unit}{cost}"


def _notes(plan: ControlPlan, results: Mapping[str, ArmResult], runs: Runs) -> Iterator[str]:
    level = 100 * (1 - plan.alpha_per_arm)
    limits = "" if plan.score_range is None else "; scores are in [{:g}, {:g}]".format(*plan.score_range)
    yield f"difference: mean of final {plan.metric}, team minus arm, paired by seed{limits}"
    yield (
        f"intervals: {level:.4g} % confidence sequences ({SOURCES[plan.differences]}), which hold at all seeds "
        f"together; the error probability {plan.alpha:g} is split over {len(plan.arms)} arms (Bonferroni)"
    )
    yield f"no verdict is possible with fewer than {minimum_seeds(plan)} differences, however large they are"
    yield "to decide: further seeds, and tokens of the arm and the team, if the differences so far repeat"
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
        "differences": plan.differences.value,
        "range": plan.score_range,
        "alpha": plan.alpha,
        "alpha_per_arm": plan.alpha_per_arm,
        "minimum_seeds": minimum_seeds(plan),
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
