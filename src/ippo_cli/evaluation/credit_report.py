"""`ippo-eval credit=true`: compares each kind of credit of turns with Q(state, turn) - V(state)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ippo_cli.config.critic_reports import CREDIT_KEY, CreditReportSettings, ValueReference
from ippo_cli.config.errors import ConfigError, PreflightError, convert_storage_errors
from ippo_cli.config.schema import Config
from ippo_cli.config.secrets import mask_secrets
from ippo_cli.config.teams import policy_by_agent
from ippo_cli.evaluation.credit_kinds import compute_credits
from ippo_cli.evaluation.credit_references import enumerate_credit, sample_credit
from ippo_cli.evaluation.critic_references import References
from ippo_cli.evaluation.evaluate_run import (
    EvaluationTask,
    adapters_by_agent,
    find_weights,
    result_file_name,
)
from ippo_cli.evaluation.report_session import (
    ReportSession,
    build_report_generator,
    load_critic_team,
    open_report_session,
)
from ippo_cli.formulas.critic_quality import Estimate, ValuedStates, critic_quality
from ippo_cli.reporting.console import Console
from ippo_cli.rollout.branches import State
from ippo_cli.runs.folder import display_path, write_atomically
from ippo_cli.runs.json_values import replace_non_finite
from ippo_cli.training.checkpoint import INITIAL
from ippo_cli.training.methods.credit import EpisodeReplays
from ippo_cli.types import Batch, Episode

TABLE = {  # column of the printed table: its number, and the one that is corrected for the noise of references
    "rank corr.": ("rank_correlation", "rank_correlation_corrected"),
    "within prompt": ("rank_correlation_within", "rank_correlation_within_corrected"),
    "pairs": ("pair_accuracy", None),
    "expl. var.": ("explained_variance", "explained_variance_corrected"),
}


@dataclass(frozen=True, kw_only=True)
class CreditRow:
    """One kind of credit of an agent's turns, compared with the references."""

    agent: str
    kind: str
    turns: list[State]
    compared: ValuedStates
    found: dict[str, Estimate]


def _without_first_adapters(config: Config) -> Config:
    """The configuration with bases as initial policies of adapter runs, as in training, also with `actor.adapter`."""
    agents = {
        name: replace(agent, actor=replace(agent.actor, adapter=None)) if agent.actor.trains_adapter else agent
        for name, agent in config.task.agents.items()
    }
    return replace(config, task=replace(config.task, agents=agents))


def report_credit(
    config: Config, folder: Path, checkpoint: str, settings: CreditReportSettings, overrides: Sequence[str]
) -> Path:
    """Compare the credit of turns of a checkpoint's policies with references; print the table, and write it.

    Returns the file with the numbers. Raises `ConfigError` with several processes.
    """
    policies = policy_by_agent(config)
    weights = find_weights(folder, checkpoint, policies, adapters_by_agent(config))
    initial_weights = find_weights(folder, INITIAL, policies, adapters_by_agent(config))
    session_of_run = open_report_session(
        config, folder, weights, partial(_select_prompts, settings), setting=CREDIT_KEY, purpose="evaluation/credit"
    )
    with session_of_run as (session, console), ExitStack() as resources:
        initial, _ = load_critic_team(_without_first_adapters(config), folder, initial_weights, session.device)
        initial_generator = build_report_generator(config, initial.generation_policies, console)
        resources.callback(initial_generator.close)
        replays = EpisodeReplays(
            play=session.play,
            batch=session.batch,
            episodes=session.episodes,
            purpose=session.draws.purpose,
            generator=session.generator,
            initial_generator=initial_generator,
        )
        turns = {name: _turns(session.episodes, name) for name in session.team}
        references = {
            name: _find_references(session, replays, name, own, settings, console) for name, own in turns.items()
        }
        rows = [
            _compare(session, kind, name, values, turns[name], references[name])
            for kind, by_agent in compute_credits(session, replays, settings)
            for name, values in by_agent.items()
        ]
        record = {
            **weights.metadata,
            "overrides": list(overrides),
            "credit": {
                **{key: getattr(value, "value", value) for key, value in vars(settings).items()},
                "prompts": len(set(session.prompts)),
                "seed": config.evaluation.seed,
                "tokens": {agent: found.num_tokens for agent, found in references.items()},
            },
            "agents": {agent: _agent_record([row for row in rows if row.agent == agent]) for agent in references},
        }
        identity = [*overrides, *(f"{key}={value}" for key, value in sorted(vars(settings).items()))]
        target = folder / "evaluations" / f"credit-{result_file_name(weights.name, config.evaluation.seed, identity)}"
        _write(target, record, rows, session.prompts)
        for line in table_lines(rows):
            console.print_line(line)
        console.print_line(f"written to {display_path(target)}")
    return target


