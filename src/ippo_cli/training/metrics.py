"""What is logged, and what each number means; `docs/metrics.md` is generated from this table."""

from __future__ import annotations

import math
import re
import resource
import sys
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ippo_cli.agents.agent import Agent
from ippo_cli.engine import distributed
from ippo_cli.formulas import masked_mean, reward_to_go
from ippo_cli.types import CriticView, Episode, Experience, Rollout, Scores, Targets

ROUNDING = 16.0  # steps of a float by which returns differ that are sums of the same
ZERO = 1e-6  # credit that is none but for rounding
# Of a learner's update, what is also known of each agent and turn.
OF_UPDATES = (
    *(f"policy/{name}" for name in ("loss", "entropy", "kl_loss", "approx_kl", "ratio", "clip_fraction", "correction")),
    "value/loss",
)

# `<agent>`, `<turn>`, `<part>`, `<mode>` (sampled, greedy) and `<how>` (difference, counterfactual, leave_out) stand
# for names; `<learner>` for the agent's, or for that of the group whose agents share their weights.
METRICS: dict[str, str] = {
    "iteration": "passes of the corridor that are done; the row of 0 is the evaluation before training",
    "<agent>/score/mean": "mean score of the buffer after mixing, before the processor chain, of rows that have one; "
    "null where none has",
    "<agent>/score/std": "standard deviation of the same scores",
    "<agent>/score/processed/mean": "mean score less what credit_assignment subtracts and after the processor chain, "
    "where there is either: what is learnt from",
    "<agent>/score/processed/std": "standard deviation of the same scores",
    "<agent>/score/failed_share": "share of rows without a usable reward; they are not trained on",
    "<agent>/score/part/<part>": "mean of a further number that the reward reports; null where no row has one",
    "<agent>/rollout/response_length": "mean action tokens per response, the stop token included",
    "<agent>/rollout/truncated_share": "share of rows cut at a limit instead of ending by themselves: their last "
    "response, or their episode; of those in which the agent spoke",
    "<agent>/rollout/turns": "several turns: mean own turns per episode",
    "<agent>/rollout/observation_tokens": "several turns: mean tokens per episode that are read after the first prompt",
    "<agent>/rollout/cut_share": "several turns: share of own turns whose response was cut at a limit",
    "<agent>/rollout/overflow_share": "several turns: share of episodes cut because the agent's context had no room "
    "(rollout.history=latest: or rollout.max_prompt_tokens)",
    "<agent>/score/turn/<turn>": "several turns, the first tracker.turns: mean score of an own turn, counted from 1, "
    "where there was one; before the processor chain",
    "<agent>/rollout/response_length/turn/<turn>": "several turns: mean action tokens of that turn",
    "<agent>/rollout/cut_share/turn/<turn>": "several turns: share of those turns whose response was cut at a limit",
    "<agent>/rollout/logprob/turn/<turn>": "several turns: mean log-probability per action token of that turn",
    "<agent>/targets/reward/turn/<turn>": "several turns: mean per-token reward, KL term included",
    "<agent>/targets/value/turn/<turn>": "several turns: mean value of the states before the turn's action tokens",
    "<agent>/targets/return/turn/<turn>": "several turns: mean return of the turn's action tokens",
    "<agent>/targets/advantage/turn/<turn>": "several turns: mean advantage over the turn's action tokens",
    "<agent>/targets/advantage_spread/turn/<turn>": "several turns: standard deviation of the same advantages",
    "<agent>/value/explained_variance/turn/<turn>": "several turns: of the values of that turn; null where the returns "
    "are equal",
    "<agent>/kl/reference/turn/<turn>": "several turns: mean log-ratio (k1) of the turn's tokens to the initial policy",
    "<agent>/credit/<how>/mean": "mean of the agent's score less what it would have been otherwise (reward."
    "credit_assignment, or measure_credit_every for difference), where both are known",
    "<agent>/credit/<how>/std": "standard deviation of the same differences",
    "<agent>/credit/<how>/zero_share": "share of them that are 0: what the agent wrote changed nothing",
    "<agent>/credit/<how>/unknown_share": "share of rows in which the agent spoke without such a difference",
    "<agent>/credit/<how>/mean/turn/<turn>": "several turns: mean difference at that turn",
    "<agent>/rollout/logprob": "mean log-probability per action token when sampled",
    "<agent>/rollout/filter_gap": "mean log-probability under the sampling filters minus the unfiltered one",
    "<agent>/rollout/sampler_gap": "recompute_logprobs: mean |p_train - p_sampler| of the sampled tokens",
    "<agent>/rollout/sampler_gap_max": "recompute_logprobs: the largest such difference",
    "<agent>/targets/reward": "mean per-token reward, KL term included",
    "<agent>/targets/value": "mean value of the states before action tokens",
    "<agent>/targets/return": "mean return",
    "<agent>/targets/advantage_spread": "standard deviation over action tokens of the advantages that are trained on",
    "<agent>/targets/zero_advantage_fraction": "share of responses whose advantages are all 0 (groups of equal scores)",
    "<agent>/targets/drawn_share": "share of responses drawn at least once; 1 without algorithm.reweight",
    "<agent>/rollout/effective_sample_share": "(sum w)^2 / (n sum w^2) of the behaviour weights, where there are any",
    "<agent>/rollout/probability_gap": "mean |p of the policy - p that a token was drawn with|, filters included",
    "<agent>/score/greedy": "algorithm.advantage=greedy_baseline: mean score of the greedy responses",
    "<agent>/kl/reference": "mean log-ratio (k1) of the sampled tokens to the initial policy",
    "<agent>/kl/reward_coef": "coefficient of the reward's KL term in this iteration",
    "<learner>/policy/learning_rate": "the actor's learning rate in this iteration",
    "<learner>/policy/loss": "mean policy loss per token, without entropy and KL terms",
    "<learner>/policy/entropy": "mean entropy per token of the tempered distribution, nats",
    "<learner>/policy/kl_loss": "mean KL estimate in the loss, before its coefficient",
    "<learner>/policy/approx_kl": "mean KL (k3) from the sampling policy to the current one, over all steps",
    "<learner>/policy/ratio": "mean probability ratio in the first epoch",
    "<learner>/policy/ratio_max_deviation": "largest |ratio - 1| in the first epoch",
    "<learner>/policy/ratio_first_step_deviation": "largest |ratio - 1| before the first optimizer step: "
    "numerical noise",
    "<learner>/policy/clip_fraction": "share of tokens whose ratio lies outside the clip range",
    "<learner>/policy/grad_norm": "mean gradient norm before clipping",
    "<learner>/policy/steps": "optimizer steps in this iteration",
    "<learner>/policy/skipped_steps": "optimizer steps not applied because a gradient was not finite",
    "<learner>/policy/stopped_early": "1 where target_kl ended the iteration's policy steps",
    "<learner>/policy/order": "team.update_order=sequential: place in this iteration's order, from 1",
    "<learner>/policy/correction": "team.update_order=sequential: mean factor of the advantages per token",
    "<learner>/policy/correction_max": "team.update_order=sequential: the largest such factor",
    "<learner>/value/learning_rate": "the critic's learning rate in this iteration",
    "<learner>/value/loss": "mean value loss per token, before value_loss_coef",
    "<learner>/value/grad_norm": "mean gradient norm before clipping",
    "<learner>/value/steps": "optimizer steps in this iteration",
    "<learner>/value/skipped_steps": "optimizer steps not applied because a gradient was not finite",
    **{
        f"<agent>/{name}{turn}": text
        for turn, text in (
            ("", "shared weights: the same of this agent's tokens alone"),
            ("/turn/<turn>", "several turns: the same of this agent's tokens of that turn"),
        )
        for name in OF_UPDATES
    },
    "<agent>/value/explained_variance": "1 - Var(return - value) / Var(return) of the values when sampled; null where "
    "all returns are equal",
    "<agent>/value/read_tokens": "critic=centralized: mean tokens per episode that the critic reads for the agent",
    "<agent>/value/left_out_share": "critic=centralized: share of episodes of which something did not fit into the "
    "critic's context",
    "<learner>/joint/learning_rate": "critic=value_head: the one engine's learning rate",
    "<learner>/joint/grad_norm": "critic=value_head: mean gradient norm of the joint loss before clipping",
    "<learner>/joint/steps": "critic=value_head: optimizer steps in this iteration",
    "<learner>/joint/skipped_steps": "critic=value_head: optimizer steps not applied",
    "<learner>/joint/stopped_early": "critic=value_head: 1 where target_kl ended the iteration's steps",
    "team/partners/iteration": "team.partners: the iteration whose weights were partners in this one",
    "team/partners/share": "team.partners: share of the episodes in which they were",
    "team/partners/size": "team.partners: snapshots in the pool",
    "team/elo/<learner>": "team.partners.elo: rating of the current policy by its games since the newest snapshot, "
    "above the policy before training; null before the first",
    "eval/<mode>/score": "held-out score, mean over agents, before the processor chain",
    "eval/<mode>/<part>": "held-out mean of a further number that the reward reports",
    "eval/<mode>/failed_share": "share of held-out rows without a usable reward",
    "eval/<mode>/<agent>/score": "held-out score of one agent",
    "eval/<mode>/<agent>/response_length": "mean action tokens per held-out response",
    "eval/<mode>/<agent>/truncated_share": "share of held-out rows cut at a limit: their last response, or their "
    "episode; of those in which the agent spoke",
    "eval/<mode>/<agent>/turns": "several turns: mean own turns per held-out episode",
    "eval/<mode>/<agent>/cut_share": "several turns: share of own held-out turns whose response was cut at a limit",
    "eval/<mode>/<agent>/overflow_share": "several turns: share of held-out episodes cut because the agent's context "
    "had no room",
    "eval/<mode>/<agent>/score/turn/<turn>": "several turns: mean held-out score of that turn, where there was one",
    "eval/<mode>/<agent>/response_length/turn/<turn>": "several turns: mean action tokens of that held-out turn",
    "eval/<mode>/<agent>/cut_share/turn/<turn>": "several turns: share of those turns whose response was cut at a "
    "limit",
    "time/iteration": "seconds of the whole iteration",
    "time/rollout": "seconds of playing episodes: generation, and environments",
    "time/partners": "team.partners: seconds of keeping a snapshot",
    "time/environments": "seconds of time/rollout in which environments were reset and stepped",
    "time/score": "seconds of the reward",
    "time/credit": "seconds of what credit is measured against: episodes played anew, and their rewards",
    "time/logprobs": "seconds of rollout.recompute_logprobs",
    "time/targets": "seconds of values, reference log-probabilities and advantages",
    "time/update": "seconds of the optimizer steps",
    "time/evaluation": "seconds of the evaluation",
    "time/checkpoint": "seconds of the checkpoint that was written before this iteration",
    "perf/tokens_per_second": "generated tokens per second of the rollout, all agents and ranks",
    "perf/samples_per_second": "rows (one agent's part of an episode) per second of the whole iteration, all ranks",
    "perf/peak_memory_mib": "largest resident (CPU) or allocated (CUDA) memory of any rank so far",
}
_PATTERNS = [
    re.compile("^" + re.sub(r"<\w+>", r"[^/]+", re.escape(key).replace(r"\<", "<").replace(r"\>", ">")) + "$")
    for key in METRICS
]


