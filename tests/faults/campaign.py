"""The whole of the fault matrix, as long as one likes: `scripts/faults.sh`. What came of it goes into
`docs/reliability.md`, between the markers there.

Parts: `kills` (SIGKILL at random times), `points` (SIGKILL at every point), `stops` (stop and resume at every step),
`signals` (every signal in every phase), `flips` (bits of a checkpoint), `soak` (killed every minute).
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from itertools import repeat
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

import torch
from survival import (
    NEVER,
    ONE_AGENT,
    SHORT,
    Tally,
    damaged_by_a_flip,
    ended,
    fingerprint,
    killed_until_done,
    start_job,
    stopped,
    timed,
    undisturbed,
)

from ippo_cli.config.faults import POINTS
from ippo_cli.training.folder import all_checkpoints, read_state

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
MARKERS = ("<!-- campaign: begin -->", "<!-- campaign: end -->")
SIGNALS = ("sigterm", "sigusr1", "sigusr2", "sigint")
KILLED = ("num_iterations=12", "checkpoint.every=2", "evaluation.every=6", "evaluation.greedy=false")
TWO_RANKS = ("launch.processes=2", "deepspeed=zero2")
SOAK_PROBE = ("num_iterations=6", "evaluation.every=0", "checkpoint.every=0")


class Failed(Exception):
    """A promise that did not hold."""


def whole(root: Path, *overrides: str) -> tuple[Any, float]:
    """The fingerprint of a job that nothing happens to, and its seconds."""
    root.mkdir(parents=True)
    code, seconds = timed(lambda: ended(start_job(root, *overrides)))
    [folder] = [path.parent for path in root.glob("default/*/run.json")]
    if code != 0:
        raise Failed(f"the undisturbed run ended with {code}: {(root / 'errors').read_text()[-400:]}")
    return fingerprint(folder), seconds


def kills(root: Path, count: int, chance: random.Random, *overrides: str) -> str:
    """SIGKILL at random times: of the whole job, or of one of its ranks."""
    expected, _ = whole(root / "whole", *KILLED, *overrides)
    _, seconds = whole(root / "timed", *KILLED, *overrides)  # the first one waited for what is imported once
    tally = Tally()
    while tally.kills < count:
        place = root / str(tally.runs)
        place.mkdir()
        delays = (chance.uniform(0.0, seconds) for _ in range(count - tally.kills))
        killed_until_done(place, expected, *KILLED, *overrides, delays=delays, chance=chance, tally=tally)
    return judged(tally, most_lost=2)


def judged(tally: Tally, *, most_lost: int | None) -> str:
    """What is said of jobs that were killed. Raises `Failed` where a promise was broken."""
    lost = max(tally.lost, default=0)
    broken = [*tally.unusable, *tally.differing]
    if broken or (most_lost is not None and lost > most_lost):
        raise Failed(f"{broken}; at most {lost} iterations lost")
    return (
        f"{tally.kills} kills, {tally.in_save} of them while a checkpoint was being written or removed: 0 unusable "
        f"checkpoints, at most {lost} iterations lost; {tally.runs} runs came to their end, all byte-equal"
    )


def points(root: Path, ranks: int) -> str:
    """SIGKILL at every point, of every rank, in the middle of the run."""
    overrides = (*SHORT, *(TWO_RANKS if ranks > 1 else ()))
    expected, _ = whole(root / "whole", *overrides)
    done = 0
    for point in POINTS:
        for rank in range(ranks):
            if rank and point in ("compose", "log", "save.rename", "save.pointer", "prune"):
                continue  # rank 0's alone
            place = root / f"{point}_{rank}"
            place.mkdir()
            once = ranks > 1 or point in ("compose", "init", "prune")
            code = ended(start_job(place, *overrides, faults=[f"{point}:sigkill:{1 if once else 2}:{rank}"]))
            if code == 0:
                raise Failed(f"{point}:sigkill on rank {rank} ended with {code}")
            if (code := ended(start_job(place, *overrides))) != 0:
                raise Failed(f"after {point}:sigkill on rank {rank} the run ended with {code}")
            found = [path.parent for path in place.glob("default/*/run.json") if read_state(path.parent) == "done"]
            if len(found) != 1 or fingerprint(found[0]) != expected:
                raise Failed(f"after {point}:sigkill on rank {rank} the run differs")
            done += 1
    return f"{done} kills at {len(POINTS)} points on {ranks} rank{'s' * (ranks > 1)}: every run byte-equal"


def stops(root: Path, stride: int, *overrides: str) -> str:
    """SIGTERM at every pass of every point, and resume."""
    root.mkdir()
    expected, passes = undisturbed(root, *SHORT, *overrides)
    counts = {}
    for point, total in passes.items():
        times = range(1, total + 1, stride if point in ("generate", "forward", "backward") else 1)
        for time_ in times:
            resume(root, expected, [f"{point}:sigterm:{time_}"], *overrides)
        counts[point] = len(times)
    return f"{sum(counts.values())} stops ({', '.join(f'{p} {n}' for p, n in counts.items())}): every run byte-equal"


def signals(root: Path) -> str:
    """Every signal in every phase; twice as well, and another one while it is saved."""
    root.mkdir()
    expected, passes = undisturbed(root, *SHORT)
    done = 0
    for point, total in passes.items():
        for kind in SIGNALS:
            middle = total // 2 + 1 if total > 1 else 1
            resume(root, expected, [f"{point}:{kind}:{middle}"])
            done += 1
    for kind in ("sigterm", "sigusr1", "sigusr2"):  # a second Ctrl-C means: at once
        resume(root, expected, ["targets:sigterm:2", f"save.write:{kind}:2", f"save.rename:{kind}:2"])
        done += 1
    return f"{done} signals in {len(passes)} phases, a second one during the save among them: every run byte-equal"


def resume(root: Path, expected: Any, faults: list[str], *overrides: str) -> None:
    """One run with these faults, and to its end without. Raises `Failed` where it differs."""
    folder, state = stopped(root, *SHORT, *overrides, faults=faults)
    if state == "preempted":
        folder, state = stopped(root, *SHORT, *overrides, faults=[NEVER], folder=folder)
    if state != "done" or fingerprint(folder) != expected:
        raise Failed(f"{faults} ended as {state}, or differs: {folder}")


def flips(root: Path, count: int, chance: random.Random) -> str:
    """Bits that flip in a checkpoint, one at a time."""
    folder, _ = stopped(root, *SHORT, "num_iterations=1", faults=[])
    newest = all_checkpoints(folder / "checkpoints")[-1]
    seen = sum(damaged_by_a_flip(newest, chance) is not None for _ in range(count))
    if seen != count:
        raise Failed(f"{count - seen} of {count} flipped bits were not seen")
    return f"{count} flipped bits: all seen"


def soak(root: Path, minutes: float, every_s: float, chance: random.Random) -> str:
    """One run of so many minutes, killed every so many seconds and started again, saved by time alone."""
    _, short = whole(root / "short", *SOAK_PROBE, "num_iterations=1")
    _, longer = whole(root / "probe", *SOAK_PROBE, "num_iterations=41")
    iterations = max(2, int(minutes * 60 / max((longer - short) / 40, 0.01)))
    keys = (*SOAK_PROBE, f"num_iterations={iterations}", f"checkpoint.every_seconds={every_s / 12:g}")
    expected, seconds = whole(root / "whole", *keys)
    tally, began = Tally(), time.monotonic()
    place = root / "killed"
    place.mkdir()
    killed_until_done(place, expected, *keys, delays=repeat(every_s), chance=chance, tally=tally)
    said = judged(tally, most_lost=None)
    return (
        f"{iterations} iterations, {seconds / 60:.1f} minutes undisturbed, killed every {every_s:g} s for "
        f"{(time.monotonic() - began) / 60:.1f} minutes and saved every {every_s / 12:g} s: {said}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults.sh", description=__doc__)
    parser.add_argument("parts", nargs="*", help="parts to run; all of them but soak without a name")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument("--stride", type=int, default=1, help="of generate, forward and backward: every N-th")
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES")
    parser.add_argument("--every", type=float, default=60.0, metavar="SECONDS", help="between two kills of the soak")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        root = Path(folder)
        parts: dict[str, Callable[[], str]] = {
            "flips": lambda: flips(root / "flips", asked.flips, chance),
            "signals": lambda: signals(root / "signals"),
            "stops, two agents": lambda: stops(root / "stops2", asked.stride),
            "stops, one agent": lambda: stops(root / "stops1", asked.stride, ONE_AGENT),
            "points, one rank": lambda: points(root / "points1", 1),
            "points, two ranks": lambda: points(root / "points2", 2),
            "kills, one rank": lambda: kills(root / "kills1", asked.kills, chance, ONE_AGENT),
            "kills, two ranks": lambda: kills(root / "kills2", max(1, asked.kills // 10), chance, *TWO_RANKS),
            "soak": lambda: soak(root / "soak", asked.soak, asked.every, chance),
        }
        known = {name.partition(",")[0] for name in parts}
        wanted = set(asked.parts) or known - (set() if asked.soak else {"soak"})
        if wanted - known:
            parser.error(f"parts are {' '.join(sorted(known))}")
        chosen = {name: part for name, part in parts.items() if name.partition(",")[0] in wanted}
        lines, failed = [], False
        for name, part in chosen.items():
            print(f"{name} ...", flush=True)
            try:
                with redirect_stdout(io.StringIO()):  # what the runs themselves say
                    said, seconds = timed(part)
            except Failed as broken:
                said, seconds, failed = f"**broken**: {broken}", 0.0, True
            lines.append(f"| {name} | {said} | {seconds / 60:.1f} |")
            print(lines[-1], flush=True)
            write_report(lines)
    return int(failed)


def write_report(lines: list[str]) -> None:
    """Put what came of these parts into the page; of parts that were not run now, what was known stays."""
    text = PAGE.read_text()
    before, rest = text.split(MARKERS[0])
    old, after = rest.split(MARKERS[1])
    known = [line for line in old.splitlines() if line.startswith("| ") and not line.startswith("| part")]
    rows = {line.split(" | ")[0]: line for line in [*known, *lines]}
    head = ["| part | what came of it | minutes |", "|---|---|---|"]
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    where = f"On {platform.machine()} with {os.cpu_count()} cores, {versions}:"
    PAGE.write_text(before + "\n".join([MARKERS[0], where, "", *head, *rows.values(), MARKERS[1]]) + after)


if __name__ == "__main__":
    sys.exit(main())
