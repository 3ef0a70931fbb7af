"""Attribution of a gain to agents: the score of every mixture of trained and initial agents, and Shapley values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config
from ippo_cli.config.teams import policy_by_agent
from ippo_cli.config.text import format_count
from ippo_cli.engine import distributed
from ippo_cli.evaluation.estimates import t_interval
from ippo_cli.evaluation.evaluate_run import (
    adapters_by_agent,
    choice_messages,
    count_comparisons,
    find_weights,
    open_evaluation_task,
    result_file_name,
    write_record,
)
from ippo_cli.evaluation.mixed_teams import (
    Origin,
    Pairing,
    check_memory,
    score_metrics,
    score_pairings,
    stack_agent_scores,
)
from ippo_cli.formulas import shapley_values
from ippo_cli.reporting.console import Console
from ippo_cli.runs.folder import display_path
from ippo_cli.runs.json_values import replace_non_finite
from ippo_cli.training.evaluate import Evaluation
from ippo_cli.training.process import prepare_process

MAX_AGENTS = 8  # 256 teams


@dataclass(frozen=True, kw_only=True)
class Share:
    """The part of a gain that is due to one agent, with its 95 % confidence interval over held-out rows."""

    shapley: float
    low: float
    high: float
    alone: float  # gain if only this agent is replaced in the team of the baseline
    removed: float  # loss if only this agent is of the baseline


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """The gain of one score, and each agent's part of it."""

    metric: str
    baseline: float
    score: float
    rows: int  # held-out rows that have a score in every mixture
    shares: dict[str, Share]


def attribute_gain(config: Config, folder: Path, checkpoint: str, baseline: str, overrides: Sequence[str]) -> Path:
    """Score every mixture of the agents of two checkpoints of a run, and attribute the gain to the agents.

    Writes to `evaluations/` in the run folder, and returns the file. Raises `ConfigError`.
    """
    policies = policy_by_agent(config), adapters_by_agent(config)
    origins = [
        Origin(name=name, config=config, weights=find_weights(folder, name, *policies))
        for name in (baseline, checkpoint)
    ]
    members = find_members(origins)
    check_memory("attribution=true", origins)
    device = prepare_process(config)
    agents = list(config.task.agents)
    pairings = [mixture(agents, members, coalition) for coalition in range(1 << len(members))]
    try:
        with open_evaluation_task(config, device) as exam, Console(config.tracker.console, agents) as console:
            names = [origin.weights.name for origin in origins]
            console.print_line(
                f"attribution of {names[1]} - {names[0]} to {' '.join(members)}: {len(pairings)} teams x "
                f"{format_count(len(exam.row_indices), 'row')}"
            )
            exam, found = score_pairings(exam, origins, pairings, device, console)
            subjects = [origin.weights for origin in origins]
            comparisons = count_comparisons(subjects, overrides)
            attributions = attribute(agents, members, pairings, found, config, comparisons)
            for one in attributions:
                for line in attribution_lines(one, names):
                    console.print_line(line)
            for line in choice_messages(subjects, comparisons):
                console.print_line(line)
            record = {
                **origins[1].weights.metadata,
                "attribution": [_attribution_record(one) for one in attributions],
                "baseline": origins[0].weights.metadata,
                "agents": agents,
                "overrides": list(overrides),
                "evaluation_seed": config.evaluation.seed,
                "rows": len(exam.row_indices),
                "comparisons": comparisons,
                "too_long": exam.too_long,
                "primary_metric": config.task.primary_metric,
                "teams": [
                    {
                        "agents": {name: names[origin] for name, origin in zip(agents, pairing, strict=True)},
                        "failed": found[pairing].failed_counts,
                        "metrics": replace_non_finite(found[pairing].metrics),
                    }
                    for pairing in pairings
                ],
            }
            file = result_file_name(names[1], config.evaluation.seed, [f"attribution={names[0]}", *overrides])
            target = folder / "evaluations" / f"attribution-{file}"
            distributed.run_on_main(lambda: write_record(target, record))
            console.print_line(f"written to {display_path(target)}")
    finally:
        distributed.shutdown()
    return target