def is_documented(key: str) -> bool:
    """Whether a metric's name is one of the table's."""
    return any(pattern.match(key) for pattern in _PATTERNS)


def iteration_row(
    iteration: int,
    agents: Mapping[str, Agent],
    experience: Experience,
    targets: Mapping[str, Targets],
    kl_coefs: Mapping[str, float | None],
    stats: Iterable[Mapping[str, float]],
    turns: Mapping[str, int | None],
) -> dict[str, float]:
    """The row of an iteration but for its pace.

    `stats`: each learner's numbers of its update, by their full names. `turns`: how many each agent may have in an
    episode, None without a limit; the same on all ranks.
    """
    row: dict[str, float] = {"iteration": iteration}
    for name, agent in agents.items():
        sampled, rollout, scores = experience.sampled[name], experience.rollouts[name], experience.scores[name]
        row |= prefixed(name, rollout_metrics(rollout, scores, targets[name], kl_coefs[name]))
        if turns[name] != 1:
            row |= prefixed(name, turn_metrics(experience.episodes, name, rollout))
        row |= prefixed(name, target_metrics(rollout, targets[name], has_values=agent.has_values))
        if name in experience.greedy:
            row |= prefixed(name, greedy_metrics(*experience.greedy[name]))
        if agent.has_values:
            gamma = agent.policy.objective.config.gamma
            row[f"{name}/value/explained_variance"] = explained_variance(targets[name], gamma)
        if name in experience.views:
            row |= prefixed(name, view_metrics(experience.views[name]))
        if rollout is not sampled:
            row |= prefixed(name, sampler_gap(sampled, rollout))
    for name in (name for name in experience.sampled if name not in agents):  # frozen
        rollout, scores = experience.rollouts[name], experience.scores[name]
        row |= prefixed(name, rollout_metrics(rollout, scores, None, None))
        if turns[name] != 1:
            row |= prefixed(name, turn_metrics(experience.episodes, name, rollout))
    for numbers in stats:
        row |= numbers
    return row


