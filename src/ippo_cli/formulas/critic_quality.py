"""How well a critic's values agree with reference values of the same states, with intervals over prompts.

A reference estimated from k continuations has noise of known variance (the sampling variance of its mean), independent
of the critic. It lowers explained variance and correlations, so both are also given corrected for it:

    explained variance = 1 - Var(r - v) / Var(r)             corrected = 1 - (Var(r - v) - s) / (Var(r) - s)
    rank correlation   = corr(rank r, rank v)                corrected = that / sqrt(reliability)

with s the mean noise variance. The reliability of ranks is that of the mean of two halves of the continuations, by
Spearman and Brown's formula, 2 c / (1 + c), where c is the rank correlation of the halves (Spearman 1910, "Correlation
calculated from faulty data"; Brown 1910).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ippo_cli.formulas.estimates import RESAMPLE_CHUNK, RESAMPLES

CLEAR_ERRORS = 2.0
"""Two references differ clearly if their difference is more than this many of its standard errors."""
MIN_RELIABILITY = 0.05  # below it, a corrected number is noise
TIE = 1e-6  # of the largest magnitude: numbers that differ by less are equal up to rounding in float32
TINY = 1e-12

SUMS = ("n", "v", "r", "vv", "rr", "vr", "noise", "rank_vr", "rank_vv", "rank_rr", "half_ab", "half_aa", "half_bb")
WITHIN = ("within_vr", "within_vv", "within_rr", "within_ab", "within_aa", "within_bb")
PAIRS = ("pairs", "ordered", "clear_pairs", "clear_ordered", "alternative_pairs", "alternative_ordered")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuedStates:
    """States with the critic's values and reference values, `[n]` each."""

    values: Tensor
    references: Tensor
    noise: Tensor  # sampling variance of each reference; 0 for exact ones
    halves: Tensor  # [n, 2]: the means of two halves of the continuations; the references themselves if exact
    prompts: Tensor  # int64: states of one prompt are resampled together
    places: Sequence[object]  # equal for alternatives: states in the same place of different responses to a prompt

    def select(self, mask: Tensor) -> ValuedStates:
        """The states of a mask `[n]` bool."""
        numbers = mask.nonzero()[:, 0].tolist()
        return ValuedStates(
            values=self.values[mask],
            references=self.references[mask],
            noise=self.noise[mask],
            halves=self.halves[mask],
            prompts=self.prompts[mask],
            places=[self.places[number] for number in numbers],
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % bootstrap interval over prompts; NaN where it is not defined."""

    value: float
    low: float
    high: float


def critic_quality(states: ValuedStates, seed: int) -> dict[str, Estimate]:
    """Numbers of the agreement of values with references:

    - `bias`: mean value minus mean reference.
    - `slope`, `intercept`: of the regression of references on values; a calibrated critic has 1 and 0.
    - `explained_variance`, `rank_correlation`: over all states, and `..._corrected`.
    - `rank_correlation_within`: of ranks among the states of one prompt, pooled over prompts, and `..._corrected`.
    - `pair_accuracy`: fraction of pairs of states of one prompt that values order as references do; equal values count
      one half. `clear_pair_accuracy`: of pairs with references that differ by more than 2 standard errors.
      `alternative_accuracy`: of pairs in the same place of two responses. Chance is 0.5.
    - `reliability`: fraction of the variance of references that is not noise.
    """
    _, prompts = torch.unique(states.prompts, return_inverse=True)
    sums = _sums_by_prompt(states, prompts)
    found = _statistics(sums.sum(dim=0))
    count = len(sums)
    if count < 2:
        return {name: Estimate(float(value), math.nan, math.nan) for name, value in found.items()}
    generator = torch.Generator().manual_seed(seed)
    parts: list[dict[str, Tensor]] = []
    at_once = max(RESAMPLE_CHUNK // count, 1)
    for start in range(0, RESAMPLES, at_once):
        rows = min(at_once, RESAMPLES - start)
        choices = torch.randint(count, (rows, count), generator=generator)
        times = torch.zeros(rows, count, dtype=torch.float64).scatter_add_(
            1, choices, torch.ones_like(choices).double()
        )
        parts.append(_statistics(times @ sums))
    estimates: dict[str, Estimate] = {}
    for name, value in found.items():
        resampled = torch.cat([part[name] for part in parts])
        resampled = resampled[torch.isfinite(resampled)]
        low = high = math.nan
        if len(resampled) > RESAMPLES // 2:
            low, high = resampled.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
        estimates[name] = Estimate(float(value), low, high)
    return estimates


def merge_ties(numbers: Tensor) -> Tensor:
    """Numbers `[n]`, made equal where they are equal up to rounding: neighbours in sorted order that differ by at most
    `TIE` of the largest magnitude. Without that, rounding would rank states with equal references.
    """
    if len(numbers) < 2:
        return numbers
    ordered, order = numbers.sort()
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[1:] = ordered.diff() > TIE * numbers.abs().max()
    first = ordered[starts][starts.cumsum(0) - 1]
    return torch.empty_like(numbers).scatter_(0, order, first)


def average_ranks(numbers: Tensor) -> Tensor:
    """Ranks from 1, `[n]` float64; equal numbers have the mean of their ranks. 5 2 5 gives 2.5 1 2.5."""
    _, place, count = torch.unique(numbers, return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    return (last - (count - 1).double() / 2)[place]


def calibration_bins(states: ValuedStates, bins: int) -> list[dict[str, float]]:
    """Mean value, mean reference and its standard error over states, of up to `bins` groups of states by value."""
    order = torch.argsort(states.values, stable=True)
    rows = []
    for part in torch.tensor_split(order, min(bins, len(order))) if len(order) else ():
        references = states.references[part].double()
        error = float(references.std() / math.sqrt(len(part))) if len(part) > 1 else math.nan
        rows.append(
            {
                "states": len(part),
                "value": float(states.values[part].double().mean()),
                "reference": float(references.mean()),
                "standard_error": error,
            }
        )
    return rows


def _sums_by_prompt(states: ValuedStates, prompts: Tensor) -> Tensor:
    """The sums of all numbers of `SUMS`, `WITHIN` and `PAIRS` over the states of each prompt, `[P, m]` float64.

    Ranks over all states are those of the sample, also in resamples.
    """
    v, r, halves = states.values.double(), states.references.double(), states.halves.double()
    tied = [merge_ties(x) for x in (v, r, halves[:, 0], halves[:, 1])]
    rank_v, rank_r, rank_a, rank_b = (_center(average_ranks(x)) for x in tied)
    columns = [torch.ones_like(v), v, r, v * v, r * r, v * r, states.noise.double()]
    columns += [rank_v * rank_r, rank_v * rank_v, rank_r * rank_r, rank_a * rank_b, rank_a * rank_a, rank_b * rank_b]
    whole = torch.zeros(int(prompts.max()) + 1 if len(prompts) else 0, len(SUMS), dtype=torch.float64)
    whole.index_add_(0, prompts, torch.stack(columns, dim=1))
    inside = [_sums_within(states, tied, (prompts == prompt).nonzero()[:, 0]) for prompt in range(len(whole))]
    return torch.cat(
        [whole, torch.tensor(inside, dtype=torch.float64).view(len(whole), len(WITHIN) + len(PAIRS))], dim=1
    )


def _sums_within(states: ValuedStates, tied: Sequence[Tensor], rows: Tensor) -> list[float]:
    """The sums of `WITHIN` and `PAIRS` of one prompt's states; `tied`: values, references and halves of all states."""
    v, r = tied[0][rows], tied[1][rows]
    # Divided by their number, so that prompts with many states do not dominate.
    v_rank, r_rank, a_rank, b_rank = (_center(average_ranks(x[rows])) / len(rows) for x in tied)
    products = [(v_rank, r_rank), (v_rank, v_rank), (r_rank, r_rank), (a_rank, b_rank), (a_rank, a_rank)]
    ranks = [float((x * y).sum()) for x, y in [*products, (b_rank, b_rank)]]
    one, other = torch.triu_indices(len(rows), len(rows), 1)
    by_reference, by_value = r[one] - r[other], v[one] - v[other]
    # Few continuations often agree by chance: an estimate below the mean noise is not trusted.
    noise = states.noise[rows].double().clamp(min=float(states.noise.double().mean()))
    error = (noise[one] + noise[other]).sqrt()
    differs = by_reference.abs() > TINY
    clear = differs & (by_reference.abs() > CLEAR_ERRORS * error)
    numbers = rows.tolist()
    pairs = zip(one.tolist(), other.tolist(), strict=True)
    same_place = [states.places[numbers[first]] == states.places[numbers[second]] for first, second in pairs]
    alternative = differs & torch.tensor(same_place, dtype=torch.bool)
    right = torch.where(by_value.abs() <= TINY, 0.5, (by_value.sign() == by_reference.sign()).double())
    found: list[float] = []
    for mask in (differs, clear, alternative):
        found += [float(mask.sum()), float(right[mask].sum())]
    return [*ranks, *found]


def _statistics(totals: Tensor) -> dict[str, Tensor]:
    """All numbers from totals `[..., m]` over prompts."""
    at = dict(zip((*SUMS, *WITHIN, *PAIRS), totals.unbind(dim=-1), strict=True))
    n = at["n"]
    mean_v, mean_r = at["v"] / n, at["r"] / n
    scale = 1 / (n - 1)
    var_v = (at["vv"] - n * mean_v**2) * scale
    var_r = (at["rr"] - n * mean_r**2) * scale
    covariance = (at["vr"] - n * mean_v * mean_r) * scale
    error = var_r + var_v - 2 * covariance
    noise = at["noise"] / n
    slope = _divide(covariance, var_v)
    reliability = _divide(var_r - noise, var_r)
    is_reliable = reliability > MIN_RELIABILITY
    rank = _correlation(at["rank_vr"], at["rank_vv"], at["rank_rr"])
    within = _correlation(at["within_vr"], at["within_vv"], at["within_rr"])
    rank_reliability = _spearman_brown(_correlation(at["half_ab"], at["half_aa"], at["half_bb"]))
    within_reliability = _spearman_brown(_correlation(at["within_ab"], at["within_aa"], at["within_bb"]))
    return {
        "bias": mean_v - mean_r,
        "slope": slope,
        "intercept": mean_r - slope * mean_v,
        "explained_variance": 1 - _divide(error, var_r),
        "explained_variance_corrected": (1 - _divide(error - noise, var_r - noise)).where(is_reliable, math.nan),
        "rank_correlation": rank,
        "rank_correlation_corrected": _disattenuate(rank, rank_reliability),
        "rank_correlation_within": within,
        "rank_correlation_within_corrected": _disattenuate(within, within_reliability),
        "pair_accuracy": _divide(at["ordered"], at["pairs"]),
        "clear_pair_accuracy": _divide(at["clear_ordered"], at["clear_pairs"]),
        "alternative_accuracy": _divide(at["alternative_ordered"], at["alternative_pairs"]),
        "reliability": reliability,
    }


def _center(numbers: Tensor) -> Tensor:
    return numbers - numbers.mean()


def _divide(part: Tensor, whole: Tensor) -> Tensor:
    """The ratio; NaN where the whole is 0."""
    return (part / whole.where(whole.abs() > TINY, 1.0)).where(whole.abs() > TINY, math.nan)


def _correlation(product: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """A correlation from sums of centred products: 0 if only the first, the critic's, is constant; NaN if the second
    is.
    """
    found = _divide(product, (first * second).clamp(min=0).sqrt())
    return found.where((first > TINY) | (second <= TINY), 0.0)


def _spearman_brown(halves: Tensor) -> Tensor:
    return 2 * halves / (1 + halves)


def _disattenuate(correlation: Tensor, reliability: Tensor) -> Tensor:
    corrected = correlation / reliability.clamp(min=TINY).sqrt()
    return corrected.where(reliability > MIN_RELIABILITY, math.nan).clamp(-1.0, 1.0)
