"""Conditions of policies: large or absent updates, lost entropy, and a sampler that differs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

from ippo_cli.config.schema import ActorKind, AgentConfig, Config, Dtype, Objective, RatioBase
from ippo_cli.config.served_agents import local_agents
from ippo_cli.config.teams import policy_by_agent
from ippo_cli.config.text import join_names
from ippo_cli.diagnosis.finding import (
    Certainty,
    Evidence,
    Finding,
    NotChecked,
    Observations,
    Outcome,
    Row,
    format_value,
    metric_evidence,
)
from ippo_cli.diagnosis.rates import default_rate, describe_rate, lower_rate
from ippo_cli.diagnosis.series import (
    MIN_ROWS,
    column,
    column_mean,
    has_gained,
    policy_key,
    score_change,
    trained_agents,
)

LARGE_KL = 0.1  # nats per token between the sampling and the updated policy, mean over an iteration's steps
LARGE_SAMPLED_KL, HUGE_SAMPLED_KL = 0.3, 1.0  # nats per token, a mean over few tokens: in two iterations, in one
LARGE_ENTROPY_STEP = 0.5  # nats per token between two iterations
MIN_LARGE_STEPS = 2  # iterations with a large update
SMALL_UPDATE = 1e-8  # sum of learning rates below which float32 weights of usual size do not change
FEW_ROWS = 3  # iterations before a policy that does not change is reported
RATIO_NOISE = 1e-2  # |ratio - 1| before the first step: a hundred times the rounding of float32
SAMPLER_NOISE = {Dtype.fp32: 1e-3, Dtype.bf16: 3e-2}  # mean difference of probabilities
GONE_ENTROPY = 0.05  # fraction of the first entropy
GONE_NATS = 0.02  # or nats per token
SMALL_GAIN = 0.25  # of the distance from the first mean score to the best sampled score


def find_large_updates(observations: Observations) -> Outcome:
    """Single iterations change the policy by much, and the score does not rise."""
    if len(observations.rows) < MIN_ROWS:
        return NotChecked(f"needs {MIN_ROWS} iterations")
    names = [name for name in trained_agents(observations.config) if _has_harmful_updates(observations, name)]
    if not names:
        return None
    config, rows = observations.config, observations.rows
    agent = config.task.agents[names[0]]
    keys = [policy_key(config, rows, names[0], f"policy/{key}") for key in ("approx_kl", "clip_fraction", "entropy")]
    scores = column(rows, f"{names[0]}/score/mean")
    return Finding(
        agents=tuple(names),
        text=f"single iterations change the policy of {join_names(names)} by much, and its score does not rise "
        f"({scores[0]:.3f} -> {scores[-1]:.3f}): {describe_rate(agent)} is too high",
        advice="lower it, or limit the change of an iteration",
        evidence=(
            Evidence("largest change of an iteration", _describe_updates(observations, names[0])),
            *(metric_evidence(rows, key) for key in keys if any(key in row for row in rows)),
            metric_evidence(rows, f"{names[0]}/score/mean"),
        ),
        overrides=(
            lower_rate(agent, 10),
            *(("algorithm.target_kl=0.02",) if _has_several_steps(observations, names[0]) else ()),
            *(("actor.max_grad_norm=1.0",) if agent.actor.max_grad_norm != 1.0 else ()),
        ),
    )


def _has_several_steps(observations: Observations, name: str) -> bool:
    """Whether an iteration has steps after the first one, which `algorithm.target_kl` can leave out."""
    config, rows = observations.config, observations.rows
    steps = column(rows, f"{policy_by_agent(config)[name]}/policy/steps")
    return config.algorithm.objective != Objective.on_policy and max(steps, default=2.0) > 1


def _has_harmful_updates(observations: Observations, name: str) -> bool:
    kl, entropy = _update_sizes(observations, name)
    sampled = observations.sampled_kl.get(name, {}).values()
    counts = (
        sum(value > LARGE_KL for value in kl),
        sum(value > LARGE_ENTROPY_STEP for value in entropy),
        sum(value > LARGE_SAMPLED_KL for value in sampled),
        # Few iterations are sampled, and a policy that has collapsed changes no more.
        MIN_LARGE_STEPS * any(value > HUGE_SAMPLED_KL for value in sampled),
    )
    return max(counts) >= MIN_LARGE_STEPS and not has_gained(observations, name)


def _update_sizes(observations: Observations, name: str) -> tuple[list[float], list[float]]:
    """KL per iteration, and absolute changes of the entropy between iterations, in nats per token."""
    config, rows = observations.config, observations.rows
    entropy = column(rows, policy_key(config, rows, name, "policy/entropy"))
    kl = column(rows, policy_key(config, rows, name, "policy/approx_kl"))
    return kl, [abs(after - before) for before, after in pairwise(entropy)]


def _describe_updates(observations: Observations, name: str) -> str:
    kl, entropy = _update_sizes(observations, name)
    sampled = max(observations.sampled_kl.get(name, {}).values(), default=0.0)
    after = f", KL of sampled tokens {format_value(sampled)}" if sampled > LARGE_SAMPLED_KL else ""
    largest = [format_value(max(values, default=0.0)) for values in (kl, entropy)]
    return f"approx_kl {largest[0]}, entropy by {largest[1]} nats{after}"


def find_unchanged_policy(observations: Observations) -> Outcome:
    """The weights of a policy or adapter do not change."""
    if len(observations.rows) < FEW_ROWS:
        return NotChecked(f"needs {FEW_ROWS} iterations")
    reasons = {name: _unchanged_reason(observations, name) for name in trained_agents(observations.config)}
    found = {name: reason for name, reason in reasons.items() if reason is not None}
    if not found:
        return None
    name = next(iter(found))
    agent = observations.config.task.agents[name]
    what = "adapter" if _is_adapter(agent) else "policy"
    return Finding(
        agents=tuple(found),
        text=f"the {what} of {join_names(list(found))} does not change: {found[name][0]}",
        advice="nothing is learned; correct the learning rate, its schedule, or what is trained",
        evidence=found[name][1],
        overrides=(default_rate(agent), "algorithm.critic_warmup=0", "actor.warmup_iterations=0"),
        certainty=Certainty.certain,
    )


def _is_adapter(agent: AgentConfig) -> bool:
    return agent.actor.kind in (ActorKind.lora, ActorKind.tiny_lora)


def _unchanged_reason(observations: Observations, name: str) -> tuple[str, tuple[Evidence, ...]] | None:
    """Why an agent's weights cannot have changed, with evidence; None if they may have."""
    rows, config = observations.rows, observations.config
    holder = policy_by_agent(config)[name]
    part = next((part for part in ("policy", "joint") if any(f"{holder}/{part}/steps" in row for row in rows)), None)
    if part is None:
        return None
    rate, steps, norm = (f"{holder}/{part}/{key}" for key in ("learning_rate", "steps", "grad_norm"))
    counts = column(rows, steps)
    if not counts:
        return None  # no row has the number: nothing is known
    total_steps = sum(counts)
    if not total_steps:
        warmup = config.algorithm.critic_warmup
        return f"no optimizer step in {len(rows)} iterations (algorithm.critic_warmup={warmup})", (
            metric_evidence(rows, steps),
        )
    largest = sum(row.get(rate, 0.0) * row.get(steps, 0.0) for row in rows)
    if observations.is_from_start and largest < SMALL_UPDATE:
        return f"the learning rate is {format_value(max(column(rows, rate), default=0.0))}", (
            metric_evidence(rows, rate),
            Evidence("sum of learning rates over steps", format_value(largest)),
        )
    skipped = f"{holder}/{part}/skipped_steps"
    if total_steps == sum(column(rows, skipped)):
        return f"all {total_steps:g} optimizer steps were skipped, because gradients were not finite", (
            metric_evidence(rows, skipped),
        )
    norms = column(rows, norm)
    if norms and not any(norms):
        return "all gradients are 0", (metric_evidence(rows, norm),)
    if name in observations.unchanged_adapters:
        return "in the newest checkpoint it still adds 0 to its base (B = 0)", (metric_evidence(rows, norm),)
    return None


