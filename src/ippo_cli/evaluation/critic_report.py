"""`ippo-eval critic=true`: compares a critic's values of states with reference values of the same states."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ippo_cli.config.critic_reports import KEY, CriticReportSettings, ValueReference, agents_with_values
from ippo_cli.config.errors import ConfigError, PreflightError, convert_storage_errors
from ippo_cli.config.schema import Config, Truncation
from ippo_cli.config.secrets import mask_secrets
from ippo_cli.config.teams import policy_by_agent
from ippo_cli.evaluation.critic_references import (
    References,
    enumerate_references,
    sample_references,
)
from ippo_cli.evaluation.critic_states import choose_states, count_prompts
from ippo_cli.evaluation.evaluate_run import (
    EvaluationTask,
    adapters_by_agent,
    find_weights,
    result_file_name,
)
from ippo_cli.evaluation.pictures import NO_PICTURE, can_draw, draw_critics
from ippo_cli.evaluation.report_session import ReportSession, open_report_session
from ippo_cli.formulas.critic_quality import Estimate, ValuedStates, calibration_bins, critic_quality
from ippo_cli.reporting.console import Console
from ippo_cli.rollout.branches import State
from ippo_cli.rollout.rows import build_rollout
from ippo_cli.runs.folder import display_path, write_atomically
from ippo_cli.runs.json_values import replace_non_finite
from ippo_cli.training.methods.continued_returns import state_columns
from ippo_cli.types import Batch

POSITION_BINS = 4
CALIBRATION_BINS = 10
TABLE = {  # column of the printed table: its number, and the corrected one
    "bias": ("bias", None),
    "slope": ("slope", None),
    "expl. var.": ("explained_variance", "explained_variance_corrected"),
    "rank corr.": ("rank_correlation", "rank_correlation_corrected"),
    "within prompt": ("rank_correlation_within", "rank_correlation_within_corrected"),
    "pairs": ("pair_accuracy", None),
    "clear pairs": ("clear_pair_accuracy", None),
}


@dataclass(frozen=True, kw_only=True)
class AgentReport:
    """One agent's states with values and references, and the numbers of groups of them."""

    agent: str
    states: list[State]  # with a reference
    compared: ValuedStates
    groups: dict[str, tuple[int, dict[str, Estimate]]]  # by name: states and numbers
    num_excluded: int  # states without a reference
    num_tokens: int


def report_critic(
    config: Config, folder: Path, checkpoint: str, settings: CriticReportSettings, overrides: Sequence[str]
) -> Path:
    """Compare the values of a checkpoint's critics with references, print the table, and write it to `evaluations/`.

    Returns the file with the numbers. Raises `ConfigError` with several processes.
    """
    weights = find_weights(folder, checkpoint, policy_by_agent(config), adapters_by_agent(config))
    session_of_run = open_report_session(
        config, folder, weights, partial(_select_prompts, settings), setting=KEY, purpose="evaluation/critic"
    )
    with session_of_run as (session, console):
        reports = list(_report_agents(session, settings, console))
        record = {
            **weights.metadata,
            "models": weights.models,
            "overrides": list(overrides),
            "critic": {
                "reference": settings.reference.value,
                "continuations": settings.continuations,
                "compared_with": describe_returns(config),
                "prompts": len(set(session.prompts)),
                "responses": settings.responses,
                "seed": config.evaluation.seed,
            },
            "agents": {report.agent: _agent_record(report) for report in reports},
        }
        identity = [*overrides, *(f"{key}={value}" for key, value in sorted(vars(settings).items()))]
        target = folder / "evaluations" / f"critic-{result_file_name(weights.name, config.evaluation.seed, identity)}"
        _write(target, record, reports, session.prompts)
        for line in table_lines(reports):
            console.print_line(line)
        console.print_line(_draw(target, reports, settings))
    return target


def describe_returns(config: Config) -> str:
    """What the values are compared with."""
    algorithm, parts = config.algorithm, ["the agent's score"]
    if config.reward.processor:
        parts[0] += f" after reward.processor=[{','.join(config.reward.processor)}]"
    if algorithm.truncation in (Truncation.penalty, Truncation.soft_penalty):
        parts.append(f"truncation_penalty={algorithm.truncation_penalty:g} ({algorithm.truncation.value})")
    if algorithm.truncation is Truncation.bootstrap:
        parts.append("the critic's own value after a truncated response")
    if algorithm.kl.reward.coef:
        parts.append(f"the KL term of the reward ({algorithm.kl.reward.estimator})")
    if algorithm.truncation is Truncation.mask:
        parts[0] += " in episodes that are not truncated"
    discount = "" if algorithm.gamma in (None, 1.0) else f", discounted by gamma={algorithm.gamma:g}"
    return f"returns of {' and '.join(parts)}{discount}"


