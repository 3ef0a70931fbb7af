"""Collection of a dialogue by `task=program` against the built-in protocol: seconds of both, in turn, and their ratio.

    python scripts/bench/programs.py MODEL [--episodes 64] [--tokens 32] [--repeats 3]

Two agents speak twice each. Needs the package openai.
"""

from __future__ import annotations

import argparse
import statistics
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

PROGRAM = Path(__file__).parent.parent / "examples" / "dialogue_program.py"
REPLIES = (
    'low: {template: "{question}", turn_template: "high: {agents.high}"}, '
    'high: {template: "low: {agents.low}", turn_template: "low: {agents.low}"}'
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
    shared = [
        "actor=full",
        f"actor.model={options.model}",
        "critic=none",
        "algorithm=grpo",
        "reward=function",
        "reward.function=unused.py:unused",
        "task.train=unused.jsonl",
        "task.eval=unused.jsonl",
        "~task.agents.solo",
        f"rollout.max_new_tokens={options.tokens}",
        f"rollout.decode_batch_size={options.episodes}",
    ]
    protocol = ["task=jsonl", "task.protocol=dialogue", "task.num_turns=2", "+task.agents={" + REPLIES + "}"]
    program = ["task=program", f"task.program={PROGRAM}:play", "+task.agents={low: {}, high: {}}"]
    rows = [{"question": f"Tell me something about the number {number}."} for number in range(options.episodes)]
    batch = Batch(examples=rows, index=torch.arange(options.episodes))
    prepare_process(load_config([*protocol, *shared]))
    medians = []
    for name, own in (("protocol", protocol), ("program", program)):
        seconds, tokens = measure(load_config([*own, *shared]), batch, options.repeats)
        print(f"{name}: {' '.join(f'{value:.2f}' for value in seconds)} s for {tokens} tokens", flush=True)
        medians.append(statistics.median(seconds))
    print(f"program / protocol: {medians[1] / medians[0]:.2f}")


if __name__ == "__main__":
    main()
