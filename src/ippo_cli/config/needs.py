"""What methods need and what options take away: one rule compares them, and no rule names two features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from ippo_cli.config.credit import needs_replays, samples_alternatives
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.rewards import buffer_dependent_scores
from ippo_cli.config.schema import (
    Advantage,
    Config,
    ConversationConfig,
    CreditAssignment,
    CriticKind,
    Mode,
    NormalizationScope,
    RatioBase,
    RatioLevel,
    Reweight,
    Truncation,
    UpdateOrder,
    WeightLevel,
)


class Need(str, Enum):
    """A property of a run on which a method relies."""

    current_weights = "current_weights"
    current_policies = "current_policies"
    known_scores = "known_scores"
    fixed_scores = "fixed_scores"
    own_rows = "own_rows"
    one_candidate = "one_candidate"
    one_turn = "one_turn"
    groups = "groups"
    critic = "critic"
    policy_samples = "policy_samples"
    greedy_samples = "greedy_samples"
    sampler_logprobs = "sampler_logprobs"
    adapter_transfer = "adapter_transfer"
    equal_scores = "equal_scores"
    row_scores = "row_scores"
    no_critic = "no_critic"


DESCRIPTIONS = {
    Need.current_weights: "episodes that are sampled with the weights before the update",
    Need.current_policies: "episodes in which all agents act with their current policies",
    Need.known_scores: "the scores of an iteration before the next one begins",
    Need.fixed_scores: "scores that depend on their own response alone",
    Need.own_rows: "rows that the agent's own policy has sampled",
    Need.one_candidate: "rows of one episode each",
    Need.one_turn: "responses of one turn",
    Need.groups: "several responses to each prompt",
    Need.critic: "values of a critic",
    Need.policy_samples: "responses that the trained policy has sampled",
    Need.greedy_samples: "responses that are decoded greedily",
    Need.sampler_logprobs: "log-probabilities of the sampler",
    Need.adapter_transfer: "adapters to be sent to the engine",
    Need.equal_scores: "groups of equal scores, from which it learns too",
    Need.row_scores: "one score for all turns of a row",
    Need.no_critic: "a run without a critic",
}


class Claim(NamedTuple):
    """A setting that needs something; `remedy` makes the need go away."""

    needs: tuple[Need, ...]
    setting: str
    remedy: str


class Taker(NamedTuple):
    """A setting that takes something away: its effect, and what would leave it."""

    takes: tuple[Need, ...]
    setting: str
    effect: str
    remedy: str


ADVANTAGE_NEEDS = {
    Advantage.gae: (Need.equal_scores,),
    Advantage.reward_to_go: (Need.equal_scores,),
    Advantage.group: (Need.row_scores,),
    Advantage.leave_one_out: (Need.row_scores,),
    Advantage.greedy_baseline: (Need.current_weights, Need.greedy_samples, Need.equal_scores, Need.row_scores),
    Advantage.function: (Need.own_rows,),
    Advantage.none: (Need.own_rows, Need.equal_scores, Need.row_scores),
}


def check_needs(config: Config) -> Iterator[ConfigError]:
    """Yield an error for each setting that needs what another one takes away."""
    takers = list(_list_takers(config))
    for claim in _list_claims(config):
        yield from _compare(claim, takers)


def check_taker(config: Config, taker: Taker) -> None:
    """Raise `ConfigError` if a setting of the run needs what code of a user takes away."""
    for error in find_lost_needs(config, taker.setting, (), [taker]):
        raise error


def find_lost_needs(
    config: Config, setting: str, needs: Sequence[Need], takers: Sequence[Taker]
) -> Iterator[ConfigError]:
    """Yield an error for each need of code of a user that the run takes away, and for each of the run's that `takers`,
    what this code takes away, take.
    """
    yield from _compare(Claim(tuple(needs), setting, "another method"), list(_list_takers(config)))
    for claim in _list_claims(config):
        yield from _compare(claim, takers)


def _list_claims(config: Config) -> Iterator[Claim]:
    yield from (*_list_advantage_claims(config), *_list_algorithm_claims(config), *_list_run_claims(config))


def check_own_needs(config: Config, setting: str, names: Sequence[str]) -> None:
    """Raise `ConfigError` if the needs of a user's method are unknown, or taken away."""
    check_need_names(setting, names)
    for error in find_lost_needs(config, setting, [Need(name) for name in names], ()):
        raise error


