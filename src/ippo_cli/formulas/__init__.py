"""Formulas of papers as pure functions on tensors, without configuration, device or process group."""

from ippo_cli.formulas.advantages import (
    gae,
    group_normalized,
    leave_one_out,
    place_scores,
    pool_values,
    reward_to_go,
    role_baseline,
    segment_gae,
    turn_ends,
    turn_gae,
)
from ippo_cli.formulas.aggregate import aggregate
from ippo_cli.formulas.cross_agent import capability_advantages, cross_agent_weights
from ippo_cli.formulas.disagreement import disagreement_limits
from ippo_cli.formulas.hl_gauss import ValueBins, bin_probabilities, expected_values, hl_gauss_loss
from ippo_cli.formulas.kl import adaptive_kl_step, full_kl, kl_estimate
from ippo_cli.formulas.logprobs import selected_logprobs
from ippo_cli.formulas.masked import masked_mean, masked_sum, masked_var, masked_whiten
from ippo_cli.formulas.overlong import overlong_fraction
from ippo_cli.formulas.policy_loss import (
    behavior_weights,
    cispo_loss,
    clipped_policy_loss,
    masked_policy_loss,
    on_policy_loss,
    pool_logratio,
)
from ippo_cli.formulas.popart import rescale_output
from ippo_cli.formulas.ratings import bradley_terry
from ippo_cli.formulas.reweight import reweight
from ippo_cli.formulas.role_weights import equal_norm_weights, gradnorm_weights
from ippo_cli.formulas.router_loss import router_loss
from ippo_cli.formulas.sequential import sequential_factor, step_logratio
from ippo_cli.formulas.shapley import shapley_values
from ippo_cli.formulas.trust_region import clip_logratio, outside_trust_region
from ippo_cli.formulas.turn_credit import alternative_baseline, score_to_go, telescope_credit, turn_credit
from ippo_cli.formulas.value_loss import value_loss

__all__ = [
    "ValueBins",
    "adaptive_kl_step",
    "aggregate",
    "alternative_baseline",
    "behavior_weights",
    "bin_probabilities",
    "bradley_terry",
    "capability_advantages",
    "cispo_loss",
    "clip_logratio",
    "clipped_policy_loss",
    "cross_agent_weights",
    "disagreement_limits",
    "equal_norm_weights",
    "expected_values",
    "full_kl",
    "gae",
    "gradnorm_weights",
    "group_normalized",
    "hl_gauss_loss",
    "kl_estimate",
    "leave_one_out",
    "masked_mean",
    "masked_policy_loss",
    "masked_sum",
    "masked_var",
    "masked_whiten",
    "on_policy_loss",
    "outside_trust_region",
    "overlong_fraction",
    "place_scores",
    "pool_logratio",
    "pool_values",
    "rescale_output",
    "reward_to_go",
    "reweight",
    "role_baseline",
    "router_loss",
    "score_to_go",
    "segment_gae",
    "selected_logprobs",
    "sequential_factor",
    "shapley_values",
    "step_logratio",
    "telescope_credit",
    "turn_credit",
    "turn_ends",
    "turn_gae",
    "value_loss",
]
