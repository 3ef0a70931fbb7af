"""One of two ranks of test_reshard.py: resumes from shards of one rank, and saves shards for one rank."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from cases import build, update
from torch import Tensor

from ippo_cli.compose.exits import exit_process
from ippo_cli.engine import distributed

KINDS = [*((stage, "fp32") for stage in (0, 1, 2, 3)), (1, "bf16"), (3, "bf16")]


def saved(folder: Path, stage: int, dtype: str) -> None:
    """Two updates, then the shards."""
    engine = build(stage=stage, dtype=dtype)
    update(engine)
    update(engine)
    engine.save(folder / f"{dtype}_{stage}")
    engine.destroy()
    distributed.barrier()


def gone_on_with(folder: Path, stage: int, dtype: str) -> dict[str, Tensor]:
    """The weights after two updates by other ranks and one more here, and `calls`, a buffer."""
    engine = build(stage=stage, dtype=dtype, seed=1, lr=0.04)  # other initial weights, which must have no effect
    engine.load_resharded(folder / f"{dtype}_{stage}")
    engine.set_learning_rate(1.25)
    update(engine)
    with engine.inference() as module:
        found = {name: value.detach().float().clone() for name, value in module.state_dict().items()}
    engine.destroy()
    return found


def main(root: Path) -> None:
    distributed.init(device="cpu", timeout_s=100)
    found = {}
    for kind in KINDS:
        found[kind] = gone_on_with(root / "one", *kind)
        saved(root / "two", *kind)
    if distributed.is_main():
        torch.save(found, root / "found.pt")
    distributed.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    exit_process(0)
