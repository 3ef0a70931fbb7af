"""All conditions of runs in the order of their report: causes before their consequences.

Live warnings are the conditions with `warn`: their evidence is a fact of the last rows. Other conditions compare
means of iterations; such a test has an error rate, which a test in every iteration would multiply.
"""

from __future__ import annotations

from ippo_cli.diagnosis.conditions.collapse import find_forecast, warn_of_collapse
from ippo_cli.diagnosis.conditions.critic import find_far_values, find_slow_critic, find_uninformative_critic
from ippo_cli.diagnosis.conditions.kl import find_kl_coefficient
from ippo_cli.diagnosis.conditions.policy import (
    find_entropy_loss,
    find_large_updates,
    find_masked_tokens,
    find_sampler_mismatch,
    find_skipped_steps,
    find_unchanged_policy,
)
from ippo_cli.diagnosis.conditions.responses import (
    find_context_overflow,
    find_cut_turns,
    find_frequent_truncation,
    find_missing_stop_token,
    find_silence,
    find_template_mismatch,
    find_truncation,
)
from ippo_cli.diagnosis.conditions.scores import (
    find_empty_parts,
    find_equal_scores,
    find_failing_rewards,
    find_length_hacking,
    find_memorisation,
    find_no_progress,
    find_non_finite_scores,
    find_score_drop,
)
from ippo_cli.diagnosis.conditions.team import find_deaf_agents
from ippo_cli.diagnosis.finding import Condition

STUCK = ("no_progress", "fell")
CONDITIONS = (
    Condition(
        name="failing_rewards",
        title="rewards fail",
        find=find_failing_rewards,
        warn=find_failing_rewards,
        explains=("empty_parts",),
        reads_last_rows=True,
    ),
    Condition(
        name="non_finite_scores",
        title="scores are not finite numbers",
        find=find_non_finite_scores,
        explains=("equal_scores", "policy_unchanged", "explained_variance", "empty_parts", *STUCK),
    ),
    Condition(
        name="stop_token",
        title="wrong stop token",
        find=find_missing_stop_token,
        explains=("chat_template", "truncated", "cut_turns", "equal_scores", *STUCK),
    ),
    Condition(
        name="chat_template",
        title="wrong chat template",
        find=find_template_mismatch,
        explains=("truncated", "cut_turns", "equal_scores", *STUCK),
    ),
    Condition(
        name="sampler_mismatch",
        title="sampler and trained model differ",
        find=find_sampler_mismatch,
        warn=find_sampler_mismatch,
        explains=("learning_rate", "entropy_gone", "kl_coefficient", "masked_tokens", *STUCK),
    ),
    Condition(
        name="masked_tokens",
        needs_policy_updates=True,
        title="all tokens are masked",
        find=find_masked_tokens,
        warn=find_masked_tokens,
        explains=("policy_unchanged", *STUCK),
    ),
    Condition(
        name="learning_rate",
        needs_policy_updates=True,
        title="learning rate too high",
        find=find_large_updates,
        explains=(
            *("skipped_steps", "entropy_gone", "kl_coefficient", "explained_variance", "far_values", "few_examples"),
            *("equal_scores", "truncated", "silent", "deaf_agents", *STUCK),
        ),
    ),
    Condition(
        name="length_hacking",
        needs_policy_updates=True,
        title="the reward pays for length",
        find=find_length_hacking,
        explains=("truncated", "kl_coefficient", "few_examples"),
    ),
    Condition(
        name="kl_coefficient",
        needs_policy_updates=True,
        title="KL coefficient too low or too high",
        find=find_kl_coefficient,
        explains=("truncated", "cut_turns", "entropy_gone", "explained_variance", "far_values", *STUCK),
    ),
    Condition(
        name="entropy_gone",
        needs_policy_updates=True,
        title="entropy is gone",
        find=find_entropy_loss,
        explains=("truncated", "cut_turns", *STUCK),
    ),
    Condition(
        name="silent",
        title="an agent does not act",
        find=find_silence,
        warn=find_silence,
        explains=("policy_unchanged", "deaf_agents", *STUCK),
        reads_last_rows=True,
    ),
    Condition(
        name="truncated",
        title="responses are always truncated",
        find=find_frequent_truncation,
        warn=find_truncation,
        explains=("equal_scores", *STUCK),
        reads_last_rows=True,
    ),
    Condition(
        name="overflow",
        title="turns do not fit into the context",
        find=find_context_overflow,
        warn=find_context_overflow,
        reads_last_rows=True,
    ),
    Condition(
        name="cut_turns",
        title="turns are truncated",
        find=find_cut_turns,
        warn=find_cut_turns,
        explains=STUCK,
        reads_last_rows=True,
    ),
    Condition(
        name="equal_scores",
        title="constant reward",
        find=find_equal_scores,
        warn=find_equal_scores,
        explains=("policy_unchanged", "deaf_agents", "explained_variance", *STUCK),
    ),
    Condition(
        name="policy_unchanged",
        needs_policy_updates=True,
        title="the policy or adapter does not change",
        find=find_unchanged_policy,
        explains=("deaf_agents", *STUCK),
    ),
    Condition(name="deaf_agents", title="agents do not hear each other", find=find_deaf_agents, explains=STUCK),
    Condition(name="few_examples", needs_policy_updates=True, title="the data is too small", find=find_memorisation),
    Condition(
        name="skipped_steps",
        title="optimizer steps are skipped",
        find=find_skipped_steps,
        warn=find_skipped_steps,
        reads_last_rows=True,
    ),
    Condition(
        name="explained_variance",
        title="critic too slow",
        find=find_slow_critic,
        warn=find_uninformative_critic,
        explains=("far_values", *STUCK),
    ),
    Condition(name="far_values", title="values are out of reach", find=find_far_values, warn=find_far_values),
    Condition(
        name="fell",
        needs_policy_updates=True,
        title="the score fell",
        find=find_score_drop,
        warn=find_score_drop,
        explains=("no_progress",),
    ),
    Condition(
        name="no_progress", needs_policy_updates=True, title="no progress", find=find_no_progress, warn=find_no_progress
    ),
    Condition(
        name="collapse_risk",
        needs_policy_updates=True,
        title="the score may fall",
        find=find_forecast,
        warn=warn_of_collapse,
        reads_last_rows=True,
    ),
    Condition(
        name="empty_parts", title="a part of the reward is never a number", find=find_empty_parts, warn=find_empty_parts
    ),
)
BY_NAME = {condition.name: condition for condition in CONDITIONS}
