"""One rank of test_saving_ranks.py: prints its results as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ippo_cli.agents.team import Team
from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import CheckpointConfig, CheckpointWeights
from ippo_cli.engine import distributed
from ippo_cli.engine.zero import Engine
from ippo_cli.engine.zero_config import zero_config
from ippo_cli.reporting.run_log import RunState
from ippo_cli.runs import checkpoint_files
from ippo_cli.runs.folder import MANIFEST
from ippo_cli.runs.random_streams import rng_state
from ippo_cli.training.checkpoint import CheckpointManager, TrainingProgress, TrainingState
from ippo_cli.training.targets import Algorithm

RANK = int(os.environ["RANK"])
ALGORITHM = load_config([]).algorithm
checkpoint_files.VISIBILITY_TIMEOUT_S = 0.5  # no file appears late here


def state(iteration: int) -> TrainingState:
    """A run's state without agents: each rank writes its random streams."""
    return TrainingState(
        team=Team(agents={}, learners=[]),
        algorithm=Algorithm(config=ALGORITHM, num_generations=1, seed=0),
        moments={},
        progress=TrainingProgress(iteration=iteration),
        run=RunState(),
        rng=rng_state(),
    )


SETTINGS = CheckpointConfig(
    every=1,
    every_seconds=None,
    keep=2,
    best=True,
    weights=CheckpointWeights.adapter,
    optimizer=True,
    save_deadline=None,
    reshard=False,
)


def checkpoints(folder: Path) -> CheckpointManager:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "checkpoints").mkdir(exist_ok=True)
    distributed.barrier()
    return CheckpointManager(folder, SETTINGS)


def raised(work: Any) -> str:
    """The type and message of the error that the call raises."""
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def shared(root: Path) -> dict[str, Any]:
    """Both ranks write into one folder."""
    made = checkpoints(root)
    return {"saved": made.save(state(1))}


def shares(root: Path) -> dict[str, Any]:
    """The files that each rank verifies, and the result of damage in each of them."""
    made = checkpoints(root)
    made.save(state(1))
    read: list[str] = []
    whole = checkpoint_files.file_sha256

    def noted(path: Path) -> str:
        read.append(path.name)
        return whole(path)

    checkpoint_files.file_sha256 = noted
    intact, own = made.find_newest_intact(), list(read)
    damaged = []
    for file in sorted(set(intact.iterdir()) - {intact / MANIFEST}):
        content = file.read_bytes()
        distributed.barrier()
        distributed.run_on_main(
            lambda file=file, content=content: file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        )
        damaged.append((file.name, raised(made.find_newest_intact)))
        distributed.run_on_main(lambda file=file, content=content: file.write_bytes(content))
    checkpoint_files.file_sha256 = whole
    return {"intact": intact.name, "read": own, "damaged": damaged}


def apart(root: Path) -> dict[str, Any]:
    """Each rank has a separate disk."""
    made = checkpoints(root / f"disk{RANK}")
    saved = [made.save(state(iteration)) for iteration in (1, 2)]
    return {"saved": saved, "third": raised(lambda: made.save(state(3)))}


def in_the_way(root: Path) -> dict[str, Any]:
    """On rank 0, a file has the name of the checkpoint folder."""
    if RANK == 0:
        root.mkdir()
        (root / "checkpoints").write_text("")
    distributed.barrier()
    return {"raised": raised(lambda: CheckpointManager(root, SETTINGS))}


def on_main() -> dict[str, Any]:
    """Rank 0 raises before it broadcasts."""

    def refuse() -> None:
        raise ConfigError("seed=x", "is no number", "use one")

    return {
        "of ours": raised(lambda: distributed.run_on_main(refuse)),
        "of another kind": raised(lambda: distributed.run_on_main(lambda: 1 // 0)),
        "answer": distributed.run_on_main(lambda: RANK),
    }


def shards(root: Path) -> dict[str, Any]:
    """On rank 1, the folder of an engine's shards cannot be created."""
    module = nn.Linear(2, 2)
    group = {"params": list(module.parameters()), "lr": 0.1, "weight_decay": 0.0, "betas": (0.9, 0.99), "eps": 1e-8}
    settings = zero_config(
        stage=1,
        dtype="fp32",
        offload_optimizer=False,
        offload_params=False,
        reduce_bucket_size=64,
        prefetch_bucket_size=0,
        persistence_threshold=0,
        max_live_parameters=1_000_000_000,
        max_grad_norm=1.0,
    )
    engine = Engine(module, [group], zero=settings, device=torch.device("cpu"))
    place = root / f"disk{RANK}"
    place.mkdir(parents=True)
    if RANK == 1:
        (place / "shards").write_text("in the way")
    failed = raised(lambda: engine.save(place))
    written = [str(file.relative_to(root)) for file in engine.save(root / "both")]
    return {"failed": failed, "written": written}


def main(root: Path) -> dict[str, Any]:
    found = {
        "on main": on_main(),
        "shared": shared(root / "shared"),
        "shares": shares(root / "shares"),
        "apart": apart(root / "apart"),
    }
    found["in the way"] = in_the_way(root / "in the way")
    return found | {"shards": shards(root / "shards")}


if __name__ == "__main__":
    distributed.init(device="cpu", timeout_s=60)
    result = main(Path(sys.argv[1]))
    distributed.shutdown()
    print(json.dumps(result))
