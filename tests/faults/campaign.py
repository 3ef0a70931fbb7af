"""Run the whole fault matrix, for a chosen time: `scripts/faults.sh`. Results are written between the markers of
`docs/results.md`.

Parts: `kills` (SIGKILL at random times), `points` (SIGKILL at every point), `stops` (stop and resume at every step),
`signals` (every signal in every phase), `flips` (bits of a checkpoint), `soak` (a kill every minute), `zero` (every
stage and offload against stage 0). With `--folder` a campaign continues an earlier one; `--minutes` limits the time.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
sys.path.insert(0, str(Path(__file__).parents[1] / "training"))

from book import Book, Failed, Found, runs
from small import final_weights, rows
from survival import (
    NEVER,
    ONE_AGENT,
    SHORT,
    Tally,
    find_damage_after_flip,
    fingerprint,
    kill_once,
    kill_until_done,
    run_undisturbed,
    run_with_faults,
    start_job,
    wait_for_exit,
)

from ippo_cli.config.faults import FAULT_POINTS
from ippo_cli.runs.folder import list_checkpoints, read_run_state

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
MARKERS = ("<!-- campaign: begin -->", "<!-- campaign: end -->")
PARTS = ("flips", "points", "kills", "hangs", "families", "reshard", "signals", "soak", "stops", "zero")
SIGNALS = ("sigterm", "sigusr1", "sigusr2", "sigint")
KILLED = ("num_iterations=12", "checkpoint.every=2", "evaluation.every=6", "evaluation.greedy=false")
TWO_RANKS = ("launch.processes=2", "deepspeed=zero2")
OF_RANK_0 = ("compose", "log", "save.rename", "save.pointer", "prune")
SOAK = ("num_iterations=1000000", "evaluation.every=0", "checkpoint.every=0")
KILLS_OF_A_RUN = 8
PLACES = {"targets": 2, "generate": 70}
"""Preemption points of the `families` part: point -> number of the pass, in the second iteration or later."""
ADAPTERS = ("actor=tiny_lora", "actor.rank=4", "critic=adapter", "critic.rank=4")
ENGINES: dict[str, tuple[str, ...]] = {
    **{str(stage): (f"deepspeed=zero{stage}",) for stage in range(4)},
    **{
        f"{stage} with optimizer offload": (f"deepspeed=zero{stage}", "deepspeed.offload_optimizer=true")
        for stage in (1, 2, 3)
    },
    "3 with all offload": ("deepspeed=zero3", "deepspeed.offload_optimizer=true", "deepspeed.offload_params=true"),
}
FAMILIES = (
    *("ippo", "ppo", "actor_critic", "comlrl_ippo", "comlrl_iac", "pf_ppo", "mappo", "happo"),
    *("grpo", "dr_grpo", "rloo", "remax", "reinforce_plus_plus", "reinforce_plus_plus_baseline"),
    *("sao", "vapo", "dapo", "gspo", "gmpo", "cispo", "dppo", "vine_ppo"),
)
KINDS: dict[str, tuple[str, ...]] = {
    **{name: (f"algorithm={name}", "algorithm.mini_batch_size=16") for name in FAMILIES},
    "turn_ppo on a ladder": (
        *("task=ladder", "task.train_size=16", "algorithm=turn_ppo", "algorithm.mini_batch_size=16"),
    ),
    "value head": ("critic=value_head",),
    "adapters": ADAPTERS,
    "adapters on a shared base": (*ADAPTERS, "team=shared_base"),
    "shared policy": ("team=shared_policy",),
    "bf16": ("actor.dtype=bf16",),
    "zero3": ("deepspeed=zero3",),
    "zero3 in bf16": ("deepspeed=zero3", "actor.dtype=bf16"),
    "zero3 on two ranks": ("deepspeed=zero3", "launch.processes=2"),
    "zero3 in bf16 on two ranks": ("deepspeed=zero3", "launch.processes=2", "actor.dtype=bf16"),
    "zero1 in bf16 on two ranks": ("deepspeed=zero1", "launch.processes=2", "actor.dtype=bf16"),
}


def flips(book: Book, count: int, seed: int) -> str:
    """Flip bits of a checkpoint, one at a time."""

    def flip_bits(place: Path) -> Found:
        folder, _ = run_with_faults(place, *SHORT, "num_iterations=1", faults=[])
        newest, rng = list_checkpoints(folder / "checkpoints")[-1], random.Random(seed)
        seen = sum(find_damage_after_flip(newest, rng) is not None for _ in range(count))
        if seen != count:
            raise Failed(f"{count - seen} of {count} flipped bits were not detected")
        return {"flips": count}

    book.run_case(f"flips-{count}", flip_bits)
    return f"{total(book, 'flips')} flipped bits: all detected"


def kills(book: Book, count: int, seed: int, *overrides: str) -> str:
    """Send SIGKILL at random times, to the whole job or to one of its ranks."""
    expected, _ = book.reference(*KILLED, *overrides)
    _, seconds = book.reference(*KILLED, *overrides, name="timed")  # the first run also waits for imports

    def one_run(number: int, place: Path) -> Found:
        rng, tally = random.Random(f"{seed}/{number}"), Tally()
        delays = (rng.uniform(0.0, seconds / 2) for _ in range(KILLS_OF_A_RUN))
        kill_until_done(place, expected, *KILLED, *overrides, delays=delays, rng=rng, tally=tally)
        return kill_results(tally, most_lost=2)

    number = 0
    while (done := total(book, "kills")) < count and not book.is_over():
        book.run_case(f"run-{number}", partial(one_run, number))
        number += 1
    return f"{done} kills{f' of {count}' if done < count else ''}, {describe_kills(book)}"


def kill_results(tally: Tally, *, most_lost: int | None) -> Found:
    """Return the numbers to record for killed jobs. Raises `Failed` if a guarantee does not hold."""
    lost = max(tally.lost, default=0)
    broken = [*tally.unusable, *tally.differing]
    if broken or (most_lost is not None and lost > most_lost):
        raise Failed(f"{broken}; at most {lost} iterations lost")
    return {"kills": tally.kills, "in_save": tally.in_save, "lost": lost, "runs": tally.runs}


def describe_kills(book: Book) -> str:
    lost = max((found.get("lost", 0) for found in book.cases.values()), default=0)
    return (
        f"{total(book, 'in_save')} of them while a checkpoint was being written or removed: 0 unusable checkpoints, "
        f"at most {lost} iterations lost; {total(book, 'runs')} runs finished, all byte-equal"
    )


def points(book: Book, ranks: int) -> str:
    """Send SIGKILL at every point of every rank, in the middle of the run."""
    overrides = (*SHORT, *(TWO_RANKS if ranks > 1 else ()))
    expected, _ = book.reference(*overrides)

    def kill_at_point(point: str, rank: int, place: Path) -> Found:
        once = ranks > 1 or point in ("compose", "init", "prune")
        fault = f"{point}:sigkill on rank {rank}"
        code = wait_for_exit(start_job(place, *overrides, faults=[f"{point}:sigkill:{1 if once else 2}:{rank}"]))
        if code == 0:
            raise Failed(f"{fault} ended with {code}")
        if (code := wait_for_exit(start_job(place, *overrides))) != 0:
            raise Failed(f"after {fault} the run ended with {code}: {(place / 'errors').read_text()[-400:]}")
        found = list(runs(place))
        if len(found) != 1 or fingerprint(found[0]) != expected:
            raise Failed(f"after {fault} the run differs")
        return {"kills": 1}

    places = [(point, rank) for point in FAULT_POINTS for rank in range(ranks) if not rank or point not in OF_RANK_0]
    for point, rank in places:
        book.run_case(f"{point}_{rank}", partial(kill_at_point, point, rank))
    finished = list_finished(book, len(places))
    done = f"{total(book, 'kills')} of {len(places)} kills, one at each point of each rank{finished}"
    return f"{done}: every run byte-equal"


def hangs(book: Book) -> str:
    """Stop or hang one of two ranks at every point of an iteration, and hang a single rank."""
    limits = ("launch.watchdog_s=3", "launch.watchdog_first_s=60")
    expected: dict[int, object] = {1: book.reference(*SHORT, name="one")[0], 2: book.reference(*SHORT, *TWO_RANKS)[0]}

    def hang_at_point(point: str, kind: str, rank: int, ranks: int, place: Path) -> Found:
        overrides = (*SHORT, *limits, *(TWO_RANKS if ranks > 1 else ()))
        fault, later = f"{point}:{kind}", 2 if point in ("score", "targets", "log") else 40
        code = wait_for_exit(start_job(place, *overrides, faults=[f"{fault}:{later}:{rank}"]))
        if code != 11 or not list(place.glob("default/*/errors/stacks_rank_*.txt")):
            raise Failed(
                f"{fault} on rank {rank} of {ranks} ended with {code}: {(place / 'errors').read_text()[-400:]}"
            )
        code = wait_for_exit(start_job(place, *overrides))
        found = list(runs(place))
        if code != 0 or len(found) != 1 or fingerprint(found[0]) != expected[ranks]:
            raise Failed(f"after {fault} on rank {rank} of {ranks} the run ended with {code}, or differs")
        return {"hangs": 1}

    iteration_points = ("generate", "score", "targets", "forward", "log")
    wanted = [(point, kind, rank, 2) for point in iteration_points for kind in ("hang", "sigstop") for rank in (0, 1)]
    wanted = [case for case in wanted if case[0] != "log" or not case[2]]
    wanted += [(point, "hang", 0, 1) for point in iteration_points]
    for case in wanted:
        book.run_case("_".join(map(str, case)), partial(hang_at_point, *case))
    return (
        f"{total(book, 'hangs')} of {len(wanted)} hangs and stopped ranks{list_finished(book, len(wanted))}: "
        "exit code 11, stacks, every run byte-equal"
    )


def families(book: Book) -> str:
    """Preempt a run of every kind in its second iteration: within a response, and before an update."""

    def stop_in_process(name: str, point: str, place: Path) -> Found:
        keys = (*SHORT, *KINDS[name])
        expected, _ = undisturbed_in_process(book, *keys, name=f"undisturbed-{name}")
        return resume(place, expected, [f"{point}:sigterm:{PLACES[point]}"], *keys, must_preempt=True)

    def stop_in_ranks(name: str, point: str, place: Path) -> Found:
        keys = (*SHORT, *KINDS[name])
        expected, _ = book.reference(*keys, name=f"whole-{name}")
        faults = [f"{point}:sigterm:{PLACES[point]}"]
        if (code := wait_for_exit(start_job(place, *keys, faults=faults))) != 75:
            raise Failed(f"{name}, {faults}: ended with {code}: {(place / 'errors').read_text()[-300:]}")
        code, found = wait_for_exit(start_job(place, *keys)), list(runs(place))
        if code != 0 or len(found) != 1 or fingerprint(found[0]) != expected:
            raise Failed(f"{name}, {faults}: the resumed run ended with {code}, or differs")
        return {"stops": 1}

    wanted = [(name, point) for name in KINDS for point in PLACES]
    for name, point in wanted:
        several = "launch.processes=2" in KINDS[name]  # one rank needs no separate process and a third of the time
        book.run_case(f"{name}_{point}", partial(stop_in_ranks if several else stop_in_process, name, point))
    done = [name for name in KINDS if all(f"{name}_{point}" in book.cases for point in PLACES)]
    return f"{total(book, 'stops')} of {len(wanted)} stops ({', '.join(done)}): every run byte-equal"


def reshard(book: Book) -> str:
    """Preempt runs of one rank and of two, and resume them with two and with one, at every stage."""

    def resume_resharded(stage: int, ranks: int, place: Path) -> Found:
        keys = (*SHORT, "num_iterations=5", f"deepspeed=zero{stage}")
        expected, _ = book.reference(*keys, "launch.processes=1", name=f"whole{stage}")
        first = (*keys, f"launch.processes={ranks}")
        if (code := wait_for_exit(start_job(place, *first, faults=["targets:sigterm:3"]))) != 75:
            raise Failed(f"the first part ended with {code}")
        then = (*keys, f"launch.processes={3 - ranks}", "checkpoint.reshard=true")
        code, found = wait_for_exit(start_job(place, *then)), list(runs(place))
        if code != 0 or len(found) != 1:
            raise Failed(f"from {ranks} ranks to {3 - ranks} at stage {stage}: ended with {code}")
        return {"changes": 1, "difference": greatest_difference(rows(found[0]), expected[0])}

    wanted = [(stage, ranks) for stage in range(4) for ranks in (1, 2)]
    for stage, ranks in wanted:
        book.run_case(f"zero{stage}_from_{ranks}", partial(resume_resharded, stage, ranks))
    worst = max((found.get("difference", 0.0) for found in book.cases.values()), default=0.0)
    return (
        f"{total(book, 'changes')} of {len(wanted)} runs of one rank and of two resumed with two and with one"
        f"{list_finished(book, len(wanted))}: metrics of five iterations within {worst:.1e} of the undisturbed run "
        "on one rank"
    )


def zero(book: Book) -> str:
    """Compare runs of five iterations with two steps each, at every ZeRO stage and offload, on one rank and two, with
    the run at stage 0 on one rank."""
    keys = (*SHORT, "num_iterations=5", "algorithm=ppo", "algorithm.mini_batch_size=8")

    def run(name: str, ranks: int, place: Path) -> Path:
        engine_keys = (*ENGINES[name], f"launch.processes={ranks}")
        if ranks == 1:
            folder, state = run_with_faults(place, *keys, *engine_keys, faults=[])
            if state != "done":
                raise Failed(f"{name} on one rank ended as {state}")
            return folder
        if (code := wait_for_exit(start_job(place, *keys, *engine_keys))) != 0:
            raise Failed(f"{name} on {ranks} ranks ended with {code}: {(place / 'errors').read_text()[-300:]}")
        [folder] = runs(place)
        return folder

    def compare_stage(name: str, ranks: int, place: Path) -> Found:
        folder, weights = run(name, ranks, place), final_weights(whole)
        weight_difference = max(
            float((value - weights[key]).abs().max()) for key, value in final_weights(folder).items()
        )
        found = {"runs": 1, "metrics": greatest_difference(rows(folder), rows(whole)), "weights": weight_difference}
        if found["metrics"] > 1e-3 or weight_difference > 1e-4:
            raise Failed(f"{name} on {ranks} ranks: {found}")
        return found

    place = book.folder / "stage0"
    place.mkdir(exist_ok=True)
    whole = Path(book.cached("stage0", lambda: str(run("0", 1, place))))
    wanted = [(name, ranks) for ranks in (1, 2) for name in ENGINES if (name, ranks) != ("0", 1)]
    for name, ranks in wanted:
        book.run_case(f"{name}_on_{ranks}", partial(compare_stage, name, ranks))
    done = ", ".join(case.replace("_", " ") for case, found in book.cases.items() if "runs" in found)
    metrics, weights = (
        max((found.get(key, 0.0) for found in book.cases.values()), default=0.0) for key in ("metrics", "weights")
    )
    return (
        f"{total(book, 'runs')} of {len(wanted)} runs of five iterations (stage on ranks: {done}): "
        f"metrics within {metrics:.1e} and weights within {weights:.1e} of stage 0 on one rank, in fp32"
    )


def greatest_difference(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> float:
    """Return the largest relative difference of two runs' numbers. Raises `Failed` if their logged keys differ."""
    if [sorted(row) for row in found] != [sorted(row) for row in expected]:
        raise Failed("the runs have different rows or metrics")
    pairs = [(row[key], reference[key]) for row, reference in zip(found, expected, strict=True) for key in row]
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in pairs if a is not None and b is not None)