def find_masked_tokens(observations: Observations) -> Outcome:
    """The objective leaves all tokens of a policy without a gradient."""
    rows, config = observations.rows, observations.config
    names = [name for name in trained_agents(config) if _masked_evidence(config, rows, name)]
    if not names:
        return None
    evidence = _masked_evidence(config, rows, names[0])
    deviates = any(part.name.endswith("/ratio_first_step_deviation") for part in evidence)
    when = " before the first step" if deviates else ""
    return Finding(
        agents=tuple(names),
        text=f"every token of {join_names(names)} is masked or clipped{when}: all gradients are 0",
        advice="use the trained model's probabilities in the ratio, or wider ranges",
        evidence=evidence,
        overrides=(
            "algorithm.ratio_base=policy"
            if config.algorithm.ratio_base is RatioBase.sampler
            else "rollout.recompute_logprobs=true",
            *(
                ("algorithm.behavior_correction.band_low=null algorithm.behavior_correction.band_high=null",)
                if config.algorithm.behavior_correction.band_low is not None
                else ()
            ),
        ),
        certainty=Certainty.certain,
    )


def _masked_evidence(config: Config, rows: Sequence[Row], name: str) -> tuple[Evidence, ...]:
    """Metrics of the last row with policy steps if all of its tokens are masked; empty otherwise."""
    holder = policy_by_agent(config)[name]
    row = next((row for row in reversed(rows) if f"{holder}/policy/clip_fraction" in row), None)
    if row is None:
        return ()
    clipped, norm, weights = f"{holder}/policy/clip_fraction", f"{holder}/policy/grad_norm", f"{name}/rollout/ess_ratio"
    has_no_loss = config.algorithm.objective == Objective.mask or row.get(norm) == 0.0
    masked = [key for key, value in ((clipped, 1.0), (weights, 0.0)) if row.get(key) == value]
    if not masked or not (weights in masked or has_no_loss):
        return ()
    found = [metric_evidence([row], key) for key in (*masked, norm) if key in row]
    deviation = f"{holder}/policy/ratio_first_step_deviation"
    if row.get(deviation, 0.0) > RATIO_NOISE:
        found.append(metric_evidence([row], deviation, "rounding is below 1e-4"))
    return tuple(found)


