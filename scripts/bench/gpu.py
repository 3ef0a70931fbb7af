"""Check and measure training on a GPU; `gpu.sh` runs this script.

Each part is a separate process with a time limit. Its results are printed and written at once to `gpu.json` in the
given folder, so they remain if a later part fails. The exit code is 1 if a part fails or exceeds its time limit, or if
training on the GPU differs from the CPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from material import Shape, make
from torch import Tensor

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
LIMIT_S = 150  # time limit of one part
TOTAL_S = 460  # time limit of all parts
MOST_DIFFERENT = 0.02  # accepted relative difference of a metric between devices, in a short fp32 run

SMALL = Shape()
SHAPES = {  # shapes of Qwen2.5, as Llama models
    "0.5B": Shape(layers=24, hidden=896, heads=14, key_value_heads=2, intermediate=4864, vocabulary=151_936, tied=True),
    "1.5B": Shape(
        layers=28, hidden=1536, heads=12, key_value_heads=2, intermediate=8960, vocabulary=151_936, tied=True
    ),
    "tiny": Shape(layers=2, hidden=64, heads=4, key_value_heads=2, intermediate=128, vocabulary=512, tied=True),
}
COMMON = (
    "algorithm=ppo",
    "algorithm.ppo_epochs=1",
    "evaluation.every=0",
    "evaluation.greedy=false",
    "checkpoint.every=0",
    "tracker.console=plain",
    "tracker.tensorboard=false",
)


@dataclass(frozen=True, kw_only=True)
class Given:
    """Command-line options."""

    device: str
    shapes: tuple[str, ...]
    tokens: int  # tokens per response
    rows: int  # rows per buffer
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Measured peak rates of the device; utilization is relative to them."""

    flops: float  # per second, in a bf16 matrix product
    bandwidth: float  # bytes per second, read and written by a copy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of gpu.json")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=["0.5B", "1.5B"])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--part", choices=tuple(PARTS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    given = Given(
        device=options.device,
        shapes=tuple(options.shapes),
        tokens=options.tokens,
        rows=options.rows,
        folder=options.folder.absolute(),
    )
    if options.part:
        print(json.dumps(PARTS[options.part](given)))
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"torch": torch.__version__, "given": {**asdict(given), "folder": ""}}
    if given.device == "cuda":
        found["device"] = torch.cuda.get_device_name()
    end = time.perf_counter() + TOTAL_S
    for name in options.parts:
        found[name] = _child(name, sys.argv[1:], min(LIMIT_S, end - time.perf_counter()))
        (given.folder / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
        print(f"{name}: {json.dumps(found[name])}", flush=True)
    if failed := [name for name in options.parts if "failed" in found[name]]:
        sys.exit(f"failed: {' '.join(failed)}")


def _child(name: str, arguments: Sequence[str], limit_s: float) -> Any:
    """Run a part and return its results or its error."""
    began = time.perf_counter()
    if limit_s <= 0:
        return {"failed": f"not started: earlier parts took {TOTAL_S} s"}
    try:
        ran = subprocess.run(
            [sys.executable, str(Path(__file__)), *arguments, "--part", name],
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"not finished after {limit_s:.0f} s"}
    if ran.returncode:
        return {"failed": (ran.stderr or ran.stdout)[-1500:]}
    return json.loads(ran.stdout.splitlines()[-1]) | {"seconds": round(time.perf_counter() - began, 1)}


def peak(given: Given) -> dict[str, float]:
    """Measure peak bandwidth and peak operations per second."""
    size = 8192 if given.device == "cuda" else 512
    one = torch.randn(size, size, device=given.device, dtype=torch.bfloat16)
    product = _seconds(lambda: one @ one, given.device)
    many = torch.empty((1 << 30) if given.device == "cuda" else (1 << 24), device=given.device, dtype=torch.uint8)
    other = torch.empty_like(many)
    copy = _seconds(lambda: other.copy_(many), given.device)
    return asdict(Peak(flops=2 * size**3 / product, bandwidth=2 * many.numel() / copy))


def parity(given: Given) -> dict[str, Any]:
    """Return the largest relative difference of any metric between a short fp32 run on this device and on the CPU, and
    whether mean response lengths are equal. A difference above `MOST_DIFFERENT` is a failure."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        overrides = make(Path(folder), SMALL, 2)
        for where, device in {"there": "cpu", "here": given.device}.items():
            rows[where] = _train(
                [
                    *overrides,
                    *COMMON,
                    "actor.dtype=fp32",
                    "rollout.buffer_size=32",
                    "rollout.max_new_tokens=32",
                    "algorithm.mini_batch_size=16",
                    "num_iterations=3",
                    f"launch.device={device}",
                    f"output_dir={folder}/{where}",
                ]
            )
    kept = [key for key in rows["there"][0] if not key.startswith(("time/", "perf/")) and "deviation" not in key]
    pairs = [
        (key, a[key], b[key])
        for a, b in zip(rows["there"], rows["here"], strict=True)
        for key in kept
        if isinstance(a[key], float | int)
    ]
    differences = sorted(((abs(a - b) / max(abs(a), 1e-3), key) for key, a, b in pairs), reverse=True)
    lengths = [(a, b) for key, a, b in pairs if key.endswith("response_length")]
    largest, where = differences[0]
    found = {
        "metrics": len(pairs),
        "largest_relative_difference": largest,
        "where": where,
        "equal_lengths": all(a == b for a, b in lengths),
    }
    return found if largest <= MOST_DIFFERENT else found | {"failed": f"{where} differs by {largest:.2g}"}


def packing(given: Given) -> dict[str, Any]:
    """Measure seconds per bf16 update with packed and padded rows; rows end at random, at a quarter of the limit on
    average."""
    found = {}
    endings = max(round(400 / given.tokens), 1)
    with tempfile.TemporaryDirectory() as folder:
        name = given.shapes[0]
        shape = SHAPES[name]
        overrides = make(Path(folder), shape, 1, dtype=torch.bfloat16)
        for packs in (True, False):
            rows = _train(
                [
                    *overrides,
                    *_bf16(given, shape),
                    # Random weights generate uniform words: with some of 100 stop strings, rows end at all lengths.
                    "rollout.min_new_tokens=1",
                    "rollout.stop_strings=[" + ",".join(f"'{number:02} '" for number in range(endings)) + "]",
                    f"deepspeed.pack_sequences={str(packs).lower()}",
                    f"output_dir={folder}/{packs}",
                ]
            )
            found["packed" if packs else "padded"] = {
                "update_s": statistics.median(row["time/update"] for row in rows[1:]),
                "response_length": statistics.mean(row["a0/rollout/response_length"] for row in rows[1:]),
            }
    return found | {"ratio": found["padded"]["update_s"] / found["packed"]["update_s"]}


def train(given: Given) -> dict[str, Any]:
    """Measure whole bf16 iterations of PPO with a separate critic: decode / memory bandwidth, and update MFU."""
    reached = Peak(**peak(given))
    found = {}
    for name in given.shapes:
        shape = SHAPES[name]
        with tempfile.TemporaryDirectory() as folder:
            overrides = make(Path(folder), shape, 1, dtype=torch.bfloat16)
            rows = _train(
                [
                    *overrides,
                    *_bf16(given, shape),
                    f"rollout.min_new_tokens={given.tokens}",
                    f"output_dir={folder}/outputs",
                ]
            )
        found[name] = _shares(given, shape, rows[1:], reached)
    return found


def _shares(given: Given, shape: Shape, rows: Sequence[Mapping[str, float]], reached: Peak) -> dict[str, float]:
    seconds = {key: statistics.median(row[f"time/{key}"] for row in rows) for key in ("rollout", "targets", "update")}
    prompt = 8
    read = given.tokens * (2 * shape.parameters + given.rows * (prompt + given.tokens / 2) * _cache_bytes(shape))
    tokens = given.rows * (prompt + given.tokens)
    # Forward and backward of actor and critic: six operations per weight and token, plus attention products.
    attention = 12 * shape.layers * shape.hidden * (prompt + given.tokens) / 2
    operations = 2 * tokens * (6 * shape.parameters + attention)
    found = {f"{key}_s": value for key, value in seconds.items()} | {
        "tokens_per_second_decoded": given.rows * given.tokens / seconds["rollout"],
        "decode_share_of_bandwidth": read / seconds["rollout"] / reached.bandwidth,
        "update_mfu": operations / seconds["update"] / reached.flops,
        "peak_memory_mib": max(row["perf/peak_memory_mib"] for row in rows),
    }
    gap = [row[key] for row in rows for key in row if key.endswith("ratio_first_step_deviation")]
    return found | {"sampler_against_trainer_largest_ratio_deviation": max(gap, default=math.nan)}


def _cache_bytes(shape: Shape) -> int:
    """Return bytes of one token's keys and values in bf16."""
    return 2 * 2 * shape.layers * (shape.key_value_heads or shape.heads) * (shape.hidden // shape.heads)


def generate(given: Given) -> dict[str, Any]:
    """Compare tokens per second with transformers' `generate`, and count our synchronizations with the GPU."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = {}
    for name in given.shapes:
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), SHAPES[name], 1, dtype=torch.bfloat16)
            model = AutoModelForCausalLM.from_pretrained(f"{folder}/model", dtype=torch.bfloat16).to(given.device)
            tokenizer = AutoTokenizer.from_pretrained(f"{folder}/model")
        ids = torch.randint(4, 64, (given.rows, 8), device=given.device)
        options = {"max_new_tokens": given.tokens, "min_new_tokens": given.tokens, "do_sample": True, "top_k": 0}

        def theirs(model: Any = model, ids: Tensor = ids, options: Mapping[str, Any] = options) -> object:
            return model.generate(ids, attention_mask=torch.ones_like(ids), **options)

        def ours(
            model: Any = model, ids: Tensor = ids, tokenizer: Any = tokenizer, tokens: int = given.tokens
        ) -> object:
            return _decode(model, tokenizer, ids, tokens)

        seconds = {key: _seconds(work, given.device, repeat=2) for key, work in (("ours", ours), ("theirs", theirs))}
        found[name] = {f"{key}_tokens_per_second": given.rows * given.tokens / one for key, one in seconds.items()}
        found[name]["ours_divided_by_theirs"] = seconds["theirs"] / seconds["ours"]
        if given.device == "cuda":
            found[name]["waits_per_token"] = _waits(lambda run=ours: run(tokens=16)) / 16
        del model
    return found


def _decode(model: Any, tokenizer: Any, ids: Tensor, tokens: int) -> object:
    from ippo_cli.rollout.decode import decode
    from ippo_cli.rollout.sampling import Sampling

    sampling = Sampling(
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        repetition_penalty=1.0,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        stop_strings=(),
        greedy=False,
    )
    uniforms = torch.rand(len(ids), tokens, dtype=torch.float64)
    return decode(
        model.eval(),
        tokenizer,
        ids.tolist(),
        sampling,
        uniforms=uniforms,
        batch_size=len(ids),
        context_limit=model.config.max_position_embeddings,
    )


def _waits(work: Callable[[], object]) -> int:
    """Count how often the CPU waits for the GPU."""
    from torch.profiler import ProfilerActivity, profile

    work()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        work()
    names = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
    return sum(event.count for event in profiler.key_averages() if event.key in names)


def _bf16(given: Given, shape: Shape) -> list[str]:
    return [
        *COMMON,
        "actor.dtype=bf16",
        "critic.dtype=bf16",
        "actor.learning_rate=1e-6",
        "critic.learning_rate=1e-6",
        "algorithm.kl.loss.coef=0",
        f"rollout.buffer_size={given.rows}",
        f"rollout.decode_batch_size={given.rows}",
        f"rollout.max_new_tokens={given.tokens}",
        f"algorithm.mini_batch_size={given.rows}",
        "num_iterations=3",
        f"launch.device={given.device}",
    ]


def _train(overrides: Sequence[str]) -> list[dict[str, float]]:
    """Train and return the metrics of each iteration."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-m", "ippo_cli.cli.train", *overrides], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"exit code {done.returncode}: {done.stderr[-1200:]}")
    (folder,) = [text.partition("=")[2] for text in overrides if text.startswith("output_dir=")][-1:]
    (metrics,) = Path(folder).rglob("metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [row for row in rows if "time/iteration" in row]


def _seconds(work: Callable[[], object], device: str, repeat: int = 5) -> float:
    """Return the shortest of several times, after one uncounted run."""
    found = []
    for _ in range(repeat + 1):
        began = _now(device)
        work()
        found.append(_now(device) - began)
    return min(found[1:])


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


PARTS: dict[str, Callable[[Given], Any]] = {
    "peak": peak,
    "parity": parity,
    "train": train,
    "generate": generate,
    "packing": packing,
}

if __name__ == "__main__":
    main()
