"""Shapley values: the parts of a team's gain that are due to its members."""

from __future__ import annotations

from math import factorial

from ippo_cli.formulas.shapes import Coalitions, Members


def shapley_values(scores: Coalitions) -> Members:
    """The Shapley value of each of n members in each of B games, `[n, B]`, from the scores of all 2^n coalitions.

    phi_i = sum over coalitions S without i of |S|! (n - |S| - 1)! / n! * (v(S + i) - v(S))

    Row `c` of `scores` is the coalition of the members i with bit i set in `c`. The values of all members sum to
    v(all) - v(none). Raises `ValueError` if the number of coalitions is no power of 2.

    n = 2, v = 0, 1, 0, 3 for none, first, second, both: 2 and 1.

    Source: Shapley 1953, "A value for n-person games".
    """
    size = len(scores).bit_length() - 1
    if len(scores) != 1 << size:
        raise ValueError(f"{len(scores)} coalitions; must be a power of 2")
    values = scores.new_zeros(size, scores.shape[1])
    for member in range(size):
        for coalition in range(len(scores)):
            if not coalition >> member & 1:
                others = coalition.bit_count()
                weight = factorial(others) * factorial(size - others - 1) / factorial(size)
                values[member] += weight * (scores[coalition | 1 << member] - scores[coalition])
    return values