def find_sampler_mismatch(observations: Observations) -> Outcome:
    """Sampled tokens have other probabilities in the trained model than in the sampler."""
    rows, config = observations.rows, observations.config
    # Engines round differently than the trainer; rollout=hf samples with the trained model.
    if config.algorithm.ratio_base is RatioBase.sampler and config.rollout.engines is not None:
        return NotChecked("with algorithm.ratio_base=sampler the difference is part of the ratio")
    names = [name for name in trained_agents(config) if _mismatch_evidence(config, rows, name)]
    if not names:
        has_ratios = any(key.endswith("/ratio_first_step_deviation") or "/prob_diff/sampler" in key for key in rows[-1])
        is_float32 = all(agent.actor.dtype is Dtype.fp32 for agent in local_agents(config).values())
        if has_ratios and (is_float32 or config.rollout.recompute_logprobs):
            return None
        return NotChecked("needs ratios in float32, or rollout.recompute_logprobs=true, which compares them in bf16")
    return Finding(
        agents=tuple(names),
        text=f"sampler and trained model of {join_names(names)} give the same tokens other probabilities, before any "
        "step",
        advice="use log-probabilities of the trained model in ratios",
        evidence=tuple(part for name in names for part in _mismatch_evidence(config, rows, name)),
        overrides=(
            "algorithm.ratio_base=policy"
            if config.algorithm.ratio_base is RatioBase.sampler
            else "rollout.recompute_logprobs=true",
            "algorithm.behavior_correction.level=token algorithm.behavior_correction.cap=2.0",
            "actor.dtype=fp32",
        ),
        certainty=Certainty.certain,
    )


