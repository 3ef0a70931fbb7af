"""How unequal the work of ranks is in a mini-batch: rows where they were written, and dealt out by their lengths.

    python scripts/bench/balance.py

Nothing is trained: lengths are drawn (log-normal, median 245 tokens and 64 of prompt, none over 2048; or all equal), a
buffer of four mini-batches is spread over the ranks, and one mini-batch is drawn from it. Prints a table of the busiest
rank's tokens divided by the mean rank's, means of ten draws; `least` is what no way of dealing out whole rows is below.
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
    """Tokens of the busiest rank, divided by those of the mean one."""
    held = np.bincount(owners, weights=lengths, minlength=ranks)
    return float(held.max() / held.mean())


def spread(draw: Callable[[np.random.Generator, int], np.ndarray], ranks: int, rows: int) -> tuple[float, ...]:
    """Where rows were written, dealt out, and the least."""
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
    print("| lengths | ranks | rows of a mini-batch | where they were written | dealt out | least |")
    print("|---|---|---|---|---|---|")
    for name, draw in {"equal": equal, "long tail": long_tail}.items():
        for ranks in (8, 64, 512):
            for rows in (128, 512, 2048):
                cells = " | ".join(f"{value:.2f}" for value in spread(draw, ranks, rows))
                print(f"| {name} | {ranks} | {rows} | {cells} |")


if __name__ == "__main__":
    main()