def check_need_names(setting: str, names: Iterable[str]) -> None:
    """Raise `ConfigError` for a name that is no need."""
    known = [need.value for need in Need]
    for name in names:
        if name not in known:
            raise ConfigError(setting, f"has the unknown need {name!r:.40}", f"use some of {' '.join(known)}")


def _compare(claim: Claim, takers: Sequence[Taker]) -> Iterator[ConfigError]:
    for taker in takers:
        lost = [need for need in claim.needs if need in taker.takes]
        if lost and taker.setting != claim.setting:
            rule = f"needs {DESCRIPTIONS[lost[0]]}, and {taker.setting} {taker.effect}"
            yield ConfigError(claim.setting, rule, f"use {taker.remedy}, or {claim.remedy}")


def _list_takers(config: Config) -> Iterator[Taker]:
    team, rollout, task = config.team, config.rollout, config.task
    if rollout.collects_ahead:
        yield Taker(
            (Need.current_weights, Need.known_scores),
            "rollout.ahead=1",
            "samples the next episodes while this iteration trains",
            "rollout.ahead=0",
        )
    if team.opponent_pool.every:
        yield Taker(
            (Need.current_policies,),
            f"team.opponent_pool.every={team.opponent_pool.every}",
            "lets snapshots of earlier policies act for some agents",
            "team.opponent_pool.every=0",
        )
    if team.share_rollouts:
        yield Taker(
            (Need.own_rows,),
            "team.share_rollouts=true",
            "adds the responses of other agents",
            "team.share_rollouts=false",
        )
    if rounds := rollout.refill_rounds:
        setting = f"rollout.refill_rounds={rounds}"
        yield Taker((Need.equal_scores,), setting, "replaces such groups", "rollout.refill_rounds=0")
    if samples_alternatives(config) and not (isinstance(task, ConversationConfig) and task.is_one_turn_per_agent):
        alternatives = f"reward.credit_alternatives={config.reward.credit_alternatives}"
        setting = f"reward.credit_assignment={config.reward.credit_assignment.value} {alternatives}"
        yield Taker((Need.row_scores,), setting, "gives a credit for each turn", "reward.credit_assignment=none")
    for setting, effect, remedy in buffer_dependent_scores(config.reward):
        yield Taker((Need.fixed_scores,), setting, effect, remedy)
    if rollout.num_generations == 1:
        yield Taker((Need.groups,), "rollout.num_generations=1", "samples one", "rollout.num_generations=4")
    if any(agent.critic.kind is CriticKind.none for agent in task.agents.values() if not agent.frozen):
        yield Taker((Need.critic,), "critic=none", "trains none", "critic=separate")
    for kind in {agent.critic.kind for agent in task.agents.values() if not agent.frozen} - {CriticKind.none}:
        yield Taker((Need.no_critic,), f"critic={kind.value}", "trains values that it does not use", "critic=none")
    if not (isinstance(task, ConversationConfig) and task.is_one_turn_per_agent):
        yield Taker((Need.one_turn,), f"task.kind={task.kind}", "has episodes of several turns", "a task of one turn")


def _list_advantage_claims(config: Config) -> Iterator[Claim]:
    team = config.team
    if needs := ADVANTAGE_NEEDS.get(config.algorithm.estimator):
        yield Claim(needs, f"algorithm.advantage={config.algorithm.advantage}", "another algorithm.advantage")
    if team.share_rollouts:
        yield Claim((Need.fixed_scores,), "team.share_rollouts=true", "team.share_rollouts=false")


