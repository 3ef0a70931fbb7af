"""Compares two policies or teams on the same held-out rows, with the same random numbers, by paired tests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ippo_cli.config.errors import convert_storage_errors
from ippo_cli.config.schema import Config
from ippo_cli.config.secrets import mask_secrets
from ippo_cli.config.text import format_count
from ippo_cli.engine import distributed
from ippo_cli.evaluation.estimates import paired_comparison, row_values
from ippo_cli.evaluation.evaluate_run import (
    EvaluatedWeights,
    EvaluationTask,
    choice_messages,
    count_comparisons,
    gather_samples,
    load_policies,
    open_evaluation_task,
    samples_file,
    write_samples,
)
from ippo_cli.reporting.console import Console
from ippo_cli.runs.folder import display_path, write_atomically
from ippo_cli.runs.json_values import replace_non_finite
from ippo_cli.training.evaluate import Evaluation
from ippo_cli.training.process import prepare_process

SIDES = ("one", "other")
Side = tuple[Config, EvaluatedWeights]
"""Weights, and the configuration with which they are loaded."""


def compare(
    one: Side,
    other: Side,
    names: tuple[str, str],
    root: Path,
    overrides: Sequence[str],
    trained_configs: Mapping[Path, Config] = MappingProxyType({}),
) -> Path:
    """Score both sides with task and reward of the first configuration, and test the paired differences by row.

    `names`: labels for output. `trained_configs`: by folder, the training configurations of runs with other seeds;
    their training rows are excluded. Returns the file with the results.
    """
    config = one[0]
    device = prepare_process(config)
    try:
        with (
            open_evaluation_task(config, device) as exam,
            Console(config.tracker.console, list(config.task.agents)) as console,
        ):
            exam = exam.exclude_rows_of_runs(trained_configs)
            for line in exam.exclusion_messages:
                console.print_line(line)
            results: list[Evaluation] = []
            samples: list[dict[str, Any]] = []
            loaded: dict[Any, Any] = {}
            policies = [load_policies(own, subject, device, loaded) for own, subject in (one, other)]
            teams = [(players, exam.build_formats(players)) for players in policies]
            exam = exam.drop_too_long_rows(teams)
            for side, name, (players, formats) in zip(SIDES, names, teams, strict=True):
                result = exam.score_team(players, formats, console, keep_all_samples=True)
                samples += [{"of": side, **row} for row in gather_samples(result)]
                primary = config.task.primary_metric
                failed = sum(result.failed_counts.values())
                without = f", {format_count(failed, 'episode')} without a reward" if failed else ""
                console.print_line(f"{side}: {name}: held-out score {result.metrics[primary]:.3f} ({primary}{without})")
                results.append(result)
            subjects = [subject for _, subject in (one, other)]
            comparisons = count_comparisons(subjects, overrides)
            found = _compare_metrics(results, config.evaluation.seed, comparisons)
            record = _build_record((one, other), names, results, found, overrides, exam)
            record |= {"comparisons": comparisons}
            target = root / "evaluations" / _result_file_name((one, other), config.evaluation.seed, overrides)
            distributed.run_on_main(lambda: _write_results(target, record, samples))
            for line in difference_lines(found, config.task.primary_metric):
                console.print_line(line)
            for line in choice_messages(subjects, comparisons):
                console.print_line(line)
            console.print_line(f"written to {display_path(target)} and {samples_file(target).name}")
    finally:
        distributed.shutdown()
    return target


def difference_lines(differences: Mapping[str, Mapping[str, float]], primary: str) -> list[str]:
    """The differences as lines of a table, the primary metric first."""
    order = sorted(differences, key=lambda key: key != primary)
    width = max(map(len, order), default=0) + 2
    lines = [f"  {'metric':<{width}}{'one':>9}{'other':>9}{'one - other':>13}{'95 % interval':>22}{'p':>9}"]
    for key in order:
        row = differences[key]
        interval = f"[{row['low']:.4f}, {row['high']:.4f}]"
        lines.append(
            f"  {key:<{width}}{row['one']:>9.4f}{row['other']:>9.4f}{row['difference']:>13.4f}{interval:>22}"
            f"{row['p']:>9.4f}"
        )
    return lines


def _compare_metrics(results: Sequence[Evaluation], seed: int, comparisons: int) -> dict[str, dict[str, float]]:
    """The paired comparison of each metric that both sides have for at least one common row."""
    one, other = map(row_values, results)
    found = {
        key: paired_comparison(values, other[key], seed, comparisons) for key, values in one.items() if key in other
    }
    return {key: row for key, row in found.items() if row["rows"]}


def _build_record(
    sides: tuple[Side, Side],
    names: tuple[str, str],
    results: Sequence[Evaluation],
    differences: Mapping[str, Mapping[str, float]],
    overrides: Sequence[str],
    exam: EvaluationTask,
) -> dict[str, Any]:
    config = exam.config
    side_records = {
        side: {
            "name": name,
            **subject.metadata,
            "models": subject.models,
            "failed": result.failed_counts,
            "metrics": replace_non_finite(result.metrics),
        }
        for side, name, (_, subject), result in zip(SIDES, names, sides, results, strict=True)
    }
    return {
        **side_records,
        "overrides": list(overrides),
        "rows": len(exam.row_indices),
        "too_long": exam.too_long,
        "trained_on": exam.trained_on,
        "evaluation": {"seed": config.evaluation.seed, "generations": results[0].generations},
        "primary_metric": config.task.primary_metric,
        "differences": {key: replace_non_finite(row) for key, row in differences.items()},
    }


def _result_file_name(sides: tuple[Side, Side], seed: int, overrides: Sequence[str]) -> str:
    """The file name; equal comparisons have equal names."""
    others = [text for text in overrides if not text.startswith("evaluation.seed=")]
    models = [[subject.metadata, subject.models] for _, subject in sides]
    identity = json.dumps([models, others], sort_keys=True)
    return f"compare-seed{seed}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}.json"


def _write_results(target: Path, record: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]) -> None:
    with convert_storage_errors(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_samples(samples_file(target), samples)
        write_atomically(target, json.dumps(mask_secrets(dict(record)), indent=1) + "\n")
