"""DAPO's soft overlong punishment: a penalty that grows as a response approaches its token limit."""

from __future__ import annotations

import torch

from ippo_cli.formulas.masked import as_real, turn_slots, turn_totals
from ippo_cli.formulas.shapes import Mask, TurnNumbers, Turns


@torch.no_grad()
def overlong_fraction(mask: Mask, turn: TurnNumbers, *, limit: int, ramp: float) -> Turns:
    """How far each turn's response is into the last part `ramp` of the token limit, `[B, K]`, from 0 to 1.

    `clip((tokens - (1 - ramp) limit) / (ramp limit), 0, 1)`: 0 up to `(1 - ramp) limit` tokens, 1 at the limit.

    A limit of 10 tokens and a ramp of .4: 0 for 6 tokens, .5 for 8 tokens, 1 for 10 tokens.

    Source: DAPO (arXiv 2503.14476), eq. 13, of which this is the penalty divided by its largest value.
    """
    if not 0.0 < ramp <= 1.0:
        raise ValueError(f"ramp={ramp}; must be above 0 and at most 1: a part of the limit, such as 0.2")
    slots, turns = turn_slots(mask, turn)
    _, tokens = turn_totals(torch.zeros_like(as_real(slots)), mask, slots, turns)
    return ((tokens - (1.0 - ramp) * limit) / (ramp * limit)).clamp(0.0, 1.0)