def pace(
    row: Mapping[str, float],
    agents: Sequence[str],
    buffer_size: int,
    seconds: Mapping[str, float],
    saving_seconds: float,
) -> dict[str, float]:
    """Times and rates of an iteration, never compared between runs. `saving_seconds`: 0 where nothing was saved."""
    total = sum(seconds.values())
    saving = {"checkpoint": saving_seconds} if saving_seconds else {}
    tokens = sum(row[f"{name}/rollout/response_length"] for name in agents) * buffer_size
    return prefixed("time", {**seconds, "iteration": total, **saving}) | {
        "perf/tokens_per_second": tokens / seconds["rollout"],
        "perf/samples_per_second": buffer_size * len(agents) / total,
        "perf/peak_memory_mib": float(distributed.all_max(torch.tensor(peak_memory_mib()))),
    }


def rollout_metrics(
    rollout: Rollout, scores: Scores, targets: Targets | None, kl_coef: float | None
) -> dict[str, float]:
    """One agent's numbers of a buffer over all ranks. `kl_coef`: of the reward, where a reference is kept.

    `targets`: None for an agent that does not learn.
    """
    mask, rows = rollout.response_mask, float(len(rollout.texts))
    per_token = {"rollout/logprob": rollout.logprobs}
    if targets is not None:
        per_token |= {"targets/reward": targets.rewards, "targets/return": targets.returns}
    if rollout.behavior_logprobs is not rollout.logprobs:
        per_token["rollout/filter_gap"] = rollout.behavior_logprobs - rollout.logprobs
    if kl_coef is not None and targets is not None:
        per_token["kl/reference"] = rollout.logprobs - targets.ref_logprobs
    spoke = mask.any(dim=1)
    per_row = {
        "rollout/response_length": mask.sum(dim=1).double(),
        "rollout/truncated_share": (spoke & ~rollout.finished).double(),
        "score/failed_share": scores.failed.double(),
    }
    sums = [masked_mean(numbers.double(), mask) * mask.sum() for numbers in per_token.values()]
    sums += [numbers.sum() for numbers in per_row.values()]
    counts = [mask.sum().double(), spoke.sum().double(), mask.new_tensor(rows, dtype=torch.double)]
    tokens, speaking, count, *found = distributed.all_sum(torch.stack([*counts, *sums])).tolist()
    result = {name: ratio(value, tokens) for name, value in zip(per_token, found, strict=False)}
    result |= {name: value / count for name, value in zip(per_row, found[len(per_token) :], strict=True)}
    result["rollout/truncated_share"] = ratio(result["rollout/truncated_share"] * count, speaking)
    result |= _score_moments("score", scores.raw, scores.valid)
    if scores.score is not scores.raw:
        result |= _score_moments("score/processed", scores.score, scores.valid)
    for name, numbers in scores.parts.items():
        numbers = numbers.to(mask.device)
        told = scores.valid & torch.isfinite(numbers)
        part, _ = distributed.masked_moments(numbers, told)
        result[f"score/part/{name}"] = float(part) if distributed.any_rank(bool(told.any())) else math.nan
    for how, numbers in scores.credit.items():
        result |= prefixed(f"credit/{how}", credit_metrics(numbers, spoke))
    if kl_coef is not None:
        result["kl/reward_coef"] = kl_coef
    return result


