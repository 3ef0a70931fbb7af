"""What is logged, and what each number means; `docs/metrics.md` is generated from this table."""

from __future__ import annotations

import re

# Of a learner's update, what is also known of each agent and turn.
UPDATE_METRICS = (
    *(f"policy/{name}" for name in ("loss", "entropy", "kl_loss", "approx_kl", "ratio", "clip_fraction", "correction")),
    "value/loss",
)


# `<agent>`, `<turn>`, `<part>`, `<mode>` (sampled, greedy) and `<how>` (difference, counterfactual, leave_out) stand
# for names; `<learner>` for the agent's, or for that of the group whose agents share their weights.
METRICS: dict[str, str] = {
    "iteration": "iterations that are done; the row of 0 is the evaluation before training",
    "<agent>/score/mean": "mean score of the buffer after mixing, before the processor chain, of rows that have one; "
    "null where none has",
    "<agent>/score/std": "standard deviation of the same scores",
    "<agent>/score/processed/mean": "mean score less what credit_assignment subtracts and after the processor chain, "
    "where there is either: what is learnt from",
    "<agent>/score/processed/std": "standard deviation of the same scores",
    "<agent>/score/failed_share": "share of rows without a usable reward; they are not trained on",
    "<agent>/score/part/<part>": "mean of a further number that the reward reports; null where no row has one",
    "<agent>/rollout/response_length": "mean action tokens per episode, of all turns, stop tokens included",
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
    "<learner>/policy/approx_kl": "mean KL (k3) from the sampling policy to the current one, over all steps; "
    "in bf16 rounding alone gives about .002, see docs/algorithms.md",
    "<learner>/policy/ratio": "mean probability ratio in the first epoch; 1 where that is one step",
    "<learner>/policy/ratio_max_deviation": "largest |ratio - 1| in the first epoch; approx_kl is of all epochs",
    "<learner>/policy/ratio_first_step_deviation": "largest |ratio - 1| before the first optimizer step: "
    "numerical noise: below 1e-4 in float32, of single tokens up to .6 in bf16",
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
        for name in UPDATE_METRICS
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
    "eval/<mode>/score/pass@<k>": "evaluation.num_generations > 1, where every score is 0 or 1: chance that one of k "
    "samples of a row is right (unbiased)",
    "eval/<mode>/<part>/pass@<k>": "the same of a part that is always 0 or 1",
    "eval/<mode>/failed_share": "share of held-out rows without a usable reward",
    "eval/<mode>/<agent>/score": "held-out score of one agent",
    "eval/<mode>/<agent>/response_length": "mean action tokens of the agent per held-out episode",
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