def _mismatch_evidence(config: Config, rows: Sequence[Row], name: str) -> tuple[Evidence, ...]:
    """Metrics of the difference beyond rounding; empty if there is none."""
    dtype, holder = config.task.agents[name].actor.dtype, policy_by_agent(config)[name]
    deviation = f"{holder}/policy/ratio_first_step_deviation"
    difference = f"{name}/rollout/prob_diff/sampler"
    found = []
    # Episodes that were collected ahead have the ratio of an update.
    is_current = config.rollout.recompute_logprobs or not config.rollout.collects_ahead
    if dtype is Dtype.fp32 and is_current and _median(rows, deviation) > RATIO_NOISE:
        found.append(metric_evidence(rows, deviation, "rounding is below 1e-4"))
    # Engines record probabilities of the filtered distribution.
    is_comparable = not (config.rollout.engines is not None and config.task.agents[name].rollout.has_filters)
    if is_comparable and _median(rows, difference) > SAMPLER_NOISE[dtype]:
        found.append(metric_evidence(rows, difference, f"rounding is below {SAMPLER_NOISE[dtype]:g}"))
    return tuple(found)


def _median(rows: Sequence[Row], key: str) -> float:
    return median(column(rows, key) or [0.0])


def find_entropy_loss(observations: Observations) -> Outcome:
    """The policy is deterministic before it has learned much."""
    if len(observations.rows) < MIN_ROWS:
        return NotChecked(f"needs {MIN_ROWS} iterations")
    names = [name for name in trained_agents(observations.config) if _is_prematurely_certain(observations, name)]
    if not names:
        return None
    rows, algorithm = observations.rows, observations.config.algorithm
    key = policy_key(observations.config, rows, names[0], "policy/entropy")
    raised = max(10 * algorithm.entropy_coef, 0.01)
    return Finding(
        agents=tuple(names),
        text=f"the entropy of {join_names(names)} is gone and the score has hardly risen: the policy tries no other "
        "responses",
        advice="resume an earlier checkpoint or start again, with more exploration",
        evidence=(metric_evidence(rows, key), metric_evidence(rows, f"{names[0]}/score/mean")),
        overrides=(
            f"algorithm.entropy_coef={raised:g}",
            lower_rate(observations.config.task.agents[names[0]], 3),
            "algorithm.kl.reward.coef=0.01",
        ),
    )


def _is_prematurely_certain(observations: Observations, name: str) -> bool:
    """Whether the entropy fell to almost 0, and the mean score came hardly nearer to the best sampled score."""
    rows = observations.rows
    entropy = column(rows, policy_key(observations.config, rows, name, "policy/entropy"))
    change = score_change(observations, name)
    if not entropy or change is None or not observations.is_from_start:
        return False
    last = fmean(entropy[-max(len(entropy) // 4, 2) :])
    is_gone = last < max(GONE_ENTROPY * entropy[0], GONE_NATS) and entropy[0] > 2 * GONE_NATS
    spread = column_mean(rows[: max(len(rows) // 4, 2)], f"{name}/score/std")
    best = _best_score(observations, name, change.first + 2 * spread)
    return is_gone and change.gain < SMALL_GAIN * (best - change.first)


def _best_score(observations: Observations, name: str, default: float) -> float:
    """The best score of a sampled response; `default` without samples."""
    scores = [episode.get("agents", {}).get(name, {}).get("score") for episode in observations.episodes]
    return max([score for score in scores if isinstance(score, int | float)], default=default)


def find_skipped_steps(observations: Observations) -> Outcome:
    """Optimizer steps were skipped in the last iteration."""
    from ippo_cli.config.teams import agents_by_critic, agents_by_policy

    row, config = observations.rows[-1], observations.config
    skipped = [
        holder
        for holder in dict.fromkeys((*agents_by_policy(config), *agents_by_critic(config)))
        if any(
            key.startswith(f"{holder}/") and key.endswith("/skipped_steps") and value > 0 for key, value in row.items()
        )
    ]
    if not skipped:
        return None
    keys = [key for key, value in row.items() if key.endswith("/skipped_steps") and value > 0]
    return Finding(
        agents=tuple(skipped),
        text=f"optimizer steps of {join_names(skipped)} were skipped because gradients were not finite",
        advice="try a lower learning_rate",
        evidence=tuple(metric_evidence(observations.rows, key) for key in keys),
        overrides=(lower_rate(next(iter(config.task.agents.values())), 10), "actor.dtype=fp32"),
        certainty=Certainty.certain,
    )