def credit_metrics(credit: Tensor, spoke: Tensor) -> dict[str, float]:
    """Of an agent's `credit` `[B, K]`, NaN where it is not known, over all ranks."""
    total = credit.double().sum(dim=1)
    known = torch.isfinite(total) & spoke
    counts = torch.stack([spoke.sum(), known.sum(), (known & (total.abs() <= ZERO)).sum()]).double()
    speaking, told, zero = distributed.all_sum(counts).tolist()
    mean, variance = distributed.masked_moments(total, known)
    return {
        "mean": float(mean) if told else math.nan,
        "std": float(variance) ** 0.5 if told else math.nan,
        "zero_share": ratio(zero, told),
        "unknown_share": ratio(speaking - told, speaking),
    }


def turn_metrics(episodes: Sequence[Episode], agent: str, rollout: Rollout) -> dict[str, float]:
    """Numbers of an agent that may have several turns, over all ranks."""
    read = (rollout.length - rollout.response_mask.sum(dim=1)).sum().item()
    read += sum(len(turn.prompt) for row in rollout.detached for turn in row)
    counts = turn_totals(episodes, agent)
    sums = [counts["episodes"], counts["turns"], float(read), counts["cut"], counts["overflow"]]
    total, spoken, tokens, cut, overflow = distributed.all_sum(
        torch.tensor(sums, dtype=torch.double, device=rollout.length.device)
    ).tolist()
    return {
        "rollout/turns": spoken / total,
        "rollout/observation_tokens": tokens / total,
        "rollout/cut_share": ratio(cut, spoken),
        "rollout/overflow_share": overflow / total,
    }


