"""Train three small tasks for a few iterations, and compare the kinds of credit of turns with reference credit.

    python scripts/bench/credit_fidelity.py --output /tmp/credit

Runs `ippo-train` and `ippo-eval credit=true` as separate processes with one thread, and prints a table of rank
correlations with the credit of turns and their 95 % intervals over prompts. Credit is exact in tasks of one turn, and
sampled in `meet`, which has too many continuations. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ITERATIONS = 8
TASKS = {
    "sorting (parallel)": (
        "task=sorting",
        "task.length=2",
        "task.alphabet=abcdefgh",
        "task.train_size=32",
        "task.eval_size=24",
        "rollout.max_new_tokens=1",
    ),
    "signalling (sequential)": ("task=signalling", "task.signals=abcd", "rollout.max_new_tokens=1"),
    "meet (two turns)": (
        "task=scripts/bench/pair.yaml",
        "task.environment=scripts/bench/team_worlds.py:meet",
        "+task.environment_args.turns=2",
        "+task.environment_args.at_end=true",
        "rollout.context=last_only",
        "rollout.max_new_tokens=1",
    ),
}
COMMON = (
    "algorithm=ppo",
    "algorithm.ppo_epochs=4",
    "algorithm.mini_batch_size=64",
    "rollout.buffer_size=256",
    f"num_iterations={ITERATIONS}",
    "evaluation.every=0",
    "tracker.tensorboard=false",
    "tracker.report=false",
    "tracker.console=plain",
    "launch.threads=1",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--prompts", type=int, default=32, help="held-out rows, with four episodes each")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    given = parser.parse_args()
    os.chdir(ROOT)  # task files are relative to this folder
    records = {task: measure(task, given.output.absolute(), given.prompts) for task in given.tasks}
    for line in table(records):
        print(line)
    return 0


def measure(task: str, output: Path, prompts: int) -> dict[str, Any]:
    """The record of a task's report, by agent and kind."""
    name = task.split()[0]
    if not any(output.glob(f"{name}/*/checkpoints/step_*{ITERATIONS}")):
        call("ippo_cli.cli.train", f"output_dir={output}", f"name={name}", *TASKS[task], *COMMON)
    run = next(output.glob(f"{name}/*/checkpoints/step_*{ITERATIONS}")).parents[1]
    keys = ("credit_reference=exact", "credit_continuations=8192", f"credit_prompts={prompts}")
    if name == "meet":
        keys = ("credit_continuations=32", f"credit_prompts={prompts // 2}")
    call("ippo_cli.cli.evaluate", f"run={run}", "credit=true", *keys)
    newest = max((run / "evaluations").glob("credit-*.json"), key=lambda file: file.stat().st_mtime)
    return json.loads(newest.read_text())["agents"]


def call(module: str, *arguments: str) -> None:
    """Run a command with one thread; raises `CalledProcessError`."""
    command = [sys.executable, "-m", module, *arguments]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def table(records: dict[str, dict[str, Any]]) -> list[str]:
    """A Markdown table with a column for each task's agent and a row for each kind of credit."""
    columns = [(task, agent) for task, agents in records.items() for agent in agents]
    kinds = list(dict.fromkeys(kind for agents in records.values() for own in agents.values() for kind in own))
    lines = ["| credit | " + " | ".join(f"{task}, `{agent}`" for task, agent in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for kind in kinds:
        cells = [format_cell(records[task][agent].get(kind)) for task, agent in columns]
        lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return lines


def format_cell(own: dict[str, Any] | None) -> str:
    """The rank correlation with its interval."""
    if own is None:
        return ""
    rank = own["rank_correlation"]
    if rank["value"] is None:
        return "constant"
    interval = "" if rank["low"] is None else f" [{rank['low']:.2f}, {rank['high']:.2f}]"
    return f"{rank['value']:.2f}{interval}"


if __name__ == "__main__":
    sys.exit(main())
