"""The table of logged metrics and their meanings; `docs/metrics.md` is generated from it."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Metrics of a learner's update that are also logged by agent and turn.
UPDATE_METRICS = (
    *(
        f"policy/{name}"
        for name in (
            *("loss", "entropy", "kl_loss", "nll_loss", "positive_fraction", "router_loss", "approx_kl", "ratio"),
            *("clip_fraction", "correction"),
        )
    ),
    "value/loss",
    "value/clamped_fraction",
)


# Placeholders: `<agent>`, `<turn>`, `<part>`, `<mode>` (sampled, greedy), `<how>` (difference, counterfactual,
# leave_out); `<learner>` is an agent, or a group of agents with shared weights.
METRICS: dict[str, str] = {
    "iteration": "completed iterations; row 0 is the evaluation before training",
    "<agent>/score/mean": "mean score of the buffer after combining rewards, before the processor chain, over "
    "rows with a score; null without any",
    "<agent>/score/std": "standard deviation of the same scores",
    "<agent>/score/processed/mean": "mean score after subtracting the credit baseline and after the processor chain, "
    "if either is used: the score that is trained on",
    "<agent>/score/processed/std": "standard deviation of the same scores",
    "<agent>/score/failed_fraction": "fraction of rows without a usable reward, which are excluded from training",
    "<agent>/score/part/<part>": "mean of an additional number that the reward reports; null if no row has it",
    "<agent>/rollout/response_length": "mean action tokens per episode, of all turns, stop tokens included",
    "<agent>/rollout/truncated_fraction": "fraction of rows with a truncated last response or episode, of rows in "
    "which the agent acted",
    "<agent>/rollout/changed_drafts": "rollout.on_policy=exact: fraction of requests with a token that is not "
    "that of a draft",
    "<agent>/rollout/redrawn_tokens": "rollout.on_policy=exact: fraction of tokens that are not those of a draft",
    "rollout/verify_rounds": "rollout.on_policy=exact: rounds of drafts and their verification in this iteration",
    "<agent>/rollout/turns": "several turns: mean own turns per episode",
    "<agent>/rollout/observation_tokens": "several turns: mean prompt tokens per episode after the first prompt",
    "<agent>/rollout/cut_fraction": "several turns: fraction of own turns with a truncated response",
    "<agent>/rollout/overflow_fraction": "several turns: fraction of episodes truncated because a turn did not fit "
    "into the agent's context (or, with rollout.context=last_only, into rollout.max_prompt_tokens)",
    "<agent>/tools/calls": "tools: mean calls per episode, failed ones included",
    "<agent>/tools/failed_calls": "tools: mean failed calls per episode: unknown tools, wrong arguments, exceptions, "
    "timeouts, malformed calls, and calls above max_tool_calls",
    "<agent>/tools/valid_turn_fraction": "tools: fraction of own turns with a call that succeeded",
    "<agent>/score/turn/<turn>": "several turns, the first tracker.turns: mean score of an own turn, counted from 1, "
    "over episodes with that turn; before the processor chain",
    "<agent>/rollout/response_length/turn/<turn>": "several turns: mean action tokens of that turn",
    "<agent>/rollout/new_sequences": "several turns: mean number per episode of turns with a prompt that does not "
    "extend the tokens before it",
    "<agent>/rollout/cut_fraction/turn/<turn>": "several turns: fraction of those turns with a truncated response",
    "<agent>/rollout/logprob/turn/<turn>": "several turns: mean log-probability per action token of that turn",
    "<agent>/targets/reward/turn/<turn>": "several turns: mean per-token reward, KL term included",
    "<agent>/targets/value/turn/<turn>": "several turns: mean value of the states before the turn's action tokens",
    "<agent>/targets/return/turn/<turn>": "several turns: mean return of the turn's action tokens",
    "<agent>/targets/advantage/turn/<turn>": "several turns: mean advantage over the turn's action tokens",
    "<agent>/targets/advantage_std/turn/<turn>": "several turns: standard deviation of the same advantages",
    "<agent>/value/explained_variance/turn/<turn>": "several turns: of the values of that turn; null if all returns "
    "are equal",
    "<agent>/kl/reference/turn/<turn>": "several turns: mean log-ratio (k1) of the turn's tokens to the initial policy",
    "<agent>/credit/<how>/mean": "mean difference between the agent's score and its counterfactual baseline (reward."
    "credit_assignment, or measure_credit_every for difference), over rows with both; counterfactual: over turns",
    "<agent>/credit/<how>/std": "standard deviation of the same differences",
    "<agent>/credit/<how>/zero_fraction": "fraction of differences that are 0: the agent had no influence",
    "<agent>/credit/<how>/unknown_fraction": "fraction of rows with a turn of the agent but without such a difference",
    "<agent>/credit/<how>/mean/turn/<turn>": "several turns: mean difference at that turn",
    "<agent>/rollout/logprob": "mean log-probability per action token when sampled",
    "<agent>/rollout/logprob_diff/filter": "mean log-probability under the sampling filters minus the unfiltered one",
    "<agent>/rollout/prob_diff/sampler": "recompute_logprobs: mean |p_train - p_sampler| of the sampled tokens",
    "<agent>/rollout/logprob_diff/sampler": "recompute_logprobs: mean |log p_train - log p_sampler|",
    "<agent>/rollout/prob_diff/sampler_max": "recompute_logprobs: the largest such difference",
    "<agent>/rollout/staleness": "rollout.ahead=1: mean number of updates between the weights that sampled a token and "
    "those before this iteration's update",
    "<agent>/rollout/staleness_max": "rollout.ahead=1: the largest such number",
    "<agent>/targets/reward": "mean per-token reward, KL term included",
    "<agent>/targets/value": "mean value of the states before action tokens",
    "<agent>/targets/return": "mean return",
    "targets/advantage/<part>": "a number of the metrics() of a class in algorithm.advantage",
    "<agent>/targets/advantage_std": "standard deviation of the advantages over trained action tokens",
    "<agent>/targets/zero_advantage_fraction": "fraction of responses with zero advantages (groups of equal scores)",
    "<agent>/targets/resampled_fraction": "fraction of responses drawn at least once; 1 without algorithm.reweight",
    "<agent>/rollout/ess_ratio": "(sum w)^2 / (n sum w^2) of the behaviour weights, if any are used",
    "<agent>/rollout/prob_diff/behavior": "mean |p_policy - p_sampling| of sampled tokens, including sampling filters",
    "<agent>/score/greedy": "algorithm.advantage=greedy_baseline: mean score of the greedy responses",
    "<agent>/kl/reference": "mean log-ratio (k1) of the sampled tokens to the initial policy",
    "<agent>/kl/reward_coef": "coefficient of the reward's KL term in this iteration",
    "<learner>/policy/learning_rate": "the actor's learning rate in this iteration",
    "<learner>/policy/loss": "mean policy loss per token, without entropy and KL terms",
    "<learner>/policy/entropy": "mean entropy per token of the tempered distribution, nats",
    "<learner>/policy/kl_loss": "mean KL estimate in the loss, before its coefficient",
    "<learner>/policy/nll_loss": "algorithm.positive_nll: -log pi of the tokens of positive responses, mean over all "
    "tokens; divided by positive_fraction: their mean",
    "<learner>/policy/positive_fraction": "algorithm.positive_nll: fraction of tokens in responses with its min_score",
    "<learner>/policy/router_loss": "algorithm.router_loss_coef: mean load-balancing loss of the micro-batches, before "
    "its coefficient; num_experts_per_tok if experts are used equally",
    "<learner>/policy/approx_kl": "mean KL (k3) from the sampling policy to the current one, over all steps; "
    "bf16 rounding alone gives about 0.002, see docs/algorithms.md",
    "<learner>/policy/ratio": "mean probability ratio in the first epoch; 1 if the epoch has one step",
    "<learner>/policy/ratio_max_deviation": "largest |ratio - 1| in the first epoch; approx_kl uses all epochs",
    "<learner>/policy/ratio_first_step_deviation": "largest |ratio - 1| before the first optimizer step: "
    "numerical noise: below 1e-4 in float32, for single tokens up to 0.6 in bf16",
    "<learner>/policy/clip_fraction": "fraction of tokens outside of the clip range, on either side; with "
    "algorithm.objective=mask: of masked tokens",
    "<learner>/policy/objective/<part>": "mean per token of a statistic of algorithm.objective=path.py:name",
    "<learner>/policy/grad_norm": "mean gradient norm before clipping",
    "<learner>/policy/grad_norm_spikes": "optimizer steps with a gradient norm above 3 times the median of "
    "the 50 steps before",
    "<learner>/policy/steps": "optimizer steps in this iteration",
    "<learner>/policy/skipped_steps": "optimizer steps not applied because a gradient was not finite",
    "<learner>/policy/stopped_early": "1 if target_kl stopped the iteration's policy steps",
    "<learner>/policy/order": "team.update_order=sequential: place in this iteration's order, from 1",
    "<learner>/policy/correction": "team.update_order=sequential: mean factor of the advantages per token",
    "<learner>/policy/correction_max": "team.update_order=sequential: the largest such factor",
    "<learner>/value/learning_rate": "the critic's learning rate in this iteration",
    "<learner>/value/loss": "mean value loss per token, before value_loss_coef; of normalised values with "
    "critic.popart_beta, cross-entropy with critic.value_bins",
    "<learner>/value/clamped_fraction": "critic.value_bins: fraction of returns beyond the bins' range, which count as "
    "its end",
    "<learner>/value/return_mean": "critic.popart_beta: the running mean by which values are normalised",
    "<learner>/value/return_std": "critic.popart_beta: the running standard deviation",
    "<learner>/value/grad_norm": "mean gradient norm before clipping",
    "<learner>/value/grad_norm_spikes": "optimizer steps with a gradient norm above 3 times the median of "
    "the 50 steps before",
    "<learner>/value/steps": "optimizer steps in this iteration",
    "<learner>/value/skipped_steps": "optimizer steps not applied because a gradient was not finite",
    **{
        f"<agent>/{name}{turn}": text
        for turn, text in (
            ("", "shared weights: the same for this agent's tokens only"),
            ("/turn/<turn>", "several turns: the same for this agent's tokens of that turn"),
        )
        for name in UPDATE_METRICS
    },
    "<learner>/<stage>/role_grad_norm": "team.role_gradients_every: gradient norm of the first optimizer step, before "
    "clipping and weights; <agent>/<stage>/role_grad_norm: of the agent's part; <stage>: policy, value or joint",
    "<agent>/<stage>/role_grad_fraction": "team.role_gradients_every: scalar product of the agent's part and the "
    "gradient, over the squared norm of the gradient; the sum over agents is 1",
    "<agent>/<stage>/role_grad_cosine": "team.role_gradients_every: cosine of the agent's part and the gradient",
    "<agent>/<stage>/role_grad_cosine/<other>": "team.role_gradients_every: cosine of the parts of two agents",
    "<agent>/<stage>/role_grad_spike": "team.role_gradients_every: 1 if the norm of the agent's part is above 3 times "
    "the median of the 50 measurements before",
    "<agent>/<stage>/role_weight": "team.role_balance: weight of the agent's losses; the mean over agents is 1",
    "<agent>/value/explained_variance": "1 - Var(return - value) / Var(return) of the values before the update; null "
    "if all returns are equal",
    "<agent>/value/disagreement": "critic.ensemble > 1: mean standard deviation of the critics' values per token",
    "<agent>/value/masked_advantage_fraction": "critic.ensemble > 1: fraction of tokens with an advantage of 0",
    "<agent>/value/masked_entropy_fraction": "critic.ensemble > 1: fraction of tokens without entropy bonus",
    "<agent>/value/read_tokens": "critic=centralized: mean critic input tokens per episode of the agent",
    "<agent>/value/truncated_context_fraction": "critic=centralized: fraction of episodes with an input truncated to "
    "the critic's context",
    "<learner>/joint/learning_rate": "critic=value_head: the learning rate of the joint engine",
    "<learner>/joint/grad_norm": "critic=value_head: mean gradient norm of the joint loss before clipping",
    "<learner>/joint/grad_norm_spikes": "critic=value_head: optimizer steps with a gradient norm above 3 times the "
    "median of the 50 steps before",
    "<learner>/joint/steps": "critic=value_head: optimizer steps in this iteration",
    "<learner>/joint/skipped_steps": "critic=value_head: optimizer steps not applied",
    "<learner>/joint/stopped_early": "critic=value_head: 1 if target_kl stopped the iteration's steps",
    "<agent>/score/drawn": "rollout.refill_rounds: mean score of all drawn rows, replaced groups included; "
    "<agent>/score/mean is that of the buffer",
    "<agent>/shared/rows": "team.share_rollouts: responses of other agents that the policy is trained on",
    "<agent>/shared/row_fraction": "shared: these as a fraction of all responses that it is trained on",
    "<agent>/shared/ratio": "shared: mean of the geometric mean of pi_agent / pi_sampler over a response's tokens",
    "<agent>/shared/weight": "shared: mean correction weight per token of these responses",
    "<agent>/shared/limited_fraction": "shared: fraction of their tokens with a truncated weight or ratio out of range",
    "<agent>/shared/capability": "cross_agent.capability_window: mean score of the iterations before this one",
    "refill/rounds": "rollout.refill_rounds: additional rounds of this iteration",
    "refill/prompts": "rollout.refill_rounds: prompts drawn in all rounds",
    "refill/responses_per_row": "rollout.refill_rounds: responses generated per row of the buffer",
    "refill/uniform_fraction": "rollout.refill_rounds: fraction of drawn groups in which each agent's scores are equal",
    "refill/all_right_fraction": "rollout.refill_rounds: fraction of drawn groups with only scores of 1; null unless "
    "all scores are 0 or 1",
    "refill/all_wrong_fraction": "rollout.refill_rounds: the same for scores of 0",
    "curriculum/success_rate": "task.curriculum: mean success rate of the prompts drawn so far, each with its smoothed "
    "rate",
    "curriculum/seen_fraction": "task.curriculum: fraction of training rows drawn so far",
    "curriculum/too_hard_fraction": "task.curriculum: fraction of these rows with a success rate below the band",
    "curriculum/too_easy_fraction": "task.curriculum: the same above the band",
    "curriculum/effective_prompts": "task.curriculum: effective number of training rows, (sum w)^2 / sum w^2 of their "
    "weights; rows of locked levels included",
    "curriculum/skipped_fraction": "task.curriculum: fraction of scheduled prompts that this iteration skipped",
    "curriculum/levels": "task.curriculum.levels: number of unlocked levels",
    "team/opponents/iteration": "team.opponent_pool: the iteration of the snapshot that played in this one",
    "team/opponents/fraction": "team.opponent_pool: fraction of episodes with the snapshot",
    "team/opponents/size": "team.opponent_pool: snapshots in the pool",
    "team/elo/<learner>": "team.opponent_pool.elo: rating of the current policy from its games since the newest "
    "snapshot, relative to the initial policy; null without games",
    "eval/<mode>/score": "held-out score, mean over agents, before the processor chain",
    "eval/<mode>/<part>": "held-out mean of an additional number that the reward reports",
    "eval/<mode>/score/pass@<k>": "evaluation.num_generations > 1 and all scores 0 or 1: probability that one of k "
    "samples of a row is correct (unbiased)",
    "eval/<mode>/<part>/pass@<k>": "the same for a part that is always 0 or 1",
    "eval/<mode>/failed_fraction": "fraction of held-out rows without a usable reward",
    "eval/<mode>/<agent>/score": "held-out score of one agent",
    "eval/sampled/explained_variance": "mode=critic: mean of the next metric over agents",
    "eval/sampled/<agent>/explained_variance": "mode=critic: of held-out returns (sums of later rewards) by values",
    "eval/sampled/<agent>/value_error": "mode=critic: root mean squared difference of the same",
    "eval/<mode>/<agent>/response_length": "mean action tokens of the agent per held-out episode",
    "eval/<mode>/<agent>/truncated_fraction": "fraction of held-out rows with a truncated last response or "
    "episode, of rows in which the agent acted",
    "eval/<mode>/<agent>/turns": "several turns: mean own turns per held-out episode",
    "eval/<mode>/<agent>/cut_fraction": "several turns: fraction of own held-out turns with a truncated response",
    "eval/<mode>/<agent>/overflow_fraction": "several turns: fraction of held-out episodes truncated because a turn "
    "did not fit into the agent's context",
    "eval/<mode>/<agent>/tools/calls": "tools: mean calls per held-out episode, failed ones included",
    "eval/<mode>/<agent>/tools/failed_calls": "tools: mean failed calls per held-out episode",
    "eval/<mode>/<agent>/tools/valid_turn_fraction": "tools: fraction of own held-out turns with a call that succeeded",
    "eval/<mode>/<agent>/score/turn/<turn>": "several turns: mean held-out score of that turn, over episodes with it",
    "eval/<mode>/<agent>/response_length/turn/<turn>": "several turns: mean action tokens of that held-out turn",
    "eval/<mode>/<agent>/cut_fraction/turn/<turn>": "several turns: fraction of those turns with a truncated response",
    "forecast/collapse_risk": "forecast of the probability that the held-out score falls by more than its noise within "
    "20 iterations (docs/forecast.md); from the 4th iteration, not with mode=critic",
    "time/iteration": "seconds of the whole iteration",
    "time/rollout": "seconds of playing episodes: generation and environments",
    "time/opponents": "team.opponent_pool: seconds of saving a snapshot",
    "time/environments": "seconds of time/rollout spent in resetting and stepping environments",
    "time/score": "seconds of the reward",
    "time/credit": "seconds of credit baselines: replayed episodes and their rewards",
    "time/weights": "rollout=vllm: seconds of transferring and verifying weights, part of time/rollout",
    "time/ahead": "rollout.ahead=1: seconds of collecting this iteration's episodes during the training of the one "
    "before; time/rollout has only the wait for them",
    "time/logprobs": "seconds of rollout.recompute_logprobs",
    "time/targets": "seconds of values, reference log-probabilities and advantages",
    "time/update": "seconds of the optimizer steps",
    "time/evaluation": "seconds of the evaluation",
    "time/checkpoint": "seconds of the last checkpoint before this iteration",
    "perf/tokens_per_second": "generated tokens per second of the rollout (rollout.ahead=1: of time/ahead), all agents "
    "and ranks; tokens of replaced groups included",
    "perf/samples_per_second": "rows (one agent's part of an episode) per second of the whole iteration, all ranks",
    "perf/peak_memory_mib": "largest resident (CPU) or allocated (CUDA) memory of any rank so far",
}
_PATTERNS: dict[str, re.Pattern[str]] = {}
_MEANINGS: dict[str, str] = {}


def add_metrics(meanings: Mapping[str, str]) -> None:
    """Let a run log more metrics than those of the table, such as a package's."""
    _MEANINGS.update(meanings)
    for key in meanings:
        pattern = re.sub(r"<\w+>", r"[^/]+", re.escape(key).replace(r"\<", "<").replace(r"\>", ">"))
        _PATTERNS[key] = re.compile(f"^{pattern}$")


add_metrics(METRICS)


def is_documented(key: str) -> bool:
    """Whether a metric's name is known."""
    return metric_meaning(key) is not None


def metric_meaning(key: str) -> str | None:
    """The meaning of a logged metric; None if the name is unknown."""
    return next((_MEANINGS[name] for name, pattern in _PATTERNS.items() if pattern.match(key)), None)