def _list_algorithm_claims(config: Config) -> Iterator[Claim]:
    """Keys of `algorithm` that belong to a row or to samples of its agent."""
    algorithm = config.algorithm
    kl, level, both = algorithm.kl, algorithm.behavior_correction.level, (Need.own_rows, Need.one_candidate)
    if algorithm.reweight.method is not Reweight.none:
        yield Claim(
            (*both, Need.row_scores),
            f"algorithm.reweight.method={algorithm.reweight.method.value}",
            "algorithm.reweight.method=none",
        )
    if coef := algorithm.positive_nll.coef:
        yield Claim(both, f"algorithm.positive_nll.coef={coef:g}", "algorithm.positive_nll.coef=0")
    if coef := kl.reward.coef:
        remedy = "algorithm.kl.reward.coef=0 with algorithm.kl.loss.coef and algorithm.kl.loss.estimator=full"
        yield Claim((*both, Need.policy_samples), f"algorithm.kl.reward.coef={coef:g}", remedy)
    if kl.loss.coef and kl.loss.estimator != "full":
        setting = f"algorithm.kl.loss.coef={kl.loss.coef:g} algorithm.kl.loss.estimator={kl.loss.estimator}"
        yield Claim((Need.own_rows, Need.policy_samples), setting, "algorithm.kl.loss.estimator=full")
    if algorithm.target_kl is not None:
        yield Claim((Need.own_rows,), f"algorithm.target_kl={algorithm.target_kl}", "algorithm.target_kl=null")
    if algorithm.normalization_scope is NormalizationScope.team:
        remedy = "algorithm.normalization_scope=agent"
        yield Claim((Need.own_rows,), "algorithm.normalization_scope=team", remedy)
    if algorithm.truncation is Truncation.mask:
        yield Claim((Need.one_candidate,), "algorithm.truncation=mask", "algorithm.truncation=penalty or none")
    if algorithm.ratio_level is RatioLevel.sequence:
        yield Claim((Need.one_candidate,), "algorithm.ratio_level=sequence", "algorithm.ratio_level=turn or token")
    if level is WeightLevel.sequence:
        setting = "algorithm.behavior_correction.level"
        yield Claim((Need.one_candidate,), f"{setting}=sequence", f"{setting}=token")
    if level is not WeightLevel.none:
        setting = "algorithm.behavior_correction.level"
        yield Claim((Need.sampler_logprobs,), f"{setting}={level.value}", f"{setting}=none")
    if algorithm.ratio_base is RatioBase.sampler:
        yield Claim((Need.sampler_logprobs,), "algorithm.ratio_base=sampler", "algorithm.ratio_base=policy")


def _list_run_claims(config: Config) -> Iterator[Claim]:
    team, rollout, reward = config.team, config.rollout, config.reward
    if team.update_order is UpdateOrder.sequential:
        remedy = "team.update_order=simultaneous"
        yield Claim((Need.own_rows, Need.one_candidate), "team.update_order=sequential", remedy)
    if every := team.opponent_pool.every:
        setting = f"team.opponent_pool.every={every}"
        yield Claim((Need.current_weights, Need.own_rows), setting, "team.opponent_pool.every=0")
    if config.critic.kind is CriticKind.centralized:
        yield Claim((Need.own_rows,), "critic=centralized", "critic=separate or value_head")
    if config.mode is Mode.critic:
        yield Claim((Need.own_rows, Need.sampler_logprobs), "mode=critic", "mode=train")
    if not rollout.recompute_logprobs:
        setting = "rollout.recompute_logprobs"
        yield Claim((Need.sampler_logprobs,), f"{setting}=false", f"{setting}=true")
    if rollout.verifies_drafts:
        setting = "rollout.on_policy"
        yield Claim((Need.current_weights,), f"{setting}=exact", f"{setting}=approximate")
    if (limit := rollout.gap_limit) is not None:
        yield Claim((Need.sampler_logprobs,), f"rollout.max_sampler_gap={limit}", "rollout.max_sampler_gap=null")
    if config.evaluation.greedy:
        yield Claim((Need.greedy_samples,), "evaluation.greedy=true", "evaluation.greedy=false")
    if any(agent.actor.trains_adapter for agent in config.task.agents.values()):
        yield Claim((Need.adapter_transfer,), f"actor.kind={config.actor.kind.value}", "actor=full")
    if rounds := rollout.refill_rounds:
        needs = (Need.known_scores, Need.current_policies, Need.own_rows)
        yield Claim(needs, f"rollout.refill_rounds={rounds}", "rollout.refill_rounds=0")
    if config.task.curriculum.is_active:
        remedy = "task.curriculum.band_low=null band_high=null level_field=null"
        yield Claim((Need.known_scores,), "task.curriculum", remedy)
    is_assigned = reward.credit_assignment is not CreditAssignment.none
    if is_assigned or reward.measure_credit_every:
        setting = f"reward.measure_credit_every={reward.measure_credit_every}"
        if is_assigned:
            setting = f"reward.credit_assignment={reward.credit_assignment.value}"
        replays = needs_replays(config) or samples_alternatives(config)
        needs = (Need.current_policies, *((Need.current_weights,) if replays else ()))
        yield Claim(needs, setting, "reward.credit_assignment=none reward.measure_credit_every=0")
