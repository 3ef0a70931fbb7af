"""Time whole iterations of PPO on a pretrained model: alternate ours and TRL's, and compare ours with bare passes.

    python scripts/bench/pretrained.py FOLDER --trl ENV/bin/python --repeat 2
    python scripts/bench/pretrained.py FOLDER --ideal --lengths tail

FOLDER is a model with a chat template (scripts/examples/smollm2.py makes one). One agent with a separate critic and a
KL penalty, 64 responses, one epoch of four mini-batches. `fixed`: 32 tokens each. `tail`: up to 96 tokens, until the
model's end of sequence; one prompt of four asks for a text, the others for a sum. Prompts are the same token ids for
both. Prints JSON: seconds per iteration, without the first one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from speed import Setting, ratios, spread
from transformers import AutoTokenizer

from ippo_cli.tasks import arithmetic, subjects

HERE = Path(__file__).parent
BATCH = 64
LENGTHS = {"fixed": Setting(limit=32, fixed=True), "tail": Setting(limit=96, fixed=False)}
PROMPTS = 768
REWARD = '''"""The length of responses, in units of 100 characters."""


def reward(examples, responses, **_):
    (texts,) = responses.values()
    return {"team": [len(text) / 100 for text in texts]}
'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trl", help="Python interpreter with a TRL that has PPO")
    parser.add_argument("--lengths", nargs="+", choices=tuple(LENGTHS), default=list(LENGTHS))
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16")
    parser.add_argument("--ideal", action="store_true", help="also measure the bare cost of the same tokens")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    given.folder = given.folder.resolve()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="ippo-bench-") as name:
        folder = Path(name)
        prompts = _write(folder, given.folder)
        for length in given.lengths:
            runs: dict[str, list[dict[str, Any]]] = {"ours": [], **({"trl": []} if given.trl else {})}
            for number in range(given.repeat):
                runs["ours"].append(_ours(folder / f"{length}_{number}", LENGTHS[length], given))
                if given.trl:
                    runs["trl"].append(_trl(prompts, LENGTHS[length], given))
            found[length] = runs | {"samples per second, ours divided by": ratios(runs, "ours", "samples_per_second")}
    print(json.dumps({"dtype": given.dtype, "threads": given.threads, **found}, indent=2))


def _write(folder: Path, model: Path) -> Path:
    """Write rows, the reward, and the prompts as token ids."""
    texts = [f"Write something about {row['subject']}." for row in subjects.train()]
    sums = [f"What is {row['a']} + {row['b']}? Answer with the number only." for row in arithmetic.train()]
    rows = [{"prompt": sums[number] if number % 4 else texts[number // 4]} for number in range(PROMPTS)]
    (folder / "reward.py").write_text(REWARD)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenizer = AutoTokenizer.from_pretrained(model)
    chats = [[{"role": "user", "content": row["prompt"]}] for row in rows]
    prompts = folder / "prompts.json"
    prompts.write_text(json.dumps(tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_dict=False)))
    return prompts


def _ours(folder: Path, setting: Setting, given: argparse.Namespace) -> dict[str, Any]:
    shared = folder.parent
    overrides = [
        "task=jsonl",
        f"task.train={shared / 'rows.jsonl'}",
        f"task.eval={shared / 'rows.jsonl'}",
        "task.eval_size=4",
        "task.agents={writer: {template: '{prompt}'}}",
        "reward=function",
        f"reward.function={shared / 'reward.py'}:reward",
        "actor=full",
        f"actor.model={given.folder}",
        f"actor.dtype={given.dtype}",
        f"critic.dtype={given.dtype}",
        "actor.learning_rate=1e-6",
        "critic.learning_rate=1e-6",
        "algorithm=ppo",
        "algorithm.ppo_epochs=1",
        f"algorithm.mini_batch_size={BATCH // 4}",
        "algorithm.kl.reward.coef=0.05",
        f"rollout.buffer_size={BATCH}",
        f"rollout.decode_batch_size={BATCH}",
        *setting.overrides,
        "evaluation.every=0",
        "evaluation.greedy=false",
        "checkpoint.every=0",
        "tracker.console=plain",
        "tracker.tensorboard=false",
        "tracker.samples_every=0",
        f"launch.threads={given.threads}",
        f"num_iterations={given.iterations + 2}",
        f"output_dir={folder}",
    ]
    out = shared / f"{folder.name}.json"
    command = [
        sys.executable,
        str(HERE / "measured_run.py"),
        str(out),
        *(["--ideal"] if given.ideal else []),
        *overrides,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(overrides)}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    (metrics,) = folder.rglob("metrics.jsonl")
    rows = [row for line in metrics.read_text().splitlines() if "time/iteration" in (row := json.loads(line))]
    watched = json.loads(out.read_text())
    seconds, ideals = watched["iterations"][1:], watched["ideals"][1:]
    result: dict[str, Any] = {
        "seconds": seconds,
        "samples_per_second": BATCH / statistics.median(seconds),
        "response_length": statistics.mean(row["writer/rollout/response_length"] for row in rows),
        "peak_memory_mib": max(row["perf/peak_memory_mib"] for row in rows),
        **{
            f"{phase}_s": statistics.median(row[f"time/{phase}"] for row in rows[1:])
            for phase in ("rollout", "targets", "update")
        },
    }
    if ideals:
        result["ideal"] = {phase: statistics.median(ideal[phase] for ideal in ideals) for phase in ideals[0]}
        result["efficiency"] = spread(
            [sum(least.values()) / spent for least, spent in zip(ideals, seconds, strict=True)]
        )
    return result


def _trl(prompts: Path, setting: Setting, given: argparse.Namespace) -> dict[str, Any]:
    command = [given.trl, str(HERE / "peers" / "trl_ppo.py"), str(given.folder), str(prompts)]
    command += [f"--length={setting.limit}", f"--updates={given.iterations + 1}", f"--dtype={given.dtype}"]
    command += [f"--threads={given.threads}", *([] if setting.fixed else ["--until-end"])]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment | {"OMP_NUM_THREADS": str(given.threads)}
    )
    if done.returncode:
        sys.exit(f"TRL: exit code {done.returncode}\n{done.stderr[-3000:]}")
    seconds = json.loads(done.stdout.splitlines()[-1])["seconds"][1:]
    return {"seconds": seconds, "samples_per_second": BATCH / statistics.median(seconds)}


if __name__ == "__main__":
    main()
