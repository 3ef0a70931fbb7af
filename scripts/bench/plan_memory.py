"""Compare the memory estimate of `mode=plan` with measurements: `plan_memory.py MODEL [NAME...]`.

Trains one iteration for each of the settings below, or for the named ones, one after the other, on the CPU; MODEL is
the folder of scripts/examples/smollm2.py. Results are stored in docs/data/plan_memory.json and listed in
docs/performance.md. `--replan` does not train: it compares earlier measurements with the current estimate.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from learning import write_between

ROOT = Path(__file__).resolve().parents[2]
DATA, PAGE = ROOT / "docs" / "data" / "plan_memory.json", ROOT / "docs" / "performance.md"
MARKERS = ("<!-- memory table -->", "<!-- end of memory table -->")
PHASES = ("load", "rollout", "targets", "update", "save")
MIB = 2**20
# Two optimizer steps of two micro-batches each, so that moments, gradients and activations exist together.
BASE = (
    "+experiment=smollm2_arithmetic",
    "num_iterations=1",
    "rollout.buffer_size=8",
    "rollout.max_new_tokens=6",
    "deepspeed.micro_batch_tokens=190",
    "evaluation.every=0",
    "evaluation.greedy=false",
    "task.train_size=64",
    "task.eval_size=2",
    "tracker.console=plain",
    "checkpoint.best=false",
    "checkpoint.optimizer=false",
    "launch.threads=1",
)
STEPS = ("algorithm.ppo_epochs=2", "algorithm.mini_batch_size=8")
PPO = ("algorithm=ppo", *STEPS)
SEPARATE = ("critic=separate", "critic.learning_rate=2e-5", "critic.mini_batch_size=8")
# Name -> number of ranks, and additional overrides.
SETTINGS: dict[str, tuple[int, tuple[str, ...]]] = {
    "fp32, stage 0": (1, ("actor.dtype=fp32", "deepspeed=zero0", *STEPS)),
    "fp32, stage 3": (1, ("actor.dtype=fp32", "deepspeed=zero3", *STEPS)),
    "bf16, stage 2, one rank": (1, ("actor.dtype=bf16", "deepspeed=zero2", *STEPS)),
    "fp32, stage 0, two ranks": (2, ("actor.dtype=fp32", "deepspeed=zero0", *STEPS)),
    "bf16, stage 1, separate critic": (1, ("actor.dtype=bf16", "deepspeed=zero1", *PPO, *SEPARATE)),
    "fp32, LoRA": (1, ("actor=lora", "actor.dtype=fp32", "deepspeed=zero1", *STEPS)),
    "fp32, stage 1, reference": (
        2,
        ("actor.dtype=fp32", "deepspeed=zero1", "algorithm.kl.loss.coef=0.05", *STEPS),
    ),
    "fp32, stage 2, value head": (
        2,
        ("actor.dtype=fp32", "deepspeed=zero2", *PPO, "critic=value_head", "critic.learning_rate=1e-4"),
    ),
    "bf16, stage 2": (2, ("actor.dtype=bf16", "deepspeed=zero2", *STEPS)),
    "bf16, stage 3": (2, ("actor.dtype=bf16", "deepspeed=zero3", *STEPS)),
}


def measured(ranks: int, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Train once and return the report of watched_memory.py for every rank."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        # The C library returns freed memory at once, so memory freed by a phase does not count for the next one.
        environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**18)}
        children = []
        for rank in range(ranks):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
            own = {key: str(value) for key, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"}
            command = [sys.executable, str(Path(__file__).with_name("watched_memory.py")), f"{folder}/{rank}.json"]
            command += [*overrides, f"output_dir={folder}/runs"]
            children.append(subprocess.Popen(command, env=environment | (own if ranks > 1 else {}), cwd=folder))
        if any([child.wait() for child in children]):
            raise SystemExit(f"a training failed: {' '.join(overrides)}")
        return [json.loads(Path(f"{folder}/{rank}.json").read_text()) for rank in range(ranks)]


def planned(ranks: int, overrides: Sequence[str]) -> dict[str, float]:
    """Return planned bytes on one rank by phase; `targets`: first iteration, before optimizer moments exist."""
    from ippo_cli.compose.load import build_config, compose_node, resolve_config
    from ippo_cli.config.batch_sizes import compute_batch_sizes
    from ippo_cli.planning.model_specs import read_model_specs
    from ippo_cli.planning.resources import estimate_run_memory
    from ippo_cli.tasks.task import load_task

    config = build_config(resolve_config(compose_node(list(overrides))))
    task = load_task(config.task, config.seed)
    plan, material = compute_batch_sizes(config, ranks, len(task.train)), read_model_specs(config, task)
    memory = estimate_run_memory(config, plan, task, material, ranks, "cpu")
    phases = {phase: size + memory.host_bytes for phase, size in memory.bytes_by_phase.items()}
    phases["targets"] -= sum(model.memory.moments for model in memory.trained)
    return phases


def result(reports: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the maximum over ranks for each phase."""
    return {phase: max(float(report["phases"].get(phase, {"own": 0})["own"]) for report in reports) for phase in PHASES}


def table(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return Markdown: planned and measured memory of every phase, and the ratio of the peaks."""
    lines = ["| setting | ranks | " + " | ".join(PHASES) + " | peak: planned / measured |"]
    lines.append("|---" * (len(PHASES) + 3) + "|")
    for name, found in settings.items():
        estimate, seen = found["planned"], found["measured"]
        cells = [f"{estimate[phase] / MIB:.0f} / {seen[phase] / MIB:.0f}" for phase in PHASES]
        ratio = max(estimate.values()) / max(seen.values())
        lines.append(f"| {name} | {found['ranks']} | " + " | ".join(cells) + f" | {ratio:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(map(repr, SETTINGS)))
    parser.add_argument("--replan", action="store_true")
    given = parser.parse_args()
    known = json.loads(DATA.read_text()) if DATA.exists() else {}
    for name in given.names or SETTINGS:
        ranks, own = SETTINGS[name]
        overrides = [*BASE, f"actor.model={Path(given.model).resolve()}", *own]
        if not given.replan:
            known[name] = {"ranks": ranks, "overrides": own, "measured": result(measured(ranks, overrides))}
        if name in known:
            known[name]["planned"] = planned(ranks, overrides)
    known = {name: known[name] for name in SETTINGS if name in known}
    DATA.write_text(json.dumps(known, indent=1) + "\n")
    text = "MiB of one rank's own memory in addition to that before models are loaded, planned / measured.\n\n"
    write_between(PAGE, text + table(known), MARKERS)


if __name__ == "__main__":
    main()
