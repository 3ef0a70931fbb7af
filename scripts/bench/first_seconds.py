"""Processor time of the first answers: mistyped lines and a plan, as multiples of importing torch and transformers.

    python scripts/bench/first_seconds.py

Prints a table; exit code 1 if a command exceeds its bound. Bounds leave room for other processors: the aims are in
docs/performance.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

TRAIN = ("-m", "ippo_cli.cli.train")
OTHER_PROJECT = (
    "actor_rollout_ref.rollout.n=4",
    "data.train_batch_size=64",
    "algorithm.adv_estimator=gae",
    "trainer.total_epochs=3",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "critic.optim.lr=1e-5",
)
COMMANDS = {  # arguments, exit code, bound
    "a mistyped key": (("seeed=3",), 2, 0.9),
    "a mistyped flag": (("--verison",), 2, 0.5),
    "six keys of another project": (OTHER_PROJECT, 2, 1.0),
    "a plan of the default run": (("mode=plan",), 0, 4.5),
}
REPEATS = 2


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        unit = min(measure_seconds(("-c", "import torch, transformers"), 0, folder) for _ in range(REPEATS))
        print(f"importing torch and transformers: {unit:.2f} s of processor time")
        exceeded = []
        for name, (arguments, code, bound) in COMMANDS.items():
            seconds = min(measure_seconds((*TRAIN, *arguments), code, folder) for _ in range(REPEATS))
            print(f"{name:28} {seconds:5.2f} s  {seconds / unit:5.2f} times, bound {bound}")
            exceeded += [name] if seconds / unit > bound else []
    if exceeded:
        raise SystemExit(f"slower than the bound: {', '.join(exceeded)}")


def measure_seconds(arguments: tuple[str, ...], code: int, folder: str) -> float:
    """Processor time of a Python process in `folder`; it must end with this exit code."""
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != code:
        raise SystemExit(f"{' '.join(arguments)} ended with code {process.returncode}, not {code}")
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
