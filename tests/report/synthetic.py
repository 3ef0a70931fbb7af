"""Folders of runs that no training wrote: two agents, several turns, token values, as many rows and episodes as needed.

`python tests/report/synthetic.py FOLDER [EPISODES] [ROWS]` writes one.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

AGENTS = ("solver", "checker")
WORDS = ("first", "add", "the", "two", "numbers", "then", "check", "total", "is", "right", "because", "both", "agree")
HOSTILE = '</script><img src=x onerror="window.hostile=1"> \u202e<b>bold</b> \x1b[31m & \x00 ${title} <!-- \u2028'
SETTINGS: dict[str, Any] = {
    "name": "synthetic",
    "seed": 0,
    "num_iterations": 400,
    "output_dir": "outputs",
    "task": {
        "kind": "jsonl",
        "primary_metric": "sampled/score",
        "agents": {name: {"actor": {"learning_rate": 1e-6}, "critic": {"kind": "separate"}} for name in AGENTS},
    },
    "algorithm": {"gamma": 1.0, "lam": 0.95, "clip_range": 0.2},
}


def write_run(
    folder: Path,
    *,
    iterations: int = 400,
    files: int = 20,
    episodes_per_file: int = 16,
    num_turns: int = 2,
    tokens: bool = True,
    seed: int = 0,
    state: str = "done",
    gain: float = 1.0,
    text: str | None = None,
    settings: Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> Path:
    """Write the folder of a run. `gain` scales how much it learns; `text` is added to observations and responses."""
    draw = random.Random(seed)
    folder.mkdir(parents=True)
    (folder / "samples").mkdir()
    config = SETTINGS | {"seed": seed, "num_iterations": iterations} | (dict(settings) if settings else {})
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    (folder / "command.txt").write_text("ippo-train task=jsonl task.train=train.jsonl\n")
    (folder / "overrides.json").write_text(json.dumps(["task=jsonl", *overrides, f"seed={seed}"]))
    (folder / "env.json").write_text(json.dumps({"python": "3.11.7", "packages": {"torch": "2.13.0"}}))
    metrics = [metric_row(iteration, iterations, draw, gain) for iteration in range(iterations + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    trained = EpisodeOptions(num_turns=num_turns, tokens=tokens, gain=gain, text=text)
    held_out = replace(trained, tokens=False)
    for number in range(files):
        iteration = max(1, round((number + 1) * iterations / files))
        done = iteration / iterations
        rows = [episode("train", index, done, draw, trained) for index in range(episodes_per_file)]
        _write_samples(folder, f"train_{iteration:08d}", rows)
        if number % 5 == 0:
            rows = [episode(("sampled", "greedy")[index % 2], index, done, draw, held_out) for index in range(4)]
            _write_samples(folder, f"eval_{iteration:08d}", rows)
    (folder / "run.json").write_text(json.dumps(_state(metrics, state, iterations), indent=1))
    return folder


def _write_samples(folder: Path, name: str, episodes: Sequence[Mapping[str, Any]]) -> None:
    (folder / "samples" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in episodes))


def _state(rows: Sequence[Mapping[str, Any]], state: str, iterations: int) -> dict[str, Any]:
    evaluated = [row for row in rows if "eval/sampled/score" in row]

    def entry(row: Mapping[str, Any]) -> dict[str, Any]:
        scores = {name.removeprefix("eval/"): value for name, value in row.items() if name.startswith("eval/")}
        return {"iteration": row["iteration"], "score": scores["sampled/score"], **scores}

    best = max(evaluated, key=lambda row: row["eval/sampled/score"])
    return {
        "state": state,
        "wall_seconds": 12.5 * iterations,
        "iterations": iterations,
        "evaluation": {"first": entry(evaluated[0]), "best": entry(best), "last": entry(evaluated[-1])},
        "error": None if state != "failed" else "losses of solver were not finite in 3 consecutive steps",
        "warnings": {
            "cut_turns": "62% of the turns of solver are truncated at rollout.max_new_tokens=32; increase the limit",
            "no_progress": "the score of checker has not increased in 50 iterations (0.312 -> 0.318)",
        },
        "warning_iterations": {"cut_turns": iterations // 5, "no_progress": iterations // 2},
    }


def metric_row(iteration: int, iterations: int, draw: random.Random, gain: float) -> dict[str, Any]:
    """One row of `metrics.jsonl`."""
    done = iteration / iterations
    level = 0.2 + 0.7 * gain * (1 - math.exp(-3 * done))
    row: dict[str, Any] = {"iteration": iteration}
    if iteration % max(1, iterations // 20) == 0:
        for mode, bonus in (("sampled", 0.0), ("greedy", 0.05)):
            score = level + bonus + draw.gauss(0, 0.01)
            row[f"eval/{mode}/score"] = score
            row[f"eval/{mode}/exact"] = score * 0.8
            for name in AGENTS:
                row[f"eval/{mode}/{name}/score"] = score + (0.02 if name == "solver" else -0.02)
        row["time/evaluation"] = 4 + draw.random()
    if iteration == 0:
        return row
    for place, name in enumerate(AGENTS):
        row |= {
            f"{name}/score/mean": level + draw.gauss(0, 0.04) - 0.05 * place,
            f"{name}/score/std": 0.3 * (1 - 0.5 * done) + draw.gauss(0, 0.01),
            f"{name}/score/part/exact": level * 0.8 + draw.gauss(0, 0.03),
            f"{name}/policy/entropy": 1.4 * math.exp(-1.5 * done) + 0.2 + draw.gauss(0, 0.03),
            f"{name}/policy/approx_kl": 0.004 * math.exp(draw.gauss(0, 0.5)),
            f"{name}/policy/clip_fraction": 0.08 + draw.gauss(0, 0.01),
            f"{name}/policy/loss": draw.gauss(-0.02, 0.01),
            f"{name}/policy/grad_norm": 0.5 * math.exp(draw.gauss(0, 0.4)),
            f"{name}/policy/learning_rate": 1e-6 * (1 - done),
            f"{name}/kl/reference": 0.4 * done + draw.gauss(0, 0.01),
            f"{name}/value/explained_variance": None if iteration == 1 else 0.7 * (1 - math.exp(-5 * done)),
            f"{name}/value/loss": 0.1 * math.exp(-2 * done) + 0.02 + draw.gauss(0, 0.002),
            f"{name}/rollout/response_length": 20 + 12 * done + draw.gauss(0, 1),
            f"{name}/rollout/truncated_fraction": max(0.0, 0.2 - 0.2 * done + draw.gauss(0, 0.02)),
            **{f"{name}/value/explained_variance/turn/{turn}": 0.6 * done / turn + 0.1 for turn in (1, 2)},
        }
    row |= {"time/rollout": 6 + draw.random(), "time/score": 0.4, "time/targets": 1.2, "time/update": 4.5}
    return row | {"time/iteration": 12.3, "time/checkpoint": 0.3, "perf/tokens_per_second": 1500 + draw.gauss(0, 50)}


@dataclass(frozen=True, kw_only=True)
class EpisodeOptions:
    """What episodes of a run have in common; `text` is added to observations and responses."""

    num_turns: int  # of each agent
    tokens: bool
    gain: float
    text: str | None


def episode(mode: str, index: int, done: float, draw: random.Random, options: EpisodeOptions) -> dict[str, Any]:
    """One sampled episode, a dialogue of both agents; `done` is the fraction of training before it."""
    example, failed = index // 4, draw.random() < 0.01
    question = f"Question {example}: what is {example + 2} plus {3 * example + 1}?{options.text or ''}"
    is_exact = draw.random() < options.gain * (0.2 + 0.7 * done)
    parts = {"exact": float(is_exact), "format": float(draw.random() < 0.7 + 0.3 * done)}
    score = None if failed else round(0.8 * parts["exact"] + 0.2 * parts["format"], 6)
    turns: list[dict[str, Any]] = []
    for step in range(options.num_turns * 2):
        observation = question if step == 0 else f"{AGENTS[(step - 1) % 2]}: {turns[-1]['response']}"
        is_last = step >= options.num_turns * 2 - 2
        turn_score = None if score is None else score if is_last else 0.0
        turns.append(_turn(step, observation, turn_score, done, draw, options))
    truncated = draw.random() < 0.05
    return {
        "mode": mode,
        "index": index,
        "group": example,
        "agents": {name: {"prompt": question, "response": turns[-1]["response"], "score": score} for name in AGENTS},
        "turns": turns,
        "terminated": not truncated,
        "truncation": "max_turns" if truncated else "",
        "partners": [],
        "failure": "rewards.py:12: ZeroDivisionError: division by zero" if failed else None,
        "last_observations": {"solver": "the checker agrees"},
        "parts": parts,
        "credit": {"solver": {"difference": round(draw.gauss(0.1, 0.2), 4)}},
    }


def _turn(
    step: int, observation: str, score: float | None, done: float, draw: random.Random, options: EpisodeOptions
) -> dict[str, Any]:
    words = [draw.choice(WORDS) + " " for _ in range(int(8 + 10 * draw.random()))]
    if options.text is not None:
        words.insert(3, options.text)
    agent = AGENTS[step % 2]
    turn: dict[str, Any] = {
        "agent": agent,
        "step": step,
        "observation": observation,
        "response": "".join(words),
        "cut": draw.random() < 0.1,
        "score": score,
    }
    if options.tokens:
        turn["tokens"] = token_values([*words, "<eos>"], done, draw, score or 0.0, has_mask=agent == "checker")
    return turn


def token_values(
    words: Sequence[str], done: float, draw: random.Random, score: float, *, has_mask: bool
) -> dict[str, list[Any]]:
    """Values of the tokens of a turn, in the form of the sample files."""
    count = len(words)

    def four_digits(values: Sequence[float]) -> list[float]:
        return [float(f"{value:.4g}") for value in values]

    returns = [score * 0.98 ** (count - 1 - place) for place in range(count)]
    values = [done * value + (1 - done) * 0.5 + draw.gauss(0, 0.12) for value in returns]
    logprobs = [-abs(draw.gauss(0.6, 0.7)) for _ in words]
    found: dict[str, list[Any]] = {
        "text": list(words),
        "logprob": four_digits(logprobs),
        "ref_logprob": four_digits([value - draw.gauss(0.3 * done, 0.2) for value in logprobs]),
        "entropy": four_digits([abs(draw.gauss(1.2 - done, 0.4)) for _ in words]),
        "ratio": four_digits([math.exp(draw.gauss(0, 0.12)) for _ in words]),
        "value": four_digits(values),
        "return": four_digits(returns),
        "advantage": four_digits([one - other for one, other in zip(returns, values, strict=True)]),
        "reward": four_digits([draw.gauss(-0.002, 0.002) for _ in words[:-1]] + [score]),
    }
    if has_mask:
        found["trained"] = [1] * (count - 1) + [0]
    return found


if __name__ == "__main__":
    arguments = [int(text) for text in sys.argv[2:]]
    count = arguments[0] if arguments else 320
    write_run(
        Path(sys.argv[1]),
        iterations=arguments[1] if len(arguments) > 1 else 400,
        files=max(1, count // 50),
        episodes_per_file=min(count, 50),
    )
