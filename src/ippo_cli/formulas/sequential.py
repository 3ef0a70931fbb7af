"""Sequential updates: how earlier policy updates of an iteration changed the joint action probability."""

from __future__ import annotations

import torch

from ippo_cli.formulas.masked import as_real, keep, turn_slots, turn_totals
from ippo_cli.formulas.policy_loss import MAX_LOGRATIO, POOLINGS
from ippo_cli.formulas.shapes import Mask, Steps, Tokens, TurnNumbers


@torch.no_grad()
def step_logratio(
    new_logprobs: Tokens, logprobs: Tokens, response_mask: Mask, step: TurnNumbers, *, steps: int, pooling: str
) -> Steps:
    """Log-ratio of one agent's action at each step of the environment, `[B, S]`: `log pi_new(a|o) - log pi_old(a|o)`.

    `step` is the step of each action token (any number off the mask), all below `steps`. An action is a turn, so
    `pooling="sum"` adds its tokens' log-ratios, which is the log of the product of their ratios; `"mean"` is the log of
    their geometric mean. 0 at steps without an action of the agent. Detached.

    Log-ratios .1 .2 | .3 of tokens at the steps 0 0 | 2: sum .3 0 .3, mean .15 0 .3.

    Source: one factor of the product of Kuba et al. 2022 (HAPPO, arXiv 2109.11251), eq. 11.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling={pooling}; must be one of {' '.join(POOLINGS)}")
    slots, needed = turn_slots(response_mask, step)
    if needed > steps:
        raise ValueError(f"steps={steps}, and an action token belongs to step {needed - 1}")
    totals, counts = turn_totals(as_real(new_logprobs) - as_real(logprobs), response_mask, slots, steps)
    return totals / counts.clamp(min=1) if pooling == "mean" else totals


@torch.no_grad()
def sequential_factor(logratio: Steps, response_mask: Mask, step: TurnNumbers, *, cap: float) -> Tokens:
    """The factor of an agent's advantages, `[B, R]`: the joint ratio of the previously updated agents at its steps.

    `logratio` is the sum of `step_logratio` over all agents that were updated before in this iteration, so that `M =
    min(exp(clamp(logratio, -20, 20)), cap)` is the product of their ratios at the same joint action (`cap=math.inf` for
    none). It is written to each of the agent's own tokens of that step; 1 where no previously updated agent acted in
    that step, 0 off the mask. Detached.

    Log-ratios log 2, 0, log .5 of the steps 0 1 2 and cap 1.5, tokens at the steps 0 0 2: 1.5 1.5 .5.

    Source: Kuba et al. 2022 (HAPPO, arXiv 2109.11251), eq. 11 and algorithm 4; truncated as importance weights are
    (Ionides 2008).
    """
    if not cap > 0:
        raise ValueError(f"cap={cap}; must be positive: use 2.0, or inf for none")
    slots, _ = turn_slots(response_mask, step)
    factor = logratio.clamp(-MAX_LOGRATIO, MAX_LOGRATIO).exp().clamp(max=cap)
    return keep(factor.gather(1, slots), response_mask)
