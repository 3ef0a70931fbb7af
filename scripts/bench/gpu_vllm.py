"""The parts of `gpu.py` that measure `rollout=vllm`: decoding, transfers of weights, and overlap."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from gpu_runs import SHAPES, Given, Peak, RunError, bf16, measure_peak, summarize, train
from material import make

ITERATIONS = 5  # transfers 0, 2 and 4 are verified
BAD_SETTINGS = 2  # exit code


def vllm(given: Given) -> dict[str, Any]:
    """Measure iterations with `rollout=vllm`, and transfers of weights with and without their verification."""
    if (reason := _missing()) is not None:
        return {"skipped": reason}
    reached, found = measure_peak(given.device), {}
    for name in given.shapes:
        found[name] = _measure(given, name, reached)
        print(json.dumps(found), flush=True)
    return found


def overlap(given: Given) -> dict[str, Any]:
    """Measure iterations that sample during the update of the previous one (`rollout.ahead=1`), and without that."""
    from ippo_cli.config.schema import VllmRolloutConfig

    if "ahead" not in {field.name for field in fields(VllmRolloutConfig)}:
        return {"skipped": "this version has no key rollout.ahead"}
    if (reason := _missing()) is not None:
        return {"skipped": reason}
    reached, name = measure_peak(given.device), given.shapes[0]
    try:
        ahead = _measure(given, name, reached, "rollout.ahead=1")
    except RunError as error:
        if error.code != BAD_SETTINGS:
            raise
        return {"skipped": f"rollout.ahead=1 is refused here: {error}"}
    plain = _measure(given, name, reached)
    return {name: {"iteration_s": plain["iteration_s"], "iteration_ahead_s": ahead["iteration_s"]}}


def exact(given: Given) -> dict[str, Any]:
    """Measure iterations with `rollout.on_policy=exact`, and how many drafts the trained model changes."""
    if (reason := _missing()) is not None:
        return {"skipped": reason}
    reached, name = measure_peak(given.device), given.shapes[0]
    rows = _train(given, name, "rollout.on_policy=exact")
    shares = {
        part: [value for row in rows for key, value in row.items() if key.endswith(f"/{part}")]
        for part in ("changed_drafts", "redrawn_tokens", "verify_rounds")
    }
    found = summarize(given, SHAPES[name], rows[1:], reached)
    return {name: found | {part: statistics.mean(values) for part, values in shares.items()}}


def _missing() -> str | None:
    """Why vLLM cannot be measured; None if it can."""
    if find_spec("vllm") is None:
        return "vllm is not installed"
    try:
        import vllm  # pyright: ignore[reportMissingImports]  # noqa: F401
    except Exception as error:  # built for another torch or CUDA
        return f"vllm cannot be imported: {error}"
    return None


def _measure(given: Given, name: str, reached: Peak, *overrides: str) -> dict[str, float]:
    rows = _train(given, name, *overrides)
    gaps = [value for row in rows for key, value in row.items() if key.endswith("logprob_diff/sampler")]
    return summarize(given, SHAPES[name], rows[1:], reached) | transfer_seconds(rows) | {"sampler_gap": max(gaps)}


def _train(given: Given, name: str, *overrides: str) -> list[dict[str, float]]:
    """The rows of metrics of a run with vLLM."""
    with tempfile.TemporaryDirectory() as folder:
        return train(
            [
                *make(Path(folder), SHAPES[name], 1, dtype=torch.bfloat16),
                *bf16(given),
                "rollout=vllm",
                "rollout.vllm.verify_every=2",
                "rollout.max_sampler_gap=null",
                f"rollout.min_new_tokens={given.tokens}",
                f"num_iterations={ITERATIONS}",
                f"output_dir={folder}/outputs",
                *overrides,
            ],
            given.device,
        )


def transfer_seconds(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Median seconds of a transfer, and of its verification, from a run that verifies every second one.

    The first iteration is left out: it starts the engine.
    """
    plain, verified = (statistics.median(row["time/weights"] for row in rows[start::2]) for start in (1, 2))
    return {"transfer_s": plain, "verification_s": verified - plain}
