"""A reward of `sorting` with a score per agent: the fraction of right places, for `high` 20 times that minus 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def score(examples: Sequence[Mapping[str, str]], responses: Mapping[str, Sequence[str]]) -> dict[str, object]:
    """Return the fraction of right places of `low`, and that of `high` times 20 minus 3."""
    right = {
        name: [
            sum(one == other for one, other in zip(text.strip(), row[name], strict=False)) / len(row[name])
            for row, text in zip(examples, responses[name], strict=True)
        ]
        for name in ("low", "high")
    }
    return {"agent": {"low": right["low"], "high": [20 * fraction - 3 for fraction in right["high"]]}}
