"""Compare our formulas with the published ones of other projects, on random ragged responses.

    python scripts/bench/agreement.py                           all peers that this interpreter can import
    python scripts/bench/agreement.py --peers verl --cases 50 --json agreement.json

The peers need separate environments, so one run rarely covers all of them: `--json FILE` keeps the rows of peers that
this interpreter cannot import, and the printed table includes them. The tables of `published/`, one file per peer, list
the comparisons and call the peer's own functions. The exit code is 1 if a result differs from the tables: an unknown
difference, or a known difference that disappeared.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import itertools
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from published.cases import Case, Comparison, Side, make_case
from torch import Tensor

# Peer, its distribution, and the module with its table (which imports it).
PEERS = (
    ("verl", "verl", "published.verl"),
    ("OpenRLHF", "openrlhf", "published.openrlhf"),
    ("TRL", "trl", "published.trl"),
    ("AgileRL", "agilerl", "published.agilerl"),
    ("CoMLRL", "comlrl", "published.comlrl"),
    ("hl-gauss-pytorch", "hl-gauss-pytorch", "published.hl_gauss"),
    ("TorchRL", "torchrl", "published.torchrl"),
    ("RLax", "rlax", "published.rlax"),
)
REFUSALS = (ValueError, NotImplementedError, ZeroDivisionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result of a comparison."""

    peer: str  # with its version
    what: str
    on: str
    cases: int
    float32: float  # largest |ours - theirs| / max(1, |theirs|); infinite if only one side raises or is NaN
    float64: float | None
    translated: float | None  # the same after our side is changed as the reason says, relative to the tolerance
    verdict: str
    expected: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", choices=[name for name, _, _ in PEERS], help="default: all")
    parser.add_argument("--cases", type=int, default=300, help="random batches per comparison and dtype")
    parser.add_argument("--json", type=Path, help="file that keeps rows by peer")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[Row]] = read(arguments.json) if arguments.json and arguments.json.exists() else {}
    missing: dict[str, str] = {}
    for name, distribution, module in PEERS:
        if arguments.peers and name not in arguments.peers:
            continue
        try:
            version = importlib.metadata.version(distribution)
            table: Sequence[Comparison] = importlib.import_module(module).COMPARISONS
        except Exception as error:  # an import may fail in any way; the reason is printed below
            missing[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        found[name] = [compare(f"{name} {version}", one, arguments.cases) for one in table]
    if arguments.json:
        arguments.json.write_text(json.dumps({name: [asdict(row) for row in rows] for name, rows in found.items()}))
    rows = [row for name, _, _ in PEERS for row in found.get(name, ())]
    print(markdown(rows))
    for name, reason in missing.items():
        earlier = f"; the rows above are from {arguments.json}" if name in found else ""
        print(f"not importable here: {name} ({reason}){earlier}")
    unexpected = [row for row in rows if not row.expected]
    print(f"{len(rows)} comparisons, {len(unexpected)} with an unexpected result")
    return 1 if unexpected else 0


def read(file: Path) -> dict[str, list[Row]]:
    return {name: [Row(**row) for row in rows] for name, rows in json.loads(file.read_text()).items()}


def compare(peer: str, comparison: Comparison, cases: int) -> Row:
    """Run all cases of one comparison, and check the result against its table."""
    found = [largest(comparison, comparison.ours, dtype, cases) for dtype in comparison.limits]
    shares = [one / limit for one, limit in zip(found, comparison.limits.values(), strict=True)]
    agrees = max(shares) <= 1.0
    translated = None
    if comparison.translated is not None:
        translated = max(
            largest(comparison, comparison.translated, dtype, cases) / limit
            for dtype, limit in comparison.limits.items()
        )
    explained = translated is None or translated <= 1.0
    if comparison.known is None:
        verdict = "agrees" if agrees else "DIFFERS"
    elif agrees:
        verdict = f"AGREES, but was known to differ: {comparison.known}"
    else:
        verdict = f"differs: {comparison.known}" + ("" if explained else "; THAT IS NOT THE WHOLE REASON")
    return Row(
        peer=peer,
        what=comparison.what,
        on=", ".join(comparison.on),
        cases=cases,
        float32=found[0],
        float64=found[1] if len(found) > 1 else None,
        translated=translated,
        verdict=verdict,
        expected=explained and agrees == (comparison.known is None),
    )


def largest(comparison: Comparison, ours: Side, dtype: torch.dtype, cases: int) -> float:
    """Return the largest difference over the cases."""
    found = 0.0
    for seed, kind in itertools.product(range(cases), comparison.on):
        case = make_case(seed, kind).to(dtype)
        found = max(found, distance(outcome(ours, case, seed), outcome(comparison.theirs, case, seed)))
    return found


def outcome(side: Side, case: Case, seed: int) -> tuple[Tensor, ...] | None:
    """Return the results of a side for a case; None if it raises."""
    torch.manual_seed(seed)
    try:
        result = side(case)
    except REFUSALS:
        return None
    return result if isinstance(result, tuple) else (result,)


def distance(ours: tuple[Tensor, ...] | None, theirs: tuple[Tensor, ...] | None) -> float:
    """Return the largest `|ours - theirs| / max(1, |theirs|)`; infinite if only one side raises or is NaN."""
    if ours is None or theirs is None:
        return 0.0 if ours is theirs else math.inf
    found = 0.0
    for one, other in zip(ours, theirs, strict=True):
        if one.shape != other.shape:
            raise ValueError(f"shapes {tuple(one.shape)} and {tuple(other.shape)} cannot be compared")
        one, other = one.detach().double(), other.detach().double()
        apart = (one - other).abs() / other.abs().clamp(min=1.0)
        found = max([found, *apart.nan_to_num(nan=math.inf).flatten().tolist()])
    return found


def markdown(rows: Sequence[Row]) -> str:
    lines = ["| peer | quantity | responses | float32 | float64 | verdict |", "|---|---|---|---|---|---|"]
    for row in rows:
        double = "" if row.float64 is None else number(row.float64)
        lines.append(f"| {row.peer} | {row.what} | {row.on} | {number(row.float32)} | {double} | {row.verdict} |")
    return "\n".join(lines)


def number(difference: float) -> str:
    if math.isinf(difference):
        return "one-sided"
    return re.sub(r"e([+-])0?", r"e\1", f"{difference:.1g}").replace("e+", "e")


if __name__ == "__main__":
    sys.exit(main())