def turn_totals(episodes: Sequence[Episode], agent: str) -> dict[str, float]:
    """Of this rank: episodes, the agent's turns, how many of them were cut, and episodes that its context ended."""
    turns = [turn for episode in episodes for turn in episode.own(agent)]
    return {
        "episodes": float(len(episodes)),
        "turns": float(len(turns)),
        "cut": float(sum(not turn.completion.finished for turn in turns)),
        "overflow": float(sum(_overflowed(episode, agent) for episode in episodes)),
    }


def _overflowed(episode: Episode, agent: str) -> bool:
    """Whether an episode was cut because what the agent was told left it no room to answer."""
    return episode.truncation == "context" and agent in episode.last_observations and agent not in episode.final


def _score_moments(prefix: str, score: Tensor, valid: Tensor) -> dict[str, float]:
    mean, variance = distributed.masked_moments(score.sum(dim=1), valid)
    there = distributed.any_rank(bool(valid.any()))
    return {
        f"{prefix}/mean": float(mean) if there else math.nan,
        f"{prefix}/std": float(variance) ** 0.5 if there else math.nan,
    }


def ratio(total: float, count: float) -> float:
    """A mean or share; NaN of nothing, which is no number and in no average."""
    return total / count if count else math.nan


def sampler_gap(sampled: Rollout, rescored: Rollout) -> dict[str, float]:
    """How far the sampler's probabilities of its tokens lie from the training model's, over all ranks."""
    mask = sampled.response_mask
    gap = (sampled.logprobs.double().exp() - rescored.logprobs.double().exp()).abs().where(mask, 0.0)
    total, tokens = distributed.all_sum(torch.stack([gap.sum(), mask.sum().double()])).tolist()
    return {
        "rollout/sampler_gap": ratio(total, tokens),
        "rollout/sampler_gap_max": float(distributed.all_max(gap.max())),
    }