def _select_prompts(settings: CreditReportSettings, exam: EvaluationTask) -> tuple[Batch, list[int]]:
    """The episodes to sample, and the held-out row of each; those of a row have consecutive indices."""
    chosen = exam.sample_rows(settings.prompts)
    prompts = [row for row in chosen for _ in range(settings.responses)]
    return Batch(examples=[exam.held_out[row] for row in prompts], index=torch.arange(len(prompts))), prompts


def _turns(episodes: Sequence[Episode], agent: str) -> list[State]:
    """The states before all turns of an agent."""
    return [
        State(episode=row, agent=agent, turn=turn, position=0)
        for row, episode in enumerate(episodes)
        if episode.failure is None
        for turn in range(len(episode.trainable_turns(agent)))
    ]


def _find_references(
    session: ReportSession,
    replays: EpisodeReplays,
    agent: str,
    turns: Sequence[State],
    settings: CreditReportSettings,
    console: Console,
) -> References:
    if not turns:
        raise PreflightError(f"{CREDIT_KEY}: {agent} has no turn in the {len(session.episodes)} sampled episodes")
    if settings.reference is ValueReference.monte_carlo:
        console.print_line(f"{agent}: {len(turns)} turns x 2 x {settings.continuations} continuations")
        return sample_credit(session, agent, turns, settings.continuations)
    console.print_line(f"{agent}: {len(turns)} turns, at most {settings.continuations} enumerated episodes each")
    found = enumerate_credit(
        session,
        replays.play,
        agent,
        turns,
        settings.continuations,
        lambda done, total: console.show_progress(f"enumerating episodes of {agent}", done, total),
    )
    if not torch.isfinite(found.means).any():
        raise ConfigError(
            f"credit_continuations={settings.continuations}",
            f"is too small for credit_reference=exact: no turn of {agent} has so few possible continuations",
            "raise it, lower rollout.temperature or rollout.top_k for this evaluation, or use "
            "credit_reference=monte_carlo",
        )
    return found


def _compare(
    session: ReportSession,
    kind: str,
    agent: str,
    credit: Tensor,
    turns: Sequence[State],
    references: References,
) -> CreditRow:
    values = torch.stack([credit[state.episode, state.turn] for state in turns])
    known = torch.isfinite(references.means) & torch.isfinite(values)
    known_turns = [state for state, is_known in zip(turns, known.tolist(), strict=True) if is_known]
    if len(known_turns) < 2:
        raise PreflightError(
            f"{CREDIT_KEY}: fewer than two turns of {agent} have a credit of kind {kind} and a reference"
        )
    compared = ValuedStates(
        values=values[known],
        references=references.means[known],
        noise=references.noise[known],
        halves=references.halves[known],
        prompts=torch.tensor([session.prompts[state.episode] for state in known_turns]),
        places=[state.turn for state in known_turns],
    )
    found = critic_quality(compared, session.config.evaluation.seed)
    return CreditRow(agent=agent, kind=kind, turns=known_turns, compared=compared, found=found)


def table_lines(rows: Sequence[CreditRow]) -> list[str]:
    """A table with a line for each agent and kind; a second number is corrected for the noise of references."""
    cells = [("", "turns", *TABLE, "95 % of rank corr.")]
    for row in rows:
        numbers = []
        for plain, corrected in TABLE.values():
            text = _format(row.found[plain].value)
            numbers.append(text if corrected is None else f"{text} {_format(row.found[corrected].value)}")
        rank = row.found["rank_correlation"]
        interval = f"[{_format(rank.low)}, {_format(rank.high)}]"
        cells.append((f"{row.agent}: {row.kind}", str(len(row.turns)), *numbers, interval))
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return [
        "  " + "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in cells
    ]


def _agent_record(rows: Sequence[CreditRow]) -> dict[str, Any]:
    """The numbers of an agent by kind of credit."""
    return {
        row.kind: {
            "turns": len(row.turns),
            **{
                key: replace_non_finite({"value": one.value, "low": one.low, "high": one.high})
                for key, one in row.found.items()
            },
        }
        for row in rows
    }


def _write(target: Path, record: Mapping[str, Any], rows: Sequence[CreditRow], prompts: Sequence[int]) -> None:
    lines = []
    for row in rows:
        numbers = (row.compared.values, row.compared.references, row.compared.noise.clamp(min=0).sqrt())
        for turn, value, reference, error in zip(row.turns, *(part.tolist() for part in numbers), strict=True):
            entry = {
                "agent": row.agent,
                "kind": row.kind,
                "row": prompts[turn.episode],
                "episode": turn.episode,
                "turn": turn.turn,
                "credit": value,
                "reference": reference,
                "standard_error": error,
            }
            lines.append(json.dumps(entry) + "\n")
    with convert_storage_errors(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target.with_suffix(".turns.jsonl"), "".join(lines))
        write_atomically(target, json.dumps(mask_secrets(replace_non_finite(dict(record))), indent=1) + "\n")


def _format(value: float) -> str:
    return "-" if value != value else f"{value:.3f}"
