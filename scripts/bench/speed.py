"""Time whole iterations and their phases on a named setting, alternating between variants and other projects.

    python scripts/bench/speed.py tail --ideal
    python scripts/bench/speed.py fixed --variant "64:" --variant "1024: rollout.buffer_size=1024"
    python scripts/bench/speed.py long dialogue fixed --ideal --repeat 3
    python scripts/bench/speed.py eos --peer trl=ENV/bin/python:trl_baseline.py --repeat 3

Prints one JSON object. Every repetition runs all variants and peers one after the other, so ratios are between
consecutive runs; they have a median, smallest and largest value over repetitions. A variant is a name, a colon, and
overrides of `ippo-train`. `agents=N`, `vocabulary=N`, `hidden=N` and `layers=N` shape the task and the model; with
`heard=N` agents observe N constant words between their turns instead of others' responses. Each setting is a
separate run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from material import Shape, make

HERE = Path(__file__).parent
WARM_UP = 2  # iterations not counted: allocators, caches, thread pools
BASE = (
    "algorithm=ppo",
    "algorithm.ppo_epochs=1",
    "algorithm.mini_batch_size=16",
    "rollout.buffer_size=64",
    "rollout.decode_batch_size=64",
    "actor.dtype=fp32",
    "actor.learning_rate=1e-5",
    "critic.learning_rate=1e-5",
    "evaluation.every=0",
    "evaluation.greedy=false",
    "checkpoint.every=0",
    "tracker.console=plain",
)
PHASES = ("rollout", "score", "targets", "update")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Response lengths; with random weights the end of sequence is as likely as any other token."""

    limit: int
    fixed: bool
    turns: int = 1

    @property
    def overrides(self) -> list[str]:
        talk = ["task.protocol=dialogue", f"task.num_turns={self.turns}"] if self.turns > 1 else []
        least = self.limit if self.fixed else 0
        return [f"rollout.max_new_tokens={self.limit}", f"rollout.min_new_tokens={least}", *talk]


SETTINGS = {
    "fixed": Setting(limit=32, fixed=True),
    "long": Setting(limit=96, fixed=True),
    "dialogue": Setting(limit=32, fixed=True, turns=3),
    "eos": Setting(limit=32, fixed=False),
    "tail": Setting(limit=128, fixed=False),
}


def main() -> None:
    given = _arguments()
    variants = _variants(given)
    peers = dict(text.split("=", 1) for text in given.peer)
    with tempfile.TemporaryDirectory(prefix="ippo-bench-") as folder:
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in (*variants, *peers)}
        for _ in range(given.repeat):
            for name, (setting, overrides) in variants.items():
                runs[name].append(_ours(Path(folder), given, setting, overrides))
            for name, where in peers.items():
                runs[name].append(_peer(name, where, given))
    base = next(iter(variants))
    print(
        json.dumps(
            {
                "setting": " ".join(given.setting),
                "threads": given.threads,
                "repeat": given.repeat,
                "python": platform.python_version(),
                "runs": {name: _summary(found) for name, found in runs.items()},
                f"samples per second, {base} divided by": ratios(runs, base, "samples_per_second"),
                f"seconds per action token, {base} divided by": ratios(runs, base, "seconds_per_action_token"),
            },
            indent=2,
        )
    )


def _variants(given: argparse.Namespace) -> dict[str, tuple[Setting, list[str]]]:
    """Return every combination of setting and variant, by the name of its run."""
    own = dict(_variant(text) for text in given.variant)
    if len(given.setting) == 1:
        return {name: (SETTINGS[given.setting[0]], overrides) for name, overrides in (own or {"ours": []}).items()}
    return {
        f"{setting} {name}".strip(): (SETTINGS[setting], overrides)
        for setting in given.setting
        for name, overrides in (own or {"": []}).items()
    }