def target_metrics(rollout: Rollout, targets: Targets, *, has_values: bool) -> dict[str, float]:
    """One agent's numbers about what its algorithm made of a buffer, over all ranks."""
    mask = targets.loss_mask
    sums = {
        "rows": mask.any(dim=1),
        "silent": mask.any(dim=1) & (targets.advantages == 0).all(dim=1),
        "all": torch.ones_like(targets.sample_counts),
        "drawn": targets.sample_counts > 0,
        "tokens": mask,
        "w": targets.behavior_weights * mask,
        "w2": targets.behavior_weights.square() * mask,
        "gap": (rollout.logprobs.exp() - rollout.behavior_logprobs.exp()).abs() * mask,
        "value": targets.values * mask,
    }
    total = distributed.all_sum(torch.stack([part.double().sum() for part in sums.values()])).tolist()
    of = dict(zip(sums, total, strict=True))
    found = {
        "targets/advantage_spread": float(distributed.masked_moments(targets.advantages, mask)[1]) ** 0.5
        if of["tokens"]
        else math.nan,
        "targets/zero_advantage_fraction": ratio(of["silent"], of["rows"]),
        "targets/drawn_share": of["drawn"] / of["all"],
    }
    if has_values:
        found["targets/value"] = ratio(of["value"], of["tokens"])
    if rollout.behavior_logprobs is not rollout.logprobs:
        found["rollout/effective_sample_share"] = ratio(of["w"] ** 2 / max(of["w2"], 1e-300), of["tokens"])
        found["rollout/probability_gap"] = ratio(of["gap"], of["tokens"])
    return found


def explained_variance(targets: Targets, gamma: float | None) -> float:
    """`1 - Var(returns - values) / Var(returns)` over the regressed values of all ranks.

    NaN where there is nothing to explain: returns are constant but for rounding, or rewards alone would make them so,
    and they vary by the critic's own values (lambda below 1) or not at all.
    """
    mask = targets.value_mask
    _, residual = distributed.masked_moments(targets.returns - targets.values, mask)
    mean, total = distributed.masked_moments(targets.returns, mask)
    value_mean, value_variance = distributed.masked_moments(targets.values, mask)
    # Returns are sums of values and rewards: their rounding is that of the largest of these.
    if _constant(total, mean.square() + total + value_mean.square() + value_variance):
        return math.nan
    earned = reward_to_go(targets.rewards, targets.loss_mask, gamma=1.0 if gamma is None else gamma)
    earned_mean, earned_variance = distributed.masked_moments(earned, mask)
    if _constant(earned_variance, earned_mean.square() + earned_variance):
        return math.nan
    return float(1.0 - residual / total)


def _constant(variance: Tensor, square: Tensor) -> bool:
    """Whether float32 numbers vary by rounding alone that are made of others of this mean square."""
    return float(variance.sqrt()) <= ROUNDING * torch.finfo(torch.float32).eps * float(square.sqrt())


def view_metrics(view: CriticView) -> dict[str, float]:
    """How much a centralised critic reads of an episode, over all ranks."""
    read = view.rollout.prompt_mask.sum() + view.rollout.length.sum()
    read += sum(len(turn.prompt) for row in view.rollout.detached for turn in row)
    sums = torch.stack([read, view.left_out.sum(), torch.ones_like(view.left_out).sum()]).double()
    tokens, left_out, rows = distributed.all_sum(sums).tolist()
    return {"value/read_tokens": tokens / rows, "value/left_out_share": left_out / rows}


def greedy_metrics(rollout: Rollout, scores: Scores) -> dict[str, float]:
    """Of the greedy responses that a baseline is made of."""
    return {"score/greedy": _score_moments("score", scores.raw, scores.valid)["score/mean"]}


def peak_memory_mib() -> float:
    """Peak memory of this rank: allocated on the CUDA device, else resident."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def prefixed(prefix: str, numbers: Mapping[str, float]) -> dict[str, float]:
    """The same numbers under `<prefix>/`."""
    return {f"{prefix}/{name}": value for name, value in numbers.items()}
