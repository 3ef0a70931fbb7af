"""Collection of a dialogue by `task=program` against the built-in protocol: seconds of both, in turn, and their ratio.

    python scripts/bench/programs.py MODEL [--episodes 64] [--tokens 32] [--repeats 3]

Two agents speak twice each. Needs the package openai.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from ippo_cli.compose.load import load_config
from ippo_cli.config.schema import Config
from ippo_cli.evaluation.evaluate_run import configured_weights, load_policies
from ippo_cli.rollout.collect import collect
from ippo_cli.rollout.generator import SamplingStream, build_generator, sampling_settings
from ippo_cli.tasks.conversation import prompt_formats
from ippo_cli.tasks.task import make_environment_pool
from ippo_cli.training.process import prepare_process
from ippo_cli.types import Batch

PROGRAM = """
from openai import AsyncOpenAI


async def play(example, endpoint):
    client = AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)
    messages = {"low": [], "high": []}

    async def say(agent, text):
        messages[agent].append({"role": "user", "content": text})
        completion = await client.chat.completions.create(model=agent, messages=messages[agent])
        messages[agent].append(completion.choices[0].message)
        return completion.choices[0].message.content

    text = example["question"]
    for _ in range(2):
        answer = await say("low", text)
        text = await say("high", answer)
"""
REPLIES = (
    'low: {template: "{question}", turn_template: "{agents.high}"}, '
    'high: {template: "{agents.low}", turn_template: "{agents.low}"}'
)


def measure(config: Config, batch: Batch, repeats: int) -> tuple[list[float], int]:
    """Seconds of each collection after one that is not counted, and the tokens of one."""
    policies = load_policies(config, configured_weights(config), torch.device("cpu"), {})
    formats = prompt_formats(config.task, config.rollout, {name: own.tokenizer for name, own in policies.items()})
    generator = build_generator(policies, config.rollout, sampling_settings(config.task), continues=True)
    environments = make_environment_pool(config.task)
    seconds, tokens = [], 0
    for repeat in range(repeats + 1):
        began = time.perf_counter()
        episodes = collect(environments, formats, batch, generator, SamplingStream(seed=repeat, purpose="bench"))
        seconds.append(time.perf_counter() - began)
        assert all(episode.failure is None and len(episode.turns) == 4 for episode in episodes)
        tokens = sum(len(turn.completion.ids) for episode in episodes for turn in episode.turns)
    environments.close()
    return seconds[1:], tokens


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "play.py"
        program.write_text(PROGRAM)
        shared = ["actor=full", f"actor.model={options.model}", f"rollout.max_new_tokens={options.tokens}"]
        shared += [
            "critic=none",
            "algorithm=grpo",
            "task.train=unused.jsonl",
            "task.eval=unused.jsonl",
            "reward=function",
        ]
        shared += [
            "reward.function=unused.py:unused",
            "~task.agents.solo",
            f"rollout.decode_batch_size={options.episodes}",
        ]
        configs = {
            "protocol": [
                "task=jsonl",
                "task.protocol=dialogue",
                "task.num_turns=2",
                "+task.agents={" + REPLIES + "}",
            ],
            "program": ["task=program", f"task.program={program}:play", "+task.agents={low: {}, high: {}}"],
        }
        rows = [{"question": f"Tell me something about the number {number}."} for number in range(options.episodes)]
        batch = Batch(examples=rows, index=torch.arange(options.episodes))
        found = {}
        prepare_process(load_config([*configs["protocol"], *shared]))
        for name, own in configs.items():
            found[name], tokens = measure(load_config([*own, *shared]), batch, options.repeats)
            print(f"{name}: {' '.join(f'{value:.2f}' for value in found[name])} s for {tokens} tokens", flush=True)
        ratio = statistics.median(found["program"]) / statistics.median(found["protocol"])
        print(f"program / protocol: {ratio:.2f}")


if __name__ == "__main__":
    main()