def stops(book: Book, stride: int, *overrides: str) -> str:
    """Send SIGTERM at every pass of every point, and resume."""
    expected, passes = undisturbed_in_process(book, *overrides)
    wanted = [
        (point, time_)
        for point, passed in passes.items()
        for time_ in range(1, passed + 1, stride if point in ("generate", "forward", "backward") else 1)
    ]
    for point, time_ in wanted:
        book.run_case(
            f"{point}_{time_}",
            lambda place, p=point, t=time_: resume(place, expected, [f"{p}:sigterm:{t}"], *overrides),
        )
    by_point = Counter(case.partition("_")[0] for case, found in book.cases.items() if "stops" in found)
    done = ", ".join(f"{point} {number}" for point, number in by_point.items())
    return f"{total(book, 'stops')} of {len(wanted)} stops ({done}): every run byte-equal"


def signals(book: Book) -> str:
    """Send every signal in every phase, also twice, and another one during the save."""
    expected, passes = undisturbed_in_process(book)
    wanted = {
        f"{point}_{kind}": [f"{point}:{kind}:{passed // 2 + 1 if passed > 1 else 1}"]
        for point, passed in passes.items()
        for kind in SIGNALS
    }
    for kind in ("sigterm", "sigusr1", "sigusr2"):  # a second Ctrl-C exits at once
        wanted[f"twice_{kind}"] = ["targets:sigterm:2", f"save.write:{kind}:2", f"save.rename:{kind}:2"]
    for case, faults in wanted.items():
        book.run_case(case, lambda place, faults=faults: resume(place, expected, faults))
    phases = len({case.rpartition("_")[0] for case in book.cases} & set(passes))
    twice = ", a second one during the save among them" if any(case.startswith("twice") for case in book.cases) else ""
    return f"{total(book, 'stops')} of {len(wanted)} signals in {phases} phases{twice}: every run byte-equal"


