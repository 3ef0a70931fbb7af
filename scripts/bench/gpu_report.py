"""Markdown tables of the results of `gpu.py`, in the layout of `docs/performance.md`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

START, END = "<!-- gpu -->", "<!-- end of gpu -->"
COLUMNS = {  # of the tables of iterations: heading, key of the result, format
    "decoded tokens/s": ("tokens_per_second_decoded", "{:.0f}"),
    "fraction of bandwidth": ("decode_share_of_bandwidth", "{:.2f}"),
    "update MFU": ("update_mfu", "{:.2f}"),
    "rollout, values, update": ("phases", "{}"),
    "iteration": ("iteration_s", "{:.2f} s"),
    "peak MiB (torch)": ("peak_memory_mib", "{:.0f}"),
    "peak MiB (device)": ("device_memory_mib", "{:.0f}"),
}
TRANSFERS = {
    "transfer": ("transfer_s", "{:.3f} s"),
    "verification": ("verification_s", "{:.3f} s"),
    "sampler gap": ("sampler_gap", "{:.2e}"),
}
STEPS = {  # of the tables of optimizer steps
    "step": ("seconds", "{:.3f} s"),
    "tokens/s": ("tokens_per_second", "{:.0f}"),
    "MFU": ("mfu", "{:.2f}"),
    "peak GiB": ("peak_gib", "{:.2f}"),
    "planned": ("planned_gib", "{:.2f}"),
    "kernels": ("kernels", "{}"),
    "synchronisations": ("waits", "{}"),
}
HEADS = {"forward and backward": ("seconds", "{:.4f} s"), "added GiB": ("added_gib", "{:.2f}")}


def render(found: Mapping[str, Any]) -> str:
    """The section on a GPU: device and setting, then a table for each part or the reason why it has none."""
    given = found["given"]
    lines = [
        "## On a GPU",
        "",
        f"`scripts/bench/gpu.sh` on {found.get('device', 'a CPU (a trial)')}, torch {found['torch']}: PPO "
        f"in bf16 with a separate critic, {given['rows']} rows of {given['tokens']} tokens, one mini-batch.",
    ]
    if "flops" in (peak := found.get("peak", {})):
        lines += ["", f"Reached by torch: {peak['flops'] / 1e12:.1f} TFLOP/s, {peak['bandwidth'] / 1e9:.0f} GB/s."]
    parts = {"train": "hf", "vllm": "vllm"}
    rows = [
        [name, f"`{rollout}`", *_cells(result, COLUMNS)]
        for part, rollout in parts.items()
        for name, result in _shapes(found.get(part, {})).items()
    ]
    lines += _table(["model", "`rollout`", *COLUMNS], sorted(rows, key=lambda row: row[0]))
    transfers = _shapes(found.get("vllm", {}))
    lines += _table(["model", *TRANSFERS], [[name, *_cells(result, TRANSFERS)] for name, result in transfers.items()])
    lines += _other_tables(found)
    for part, result in found.items():
        if isinstance(result, dict) and (reason := result.get("skipped") or result.get("failed")):
            kind = "skipped" if "skipped" in result else "failed"
            lines += ["", f"`{part}` {kind}: {' '.join(str(reason).split())[-300:]}"]
    return "\n".join(lines) + "\n"


def _other_tables(found: Mapping[str, Any]) -> list[str]:
    """Decoding against `generate`, optimizer steps, the head, and overlap."""
    ways = {
        "ours": "`rollout=hf`, tokens/s",
        "graphs": "without CUDA graphs",
        "slots": "in groups of rows",
        "theirs": "`generate` of transformers",
    }
    decoding = [
        [name, *(f"{result.get(f'{way}_tokens_per_second', math.nan):.0f}" for way in ways)]
        for name, result in _shapes(found.get("generate", {})).items()
    ]
    lines = _table(["model", *ways.values()], decoding)
    lines += _table(["model", "batch", "rows", *STEPS], _list_steps(found.get("update", {})))
    heads = [
        [name, way, *(_cells(result, HEADS) if "seconds" in result else [result.get("skipped", "")])]
        for name, ways in _shapes(found.get("head", {})).items()
        for way, result in _shapes(ways).items()
    ]
    lines += _table(["model", "head", *HEADS], heads)
    overlaps = [
        [name, f"{one['iteration_s']:.2f} s", f"{one['iteration_ahead_s']:.2f} s"]
        for name, one in _shapes(found.get("overlap", {})).items()
    ]
    return lines + _table(["model", "iteration", "iteration with `rollout.ahead=1`"], overlaps)


def _list_steps(result: Mapping[str, Any]) -> list[list[str]]:
    """A row of the table for each model, batch and form of attention."""
    return [
        [name, batch, form, *(_cells(step, STEPS) if "seconds" in step else [step.get("skipped", "")])]
        for name, batches in _shapes(result).items()
        for batch, forms in _shapes(batches).items()
        for form, step in forms.items()
    ]


def _shapes(result: Mapping[str, Any]) -> dict[str, Any]:
    """The results of a part by shape."""
    return {name: value for name, value in result.items() if isinstance(value, dict)}


def _cells(result: Mapping[str, Any], columns: Mapping[str, tuple[str, str]]) -> list[str]:
    phases = [f"{result[f'{phase}_s']:.2f}" for phase in ("rollout", "targets", "update") if f"{phase}_s" in result]
    values = {**result, "phases": " ".join(phases)}
    return [form.format(values[key]) if key in values else "" for key, form in columns.values()]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    return ["", *("| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows))]


def fill_block(file: Path, text: str) -> None:
    """Replace what stands between the marks `START` and `END` of a file. Raises `SystemExit` without marks."""
    before, start, rest = file.read_text().partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise SystemExit(f"--docs {file}: has no block from {START} to {END}; add the two lines")
    file.write_text(f"{before}{START}\n{text}{END}{after}")
