"""Tables beside the page: held-out scores by agent and part, and all metrics."""

from __future__ import annotations

from collections.abc import Sequence

from ippo_cli.config.tables import TEAM, Rows, format_number, split_metric_name
from ippo_cli.report.configurations import SCORES, Configuration, group_runs, mean_value, seed_of
from ippo_cli.report.payload import run_names
from ippo_cli.runs.intervals import MeanInterval
from ippo_cli.runs.records import RunRecord

NOT_SCORES = ("iteration", "score")


def score_rows(runs: Sequence[RunRecord]) -> Rows:
    """One row per configuration, agent, part and mode: first, last and best held-out value.

    With several seeds, means with 95 % t-intervals. `best` is the evaluation with the highest primary score.
    """
    groups = group_runs(runs)
    several, seeds = len(groups) > 1, any(len(group.counted) > 1 for group in groups)
    suffixes = ("", "_low", "_high") if seeds else ("",)
    heading = [*(["configuration"] if several else []), "agent", "part", "mode", *(["n"] if seeds else [])]
    rows = [[*heading, *(f"{which}{suffix}" for which in SCORES for suffix in suffixes)]]
    for group in groups:
        agents = runs[group.runs[0]].agents
        for agent, part, mode, metric in _ordered_metrics(runs, group, agents):
            means = [mean_value(runs, group, which, metric) for which in SCORES]
            count = max((mean.count for mean in means if mean is not None), default=0)
            rows.append(
                [
                    *([group.label] if several else []),
                    *(agent, part, mode),
                    *([str(count)] if seeds else []),
                    *(cell for mean in means for cell in _mean_cells(mean, len(suffixes))),
                ]
            )
    return rows


def _ordered_metrics(
    runs: Sequence[RunRecord], group: Configuration, agents: Sequence[str]
) -> list[tuple[str, str, str, str]]:
    """Agent, part, mode and name of the metrics of a configuration's evaluations, the team first."""
    evaluations = [entry for run in group.counted for entry in (runs[run].state.get("evaluation") or {}).values()]
    names = dict.fromkeys(name for entry in evaluations for name in entry if name not in NOT_SCORES)
    found = []
    for name in names:
        mode, _, rest = name.partition("/")
        found.append((*split_metric_name(rest, agents), mode, name))
    order = {agent: place for place, agent in enumerate([TEAM, *agents])}
    return sorted(found, key=lambda row: (order.get(row[0], 0), row[1]))


def _mean_cells(mean: MeanInterval | None, count: int) -> list[str]:
    numbers = (None, None, None) if mean is None else (mean.mean, mean.low, mean.high)
    return [format_number(number) for number in numbers[:count]]


def metric_table(runs: Sequence[RunRecord]) -> Rows:
    """All rows of `metrics.jsonl` of all runs, with the union of their metrics as columns."""
    names = list(dict.fromkeys(name for run in runs for row in run.metrics for name in row if name != "iteration"))
    rows = [["run", "seed", "iteration", *names]]
    for run, label in zip(runs, run_names(runs), strict=True):
        for row in run.metrics:
            cells = ["" if (value := row.get(name)) is None or value != value else repr(value) for name in names]
            rows.append([label, str(seed_of(run)), str(int(row["iteration"])), *cells])
    return rows
