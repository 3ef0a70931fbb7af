"""One rank of test_rank_group.py: `grouped_ranks.py FOLDER`; prints results as JSON, which the test checks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from cases import build, update

from ippo_cli.engine import distributed
from ippo_cli.engine.zero import Engine

GROUPS = ((1, 2), (2,), (0, 1))  # rank 1 and rank 2 hold engines of two groups


def train(folder: Path, stage: int) -> dict[str, Any]:
    """Weights after an update, after a second one, and after the second one of an engine that was loaded."""
    engine = build(stage=stage, optimizer="sgd", lr=0.05, clip=0.5)
    update(engine, micro_batches=2)
    engine.save(folder)
    states = [engine.full_state_dict()]
    update(engine)
    states.append(engine.full_state_dict())
    engine.destroy()
    engine = build(stage=stage, optimizer="sgd", lr=0.05, clip=0.5, seed=1)
    engine.load(folder)
    update(engine)
    states.append(engine.full_state_dict())
    with engine.inference() as module:
        logits = module(torch.arange(6)[None])
    engine.destroy()
    return {
        "weights": [None if state is None else flatten(state) for state in states],
        "logits": logits.flatten().tolist(),
    }


def flatten(state: dict[str, torch.Tensor]) -> list[float]:
    return torch.cat([state[name].flatten() for name in sorted(state)]).tolist()


def use_both(groups: dict[str, distributed.RankGroup]) -> list[float]:
    """Weights of engines of two groups, updated in turn."""
    engines: list[tuple[distributed.RankGroup, Engine]] = []
    for group in groups.values():
        if group.is_member:
            with group.activate():
                engines.append((group, build(stage=1, optimizer="sgd", lr=0.05)))
    for _ in range(2):
        for group, engine in engines:
            with group.activate():
                update(engine)
    result = []
    for group, engine in engines:
        with group.activate():
            state = engine.full_state_dict()
            result += [] if state is None else flatten(state)
            engine.destroy()
    return result


def main(folder: Path) -> None:
    distributed.init(device="cpu", timeout_s=60)
    groups = {str(ranks): distributed.rank_group(ranks) for ranks in GROUPS}
    found: dict[str, Any] = {}
    for stage in range(4):
        for name, group in groups.items():
            if group.is_member:
                with group.activate():
                    found[f"{name} stage {stage}"] = train(folder / f"{name}{stage}", stage)
        assert distributed.world_size() == len(groups), "the world is the current group again"
    found["both"] = use_both(groups)
    found["ranks"] = distributed.gather_objects(distributed.rank())
    print(json.dumps(found))
    distributed.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