def ratios(runs: Mapping[str, Sequence[Mapping[str, Any]]], base: str, key: str) -> dict[str, dict[str, float]]:
    """Divide the base run's value by that of each other run of the same repetition; peers report only some values."""
    return {
        name: spread([a[key] / b[key] for a, b in zip(runs[base], found, strict=True)])
        for name, found in runs.items()
        if name != base and key in found[0]
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting", choices=SETTINGS, nargs="+")
    parser.add_argument("--variant", action="append", default=[], help="NAME: OVERRIDE ...")
    parser.add_argument("--peer", action="append", default=[], help="trl|comlrl=PYTHON:SCRIPT")
    parser.add_argument("--ideal", action="store_true", help="also measure the bare cost of the same tokens")
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    if given.peer and (len(given.setting) > 1 or SETTINGS[given.setting[0]].turns > 1):
        parser.error("--peer needs a single setting with one turn")
    return given


def _variant(text: str) -> tuple[str, list[str]]:
    name, _, overrides = text.partition(":")
    return name.strip(), overrides.split()


def _split_overrides(overrides: Sequence[str]) -> dict[str, str]:
    return {key: value for key, _, value in (text.partition("=") for text in overrides)}


def _ours(folder: Path, given: argparse.Namespace, setting: Setting, overrides: Sequence[str]) -> dict[str, Any]:
    """Time one run of ours: several ranks by their own clocks, a single rank around whole iterations."""
    keys = _split_overrides(overrides)
    agents = int(keys.pop("agents", "2"))
    shape = Shape(**{key: int(keys.pop(key)) for key in ("vocabulary", "hidden", "layers") if key in keys})
    heard = int(keys.pop("heard", "0"))
    own = [f"{key}={value}" for key, value in keys.items()]
    talk = setting.turns > 1
    place = folder / "_".join(str(part) for part in (*vars(shape).values(), talk, heard))
    material = make(place, shape, agents, talk=talk, heard=heard)
    processes = int(keys.get("launch.processes", "1"))
    name = f"run_{len(list(folder.rglob('metrics.jsonl')))}"
    everything = [
        *material,
        *BASE,
        *setting.overrides,
        f"launch.threads={given.threads // processes}",
        f"num_iterations={WARM_UP + given.iterations + 1}",
        f"name={name}",
        *own,
    ]
    if _split_overrides(everything)["actor.dtype"] == "bf16":
        everything.append("critic.dtype=bf16")
    out = folder / f"{name}.json"
    command = [
        sys.executable,
        str(HERE / "measured_run.py"),
        str(out),
        *(["--ideal"] if given.ideal else []),
        *everything,
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{name} {' '.join(own)}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    (metrics,) = folder.rglob(f"{name}/*/metrics.jsonl")
    rows = [row for line in metrics.read_text().splitlines() if "time/iteration" in (row := json.loads(line))]
    return _read(rows, json.loads(out.read_text()), agents)


def _read(rows: Sequence[Mapping[str, float]], watched: Mapping[str, Any], agents: int) -> dict[str, Any]:
    """Return medians over the counted iterations of one run, without the last one, which ends with an evaluation."""
    rows, iterations, ideals = rows[WARM_UP:-1], watched["iterations"][WARM_UP:], watched["ideals"][WARM_UP:]
    found: dict[str, Any] = {f"{phase}_s": statistics.median(row[f"time/{phase}"] for row in rows) for phase in PHASES}
    phases = statistics.median(row["time/iteration"] for row in rows)
    whole = statistics.median(iterations) if iterations else phases
    samples = round(rows[0]["perf/samples_per_second"] * rows[0]["time/iteration"])
    length = statistics.mean(row[f"a{n}/rollout/response_length"] for row in rows for n in range(agents))
    found |= {
        "iteration_s": whole,
        "outside_phases_s": whole - phases,
        "samples_per_second": samples / whole,
        "samples_per_phase_second": samples / phases,
        "seconds_per_action_token": whole / (samples * length),
        "response_length": length,
        "peak_memory_mib": max(row["perf/peak_memory_mib"] for row in rows),
    }
    if ideals:
        for phase in ("rollout", "targets", "update"):
            found[f"{phase}_efficiency"] = statistics.median(
                ideal[phase] / row[f"time/{phase}"] for ideal, row in zip(ideals, rows, strict=True)
            )
        sums = [sum(ideal.values()) for ideal in ideals]
        found["efficiency"] = statistics.median(least / spent for least, spent in zip(sums, iterations, strict=True))
        found["ideal_seconds_per_action_token"] = statistics.median(sums) / (samples * length)
    return found


def _peer(name: str, where: str, given: argparse.Namespace) -> dict[str, Any]:
    """Time one run of a baseline script in its own environment: `PYTHON:SCRIPT`."""
    python, _, script = where.partition(":")
    setting = SETTINGS[given.setting[0]]
    shape = ["--hidden", "256", "--layers", "4", "--threads", str(given.threads)]
    if name.startswith("trl"):
        own = [
            "--response-length",
            str(setting.limit),
            "--batch",
            "64",
            "--updates",
            str(given.iterations),
            "--ppo-epochs",
            "1",
            "--minibatches",
            "4",
            *([] if setting.fixed else ["--stop-at-eos"]),
        ]
    else:
        own = [
            "--prompts",
            "16",
            "--epochs",
            "1",
            "--max-new-tokens",
            str(setting.limit),
            *([] if setting.fixed else ["--stop-on-eos"]),
        ]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": str(given.threads)}
    done = subprocess.run([python, script, *shape, *own], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{name}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    lines = done.stdout.splitlines()
    first = max(number for number, line in enumerate(lines) if line.startswith("{"))
    report = json.loads("".join(lines[first:]))  # a baseline prints its JSON last
    rate = next(report[key] for key in ("episodes_per_sec_excl_first", "agent_samples_per_s") if key in report)
    return {"samples_per_second": rate, "said": report}


def _summary(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Summarize numbers by median, smallest and largest over repetitions; keep other values of the last one."""
    return {
        key: spread([run[key] for run in found]) if isinstance(value, int | float) else value
        for key, value in found[-1].items()
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    short = [float(f"{value:.4g}") for value in (statistics.median(values), min(values), max(values))]
    return dict(zip(("median", "smallest", "largest"), short, strict=True))


if __name__ == "__main__":
    main()
