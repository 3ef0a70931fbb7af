"""Cross-play: evaluates teams of agents from different checkpoints on the same held-out examples."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ippo_cli.config.errors import ConfigError, ResumeError, convert_storage_errors
from ippo_cli.config.schema import Config
from ippo_cli.config.secrets import mask_secrets
from ippo_cli.config.teams import policy_by_agent
from ippo_cli.config.text import format_count
from ippo_cli.engine import distributed
from ippo_cli.evaluation.estimates import row_values
from ippo_cli.evaluation.evaluate_run import (
    EvaluatedWeights,
    EvaluationTask,
    adapters_by_agent,
    find_weights,
    open_evaluation_task,
)
from ippo_cli.evaluation.mixed_teams import (
    Origin,
    Pairing,
    WeightTotals,
    check_memory,
    score_metrics,
    score_pairings,
)
from ippo_cli.evaluation.pictures import NO_HEAT_MAP, can_draw, draw_heat_maps
from ippo_cli.reporting.console import Console
from ippo_cli.runs.folder import list_checkpoints, write_atomically
from ippo_cli.runs.json_values import replace_non_finite
from ippo_cli.training.checkpoint import INITIAL
from ippo_cli.training.evaluate import Evaluation
from ippo_cli.training.process import prepare_process

ALL_CHECKPOINTS = "all"


@dataclass(frozen=True, kw_only=True)
class CrossPlayTable:
    """Scores by origin of one agent (rows) and origin of all other agents (columns)."""

    agent: str
    others: list[str]
    metric: str
    scores: list[list[float]]
    standard_errors: list[list[float]]  # over the held-out rows; NaN with fewer than two
    self_play: float  # mean of the diagonal: all agents from one checkpoint
    cross_play: float  # mean off the diagonal
    gap: float  # self_play - cross_play
    gap_standard_error: float  # over the held-out rows, which are the same in all cells


def cross_play(
    configs: Mapping[Path, Config],
    checkpoints: Sequence[str],
    overrides: Sequence[str],
    trained_configs: Mapping[Path, Config] = MappingProxyType({}),
) -> Path:
    """Score every pairing of the checkpoints of one or several runs. Returns the folder with the results.

    `configs`: configurations by run folder. `checkpoints`: names for `find_weights`, or `all`. All pairings use the
    held-out examples of the first run and the same random numbers. `trained_configs`: by folder, the training
    configurations of runs with other seeds; their training rows are excluded.
    """
    origins = _find_origins(configs, checkpoints)
    config, root = origins[0].config, next(iter(configs))
    agents = list(config.task.agents)
    pairings = list(
        dict.fromkeys(pairing for agent in agents for _, _, pairing in table_cells(agents, agent, len(origins)))
    )
    weights = check_memory("crossplay=true", origins)
    device = prepare_process(config)
    try:
        with open_evaluation_task(config, device) as exam, Console(config.tracker.console, agents) as console:
            exam = exam.exclude_rows_of_runs(trained_configs)
            console.print_line(
                f"cross-play of {len(origins)} checkpoints: {len(pairings)} pairings x "
                f"{format_count(len(exam.row_indices), 'row')}; "
                f"{weights.num_models} models with {weights.formatted_size} of weights on this {device.type}"
            )
            for line in exam.exclusion_messages:
                console.print_line(line)
            if not can_draw():
                console.print_warnings([NO_HEAT_MAP])
            exam, found = score_pairings(exam, origins, pairings, device, console)
            tables = _build_tables(agents, len(origins), found, config.task.primary_metric)
            names = [origin.name for origin in origins]
            target = root / "evaluations" / _result_folder_name(origins, config.evaluation.seed, overrides)
            record = _build_record(origins, agents, found, tables, overrides, exam, weights)
            distributed.run_on_main(lambda: _write_results(target, record, tables, names))
            for table in tables:
                for line in table_lines(table, names):
                    console.print_line(line)
            console.print_line(f"written to {target}")
    finally:
        distributed.shutdown()
    return target


def _find_origins(configs: Mapping[Path, Config], checkpoints: Sequence[str]) -> list[Origin]:
    """The selected checkpoints of all runs, without duplicates. Raises `ConfigError`."""
    found: list[tuple[Path, Config, EvaluatedWeights]] = []
    for folder, config in configs.items():
        names = [INITIAL, *(str(int(path.name.split("_")[1])) for path in list_checkpoints(folder / "checkpoints"))]
        for checkpoint in names if list(checkpoints) == [ALL_CHECKPOINTS] else checkpoints:
            try:
                subject = find_weights(folder, checkpoint, policy_by_agent(config), adapters_by_agent(config))
            except ResumeError as error:
                raise ConfigError(
                    f"checkpoints={checkpoint}",
                    f"cannot be used ({error})",
                    "choose other checkpoints, or checkpoints=all",
                ) from error
            if all(subject.metadata != known.metadata for _, _, known in found):
                found.append((folder, config, subject))
    if len(found) < 2:
        raise ConfigError(
            "crossplay=true",
            "needs agents of at least two checkpoints",
            "use several runs, run=[A,B], or several checkpoints, checkpoints=all",
        )
    if len(next(iter(configs.values())).task.agents) < 2:
        raise ConfigError("crossplay=true", "needs at least two agents, and this task has one", "remove it")
    runs = _run_names(configs)
    several = len({folder for folder, _, _ in found}) > 1
    each = len({subject.name for _, _, subject in found}) > 1
    return [
        Origin(
            name="/".join([*([runs[folder]] if several else []), *([subject.name] if each or not several else [])]),
            config=config,
            weights=subject,
        )
        for folder, config, subject in found
    ]


def _run_names(configs: Mapping[Path, Config]) -> dict[Path, str]:
    """Distinct names of the runs: the shortest distinct ends of their paths, with the seed if seeds differ."""
    parts = 1
    while len({folder.parts[-parts:] for folder in configs}) < len(configs):
        parts += 1
    seeds = {folder: f" (seed {config.seed})" for folder, config in configs.items()}
    differ = len(set(seeds.values())) > 1
    return {folder: "/".join(folder.parts[-parts:]) + (seeds[folder] if differ else "") for folder in configs}


def table_cells(agents: Sequence[str], agent: str, origins: int) -> Iterator[tuple[int, int, Pairing]]:
    """Row, column and pairing of each cell: the agent has the origin of the row, all others that of the column."""
    for row in range(origins):
        for column in range(origins):
            yield row, column, tuple(row if name == agent else column for name in agents)


def _build_tables(
    agents: Sequence[str], origins: int, found: Mapping[Pairing, Evaluation], primary: str
) -> list[CrossPlayTable]:
    """Tables of the primary metric if all agents have equal scores, else of the score of each agent.

    Two agents with equal scores need only one table: the other one is its transpose.
    """
    rows = {pairing: row_values(result) for pairing, result in found.items()}
    metrics = score_metrics(agents, found.values(), primary)
    table_agents = agents[:1] if metrics[agents[0]] == primary and len(agents) == 2 else agents
    return [_build_table(agents, name, origins, metrics[name], found, rows) for name in table_agents]


def _build_table(
    agents: Sequence[str],
    agent: str,
    origins: int,
    metric: str,
    found: Mapping[Pairing, Evaluation],
    rows: Mapping[Pairing, Mapping[str, Tensor]],
) -> CrossPlayTable:
    scores = [[0.0] * origins for _ in range(origins)]
    errors = [[0.0] * origins for _ in range(origins)]
    self_cells, cross_cells = [], []
    for row, column, pairing in table_cells(agents, agent, origins):
        of_rows = rows[pairing].get(metric)
        scores[row][column] = found[pairing].metrics[metric]
        errors[row][column] = math.nan if of_rows is None else standard_error(of_rows)
        (self_cells if row == column else cross_cells).append((scores[row][column], of_rows))
    self_play, cross = (sum(score for score, _ in cells) / len(cells) for cells in (self_cells, cross_cells))
    return CrossPlayTable(
        agent=agent,
        others=[name for name in agents if name != agent],
        metric=metric,
        scores=scores,
        standard_errors=errors,
        self_play=self_play,
        cross_play=cross,
        gap=self_play - cross,
        gap_standard_error=_gap_standard_error([part for _, part in self_cells], [part for _, part in cross_cells]),
    )


def standard_error(values: Tensor) -> float:
    """The standard error of the mean of the finite values; NaN with fewer than two."""
    finite = values[torch.isfinite(values)]
    return float(finite.std() / math.sqrt(len(finite))) if len(finite) > 1 else math.nan


def _gap_standard_error(self_play_values: Sequence[Tensor | None], cross_play_values: Sequence[Tensor | None]) -> float:
    """The standard error of the mean of self-play cells minus the mean of cross-play cells.

    Cells share examples and random numbers and so are correlated: the contributions of a row to all cells are summed
    with the weights of the cells in the gap before they are squared. Each value is `[rows]`, NaN where a row has none.
    """
    if any(part is None or not torch.isfinite(part).any() for part in (*self_play_values, *cross_play_values)):
        return math.nan
    parts = [(part.double(), 1 / len(self_play_values)) for part in self_play_values if part is not None]
    parts += [(part.double(), -1 / len(cross_play_values)) for part in cross_play_values if part is not None]
    rows = torch.stack([torch.isfinite(part) for part, _ in parts]).any(dim=0).sum()
    moved = [weight * (part - part.nanmean()).nan_to_num() / torch.isfinite(part).sum() for part, weight in parts]
    squares = torch.stack(moved).sum(dim=0).square().sum()
    return float((squares * rows / (rows - 1)).sqrt()) if rows > 1 else math.nan


def table_lines(table: CrossPlayTable, names: Sequence[str]) -> list[str]:
    """The lines of a table; rows and columns are numbered by origin."""
    label = max(len(table.agent) + 8, *(len(f"[{number}] {name}") for number, name in enumerate(names))) + 2
    heading = f"{table.agent} from"
    lines = [f"{table.metric}; rows: {table.agent}'s checkpoint, columns: that of {' '.join(table.others)}"]
    lines.append(f"{heading:<{label}}" + "".join(f"{f'[{number}]':>16}" for number in range(len(names))))
    for number, name in enumerate(names):
        cells = zip(table.scores[number], table.standard_errors[number], strict=True)
        lines.append(
            f"{f'[{number}] {name}':<{label}}"
            + "".join(f"{f'{score:.3f} ± {error:.3f}':>16}" for score, error in cells)
        )
    lines.append(
        f"self-play {table.self_play:.3f}, cross-play {table.cross_play:.3f}, "
        f"gap {table.gap:.3f} ± {table.gap_standard_error:.3f} ({table.metric})"
    )
    return lines


def _build_record(
    origins: Sequence[Origin],
    agents: Sequence[str],
    found: Mapping[Pairing, Evaluation],
    tables: Sequence[CrossPlayTable],
    overrides: Sequence[str],
    exam: EvaluationTask,
    weights: WeightTotals,
) -> dict[str, Any]:
    config = origins[0].config
    return {
        "origins": [
            {
                "name": origin.name,
                **origin.weights.metadata,
                "seed": origin.config.seed,
                "models": origin.weights.models,
            }
            for origin in origins
        ],
        "agents": list(agents),
        "overrides": list(overrides),
        "seed": config.seed,
        "evaluation_seed": config.evaluation.seed,
        "rows": len(exam.row_indices),
        "trained_on": exam.trained_on,
        "models": weights.num_models,
        "weight_bytes": weights.size_bytes,
        "primary_metric": config.task.primary_metric,
        "tables": [replace_non_finite(vars(table)) for table in tables],
        "pairings": [
            {
                "agents": {name: origins[origin].name for name, origin in zip(agents, pairing, strict=True)},
                "metrics": replace_non_finite(result.metrics),
            }
            for pairing, result in found.items()
        ],
    }


def _result_folder_name(origins: Sequence[Origin], seed: int, overrides: Sequence[str]) -> str:
    """The folder name; equal cross-plays have equal names."""
    others = [text for text in overrides if not text.startswith("evaluation.seed=")]
    identity = json.dumps([[origin.weights.metadata for origin in origins], others], sort_keys=True)
    return f"crossplay-seed{seed}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def _write_results(
    target: Path, record: dict[str, Any], tables: Sequence[CrossPlayTable], names: Sequence[str]
) -> None:
    with convert_storage_errors(str(target)):
        target.mkdir(parents=True, exist_ok=True)
        write_atomically(target / "crossplay.json", json.dumps(mask_secrets(record), indent=1) + "\n")
        write_atomically(target / "crossplay.csv", _format_csv(tables, names))
        if can_draw():
            draw_heat_maps(tables, names, target / "crossplay.png")


def _format_csv(tables: Sequence[CrossPlayTable], names: Sequence[str]) -> str:
    """CSV with one line per cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["metric", "agent", "agent_from", "others_from", "score", "standard_error"])
    for table in tables:
        for row, origin in enumerate(names):
            for column, partner in enumerate(names):
                cell = table.scores[row][column], table.standard_errors[row][column]
                writer.writerow([table.metric, table.agent, origin, partner, *cell])
    return text.getvalue()
