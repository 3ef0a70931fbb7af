"""Cost of agents on a shared frozen base: memory per added agent, and time compared with independent agents.

    python scripts/bench/shared_base.py memory --agents 1 2 4 8
    python scripts/bench/shared_base.py time --agents 8
    python scripts/bench/shared_base.py decoding --agents 2 8

Prints one JSON object. `memory` counts all live tensors after some iterations of training, with optimizer states and
gradients, and the memory that each agent adds. `time` alternates whole iterations of agents with adapters on one base
and of agents with separate models. `decoding` alternates one rollout of all agents in one batch and one rollout per
agent. Keys of `ippo-train`, such as actor.rank=16, may precede the options.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from material import Shape, make

HERE = Path(__file__)
MIB = 2**20
RUN = (
    "actor.dtype=fp32",
    "rollout.buffer_size=16",
    "rollout.max_new_tokens=32",
    "rollout.min_new_tokens=32",
    "rollout.decode_batch_size=512",
    "evaluation.every=0",
    "evaluation.greedy=false",
    "checkpoint.every=0",
    "tracker.console=plain",
    "tracker.tensorboard=false",
    "num_iterations=4",
)
SHARED = ("actor=lora", "critic=adapter", "team=shared_base")
# Targets and rank of the LoRA paper (arXiv 2106.09685).
NARROW = tuple(f"{part}.{key}" for part in ("actor", "critic") for key in ("rank=4", "target_modules=[q_proj,v_proj]"))
OWN = ("actor=full", "critic=separate")


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("what", choices=["memory", "time", "decoding", "one"])
    given.add_argument("--agents", type=int, nargs="+", default=[1, 2, 4, 8])
    given.add_argument("--layers", type=int, default=8)
    given.add_argument("--hidden", type=int, default=256)
    given.add_argument("--repeat", type=int, default=2)
    options, keys = given.parse_known_args()
    shape = Shape(layers=options.layers, hidden=options.hidden, intermediate=4 * options.hidden, heads=8)
    if options.what == "one":  # a separate process for each setting, with fresh memory and caches
        print(json.dumps(_run(shape, options.agents[0], keys)))
        return
    shared = [*SHARED, *(NARROW if not any("target_modules" in key or "rank" in key for key in keys) else ()), *keys]
    result: dict[str, Any] = {"keys": shared}
    if options.what == "memory":
        held = {number: _child(options, number, shared) for number in options.agents}
        base = next(iter(held.values()))["base_bytes"]
        result |= {"base_parameters": base // 4, "base_mib": base / MIB, "memory": _added(held, base)}
    elif options.what == "time":
        for number in options.agents:
            runs: dict[str, list[dict[str, Any]]] = {"shared_base": [], "independent": []}
            for _ in range(options.repeat):
                runs["shared_base"].append(_child(options, number, shared))
                runs["independent"].append(_child(options, number, [*OWN, *keys]))
            result[f"{number} agents"] = {name: _medians(found) for name, found in runs.items()}
    else:
        for number in options.agents:
            result[f"{number} agents"] = _child(options, number, [*shared, "--decoding"])["decoding"]
    print(json.dumps(result, indent=1))


def _child(options: argparse.Namespace, agents: int, keys: list[str]) -> dict[str, Any]:
    sizes = [f"--layers={options.layers}", f"--hidden={options.hidden}"]
    command = [sys.executable, str(HERE), "one", f"--agents={agents}", *sizes, *keys]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if ran.returncode:
        raise SystemExit(ran.stdout[-2000:] + ran.stderr[-2000:])
    return json.loads(ran.stdout.splitlines()[-1])


def _run(shape: Shape, agents: int, keys: list[str]) -> dict[str, Any]:
    """Train for some iterations; return their times and the memory in use."""
    decoding = "--decoding" in keys
    keys = [key for key in keys if key != "--decoding"]
    with tempfile.TemporaryDirectory() as folder, _trainer(Path(folder), shape, agents, keys) as trainer:
        rows = []
        for _ in range(1 if decoding else 3):
            trainer.step()
            rows.append({key: value for key, value in trainer.state.progress.row.items() if key.startswith("time/")})
        module = trainer.state.team["a0"].policy.engine.module
        base = sum(tensor.numel() * 4 for name, tensor in module.lm.named_parameters() if ".lora_" not in name)
        found: dict[str, Any] = {"rows": rows[1:], "base_bytes": base}
        gc.collect()
        found["held_bytes"] = _held()
        if decoding:
            found["decoding"] = _decoding(trainer)
        return found


def _held() -> int:
    """Return bytes of all live CPU tensors."""
    tensors = [found for found in gc.get_objects() if isinstance(found, torch.Tensor) and found.device.type == "cpu"]
    gradients = [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in [*tensors, *gradients]}
    return sum(storage.nbytes() for storage in storages.values())


def _decoding(trainer: Any) -> dict[str, float]:
    """Time a rollout of all agents at once, and of one agent after another."""
    from ippo_cli.reporting.stopwatch import Stopwatch

    modules = [agent.policy.engine.module for agent in trainer.state.team.values()]
    base = modules[0].shared_base
    seconds: dict[str, list[float]] = {"joint": [], "one_after_another": []}
    for number in range(4):
        for name, times in seconds.items():
            for module in modules:
                module.shared_base = base if name == "joint" else None
            began = time.perf_counter()
            watch = Stopwatch()
            trainer.source.get(number, trainer.state.moments, watch)
            assert time.perf_counter() > began
            times.append(watch.seconds["rollout"])
    found = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    return found | {"ratio": found["one_after_another"] / found["joint"]}


def _added(held: dict[int, dict[str, Any]], base: int) -> dict[str, Any]:
    """Return by number of agents: memory in use, and memory per additional agent as a fraction of the base."""
    fewest = min(held)
    return {
        str(number): {
            "held_mib": one["held_bytes"] / MIB,
            "added_per_agent_share_of_base": (
                (one["held_bytes"] - held[fewest]["held_bytes"]) / (number - fewest) / base if number > fewest else None
            ),
        }
        for number, one in held.items()
    }


def _medians(runs: list[dict[str, Any]]) -> dict[str, float]:
    rows = [row for run in runs for row in run["rows"]]
    found = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    return found | {"held_mib": runs[0]["held_bytes"] / MIB}


@contextmanager
def _trainer(folder: Path, shape: Shape, agents: int, keys: list[str]) -> Any:
    """A built trainer of so many agents."""
    from ippo_cli.compose.load import build_config, compose_node, resolve_config
    from ippo_cli.config.checks import check_config
    from ippo_cli.config.schema import Console as Style
    from ippo_cli.engine import distributed
    from ippo_cli.reporting.console import Console
    from ippo_cli.reporting.run_log import RunLog, RunState
    from ippo_cli.runs.folder import reserve_folder
    from ippo_cli.runs.signals import PreemptionHandler
    from ippo_cli.training.build_trainer import RunContext, build_trainer
    from ippo_cli.training.process import prepare_process

    plain = resolve_config(compose_node([*make(folder, shape, agents), *RUN, *keys]))
    config = build_config(plain)
    check_config(config, 1)
    device = prepare_process(config)
    console = Console(Style.plain, list(config.task.agents))
    run_folder = reserve_folder(Path(config.output_dir) / config.name)
    run = RunLog(run_folder, config.tracker, RunState())
    context = RunContext(
        config=config,
        folder=run_folder,
        log=run,
        console=console,
        preemption=PreemptionHandler(),
        device=device,
        is_resumed=False,
    )
    trainer = build_trainer(context)
    try:
        yield trainer
    finally:
        trainer.free()
        distributed.shutdown()


if __name__ == "__main__":
    main()
