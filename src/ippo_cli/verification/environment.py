"""Changes of versions, threads and devices since a run: equality to the byte depends on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

COMPARED = ("world_size", "threads", "device", "gpu", "cpu", "python", "platform")


def environment_changes(recorded: Mapping[str, Any], executed: Mapping[str, Any]) -> list[str]:
    """Lines `torch: 2.13.0 -> 2.14.0` for what the run recorded and the execution has otherwise."""
    return [f"{name}: {before} -> {now}" for name, before, now in _changes(recorded, executed)]


def _changes(recorded: Mapping[str, Any], executed: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    packages = executed.get("packages") or {}
    for name, before in (recorded.get("packages") or {}).items():
        if packages.get(name) != before:
            yield name, before, packages.get(name)
    for name in COMPARED:
        if name in recorded and recorded[name] != executed.get(name):
            yield name, recorded[name], executed.get(name)


def equality_limits(recorded: Mapping[str, Any], plain: Mapping[str, Any]) -> list[str]:
    """Reasons why an execution may differ although nothing was edited, apart from changed versions."""
    reasons = []
    if not recorded:
        reasons.append("the run recorded no versions")
    elif "threads" not in recorded and plain["launch"].get("threads") is None:
        reasons.append("the run recorded no number of threads; launch.threads=N sets it")
    if recorded.get("device") == "cuda":
        reasons.append("operations on GPUs are not deterministic")
    dtypes = {str(agent["actor"].get("dtype")) for agent in plain["task"]["agents"].values()}
    if dtypes - {"fp32"}:
        reasons.append(f"weights are in {' '.join(sorted(dtypes))}")
    return reasons
