"""Two updates of every algorithm with every supported critic: run as a script, one process per rank.

RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python matrix.py OUT

OUT/cases.pkl holds the configurations. All cases share one process group; rank 0 writes the results to OUT/results.pt.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import torch

from ippo_cli.compose.exits import exit_process
from ippo_cli.config.schema import Config
from ippo_cli.config.schema import Console as Style
from ippo_cli.engine import distributed
from ippo_cli.reporting.console import Console
from ippo_cli.reporting.run_log import RunLog, RunState
from ippo_cli.runs.folder import reserve_folder
from ippo_cli.runs.signals import PreemptionHandler
from ippo_cli.training.build_trainer import RunContext, build_trainer
from ippo_cli.training.process import prepare_process


def two_updates(config: Config, root: Path, device: torch.device) -> dict[str, Any]:
    """Metrics of two iterations, and the changed parameters: a zero value head gives the backbone no first gradient."""
    folder = distributed.broadcast_object(reserve_folder(root / "runs") if distributed.is_main() else None)
    context = RunContext(
        config=config,
        folder=folder,
        log=RunLog(folder, config.tracker, RunState()),
        console=Console(Style.plain, ["solo"]),
        preemption=PreemptionHandler(),
        device=device,
        is_resumed=False,
    )
    trainer = build_trainer(context)
    learners = trainer.state.team.learners
    before = {learner.stage: learner.engine.full_state_dict() for learner in learners}
    rows = []
    for _ in range(2):
        trainer.step()
        rows.append(trainer.state.progress.row)
    after = {learner.stage: learner.engine.full_state_dict() for learner in learners}
    trainer.free()
    moved = {
        f"{role}/{name}": not torch.equal(value, after[role][name])
        for role, weights in before.items()
        if weights is not None
        for name, value in weights.items()
    }
    return {"rows": rows, "moved": moved, "critic": config.critic.kind.value}


def main(out: Path) -> None:
    found: dict[str, Config] = pickle.loads((out / "cases.pkl").read_bytes())
    device = prepare_process(next(iter(found.values())))
    results = {name: two_updates(config, out, device) for name, config in found.items()}
    if distributed.is_main():
        torch.save(results, out / "results.pt")
    distributed.barrier()
    distributed.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    exit_process(0)