def undisturbed_in_process(
    book: Book, *overrides: str, name: str = "undisturbed"
) -> tuple[list[object], dict[str, int]]:
    """Return the fingerprint of an undisturbed run in this process, and how often it passes each point."""

    def make() -> object:
        place = book.folder / name
        place.mkdir(exist_ok=True)
        return run_undisturbed(place, *SHORT, *overrides)

    expected, passes = book.cached(name, make)
    return expected, passes


def resume(root: Path, expected: list[object], faults: list[str], *overrides: str, must_preempt: bool = False) -> Found:
    """Run with these faults, then resume without faults to the end. Raises `Failed` if the result differs."""
    folder, state = run_with_faults(root, *SHORT, *overrides, faults=faults)
    if must_preempt and state != "preempted":
        raise Failed(f"{faults} ended as {state}: {folder}")
    if state == "preempted":
        folder, state = run_with_faults(root, *SHORT, *overrides, faults=[NEVER], folder=folder)
    if state != "done" or list(fingerprint(folder)) != expected:
        raise Failed(f"{faults} ended as {state}, or differs: {folder}")
    return {"stops": 1}


def soak(book: Book, minutes: float, every_s: float, seed: int) -> str:
    """Run for `minutes` with checkpoints by time only; then repeat the run with a kill and a restart every `every_s`
    seconds. Both are preempted if this part of the campaign ends first, and resume in the next part."""
    keys = (*SOAK, f"checkpoint.every_seconds={every_s / 12:g}")
    root, place = book.folder / "whole", book.folder / "killed"
    for folder in (root, place):
        folder.mkdir(exist_ok=True)
    while (left := 60 * minutes - total(book, "whole_seconds")) > 0 and not book.is_over():
        _run_undisturbed(book, root, *keys, limit_s=max(1.0, min(left, book.deadline - time.monotonic())))
    if left > 0:
        return f"{total(book, 'whole_seconds') / 60:.1f} of {minutes:g} minutes undisturbed so far"
    # The number of iterations in this time is unknown in advance; both runs stop at this number.
    iterations = book.cached("iterations", lambda: len(rows(next(_unfinished(root)))))
    keys = (*keys, f"max_iterations_this_run={iterations}")
    if not list(runs(root)):
        _run_undisturbed(book, root, *keys, limit_s=600.0)
    [whole] = runs(root)
    expected = fingerprint(whole)
    while not total(book, "runs") and not book.is_over():
        began, tally = time.monotonic(), Tally()
        rng = random.Random(f"{seed}/{len(book.cases)}")
        kill_once(place, expected, *keys, delay=every_s, rng=rng, tally=tally)
        found = kill_results(tally, most_lost=None)
        book.note(f"kill-{time.time()}", found | {"killed_seconds": time.monotonic() - began})
    preempted = f" (preempted {stops} times)" if (stops := total(book, "whole_stops")) else ""
    so_far = "" if total(book, "runs") else " so far"
    return (
        f"{iterations} iterations, {total(book, 'whole_seconds') / 60:.1f} minutes undisturbed{preempted}, killed "
        f"every {every_s:g} s for {total(book, 'killed_seconds') / 60:.1f} minutes{so_far} and saved every "
        f"{every_s / 12:g} s: {total(book, 'kills')} kills, {describe_kills(book)}"
    )


