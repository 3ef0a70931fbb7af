"""HACPO: advantages over the responses of several agents to a prompt, and weights of the responses of other agents."""

from __future__ import annotations

import torch

from ippo_cli.formulas.masked import as_real, keep
from ippo_cli.formulas.policy_loss import MAX_LOGRATIO
from ippo_cli.formulas.shapes import Labels, Mask, Rows, Tokens


@torch.no_grad()
def capability_advantages(score: Rows, group: Labels, weight: Rows, *, scale_by_std: bool = True) -> Rows:
    """Each score against the weighted mean of its group: `(s - mean_g(w s)) / (std_g + 1e-6)`, `[B]`.

    `weight` is the capability of the agent that trains, divided by the capability of the author of the response: the
    weighted scores of an abler author estimate the agent's own scores. The baseline is limited to
    the range of the group's scores, since beyond it every response would be a bad (or a good) one; so equal scores give
    exactly 0. `std` is unbiased, of the scores without weights. With weights of 1, `group_normalized`.

    Scores 0 1 with weights 1 .5, without the scale: the baseline is .25, the advantages are -.25 .75.

    Source: HACPO (arXiv 2603.02604), eq. 5 and 6. Its released code replaces baselines above 1 by the mean score of the
    agent's own responses, and weights of groups with equal scores by 1.
    """
    score = as_real(score)
    _, slots = torch.unique(group, return_inverse=True)
    empty = score.new_zeros(int(slots.max()) + 1 if len(slots) else 0)
    sizes = empty.scatter_add(0, slots, torch.ones_like(score))
    if bool((sizes == 1).any()):
        raise ValueError("a group has one score; compare at least two")
    low = empty.scatter_reduce(0, slots, score, "amin", include_self=False)
    high = empty.scatter_reduce(0, slots, score, "amax", include_self=False)
    baseline = (empty.scatter_add(0, slots, as_real(weight) * score) / sizes).clamp(min=low, max=high)
    advantages = score - baseline[slots]
    if not scale_by_std:
        return advantages
    # The distance from the lowest score is exactly 0 where all are equal.
    distance = score - low[slots]
    centered = distance - (empty.scatter_add(0, slots, distance) / sizes)[slots]
    std = (empty.scatter_add(0, slots, centered.square()) / (sizes - 1)).sqrt()
    return advantages / (std[slots] + 1e-6)


@torch.no_grad()
def cross_agent_weights(
    logprobs: Tokens, author_logprobs: Tokens, response_mask: Mask, *, exponent: float, clip_range: float | None
) -> Tokens:
    """Weight of each response that another agent has sampled, on its tokens, `[B, R]`; 0 off the mask.

    `w = s^exponent` with `s = exp(mean_t(log pi - log pi_author))`, the geometric mean of the row's ratios. Rows with
    `s` outside of `[1 - clip_range, 1]` have weight 0 (`clip_range=None`: no row).

    Mean log-ratios of -.1 -1 0.1 with exponent 2 and clip range .2: `s` is .905 .368 1.105, the weights are .819 0 0.

    Source: HACPO (arXiv 2603.02604), section 3.3 and 3.4: its loss has the ratio and its detached power `alpha`,
    so that `exponent` is `1 + alpha`, and clamps the ratio, which removes the gradient outside of the range.
    """
    if not exponent > 0:
        raise ValueError(f"exponent={exponent}; must be positive: use 1.0 for the ratio itself")
    if clip_range is not None and not 0.0 < clip_range <= 1.0:
        raise ValueError(f"clip_range={clip_range}; must be above 0 and at most 1: use 0.2, or none")
    logratio = keep(as_real(logprobs) - as_real(author_logprobs), response_mask)
    counts = response_mask.bool().sum(dim=1, keepdim=True).clamp(min=1)
    logratio = (logratio.sum(dim=1, keepdim=True) / counts).clamp(-MAX_LOGRATIO, MAX_LOGRATIO)
    weights = (exponent * logratio).clamp(-MAX_LOGRATIO, MAX_LOGRATIO).exp()
    if clip_range is not None:
        ratio = logratio.exp()
        weights = torch.where((ratio >= 1.0 - clip_range) & (ratio <= 1.0), weights, 0.0)
    return keep(weights.expand_as(response_mask), response_mask)
