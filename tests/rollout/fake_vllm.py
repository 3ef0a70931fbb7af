"""`rollout=vllm` with fake engines in place of vLLM's. Tests import it by path; as a script it is `ippo-train`."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

from fake_engine import FakeEngine
from transformers import AutoModelForCausalLM

from ippo_cli.config import vllm as checks
from ippo_cli.rollout.engine import EngineModel
from ippo_cli.rollout.engine_pool import EnginePool
from ippo_cli.rollout.vllm import build

OVERRIDES = ("rollout=vllm", "rollout.vllm.mode=server", "actor.dtype=fp32", "actor.hidden_size=64")


def patches(made: list[FakeEngine], **options: Any) -> list[tuple[Any, str, Any]]:
    """What to set, as arguments of `setattr`: engines of each training are new, and are appended to `made`."""

    def make(_: object, model: EngineModel, number: int) -> FakeEngine:
        original = AutoModelForCausalLM.from_config(model.config, dtype=model.dtype).eval()
        made.append(FakeEngine(model, original, **options))
        return made[-1]

    return [
        (checks, "find_spec", lambda name: object()),
        (build, "_factories", {}),
        (build, "EnginePool", partial(EnginePool, reuses=False)),
        (build._EngineFactory, "_make", make),  # pyright: ignore[reportPrivateUsage]
    ]


if __name__ == "__main__":
    from ippo_cli.cli.train import main

    for target, name, value in patches([], step_s=float(os.environ.get("STEP_S", "0"))):
        setattr(target, name, value)
    sys.exit(main())
