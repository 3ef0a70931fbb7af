"""Load balance of ranks within a mini-batch: rows on the rank that generated them, or partitioned by length.

    python scripts/bench/balance.py

This does not train: it samples response lengths (log-normal with median 245 and maximum 2048, or all equal; the prompt
has 64 tokens), spreads a buffer of four mini-batches over the ranks, and draws one mini-batch. Prints a table with the
tokens of the busiest rank divided by the mean over ranks, averaged over ten draws; `bound` is a lower bound of any
partition of whole rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ippo_cli.training.minibatches import partition

DRAWS = 10
PROMPT, MEDIAN, SPREAD, LONGEST = 64, 245, 0.8, 2048


def long_tail(luck: np.random.Generator, rows: int) -> np.ndarray:
    return PROMPT + luck.lognormal(np.log(MEDIAN), SPREAD, rows).clip(1, LONGEST).astype(int)


def equal(luck: np.random.Generator, rows: int) -> np.ndarray:
    return np.full(rows, PROMPT + MEDIAN)


def busiest(lengths: np.ndarray, owners: np.ndarray, ranks: int) -> float:
    """Return the tokens of the busiest rank, divided by the mean over ranks."""
    held = np.bincount(owners, weights=lengths, minlength=ranks)
    return float(held.max() / held.mean())


def spread(draw: Callable[[np.random.Generator, int], np.ndarray], ranks: int, rows: int) -> tuple[float, ...]:
    """Return the imbalance of generated rows, that of partitioned rows, and the lower bound."""
    luck = np.random.default_rng(0)
    found = []
    for _ in range(DRAWS):
        lengths = draw(luck, 4 * rows)
        picked = luck.permutation(4 * rows)[:rows]
        written, own = picked * ranks // (4 * rows), lengths[picked]
        given = np.array(partition(own.tolist(), ranks))
        least = max(own.max() / (own.sum() / ranks), np.ceil(rows / ranks) * own.min() / (own.sum() / ranks), 1.0)
        found.append((busiest(own, written, ranks), busiest(own, given, ranks), least))
    return tuple(np.mean(found, axis=0))


def main() -> None:
    print("| lengths | ranks | rows of a mini-batch | on the generating rank | partitioned | bound |")
    print("|---|---|---|---|---|---|")
    for name, draw in {"equal": equal, "long tail": long_tail}.items():
        for ranks in (8, 64, 512):
            for rows in (128, 512, 2048):
                cells = " | ".join(f"{value:.2f}" for value in spread(draw, ranks, rows))
                print(f"| {name} | {ranks} | {rows} | {cells} |")


if __name__ == "__main__":
    main()
