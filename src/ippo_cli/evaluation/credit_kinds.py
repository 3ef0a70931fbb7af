"""The kinds of credit of turns that a run can learn from, computed for the same episodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ippo_cli.config.critic_reports import CreditReportSettings, agents_with_values
from ippo_cli.config.reward_weights import reward_weights
from ippo_cli.config.schema import Config, CreditAssignment
from ippo_cli.evaluation.credit_references import turn_returns
from ippo_cli.evaluation.report_session import ReportSession
from ippo_cli.formulas import group_normalized, score_to_go
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.score import compute_raw_scores, process_scores, turn_counts
from ippo_cli.rollout.rows import build_rollout
from ippo_cli.training.methods.credit import EpisodeReplays, compute_credit_baselines
from ippo_cli.types import Experience

CRITIC = "critic"
GROUP = "group"


def credit_variants(config: Config, settings: CreditReportSettings) -> dict[str, Config]:
    """The configuration with each method of `reward.credit_assignment` that the task supports, by its name."""
    task = config.task
    is_parallel = task.is_one_turn_per_agent and task.built_in_protocol == "parallel"
    methods: dict[str, tuple[CreditAssignment, int | None]] = {
        "none": (CreditAssignment.none, None),
        "difference": (CreditAssignment.difference, None),
    }
    if is_parallel:
        methods["leave_out"] = CreditAssignment.leave_out, None
        if settings.responses > 1:
            methods["counterfactual"] = CreditAssignment.counterfactual, None
    methods[f"counterfactual, {settings.alternatives} alternatives"] = (
        CreditAssignment.counterfactual,
        settings.alternatives,
    )
    rollout = replace(config.rollout, num_generations=settings.responses)
    return {
        name: replace(
            config,
            rollout=rollout,
            reward=replace(
                config.reward,
                credit_assignment=method,
                credit_alternatives=alternatives,
                credit_turns=None,
                measure_credit_every=0,
            ),
        )
        for name, (method, alternatives) in methods.items()
    }


def compute_credits(
    session: ReportSession, replays: EpisodeReplays, settings: CreditReportSettings
) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    """For each kind its name and by agent what algorithms learn a turn from, `[B, K]` float64; NaN where unknown.

    That is the sum of later scores, after a baseline is subtracted.
    """
    trained = list(session.team)
    for name, config in credit_variants(session.config, settings).items():
        method = config.reward.credit_assignment
        if method is CreditAssignment.none:
            yield name, {agent: turn_returns(session, session.episodes, agent) for agent in trained}
            if settings.responses > 1:
                yield GROUP, {agent: _group_advantages(session, agent, settings.responses) for agent in trained}
            continue
        baselines = compute_credit_baselines(config, 0, session.reward, replays, trained)[method]
        gamma = 1.0 if config.algorithm.gamma is None else config.algorithm.gamma
        found: dict[str, Tensor] = {}
        for agent, baseline in baselines.items():
            raw = compute_raw_scores(session.reward, session.episodes, reward_weights(config), [agent], config.reward)
            scores = baseline.scores_of_credit(baseline.subtract_from(raw.numbers[agent])).double()
            known = baseline.known & ~raw.failed[agent]
            found[agent] = score_to_go(scores, gamma=gamma).where(known[:, None] & baseline.turn_mask, math.nan)
        yield name, found
    reward = session.config.reward
    is_comparable = reward.credit_assignment is CreditAssignment.none and not reward.processor
    if agents_with_values(session.config) and is_comparable:  # processors change the unit of values
        yield CRITIC, _critic_advantages(session, replays)


def _group_advantages(session: ReportSession, agent: str, group_size: int) -> Tensor:
    """Score of each episode minus the mean of its prompt's episodes, for all turns of the agent; NaN where unknown.

    Episodes without a turn of the agent belong to no group, as in training. The values are those of `advantage=group`
    without division by the standard deviation; those of `leave_one_out` have equal ranks.
    """
    raw = compute_raw_scores(
        session.reward, session.episodes, reward_weights(session.config), [agent], session.config.reward
    )
    numbers = raw.numbers[agent].double()
    valid = ~raw.failed[agent] & (turn_counts(session.episodes, agent) > 0)
    prompts = torch.arange(len(numbers)) // group_size
    usable = valid & (torch.bincount(prompts[valid], minlength=len(prompts))[prompts] > 1)
    advantages = torch.full((len(numbers),), math.nan, dtype=torch.float64)
    advantages[usable] = group_normalized(numbers.sum(dim=1)[usable], prompts[usable], scale_by_std=False)
    return advantages[:, None].expand_as(numbers)


def _critic_advantages(session: ReportSession, replays: EpisodeReplays) -> Mapping[str, Tensor]:
    """The advantages of the run's algorithm before whitening, mean over the tokens of each turn."""
    config, episodes, team = session.config, session.episodes, session.team
    names = list(config.task.agents)
    rollouts = {
        name: build_rollout(
            episodes, name, device=session.device, filtered=config.task.agents[name].rollout.has_filters
        )
        for name in names
    }
    raw = compute_raw_scores(session.reward, episodes, reward_weights(config), names, config.reward)
    moments = {name: ScoreMoments() for name in names}
    scored = process_scores(raw, episodes, config.reward, moments, device=session.device, observe=False)
    experience = Experience(
        batch=replays.batch,
        episodes=list(episodes),
        sampled=rollouts,
        rollouts=rollouts,
        scores=scored.scores,
        greedy={},
        views=team.critic_views(episodes, rollouts),
    )
    algorithm = replace(session.algorithm, config=replace(session.algorithm.config, advantage_normalization=False))
    targets, _ = algorithm.compute_targets(team, experience)
    found: dict[str, Tensor] = {}
    for name in agents_with_values(config):
        rollout, own = rollouts[name], targets[name]
        turns = max(1, int(rollout.turn.max()) + 1)
        slots = rollout.turn.clamp(min=0)
        total = torch.zeros(len(slots), turns, dtype=torch.float64, device=slots.device)
        counts = torch.zeros_like(total)
        mask = own.loss_mask.double()
        total.scatter_add_(1, slots, own.advantages.double() * mask)
        counts.scatter_add_(1, slots, mask)
        found[name] = (total / counts).cpu()  # NaN without trained tokens
    return found
