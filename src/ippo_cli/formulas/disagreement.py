"""Masks of tokens by the disagreement of several critics."""

from __future__ import annotations

import torch
from torch import Tensor


def disagreement_limits(numbers: Tensor, lowest: float | None, highest: float | None) -> tuple[float, float]:
    """Limits of `numbers` `[n]`: below the first are at most the fraction `lowest` of them, above the second at most
    `highest`. None: no limit.

    `[0, 1, 2, 3, 4]`, lowest 0.4, highest 0.2: below 2 are 0 and 1, above 3 is 4. Equal numbers: none.

    Source: AsyPPO (arXiv 2510.01656), section 4.
    """
    ordered, count = numbers.sort().values, len(numbers)
    low = -torch.inf if lowest is None or not count else float(ordered[min(int(lowest * count), count - 1)])
    high = torch.inf if highest is None or not count else float(ordered[max(count - 1 - int(highest * count), 0)])
    return low, high
