"""Rows that an agent's policy trains on beside its own: the responses of other agents to the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ippo_cli.agents.centralized import vocabularies_match
from ippo_cli.agents.team import Team
from ippo_cli.algorithms.behavior import row_weights
from ippo_cli.algorithms.estimator import RowContext, State, TargetPart
from ippo_cli.algorithms.inputs import AdvantageInputs, Source
from ippo_cli.config.errors import ConfigError, IppoError
from ippo_cli.config.schema import AlgorithmConfig, Config
from ippo_cli.config.shared_rollouts import shared_authors
from ippo_cli.engine import distributed
from ippo_cli.planning.method_plan import MethodPlan
from ippo_cli.reporting.iteration_metrics import ratio
from ippo_cli.reporting.stopwatch import Stopwatch
from ippo_cli.training.methods.method import Method, Outcome, Player, ScoredBuffer
from ippo_cli.training.row_inputs import group_by_author
from ippo_cli.types import Episode, Experience, Rollout, Scores, Targets

MIN_CAPABILITY = 1e-8
RATIO_LIMITS = (0.1, 10.0)  # of the released code of HACPO


class SharedRows(Method):
    """Trains each agent on the responses of the others too (`team.share_rollouts`)."""

    def __init__(self, config: Config) -> None:
        self._settings = config.algorithm
        # A clipped ratio of two policies, unlike an importance weight, is of probabilities before filters.
        agents, exponent = config.task.agents, config.algorithm.cross_agent.exponent
        self._unfiltered = [name for name in agents if exponent is not None and agents[name].rollout.has_filters]

    def extend(self, player: Player, scored: ScoredBuffer, clock: Stopwatch) -> Experience:
        experience = scored.experience
        with clock("logprobs"):
            shared = share_rollouts(
                player.team,
                experience.episodes,
                experience.rollouts,
                player.preemption.raise_if_any_rank_requested,
                unfiltered=self._unfiltered,
            )
        return replace(experience, shared=shared)

    def metrics(self, outcome: Outcome) -> dict[str, float]:
        targets = {source.agent: own for source, own in outcome.targets.items() if not source.is_shared}
        shared, recent = group_by_author(outcome.targets), outcome.state_before.methods.get(Capabilities.name, {})
        return shared_metrics(outcome.experience, targets, shared, recent, self._settings) if shared else {}


class Capabilities(TargetPart):
    """Weighs rows by the capabilities of agent and author (HACPO): means of recent scores, which are the state."""

    name = "cross_agent"

    def prepare(self, inputs: AdvantageInputs, rows: RowContext) -> AdvantageInputs:
        return replace(inputs, capability=capability_ratio(rows.state or {}, rows.source.agent, rows.source.author))

    def weigh(self, advantages: Tensor, inputs: AdvantageInputs, source: Source) -> Tensor:
        return advantages / inputs.capability if source.is_shared else advantages  # abler agents count more

    def next_state(self, experience: Experience, state: State) -> State:
        window = self.config.cross_agent.capability_window
        assert window is not None
        return add_scores(state or {}, experience.scores, window)


def share_rollouts(
    team: Team,
    episodes: Sequence[Episode],
    rollouts: Mapping[str, Rollout],
    after_pass: Callable[[], None],
    *,
    unfiltered: Collection[str] = (),
) -> dict[str, dict[str, Rollout]]:
    """By trained agent and author: the author's rows with log-probabilities under the agent's policy.

    Their behaviour log-probabilities remain those of the author's sampler, or for authors in `unfiltered` those before
    its filters. `after_pass` is called on all ranks after each forward pass, and may raise. Collective.
    """
    with distributed.synchronize_errors():
        _check_equal_prompts(episodes)
    shared: dict[str, dict[str, Rollout]] = {}
    for name, agent in team.items():
        shared[name] = {}
        for author in (other for other in rollouts if other != name):
            written = rollouts[author]
            shared[name][author] = agent.recompute_logprobs(written)
            if author in unfiltered:
                shared[name][author] = replace(shared[name][author], behavior_logprobs=written.logprobs)
            after_pass()
    return shared


def _check_equal_prompts(episodes: Sequence[Episode]) -> None:
    """Agents must have read the same tokens; equal templates and vocabularies alone do not guarantee that."""
    for episode in episodes:
        prompts = {turn.agent: turn.prompt for turn in episode.turns}
        for name, prompt in prompts.items():
            first, expected = next(iter(prompts.items()))
            if prompt != expected:
                raise IppoError(
                    f"team.share_rollouts=true: the prompts of {first} and {name} have different tokens; use agents "
                    "with one tokenizer and chat template"
                )


def shared_metrics(
    experience: Experience,
    targets: Mapping[str, Targets],
    shared: Mapping[str, Mapping[str, Targets]],
    recent_scores: Mapping[str, Sequence[float]],
    config: AlgorithmConfig,
) -> dict[str, float]:
    """The metrics of every agent by full name, over all ranks.

    `shared`: by agent and author, the targets of the shared rows. `recent_scores`: of iterations before this one.
    """
    row: dict[str, float] = {}
    for name, by_author in shared.items():
        sums = [_sum_rows(experience.shared[name][author], own, config) for author, own in by_author.items()]
        own_rows = targets[name].loss_mask.any(dim=1).sum().double()
        own, rows, mean_ratio, tokens, weight, limited = distributed.all_sum(
            torch.cat([own_rows[None], torch.stack(sums).sum(dim=0)])
        ).tolist()
        row |= {
            f"{name}/shared/rows": rows,
            f"{name}/shared/row_fraction": ratio(rows, rows + own),
            f"{name}/shared/ratio": ratio(mean_ratio, rows),
            f"{name}/shared/weight": ratio(weight, tokens),
            f"{name}/shared/limited_fraction": ratio(limited, tokens),
        }
    return row | {f"{name}/shared/capability": sum(own) / len(own) for name, own in recent_scores.items() if own}


def _sum_rows(rollout: Rollout, targets: Targets, config: AlgorithmConfig) -> Tensor:
    """Rows, their mean ratios, tokens, weights, and tokens with a limited weight, `[5]`: sums of this rank."""
    mask = targets.loss_mask
    counts = mask.sum(dim=1)
    logratio = torch.where(mask, rollout.logprobs - rollout.behavior_logprobs, 0.0).double().sum(dim=1)
    ratios = torch.where(counts > 0, (logratio / counts.clamp(min=1)).exp(), 0.0)
    unlimited = row_weights(rollout, config, is_shared=True, is_limited=False)
    is_limited = (targets.behavior_weights != unlimited) & mask
    weights = torch.where(mask, targets.behavior_weights, 0.0)
    return torch.stack(
        [part.double().sum() for part in ((counts > 0), ratios, counts, weights, is_limited)],
    )


def capability_ratio(recent_scores: Mapping[str, Sequence[float]], agent: str, author: str) -> float:
    """The capability of an agent divided by that of another: the ratio of their mean recent scores, from 0.1 to 10.

    1 before any scores are known. Means of 0 or less count as a very small capability.
    """
    own, its = (recent_scores.get(name, ()) for name in (agent, author))
    if agent == author or not own or not its:
        return 1.0
    ability, other = (max(sum(numbers) / len(numbers), MIN_CAPABILITY) for numbers in (own, its))
    return min(max(ability / other, RATIO_LIMITS[0]), RATIO_LIMITS[1])


def add_scores(
    recent_scores: Mapping[str, Sequence[float]], scores: Mapping[str, Scores], window: int
) -> dict[str, list[float]]:
    """The mean scores of each agent in the last `window` iterations, with this one's; the same on all ranks.

    An iteration without any score of an agent is left out. Collective.
    """
    result: dict[str, list[float]] = {}
    for name, own in scores.items():
        mean, _ = distributed.masked_moments(own.raw.sum(dim=1), own.valid)
        new = [float(mean)] if distributed.any_rank(bool(own.valid.any())) else []
        result[name] = [*recent_scores.get(name, ()), *new][-window:]
    return result


class SharedRowsPlan(MethodPlan):
    """Agents that train on each other's responses, and so have one vocabulary."""

    def authors(self, agent: str) -> tuple[str, ...]:
        return shared_authors(self.config, agent)

    def check_tokenizers(self, tokenizers: Mapping[str, PreTrainedTokenizerBase]) -> None:
        if not self.config.team.share_rollouts:
            return
        (first, its), *others = tokenizers.items()
        for name, own in others:
            if not (vocabularies_match(its, own) and vocabularies_match(own, its)):
                difference = "another vocabulary"
            elif its.eos_token_id != own.eos_token_id:
                difference = "another end-of-sequence token"
            elif its.chat_template != own.chat_template:
                difference = "another chat template"
            else:
                continue
            raise ConfigError(
                "team.share_rollouts=true",
                f"trains {name} on the tokens of {first}, and {name}'s tokenizer has {difference}",
                "use models of one family, of any size, or one actor.tokenizer",
            )
