"""Policy objectives per token, to be minimised and not yet reduced: policy gradient, ratios, corrections.

Inputs are finite everywhere (0 off the mask), so losses are 0 there; `aggregate` divides.
"""

from __future__ import annotations

import torch

from ippo_cli.formulas.masked import as_real, keep, turn_slots, turn_totals
from ippo_cli.formulas.shapes import Kept, Mask, Real, Tokens, TurnNumbers

# exp(20) = 4.9e8: far outside any clip range, and still finite in float32 after multiplication by an advantage.
MAX_LOGRATIO = 20.0
RATIO_LEVELS = ("token", "turn", "sequence")
POOLINGS = ("sum", "mean")
WEIGHT_LEVELS = ("token", "sequence")


def on_policy_loss(new_logprobs: Real, advantages: Real) -> Real:
    """The score-function loss per token, `[B, R]`: `-log pi(a_t) A_t`; no ratio, no clip.

    Its gradient is the policy gradient only for on-policy data: one optimizer step per iteration.

    Source: REINFORCE with a baseline (Williams 1992; Sutton et al. 1999).
    """
    return -as_real(new_logprobs) * as_real(advantages)


def pool_logratio(
    new_logprobs: Tokens, logprobs: Tokens, response_mask: Mask, turn: TurnNumbers, *, level: str, pooling: str
) -> Tokens:
    """Log of the probability ratio of each token's unit, `[B, R]`: `log pi_new - log pi_old`, pooled, in [-20, 20].

    The unit is the token, the tokens of its turn, or the row's action tokens (`level="token" | "turn" | "sequence"`).
    `pooling="sum"` is the log of the product of the unit's ratios, `"mean"` of their geometric mean (GSPO). The pooled
    value is clamped and written to each of the unit's tokens; 0 off the mask. Gradients flow to every token of the
    unit. At level `token`, `pooling` has no effect and `turn` is not read.

    Source: PPO (arXiv 1707.06347), section 3, for tokens; GSPO (arXiv 2507.18071) for sequences and the mean.
    """
    if level not in RATIO_LEVELS:
        raise ValueError(f"level={level}; must be one of {' '.join(RATIO_LEVELS)}")
    if pooling not in POOLINGS:
        raise ValueError(f"pooling={pooling}; must be one of {' '.join(POOLINGS)}")
    logratio = keep(as_real(new_logprobs) - as_real(logprobs), response_mask)
    if level == "turn":
        slots, turns = turn_slots(response_mask, turn)
        totals, counts = turn_totals(logratio, response_mask, slots, turns)
        pooled = totals / counts.clamp(min=1) if pooling == "mean" else totals
        logratio = pooled.gather(1, slots)
    elif level == "sequence":
        pooled = logratio.sum(dim=1, keepdim=True)
        if pooling == "mean":
            pooled = pooled / response_mask.bool().sum(dim=1, keepdim=True).clamp(min=1)
        logratio = pooled.expand_as(logratio)
    return keep(logratio.clamp(-MAX_LOGRATIO, MAX_LOGRATIO), response_mask)


def clipped_policy_loss(
    new_logprobs: Real,
    logprobs: Real,
    advantages: Real,
    *,
    clip_range_low: float,
    clip_range_high: float,
    dual_clip: float | None = None,
    logratio: Real | None = None,
) -> Real:
    """PPO's clipped surrogate per token, to be minimised, `[B, R]`.

    `rho = exp(clamp(new - old, -20, 20))` and `loss = max(-A rho, -A clip(rho, 1 - low, 1 + high))`. With `dual_clip=c
    > 1`, where `A < 0`, `loss = min(loss, -A c)`: this bounds the loss of a bad action with a large ratio. `logratio`
    (from `pool_logratio`) replaces `new - old`. At ratio 1 the loss is `-A`.

    Ratio 1.5, A = 2, clip 0.2: max(-3, -2.4) = -2.4, and no gradient.

    Source: PPO (arXiv 1707.06347), eq. 7; two ranges, DAPO (arXiv 2503.14476); dual clip, Ye et al. 2020 (arXiv
    1912.09729).
    """
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip={dual_clip}; must be greater than 1: use 3.0, or none to switch it off")
    if logratio is None:
        logratio = as_real(new_logprobs) - as_real(logprobs)
    advantages = as_real(advantages)
    ratio = logratio.clamp(-MAX_LOGRATIO, MAX_LOGRATIO).exp()
    clipped = ratio.clamp(1 - clip_range_low, 1 + clip_range_high)
    loss = torch.maximum(-advantages * ratio, -advantages * clipped)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)


