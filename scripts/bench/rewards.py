"""Time each reward per thousand samples, on the available cores: `python scripts/bench/rewards.py [NAME...]`.

The script creates the samples. With `--humaneval FILE`, `code` scores HumanEval's reference solutions, and `code_pair`
scores them with a helper function; `model` needs `--reward-model FOLDER`. Servers run in a separate process and respond
at once.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.rewards.build import build_reward
from ippo_cli.rewards.contract import close_reward
from ippo_cli.tasks.subjects import held_out
from ippo_cli.types import Completion, Episode, Turn

OWN = """
import asyncio
def batch(examples, responses): return {"team": [1.0] * len(examples)}
def sample(example, responses): return 1.0
async def waits(example, responses):
    await asyncio.sleep(0.1)
    return 1.0
"""
TWO_SENTENCES = "The sea is a large body of salt water. However, it is also home to many animals, for example whales."
MODEL = ("actor=full", "actor.model=none")
SOLVER = ("task=gsm8k", "task.train=a.jsonl", "task.eval=a.jsonl", *MODEL)
SOLO = ("task=jsonl", "task.train=a.jsonl", "task.eval=a.jsonl", *MODEL)
MIXED = "reward.parts={a: {kind: gsm8k}, b: {kind: length, high: 9}}"
CODE = ("reward.sandbox=bwrap", "reward.workers=2")


def cases(folder: Path) -> dict[str, tuple[tuple[str, ...], list[tuple[Mapping[str, Any], dict[str, str]]]]]:
    """Return by reward name: overrides, and samples (an example and each agent's text)."""
    own = folder / "own.py"
    own.write_text(OWN)
    gsm8k = [({"answer": f"#### {n}"}, {"solver": f"{'So it goes on. ' * 20}\n#### {n}"}) for n in range(1000)]
    math = [
        ({"answer": rf"\frac{{{n}}}{{7}}"}, {"solver": rf"So \boxed{{\frac{{{2 * n}}}{{14}}}}"}) for n in range(1000)
    ]
    solo = [({}, {"solo": text["solver"]}) for _, text in gsm8k]
    subjects = [
        ({"subject": row["subject"]}, {"brief": TWO_SENTENCES[:39], "long": TWO_SENTENCES}) for row in held_out()
    ]
    walks = [({"start": "a1", "goal": "c2", "size": 3}, {"horizontal": "rr", "vertical": "u"})] * 1000
    low = [({"low": "abc", "high": "def"}, {"low": "abc", "high": "dex"})] * 1000

    def function(name: str, *keys: str) -> tuple[str, ...]:
        return (*SOLO, "reward=function", f"reward.function={own}:{name}", *keys)

    return {
        "exact_match": (("reward=exact_match",), low),
        "gsm8k": ((*SOLVER, "reward=gsm8k"), gsm8k),
        "number": ((*SOLVER, "reward=number"), gsm8k),
        "length": ((*SOLVER, "reward=length", "reward.high=9"), gsm8k),
        "format": ((*SOLVER, "reward=format", "reward.pattern='.*####.*'"), gsm8k),
        "mix of gsm8k and length": ((*SOLVER, "reward=mix", MIXED), gsm8k),
        "grid": (("task=probe_grid", "reward=grid"), walks),
        "environment": (("task=ladder",), [({}, {"climber": "c"})] * 1000),
        "writing": (("task=writing", *MODEL), subjects),
        "function": (function("batch"), solo),
        "function, per sample": (function("sample", "reward.per_sample=true"), solo),
        "function, per sample, process": (function("sample", "reward.per_sample=true", "reward.process=true"), solo),
        "function, async, 0.1 s each, 16 at once": (function("waits", "reward.per_sample=true"), solo),
        "math, 2 processes": ((*SOLVER, "reward=math", "reward.workers=2"), math),
    }  # fmt: skip


def programs(file: Path) -> dict[str, tuple[tuple[str, ...], list[tuple[Mapping[str, Any], dict[str, str]]]]]:
    with gzip.open(file, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    samples = [(row, {"solo": row["canonical_solution"]}) for row in rows]
    helper = "def aux(x):\n    return x"
    pairs = [(row, {"helper": helper, "main": f"    kept = aux(0)\n{row['canonical_solution']}"}) for row in rows]
    return {
        "code, bwrap, 2 at once": ((*SOLO, "reward=code", *CODE), samples),
        "code_pair, bwrap, 2 at once": (("task=code_pair", *MODEL, *CODE), pairs),
    }


def answered(url: str) -> dict[str, tuple[tuple[str, ...], list[tuple[Mapping[str, Any], dict[str, str]]]]]:
    """Return cases of rewards that use a server; one server supports both protocols."""
    solo = [({}, {"solo": f"{'So it goes on. ' * 20} {n}"}) for n in range(1000)]
    judge = ("reward=judge", f"reward.url={url}/v1", "reward.model=none", "reward.min_score=0", "reward.field=score")
    return {
        "http, 16 rows a request": ((*SOLO, "reward=http", f"reward.url={url}/score"), solo),
        "http, 1 row a request": ((*SOLO, "reward=http", f"reward.url={url}/score", "reward.batch_size=1"), solo),
        "judge": ((*SOLO, *judge, "reward.pattern=null"), solo),
    }


def models(folder: Path) -> dict[str, tuple[tuple[str, ...], list[tuple[Mapping[str, Any], dict[str, str]]]]]:
    samples = [({}, {"solo": TWO_SENTENCES[: 40 + n]}) for n in range(60)]
    return {"model": ((*SOLO, "reward=model", f"reward.model={folder}"), samples)}


def serve() -> None:
    """Serve both protocols at a free port."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import reward_server

    class Handler(reward_server.Handler):
        def do_POST(self) -> None:
            if not self.path.endswith("/chat/completions"):
                return super().do_POST()
            self.rfile.read(int(self.headers["Content-Length"]))
            return self.answer(200, {"choices": [{"message": {"content": '{"score": 5}'}}]})

    with reward_server.Server(("127.0.0.1", 0), Handler) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        server.serve_forever()


def episode(index: int, example: Mapping[str, Any], texts: Mapping[str, str]) -> Episode:
    none = torch.zeros(0)
    turns = [
        Turn(
            agent=name,
            step=0,
            observation="",
            prompt=[],
            completion=Completion(ids=none.long(), logprobs=none, behavior_logprobs=none, text=text, finished=True),
        )
        for name, text in texts.items()
    ]
    return Episode(
        example=example,
        index=index,
        turns=turns,
        rewards=[dict.fromkeys(texts, 1.0)],  # the environment's rewards, only for `environment`
        final={},
        last_observations={},
        terminated=True,
        unfinished=frozenset(),
        ended=frozenset(),
        truncation="",
        failure=None,
        parts={},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--humaneval", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    parser.add_argument("--reward-model", type=Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        return serve()
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        return measure(chosen, server.stdout.readline().strip())
    finally:
        server.kill()


def measure(chosen: argparse.Namespace, url: str) -> None:
    known = cases(chosen.folder) | answered(url)
    known |= programs(chosen.humaneval) if chosen.humaneval else {}
    known |= models(chosen.reward_model) if chosen.reward_model else {}
    print("| reward | seconds per 1000 samples | start |\n|---|---|---|")
    for name in chosen.names or known:
        overrides, samples = known[name]
        config = load_config(normalize_arguments(overrides))
        reward = build_reward(config.reward, config.task.agents)
        episodes = [episode(index, *sample) for index, sample in enumerate(samples)]
        begun = time.perf_counter()
        reward(episodes[:2])
        started = time.perf_counter()
        found = reward(episodes)
        seconds = time.perf_counter() - started
        assert not found.failures, next(iter(found.failures.values()))
        close_reward(reward)
        print(f"| {name} | {seconds * 1000 / len(samples):.3g} | {started - begun:.2g} s |", flush=True)


if __name__ == "__main__":
    main()
