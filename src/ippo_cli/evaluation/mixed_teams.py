"""Teams of agents from different checkpoints, scored on the same held-out examples with the same random numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from ippo_cli.config.errors import PreflightError
from ippo_cli.config.schema import Config, Dtype
from ippo_cli.config.served_agents import local_agents
from ippo_cli.evaluation.estimates import gather_episode_values, row_values
from ippo_cli.evaluation.evaluate_run import EvaluatedWeights, EvaluationTask, load_policies
from ippo_cli.models.shape import actor_shape, empty_model, load_config
from ippo_cli.planning.memory import GIB
from ippo_cli.planning.resources import device_kind, this_machine
from ippo_cli.reporting.console import Console
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.training.evaluate import Evaluation

Pairing = tuple[int, ...]
"""The index of the origin of each agent, in the order of the agents."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A checkpoint of a run, from which agents are taken."""

    name: str
    config: Config  # configuration of the run
    weights: EvaluatedWeights


@dataclass(frozen=True, kw_only=True)
class WeightTotals:
    """Number and size of all distinct models."""

    num_models: int
    size_bytes: float  # bytes

    @property
    def formatted_size(self) -> str:
        return f"{self.size_bytes / GIB:.2f} GiB" if self.size_bytes >= GIB else f"{self.size_bytes / 2**20:.1f} MiB"


def check_memory(setting: str, origins: Sequence[Origin]) -> WeightTotals:
    """The size of all models that `setting` loads. Raises `PreflightError` if they do not fit into memory together."""
    sizes: dict[tuple[str, str | None, str], float] = {}
    for origin in origins:
        for name, agent in local_agents(origin.config).items():
            record, dtype = origin.weights.models[name], agent.actor.dtype
            key = (record["model"], record["commit"], dtype.value)
            if key not in sizes:
                shape = actor_shape(empty_model(load_config(record["model"], record["commit"])))
                sizes[key] = shape.parameters * (4.0 if dtype is Dtype.fp32 else 2.0)
    weights = WeightTotals(num_models=len(sizes), size_bytes=sum(sizes.values()))
    place, available = this_machine(device_kind(origins[0].config.launch.device), 1).device_memory
    if weights.size_bytes > available:
        raise PreflightError(
            f"{setting} loads {weights.num_models} models with {weights.formatted_size} of weights, and this "
            f"{place} has {available / GIB:.1f} GiB; use fewer checkpoints or runs, or actor.dtype=bf16"
        )
    return weights


def score_pairings(
    exam: EvaluationTask,
    origins: Sequence[Origin],
    pairings: Sequence[Pairing],
    device: torch.device,
    console: Console,
) -> tuple[EvaluationTask, dict[Pairing, Evaluation]]:
    """Score each pairing; all have the rows of the returned task, which fit the contexts of all models. Collective."""
    agents = list(exam.config.task.agents)
    loaded: dict[Any, Any] = {}
    players = [load_policies(origin.config, origin.weights, device, loaded) for origin in origins]
    teams = [_assemble_team(players, agents, pairing) for pairing in pairings]
    formats = [exam.build_formats(team) for team in teams]  # check all prompts before any evaluation
    exam = exam.drop_too_long_rows(list(zip(teams, formats, strict=True)))
    found: dict[Pairing, Evaluation] = {}
    for pairing, team, own_formats in zip(pairings, teams, formats, strict=True):
        found[pairing] = exam.score_team(team, own_formats, console)
    return exam, found


def score_metrics(agents: Sequence[str], results: Iterable[Evaluation], primary: str) -> dict[str, str]:
    """By agent, its score: the primary metric if all agents have equal scores in all episodes of all teams, else its
    own score. Collective.
    """
    mode = primary.partition("/")[0]
    own = {name: f"{mode}/{name}/score" for name in agents}
    teams = [gather_episode_values(result) for result in results]
    has_equal_scores = all(
        _scores_match(values[own[name]], values[own[other]])
        for values in teams
        for name, other in combinations(agents, 2)
    )
    return dict.fromkeys(agents, primary) if has_equal_scores else own


def stack_agent_scores(metrics: Sequence[str], results: Sequence[Evaluation]) -> Tensor:
    """Return the mean scores in each team, `[teams, metrics, rows]`, over the rows in which every team has scores.

    `metrics`: of `score_metrics`, without repetitions. In an episode with a score, an agent without a turn has a score
    of 0. Collective.
    """
    scores = torch.stack([_row_scores(metrics, result) for result in results])
    return scores[:, :, torch.isfinite(scores).all(dim=1).all(dim=0)]


def _row_scores(metrics: Sequence[str], result: Evaluation) -> Tensor:
    """Return mean scores over the episodes of each row, `[metrics, rows]`; NaN where a row has none."""
    episodes = gather_episode_values(result)
    if not all(metric in episodes for metric in metrics):  # pass@k has no value for an episode
        rows = row_values(result)
        return torch.stack([rows[metric] for metric in metrics])
    values = torch.stack([episodes[metric] for metric in metrics])
    has_score = torch.isfinite(values).any(dim=0)
    return values.nan_to_num().where(has_score, math.nan).nanmean(dim=2)


def _assemble_team(
    players: Sequence[Mapping[str, GenerationPolicy]], agents: Sequence[str], pairing: Pairing
) -> dict[str, GenerationPolicy]:
    return {name: players[origin][name] for name, origin in zip(agents, pairing, strict=True)}


def _scores_match(scores: Tensor, others: Tensor) -> bool:
    """Whether two agents have equal scores where both have one; an agent without an action in an episode has none."""
    both = torch.isfinite(scores) & torch.isfinite(others)
    return torch.equal(scores[both], others[both])
