"""Check and measure training on a GPU; `gpu.sh` runs this script.

Each part is a separate process with a time limit. Its results are printed and written at once to `gpu.json` in the
given folder, and as tables to `gpu.md`, so they remain if a later part fails. A part that needs what is not installed
is skipped with the reason. The exit code is 1 if a part fails or exceeds its time limit, or if training on the GPU
differs from the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import gpu_report
import gpu_update
import gpu_vllm
import torch
from gpu_runs import COMMON, SHAPES, Given, bf16, count_kernels_and_waits, measure_peak, shortest_seconds, summarize
from gpu_runs import train as run_training
from material import Shape, make
from torch import Tensor

LIMIT_S = 240  # time limit of one part; a run of the smallest model takes 35 s on an H100 machine, mostly imports
TOTAL_S = 570  # time limit of all parts
END_S = 5  # time for the processes of a part to end
MOST_DIFFERENT = 0.02  # accepted relative difference of a metric between devices, in a short fp32 run

SMALL = Shape()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of gpu.json and gpu.md")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=["0.5B"])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("--docs", type=Path, help="Markdown file with a block to replace by the tables")
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
        found[name] = run_part(name, sys.argv[1:], min(LIMIT_S, end - time.perf_counter()))
        (given.folder / "gpu.json").write_text(json.dumps(found, indent=1) + "\n")
        (given.folder / "gpu.md").write_text(gpu_report.render(found))
        print(f"{name}: {json.dumps(found[name])}", flush=True)
    if options.docs is not None:
        gpu_report.fill_block(options.docs, gpu_report.render(found))
    if failed := [name for name in options.parts if "failed" in found[name]]:
        sys.exit(f"failed: {' '.join(failed)}")


def run_part(name: str, arguments: Sequence[str], limit_s: float) -> Any:
    """Run a part and return its results or its error; past the limit, what it has printed and an error."""
    began = time.perf_counter()
    if limit_s <= 0:
        return {"failed": f"not started: earlier parts took {TOTAL_S} s"}
    part = subprocess.Popen(
        [sys.executable, __file__, *arguments, "--part", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = part.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        output = _end(part)
        return _last_result(output) | {"failed": f"not finished after {limit_s:.0f} s"}
    if part.returncode:
        return _last_result(output) | {"failed": (errors or output)[-1500:]}
    return _last_result(output) | {"seconds": round(time.perf_counter() - began, 1)}


def _end(part: subprocess.Popen[str]) -> str:
    """End a part with the runs that it started, and return its output."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(part.pid, kind)
        with suppress(subprocess.TimeoutExpired):
            return part.communicate(timeout=END_S)[0]
    return ""


def _last_result(output: str) -> dict[str, Any]:
    """The last complete line of a part's output; a part prints its results so far after each step."""
    for line in reversed(output.splitlines()):
        with suppress(ValueError):
            return dict(json.loads(line))
    return {}


def peak(given: Given) -> dict[str, float]:
    """Measure peak bandwidth and peak operations per second."""
    return asdict(measure_peak(given.device))


def parity(given: Given) -> dict[str, Any]:
    """Return the largest relative difference of any metric between a short fp32 run on this device and on the CPU, and
    whether mean response lengths are equal. A difference above `MOST_DIFFERENT` is a failure."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        overrides = make(Path(folder), SMALL, 2)
        for where, device in {"there": "cpu", "here": given.device}.items():
            rows[where] = run_training(
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


def train(given: Given) -> dict[str, Any]:
    """Measure whole bf16 iterations of PPO with a separate critic: decode / memory bandwidth, and update MFU."""
    reached = measure_peak(given.device)
    found = {}
    for name in given.shapes:
        shape = SHAPES[name]
        with tempfile.TemporaryDirectory() as folder:
            overrides = make(Path(folder), shape, 1, dtype=torch.bfloat16)
            rows = run_training(
                [
                    *overrides,
                    *bf16(given),
                    f"rollout.min_new_tokens={given.tokens}",
                    f"output_dir={folder}/outputs",
                ],
                given.device,
            )
        found[name] = summarize(given, shape, rows[1:], reached)
        print(json.dumps(found), flush=True)
    return found


def generate(given: Given) -> dict[str, Any]:
    """Compare tokens per second with transformers' `generate`, with steps of fixed slots without CUDA graphs, and with
    groups of rows; count synchronizations with the GPU, and the share of tokens that a batch of one row changes.
    """
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

        works = {"ours": ours, "theirs": theirs}
        works |= {key: partial(_decode_without, key, ours) for key in ("graphs", "slots")}
        seconds = {key: shortest_seconds(work, given.device, repeat=2) for key, work in works.items()}
        found[name] = {f"{key}_tokens_per_second": given.rows * given.tokens / one for key, one in seconds.items()}
        found[name]["ours_divided_by_theirs"] = seconds["theirs"] / seconds["ours"]
        if given.device == "cuda":
            counts = count_kernels_and_waits(lambda run=ours: run(tokens=16))
            found[name]["waits_per_token"] = counts["waits"] / 16
        found[name]["equal_tokens"] = _equal_share(ours(), _decode(model, tokenizer, ids[:1], given.tokens))
        del model
    return found


def _decode_without(part: str, decode_rows: Callable[[], object]) -> object:
    """Decode without CUDA graphs, or in groups of rows in place of fixed slots."""
    from ippo_cli.rollout import decode, slot_decode

    owner, name = (decode, "uses_slots") if part == "slots" else (slot_decode.GraphedStep, "__call__")
    former = getattr(owner, name)
    setattr(owner, name, (lambda _: False) if part == "slots" else (lambda self: self._step()))
    try:
        return decode_rows()
    finally:
        setattr(owner, name, former)


def _equal_share(together: Any, alone: Any) -> float:
    """The share of the first row's tokens up to the first that differs when it is decoded alone."""
    same = (together[0].ids == alone[0].ids).long().cumprod(0)
    return float(same.float().mean())


def _decode(model: Any, tokenizer: Any, ids: Tensor, tokens: int) -> object:
    from ippo_cli.rollout.decode import decode
    from ippo_cli.rollout.decode_state import DecodeRows
    from ippo_cli.rollout.noise import GumbelNoise, row_keys
    from ippo_cli.rollout.sampling import Sampling

    sampling = Sampling(max_new_tokens=tokens, min_new_tokens=tokens)
    noise = GumbelNoise(row_keys(0, "benchmark", torch.arange(len(ids))), tokens)
    return decode(
        model.eval(),
        tokenizer,
        DecodeRows(prompts=ids.tolist(), noise=noise),
        sampling,
        batch_size=len(ids),
        context_limit=model.config.max_position_embeddings,
    )


PARTS: dict[str, Callable[[Given], Any]] = {
    "peak": peak,
    "parity": parity,
    "update": gpu_update.update,
    "head": gpu_update.head,
    "train": train,
    "vllm": gpu_vllm.vllm,
    "overlap": gpu_vllm.overlap,
    "exact": gpu_vllm.exact,
    "generate": generate,
}

if __name__ == "__main__":
    main()
