"""Start-up time: seconds until `--help` is printed, and until the default run's first line and first iteration.

    python scripts/bench/start.py --repeat 3

Prints JSON. An untimed run creates the warm start of the embedded model first, since runs cache it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TRAIN = [sys.executable, "-m", "ippo_cli.cli.train"]
# The first iteration begins after the evaluation of untrained agents.
FIRST_ITERATION = "evaluation after iteration 0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    repeat = parser.parse_args().repeat
    with tempfile.TemporaryDirectory() as folder:
        job = [*TRAIN, "num_iterations=1", f"output_dir={folder}", "tracker.console=plain"]
        seconds_until(job, FIRST_ITERATION, Path(folder))
        found = {
            "help": [seconds_until([*TRAIN, "--help"], "ippo-train", Path(folder)) for _ in range(repeat)],
            "first line": [seconds_until(job, "ippo: ", Path(folder)) for _ in range(repeat)],
            "first iteration": [seconds_until(job, FIRST_ITERATION, Path(folder)) for _ in range(repeat)],
        }
    print(
        json.dumps(
            {
                name: {"median": round(statistics.median(values), 2), "all": [round(v, 2) for v in values]}
                for name, values in found.items()
            },
            indent=2,
        )
    )


def seconds_until(command: list[str], text: str, folder: Path) -> float:
    """Time a command from its start to the line that begins with `text`, then wait for its end."""
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(text):
                spent = time.perf_counter() - began
                process.stdout.read()
                break
        else:
            raise SystemExit(f"{' '.join(command)} did not print {text!r}")
    return spent


if __name__ == "__main__":
    main()