def find_members(origins: Sequence[Origin]) -> list[str]:
    """The agents with different weights in both origins. Raises `ConfigError` for none or too many."""
    old, new = (origin.weights.models for origin in origins)
    members = [name for name in origins[0].config.task.agents if old[name] != new[name]]
    if not members:
        raise ConfigError(
            "attribution=true",
            f"needs different weights, and {origins[1].weights.name} and {origins[0].weights.name} are equal",
            "use another checkpoint= or attribution_baseline=",
        )
    if len(members) > MAX_AGENTS:
        raise ConfigError(
            "attribution=true",
            f"scores 2^n teams of n trained agents, and this run has {len(members)}; at most {MAX_AGENTS} are possible",
            "use compare=initial, or crossplay=true",
        )
    return members


def mixture(agents: Sequence[str], members: Sequence[str], coalition: int) -> Pairing:
    """The team in which member i is of the checkpoint if bit i of `coalition` is set, else of the baseline.

    Agents with equal weights in both are of the baseline.
    """
    return tuple(coalition >> members.index(name) & 1 if name in members else 0 for name in agents)


def attribute(
    agents: Sequence[str],
    members: Sequence[str],
    pairings: Sequence[Pairing],
    found: Mapping[Pairing, Evaluation],
    config: Config,
    comparisons: int = 1,
) -> list[Attribution]:
    """Attribute the gain of the primary metric; of each agent's score if they differ. Collective.

    `pairings`: the mixture of each coalition, in order. `comparisons`: see `count_comparisons`.
    """
    results = [found[pairing] for pairing in pairings]
    metrics = list(dict.fromkeys(score_metrics(agents, results, config.task.primary_metric).values()))
    # Whether an agent acts may depend on the mixture, so episodes without a turn of it belong to its gain.
    scores = stack_agent_scores(metrics, results)
    return [_attribute_score(metric, members, scores[:, place], comparisons) for place, metric in enumerate(metrics)]


def _attribute_score(metric: str, members: Sequence[str], scores: Tensor, comparisons: int) -> Attribution:
    """`scores`: of each coalition and row, `[2^n, rows]`."""
    scores = scores.double()
    values, means = shapley_values(scores), scores.mean(dim=1).tolist()
    whole = len(scores) - 1
    shares: dict[str, Share] = {}
    for place, (name, of_rows) in enumerate(zip(members, values, strict=True)):
        low, high = t_interval(of_rows, comparisons)
        shares[name] = Share(
            shapley=float(of_rows.mean()),
            low=low,
            high=high,
            alone=means[1 << place] - means[0],
            removed=means[whole] - means[whole ^ 1 << place],
        )
    return Attribution(metric=metric, baseline=means[0], score=means[whole], rows=scores.shape[1], shares=shares)


def attribution_lines(found: Attribution, names: Sequence[str]) -> list[str]:
    """The lines of a table."""
    gain = found.score - found.baseline
    width = max(map(len, (*found.shares, "agent"))) + 2
    lines = [
        f"{found.metric}: {names[0]} {found.baseline:.4f}, {names[1]} {found.score:.4f}, gain {gain:.4f}",
        f"  {'agent':<{width}}{'Shapley':>9}{'95 % interval':>22}{'share':>8}{'alone':>9}{'removed':>9}",
    ]
    for name, share in found.shares.items():
        interval = f"[{share.low:.4f}, {share.high:.4f}]"
        part = f"{share.shapley / gain:.0%}" if abs(gain) > 1e-12 else "-"
        lines.append(
            f"  {name:<{width}}{share.shapley:>9.4f}{interval:>22}{part:>8}{share.alone:>9.4f}{share.removed:>9.4f}"
        )
    return lines


def _attribution_record(found: Attribution) -> dict[str, Any]:
    shares = {name: replace_non_finite(asdict(share)) for name, share in found.shares.items()}
    return replace_non_finite(asdict(found)) | {"shares": shares}