def table_lines(reports: Sequence[AgentReport]) -> list[str]:
    """The numbers of all groups as lines of a table; a second number is corrected for the noise of references."""
    rows = [("", "states", *TABLE)]
    for report in reports:
        for name, (count, found) in report.groups.items():
            cells = []
            for plain, corrected in TABLE.values():
                text = _format(found[plain].value)
                cells.append(text if corrected is None else f"{text} {_format(found[corrected].value)}")
            rows.append((name, str(count), *cells))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [text.rjust(width) for text, width in zip(row, widths, strict=True)]
        lines.append("  " + "  ".join([row[0].ljust(widths[0]), *cells[1:]]))
    for report in reports:
        whole = report.groups[report.agent][1]
        named = ("bias", "explained_variance_corrected", "rank_correlation_within", "pair_accuracy")
        intervals = ", ".join(f"{name} [{_format(whole[name].low)}, {_format(whole[name].high)}]" for name in named)
        lines.append(f"  {report.agent}: 95 % intervals over prompts: {intervals}")
        if report.num_excluded:
            lines.append(f"  {report.agent}: {report.num_excluded} states have no reference and are excluded")
    return lines


def _select_prompts(settings: CriticReportSettings, exam: EvaluationTask) -> tuple[Batch, list[int]]:
    """The episodes to sample, and the prompt of each: the held-out row."""
    chosen = exam.sample_rows(count_prompts(settings.states, len(exam.row_indices)))
    prompts = [row for row in chosen for _ in range(settings.responses)]
    index = [row + number * len(exam.held_out) for row in chosen for number in range(settings.responses)]
    return Batch(examples=[exam.held_out[row] for row in prompts], index=torch.tensor(index)), prompts


def _report_agents(session: ReportSession, settings: CriticReportSettings, console: Console) -> Iterator[AgentReport]:
    config, team, episodes, prompts = session.config, session.team, session.episodes, session.prompts
    names = [name for name in agents_with_values(config) if team[name].has_values]
    rollouts = {
        name: build_rollout(
            episodes, name, device=session.device, filtered=config.task.agents[name].rollout.has_filters
        )
        for name in team
    }
    by_turn = session.algorithm.agents_with_turn_actions(team, rollouts)
    console.print_line(f"values are compared with {describe_returns(config)}")
    for name in names:
        per_prompt = math.ceil(settings.states / len(set(prompts)))
        is_by_turn = name in by_turn
        states = choose_states(episodes, prompts, name, per_prompt, is_by_turn=is_by_turn, seed=config.evaluation.seed)[
            : settings.states
        ]
        if not states:
            raise PreflightError(f"critic=true: {name} has no turn in the {len(episodes)} sampled episodes")
        console.print_line(_cost_line(name, states, settings, config))
        references = _find_references(session, name, states, settings, console, is_by_turn=is_by_turn)
        values, _ = team[name].values(rollouts[name], team[name].critic_view(episodes, rollouts[name]))
        rows = [state.episode for state in states]
        columns = state_columns(rollouts[name], states, rows)
        own = values[torch.tensor(rows, device=values.device), columns].double().cpu()
        yield _build_report(session, name, states, own, references, prompts)


def _cost_line(name: str, states: Sequence[State], settings: CriticReportSettings, config: Config) -> str:
    limit = config.task.agents[name].rollout.max_new_tokens
    if settings.reference is ValueReference.exact:
        return f"{name}: {len(states)} states, at most {settings.continuations} enumerated episodes each"
    tokens = settings.continuations * sum(limit - state.position for state in states)
    return (
        f"{name}: {len(states)} states x {settings.continuations} continuations, at most {tokens} tokens to the end "
        f"of the agent's turn"
    )


def _find_references(
    session: ReportSession,
    agent: str,
    states: Sequence[State],
    settings: CriticReportSettings,
    console: Console,
    *,
    is_by_turn: bool,
) -> References:
    if settings.reference is ValueReference.monte_carlo:
        return sample_references(session, agent, states, settings.continuations, is_by_turn=is_by_turn)

    def report(done: int, total: int) -> None:
        console.show_progress(f"enumerating responses of {agent}", done, total)

    references = enumerate_references(
        session, agent, states, settings.continuations, report=report, is_by_turn=is_by_turn
    )
    if not torch.isfinite(references.means).any():
        raise ConfigError(
            f"critic_continuations={settings.continuations}",
            f"is too small for critic_reference=exact: no state of {agent} has so few possible continuations",
            "raise it, lower rollout.temperature or rollout.top_k for this evaluation, or use "
            "critic_reference=monte_carlo",
        )
    return references