def _run_undisturbed(book: Book, root: Path, *keys: str, limit_s: float) -> None:
    """Continue the soak's undisturbed run for at most `limit_s` seconds."""
    began = time.monotonic()
    job = start_job(root, *keys)
    job.join(limit_s)
    if job.exitcode is None:
        os.kill(job.pid, signal.SIGTERM)
    if (code := wait_for_exit(job)) not in (0, 75):
        raise Failed(f"the undisturbed run ended with {code}: {(root / 'errors').read_text()[-400:]}")
    book.note(f"whole-{time.time()}", {"whole_seconds": time.monotonic() - began, "whole_stops": int(code == 75)})


def _unfinished(root: Path) -> Iterator[Path]:
    """Yield folders of the preempted runs below a job's root."""
    return (path.parent for path in root.glob("default/*/run.json") if read_run_state(path.parent) == "preempted")


def total(book: Book, number: str) -> Any:
    """Return the sum of a number over the finished cases."""
    return sum(found.get(number, 0) for found in book.cases.values())


def list_finished(book: Book, wanted: int) -> str:
    """Return the names of the finished cases, if some cases are missing."""
    done = [case.replace("_", " ") for case, found in book.cases.items() if "seconds" in found]
    return f" ({', '.join(done)})" if len(done) < wanted else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults.sh", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {' '.join(PARTS)}; default: all except soak")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument(
        "--stride", type=int, default=1, help="stop at every N-th pass of generate, forward and backward"
    )
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES")
    parser.add_argument("--every", type=float, default=60.0, metavar="SECONDS", help="time between kills of the soak")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="REGEX", help="select cases by name; they get a separate row")
    parser.add_argument("--folder", type=Path, help="keep finished cases here, to continue later")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no case after this time")
    arguments = parser.parse_args()
    wanted = set(arguments.parts) or set(PARTS) - (set() if arguments.soak else {"soak"})
    if "soak" in wanted and not arguments.soak:
        parser.error("soak needs --soak MINUTES")
    parts: dict[str, Callable[[Book], str]] = {
        "flips": lambda book: flips(book, arguments.flips, arguments.seed),
        "points, one rank": lambda book: points(book, 1),
        "points, two ranks": lambda book: points(book, 2),
        "kills, one rank": lambda book: kills(book, arguments.kills, arguments.seed, ONE_AGENT),
        "kills, two ranks": lambda book: kills(book, max(1, arguments.kills // 10), arguments.seed, *TWO_RANKS),
        "hangs": hangs,
        "families": families,
        "reshard": reshard,
        "zero": zero,
        "signals": signals,
        "soak": lambda book: soak(book, arguments.soak, arguments.every, arguments.seed),
        "stops, two agents": lambda book: stops(book, arguments.stride),
        "stops, one agent": lambda book: stops(book, arguments.stride, ONE_AGENT),
    }
    if wanted - set(PARTS) - set(parts):
        parser.error(f"parts are {' '.join(PARTS)}; name one of two halves as in 'kills, one rank'")
    chosen = {name: part for name, part in parts.items() if {name, name.partition(",")[0]} & wanted}
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        deadline = time.monotonic() + 60 * arguments.minutes
        return run_parts(chosen, arguments.folder or Path(temporary), deadline, arguments.only)


def run_parts(parts: dict[str, Callable[[Book], str]], folder: Path, deadline: float, only: str = "") -> int:
    """Run missing cases of these parts until the deadline, write results into the page, and return the exit code."""
    lines, failed = [], False
    for name, part in parts.items():
        book = Book(folder / name.replace(", ", "-").replace(" ", "-"), deadline, only)
        print(f"{name} ...", flush=True)
        try:
            with redirect_stdout(io.StringIO()):  # the output of the runs
                summary = part(book)
        except Failed as broken:
            book.note("undisturbed", {"broken": str(broken)})
            summary = ""
        if not book.cases:
            continue  # no time for any case
        broken = [f"{case}: {found['broken']}" for case, found in book.cases.items() if "broken" in found]
        failed = failed or bool(broken)
        minutes = (total(book, "seconds") + total(book, "whole_seconds") + total(book, "killed_seconds")) / 60
        result = f"**broken**: {'; '.join(broken)}" if broken else summary
        lines.append(
            f"| {name} | {join_unique(book, 'commit')} | {result} | {minutes:.1f} | {join_unique(book, 'where')} |"
        )
        print(lines[-1], flush=True)
        write_report(lines, beside=bool(only) or math.isfinite(deadline))
    return int(failed)


def join_unique(book: Book, key: str) -> str:
    """Join the commits or the machines of a part's cases, each once."""
    return "; ".join(dict.fromkeys(found[key] for found in book.cases.values() if key in found))


def write_report(lines: Sequence[str], page: Path = PAGE, *, beside: bool = False) -> None:
    """Write the results of these parts into the page. Rows of parts that did not run now stay; with `beside`, for a
    partial campaign, rows of the same parts at other commits stay too."""
    text = page.read_text()
    before, rest = text.split(MARKERS[0])
    old, after = rest.split(MARKERS[1])
    known = [line for line in old.splitlines() if line.startswith("| ") and not line.startswith("| part")]
    new = dict(map(parse_row, lines))

    def is_kept(line: str) -> bool:
        part, commits = parse_row(line)
        return part not in new or (beside and not commits <= new[part])

    order = list(dict.fromkeys(parse_row(line)[0] for line in (*known, *lines)))
    rows = sorted([*filter(is_kept, known), *lines], key=lambda line: order.index(parse_row(line)[0]))
    head = ["| part | program | result | minutes | on |", "|---|---|---|---|---|"]
    page.write_text(before + "\n".join([MARKERS[0], *head, *rows, MARKERS[1]]) + after)


def parse_row(line: str) -> tuple[str, set[str]]:
    """Return the part of a row of the page, and the commits of the program that produced it."""
    part, commits = line.removeprefix("| ").split(" | ")[:2]
    return part, set(commits.split("; "))


if __name__ == "__main__":
    sys.exit(main())