def masked_policy_loss(logratio: Real, advantages: Real, mask: Kept, *, ratio_cap: float | None = None) -> Real:
    """The ratio's loss on the mask, and no loss and no gradient off it: `-A rho`, `[B, R]`.

    `mask` is where the update may move the policy (see `outside_trust_region`). With `ratio_cap`, larger ratios count
    as the cap, in the loss and in the gradient's weight: `-A min(rho, cap)` with gradient `-A min(rho, cap) grad log
    pi`; clamping the ratio would remove the gradient.

    Ratio 3, A = 2: loss and gradient -6, with cap 2.5: -5; off the mask: 0.

    Source: SAO (arXiv 2607.07508), eq. 3, masks both sides of a range; DPPO (arXiv 2602.04879), eq. 11, masks updates
    that leave the region, and truncates the ratio (section 5.4).
    """
    ratio = as_real(logratio).clamp(-MAX_LOGRATIO, MAX_LOGRATIO).exp()
    if ratio_cap is not None:
        ratio = ratio * (ratio.clamp(max=ratio_cap) / ratio).detach()
    return torch.where(mask.bool(), -as_real(advantages) * ratio, 0.0)


def cispo_loss(
    new_logprobs: Real, logratio: Real, advantages: Real, *, clip_range_low: float, clip_range_high: float
) -> Real:
    """CISPO's loss per token, `[B, R]`: `-w A log pi_new`, with the detached weight `w = clip(rho, 1 - low, 1 + high)`.

    Every token has a gradient, unlike with a clipped ratio; the range limits its weight only.

    Ratio 3, A = 2, log pi -1, high = 1: w = 2, loss 4, gradient -4.

    Source: MiniMax-M1 (arXiv 2506.13585), eq. 4 and 5.
    """
    ratio = as_real(logratio).detach().clamp(-MAX_LOGRATIO, MAX_LOGRATIO).exp()
    weight = ratio.clamp(1.0 - clip_range_low, 1.0 + clip_range_high)
    return -weight * as_real(advantages) * as_real(new_logprobs)


@torch.no_grad()
def behavior_weights(
    train_logprobs: Tokens,
    sampler_logprobs: Tokens,
    response_mask: Mask,
    *,
    level: str,
    cap: float,
    band: tuple[float, float] | None = None,
) -> Tokens:
    """Importance weights that correct for a sampler that differs from the trainer, `[B, R]`, detached.

    `w = exp(clamp(log pi_train - log pi_sampler, -20, 20))` per token, or of the sum over the row's action tokens on
    each of them (`level="token" | "sequence"`); then `min(w, cap)` (`cap=math.inf` for none). `band=(low, high)` sets
    weights with an untruncated value outside it to 0: such tokens (or rows) do not train. 0 off the mask.

    Source: truncated importance sampling, Ionides 2008, as applied to sampler mismatch by Yao et al. 2025 ("Your
    Efficient RL Framework Secretly Brings You Off-Policy RL Training").
    """
    if level not in WEIGHT_LEVELS:
        raise ValueError(f"level={level}; must be one of {' '.join(WEIGHT_LEVELS)}")
    if not cap > 0:
        raise ValueError(f"cap={cap}; must be positive: use 2.0, or inf for none")
    logratio = keep(as_real(train_logprobs) - as_real(sampler_logprobs), response_mask)
    if level == "sequence":
        logratio = logratio.sum(dim=1, keepdim=True).expand_as(logratio)
    ratio = logratio.clamp(-MAX_LOGRATIO, MAX_LOGRATIO).exp()
    weights = ratio.clamp(max=cap)
    if band is not None:
        low, high = band
        weights = torch.where((ratio >= low) & (ratio <= high), weights, 0.0)
    return keep(weights, response_mask)
