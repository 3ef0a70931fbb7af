"""Targets from scores: rewards with their KL term, values, advantages, returns, and loss masks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ippo_cli.agents.agent import Agent
from ippo_cli.algorithms.advantages import substitute_final_values, turn_values
from ippo_cli.algorithms.behavior import row_weights
from ippo_cli.algorithms.estimator import RowContext
from ippo_cli.algorithms.inputs import AdvantageInputs, AdvantageOutputs, Source
from ippo_cli.algorithms.resampling import draw_sample_counts
from ippo_cli.config.schema import (
    AlgorithmConfig,
    Config,
    Credit,
    KlRewardConfig,
    Truncation,
    ValueUnit,
)
from ippo_cli.engine import distributed
from ippo_cli.formulas import (
    adaptive_kl_step,
    kl_estimate,
    overlong_fraction,
    place_scores,
    turn_ends,
)
from ippo_cli.training.algorithm_state import AlgorithmState
from ippo_cli.training.methods.registry import build_estimator, build_parts
from ippo_cli.training.row_inputs import RowInputs, RowMasks
from ippo_cli.types import CriticView, Experience, Rollout, Scores, Targets


@dataclass(kw_only=True)
class Algorithm:
    """Computes targets from scores."""

    config: AlgorithmConfig
    num_generations: int  # consecutive sample indices that are responses to one prompt
    seed: int  # of the rows that `reweight` draws
    token_limits: Mapping[str, int] = field(default_factory=dict)  # by agent: of a response; for soft_penalty
    state: AlgorithmState = field(default_factory=AlgorithmState)  # from earlier buffers
    only_returns: bool = False  # the reference is read for the KL term of the reward only

    def __post_init__(self) -> None:
        self.estimator = build_estimator(self.config)
        self.parts = [self.estimator, *build_parts(self.config)]

    @classmethod
    def from_config(cls, config: Config, seed: int) -> Algorithm:
        """The algorithm of a run at its start."""
        return cls(
            config=config.algorithm,
            num_generations=config.rollout.num_generations,
            token_limits={name: agent.rollout.max_new_tokens for name, agent in config.task.agents.items()},
            seed=seed,
        )

    def without_bootstrap(self) -> Algorithm:
        """The algorithm with truncated rows left out, where their returns would contain a value."""
        if self.config.truncation is not Truncation.bootstrap:
            return self
        return replace(self, config=replace(self.config, truncation=Truncation.mask))

    def restore_state(self, kl_coef: Mapping[str, float], methods: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint; states of other methods are ignored."""
        own = {part.name: methods[part.name] for part in self.parts if part.name in methods}
        self.state = AlgorithmState(kl_coef=kl_coef, methods=own)

    def part_metrics(self, state: AlgorithmState) -> dict[str, float]:
        """Metrics of the parts of targets from the state after an iteration."""
        row: dict[str, float] = {}
        for part in self.parts:
            row |= part.metrics(state.methods.get(part.name))
        return row

    def active_kl_coefs(self, agents: Mapping[str, Agent]) -> dict[str, float | None]:
        """The KL coefficient of the reward by agent; None for an agent without a reference."""
        return {name: self._current_kl_coef(name) if agent.has_reference else None for name, agent in agents.items()}

    def _current_kl_coef(self, name: str) -> float:
        """The adapted coefficient, or the configuration's, which a resume may change."""
        settings = self.config.kl.reward
        return settings.coef if settings.target is None else self.state.kl_coef.get(name, settings.coef)

    def compute_targets(
        self,
        agents: Mapping[str, Agent],
        experience: Experience,
        *,
        after_agent: Callable[[], None] | None = None,
    ) -> tuple[dict[str, Targets], AlgorithmState]:
        """Each agent's targets, and the state for the next buffer.

        They follow from the agent's own rows and scores only, unless a part uses those of others.
        With `credit=auto`, agents that share a policy or critic all use turns as actions if any of them does.
        `after_agent` is called on all ranks after each agent, and may raise. Collective.
        """
        targets, state = self.compute_all_targets(agents, experience, after_agent=after_agent)
        return {name: targets[Source(name, name)] for name in agents}, state

    def compute_all_targets(
        self,
        agents: Mapping[str, Agent],
        experience: Experience,
        *,
        after_agent: Callable[[], None] | None = None,
    ) -> tuple[dict[Source, Targets], AlgorithmState]:
        """The same, with the targets of the rows that agents share."""
        by_turn = self.agents_with_turn_actions(agents, experience.rollouts)
        inputs: dict[Source, RowInputs] = {}
        for name, agent in agents.items():
            for author in (name, *experience.shared.get(name, ())):
                source = Source(name, author)
                inputs[source] = self._prepare_rows(agent, source, name in by_turn, experience)
                if after_agent is not None:
                    after_agent()
        outputs, estimator_state = self.estimator.estimate(
            {source: own.advantage for source, own in inputs.items()},
            experience,
            self.state.methods.get(self.estimator.name),
        )
        states = {self.estimator.name: estimator_state}
        for part in self.parts:
            known = states.get(part.name, self.state.methods.get(part.name))
            states[part.name] = part.next_state(experience, known)
        masks = {source: self._build_masks(own, outputs[source], experience) for source, own in inputs.items()}
        advantages: Mapping[Source, Tensor] = {source: own.advantages for source, own in outputs.items()}
        trained = {source: own.loss for source, own in masks.items()}
        actions = {source: own.actions for source, own in masks.items()}
        for part in self.parts:
            advantages = part.transform(advantages, trained, actions)
        targets = {
            source: self._build_targets(
                agents[source.agent], own, outputs[source].returns, masks[source], advantages[source], experience
            )
            for source, own in inputs.items()
        }
        return targets, AlgorithmState(
            kl_coef={source.agent: own.next_kl_coef for source, own in inputs.items() if not source.is_shared},
            methods={name: state for name, state in states.items() if state is not None},
        )

    def agents_with_turn_actions(self, agents: Mapping[str, Agent], rollouts: Mapping[str, Rollout]) -> set[str]:
        """The agents with turns as actions; others act by token. Collective."""
        by_turn = {agent.value_name for name, agent in agents.items() if self._has_turn_actions(rollouts[name])}
        return {name for name, agent in agents.items() if agent.value_name in by_turn}

    def _prepare_rows(self, agent: Agent, source: Source, by_turn: bool, experience: Experience) -> RowInputs:
        """What the advantages and targets of an agent's rows are computed from. Collective."""
        rollout, scores = source.select_rollout(experience), experience.scores[source.author]
        mask, view = rollout.response_mask, experience.views.get(agent.name)
        values, final_values, value_std = self._compute_values(agent, by_turn, rollout, view)
        # Shared rows have no KL term that is estimated at their tokens.
        skips_reference = source.is_shared or (self.only_returns and not self.config.kl.reward.coef)
        ref_logprobs = rollout.logprobs if skips_reference else agent.ref_logprobs(rollout)
        score = self._penalize_truncation(scores.score, rollout, agent.name)
        kl_penalty, next_coef = self._compute_kl_penalty(agent, rollout, ref_logprobs)
        rewards = place_scores(score, mask, rollout.turn) - kl_penalty
        advantage = AdvantageInputs(
            rewards=self._bootstrap_truncated(rewards, final_values, rollout),
            values=values,
            mask=mask,
            turn=rollout.turn,
            is_by_turn=by_turn,
            group=experience.batch.index.to(mask.device) // self.num_generations,
            baseline=torch.zeros_like(final_values),
            valid=scores.valid,
        )
        penalize = partial(self._penalize_truncation, agent=agent.name)
        for part in self.parts:
            known = self.state.methods.get(part.name)
            context = RowContext(source=source, experience=experience, state=known, penalize=penalize)
            advantage = part.prepare(advantage, context)
        return RowInputs(
            source=source,
            advantage=advantage,
            rewards=rewards,
            final_values=final_values,
            value_std=value_std,
            ref_logprobs=ref_logprobs,
            score=score,
            next_kl_coef=next_coef,
        )

    def _build_masks(self, inputs: RowInputs, outputs: AdvantageOutputs, experience: Experience) -> RowMasks:
        rollout, by_turn = inputs.source.select_rollout(experience), inputs.advantage.is_by_turn
        masks_truncated = self.config.truncation is Truncation.mask
        trained = outputs.usable & rollout.finished if masks_truncated else outputs.usable
        measured = experience.scores[inputs.source.author].measured.gather(1, rollout.turn.clamp(min=0))
        loss_mask = inputs.advantage.mask & trained[:, None] & measured
        if outputs.usable_tokens is not None:
            loss_mask &= outputs.usable_tokens
        return RowMasks(trained, loss_mask, turn_ends(loss_mask, rollout.turn) if by_turn else loss_mask)

    def _build_targets(
        self,
        agent: Agent,
        inputs: RowInputs,
        returns: Tensor,
        masks: RowMasks,
        advantages: Tensor,
        experience: Experience,
    ) -> Targets:
        """The targets of an agent's rows. Collective.

        Values are not regressed on shared rows: their returns are those of another policy.
        """
        config, source = self.config, inputs.source
        rollout, scores = source.select_rollout(experience), experience.scores[source.author]
        value_mask = masks.actions if config.value_unit is ValueUnit.turn else masks.loss
        for part in self.parts:
            advantages = part.weigh(advantages, inputs.advantage, source)
        if source.is_shared:
            value_mask = torch.zeros_like(value_mask)
        targets = Targets(
            rewards=inputs.rewards,
            values=inputs.advantage.values,
            final_values=inputs.final_values,
            ref_logprobs=inputs.ref_logprobs,
            advantages=advantages,
            returns=returns,
            loss_mask=masks.loss,
            value_mask=value_mask,
            behavior_weights=row_weights(rollout, config, is_shared=source.is_shared),
            sample_counts=draw_sample_counts(
                inputs.score.sum(dim=1),
                masks.trained,
                experience.batch.index,
                config.reweight,
                stream=f"{self.seed}/reweight/{agent.name}",
            ),
            positive=self._find_positive_rows(scores),
            value_std=inputs.value_std,
            entropy_mask=torch.ones_like(masks.loss),
        )
        for part in self.parts:
            targets = part.complete(targets, agent)
        return targets

    def _compute_values(
        self, agent: Agent, by_turn: bool, rollout: Rollout, view: CriticView | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Values before action tokens or of their turns `[B, R]`, after the last `[B]`, and their standard deviation
        `[B, R]` over the agent's critics.
        """
        config, before = self.config, list[Tensor]()
        members = agent.member_values(rollout, view)
        for values, final_values in members:
            if by_turn and config.turn_value is not None:
                pooled = config.value_unit is ValueUnit.turn
                values = (turn_values if pooled else substitute_final_values)(values, final_values, rollout, config)
            before.append(values)
        if len(members) == 1:
            return before[0], members[0][1], torch.zeros_like(before[0])
        stacked = torch.stack(before)
        return (
            stacked.mean(dim=0),
            torch.stack([final for _, final in members]).mean(dim=0),
            stacked.std(0, correction=0),
        )

    def _has_turn_actions(self, rollout: Rollout) -> bool:
        """Whether turns are the actions; with `credit=auto`, if any row of the buffer has several turns."""
        credit = self.config.credit
        return credit is Credit.turn or (credit is Credit.auto and distributed.any_rank(bool((rollout.turn > 0).any())))

    def _penalize_truncation(self, score: Tensor, rollout: Rollout, agent: str) -> Tensor:
        """The scores `[B, K]` by turn, less `truncation_penalty` for each response that a token limit ended. An episode
        that an environment truncates after a whole response loses nothing.

        With `soft_penalty`, a turn in the last part of its token limit loses a share of it, see `overlong_fraction`.
        """
        config = self.config
        if config.truncation not in (Truncation.penalty, Truncation.soft_penalty):
            return score
        assert config.truncation_penalty is not None
        share = torch.zeros_like(score)
        rows = [row for row, turns in enumerate(rollout.cut_turns) for _ in turns]
        share[rows, [turn for turns in rollout.cut_turns for turn in turns]] = 1.0
        if config.truncation is Truncation.soft_penalty:
            assert config.truncation_ramp is not None
            limit = self.token_limits[agent]
            long = overlong_fraction(rollout.response_mask, rollout.turn, limit=limit, ramp=config.truncation_ramp)
            share[:, : long.shape[1]] = share[:, : long.shape[1]].maximum(long)
        return score - config.truncation_penalty * share

    def _bootstrap_truncated(self, rewards: Tensor, final_values: Tensor, rollout: Rollout) -> Tensor:
        """Add `gamma * final_value` to the last reward of truncated rows, which did not terminate."""
        if self.config.truncation is not Truncation.bootstrap:
            return rewards
        assert self.config.gamma is not None
        tail = (self.config.gamma * final_values * ~rollout.finished)[:, None]
        last_turn = torch.where(rollout.response_mask, 0, -1)  # the whole row as one turn: one last action token
        return rewards + place_scores(tail, rollout.response_mask, last_turn)

    def _compute_kl_penalty(self, agent: Agent, rollout: Rollout, ref_logprobs: Tensor) -> tuple[Tensor, float]:
        """The reward's KL term `[B, R]`, and the coefficient for the next buffer."""
        settings = self.config.kl.reward
        coef = self._current_kl_coef(agent.name)
        if settings.coef == 0.0:
            return torch.zeros_like(ref_logprobs), coef
        if settings.estimator == "full":
            kl = agent.full_kl(rollout)
        else:
            kl = kl_estimate(rollout.logprobs, ref_logprobs, estimator=settings.estimator) * rollout.response_mask
        next_coef = coef
        if settings.target is not None:
            own = rollout.response_mask.sum(dim=1)
            rows = (kl * rollout.response_mask).double().sum(dim=1) / own.clamp(min=1)  # mean per token, by sequence
            total, count = distributed.all_sum(torch.stack([rows.sum(), (own > 0).sum().double()])).tolist()
            if count:  # rows without response tokens do not count
                next_coef = next_kl_coef(coef, total / count, settings, num_samples=int(count))
        return coef * kl, next_coef

    def _find_positive_rows(self, scores: Scores) -> Tensor:
        """The rows of which the likelihood is a term of the loss, `[B]`."""
        limit = self.config.positive_nll.min_score
        if limit is None:
            return torch.zeros_like(scores.valid)
        return scores.raw.sum(dim=1) >= limit


def next_kl_coef(coef: float, current_kl: float, settings: KlRewardConfig, *, num_samples: int) -> float:
    """The adapted coefficient, always above 0: updates are multiplicative, so 0 could never grow."""
    assert settings.target is not None
    assert settings.horizon is not None
    step = adaptive_kl_step(coef, current_kl, target=settings.target, horizon=settings.horizon, num_samples=num_samples)
    return max(step, sys.float_info.min)