def _build_report(
    session: ReportSession,
    agent: str,
    states: Sequence[State],
    values: torch.Tensor,
    references: References,
    prompts: Sequence[int],
) -> AgentReport:
    known = torch.isfinite(references.means)
    known_states = [state for state, is_known in zip(states, known.tolist(), strict=True) if is_known]
    if len(known_states) < 2:
        raise PreflightError(f"critic=true: fewer than two states of {agent} have a reference value")
    compared = ValuedStates(
        values=values[known],
        references=references.means[known],
        noise=references.noise[known],
        halves=references.halves[known],
        prompts=torch.tensor([prompts[state.episode] for state in known_states]),
        places=[(state.turn, state.position) for state in known_states],
    )
    seed = session.config.evaluation.seed
    groups = {
        name: (int(mask.sum()), critic_quality(compared.select(mask), seed))
        for name, mask in _group_masks(agent, known_states).items()
        if int(mask.sum()) > 1
    }
    return AgentReport(
        agent=agent,
        states=known_states,
        compared=compared,
        groups=groups,
        num_excluded=len(states) - len(known_states),
        num_tokens=references.num_tokens,
    )


def _group_masks(agent: str, states: Sequence[State]) -> dict[str, torch.Tensor]:
    """All states, those of each range of positions, and those of each turn."""
    position = torch.tensor([state.position for state in states])
    masks = {agent: torch.ones(len(states), dtype=torch.bool)}
    parts = torch.linspace(0, 1, POSITION_BINS + 1, dtype=torch.float64)[1:-1]
    starts = sorted({0, *position.double().quantile(parts).ceil().long().tolist()})
    for first, after in zip(starts, [*starts[1:], int(position.max()) + 1], strict=True):
        if len(starts) > 1:
            where = f"token {first + 1}" if after == first + 1 else f"tokens {first + 1}-{after}"
            masks[f"{agent}, {where}"] = (position >= first) & (position < after)
    turn = torch.tensor([state.turn for state in states])
    if int(turn.max()) > 0:
        for number in sorted(set(turn.tolist())):
            masks[f"{agent}, turn {number + 1}"] = turn == number
    return masks


def _agent_record(report: AgentReport) -> dict[str, Any]:
    return {
        "states": len(report.states),
        "excluded": report.num_excluded,
        "tokens": report.num_tokens,
        "groups": {
            name: {"states": count}
            | {
                key: replace_non_finite({"value": one.value, "low": one.low, "high": one.high})
                for key, one in found.items()
            }
            for name, (count, found) in report.groups.items()
        },
        "calibration": [replace_non_finite(row) for row in calibration_bins(report.compared, CALIBRATION_BINS)],
    }


def states_file(target: Path) -> Path:
    """The file of the states that belongs to a report."""
    return target.with_suffix(".states.jsonl")


def _write(target: Path, record: Mapping[str, Any], reports: Sequence[AgentReport], prompts: Sequence[int]) -> None:
    lines = []
    for report in reports:
        compared = report.compared
        numbers = (compared.values, compared.references, compared.noise.clamp(min=0).sqrt())
        for state, value, reference, error in zip(report.states, *(part.tolist() for part in numbers), strict=True):
            row = {
                "agent": state.agent,
                "row": prompts[state.episode],
                "episode": state.episode,
                "turn": state.turn,
                "position": state.position,
                "value": value,
                "reference": reference,
                "standard_error": error,
            }
            lines.append(json.dumps(row) + "\n")
    with convert_storage_errors(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(states_file(target), "".join(lines))
        write_atomically(target, json.dumps(mask_secrets(replace_non_finite(dict(record))), indent=1) + "\n")


def _draw(target: Path, reports: Sequence[AgentReport], settings: CriticReportSettings) -> str:
    tokens = sum(report.num_tokens for report in reports)
    written = f"written to {display_path(target)} and {states_file(target).name}"
    how = "enumerated" if settings.reference is ValueReference.exact else "generated"
    if not can_draw():
        return f"{written}; {tokens} tokens {how}; {NO_PICTURE}"
    picture = target.with_suffix(".svg")
    draw_critics([(report.agent, report.compared, report.groups) for report in reports], picture)
    return f"{written} and {picture.name}; {tokens} tokens {how}"


def _format(value: float) -> str:
    return "-" if not math.isfinite(value) else f"{value:.3f}"
