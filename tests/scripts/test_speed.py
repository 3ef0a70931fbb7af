"""The benchmark of speed, end to end on a tiny model."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from spoken import episode
from transformers import LlamaConfig, LlamaForCausalLM

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench" / "speed.py"
sys.path.insert(0, str(SCRIPT.parent))

import speed  # noqa: E402
from ideal import Ideal, TurnTokens  # noqa: E402
from measured_run import turn_tokens  # noqa: E402

from ippo_cli.types import Completion, Episode, Turn  # noqa: E402

SMALL = "hidden=16 layers=1 rollout.buffer_size=16 rollout.decode_batch_size=16 algorithm.mini_batch_size=8"


@pytest.fixture
def run_benchmark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Function that runs the script for one iteration of the small model and returns its JSON report."""
    brief = ["--iterations", "1", "--threads", "1", "--variant", f"small: {SMALL}"]

    def run_speed(*arguments: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments, *brief])
        speed.main()
        return json.loads(capsys.readouterr().out)

    return run_speed


@pytest.mark.slow
def test_benchmark_compares_dialogue_fixed_prompts_and_peer(
    run_benchmark: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    peer = tmp_path / "peer.py"
    peer.write_text("print({'loss': 1.0})\nprint('{\\n\"episodes_per_sec_excl_first\": 0.5\\n}')\n")
    report = run_benchmark("dialogue", "fixed", "--ideal")
    assert list(report["runs"]) == ["dialogue small", "fixed small"]
    dialogue, fixed = (
        {key: value["median"] for key, value in report["runs"][f"{name} small"].items()}
        for name in ("dialogue", "fixed")
    )
    assert (dialogue["response_length"], fixed["response_length"]) == (96.0, 32.0)
    for run in (dialogue, fixed):
        phases = sum(run[f"{phase}_s"] for phase in ("rollout", "score", "targets", "update"))
        assert phases <= run["iteration_s"] * 1.01
        assert run["samples_per_second"] == pytest.approx(2 * 16 / run["iteration_s"], rel=0.01)
        tokens = 2 * 16 * run["response_length"]
        assert run["seconds_per_action_token"] == pytest.approx(run["iteration_s"] / tokens, rel=0.01)
        assert 0.0 < run["efficiency"] < 1.5
    ratio = report["seconds per action token, dialogue small divided by"]["fixed small"]["median"]
    assert ratio == pytest.approx(dialogue["seconds_per_action_token"] / fixed["seconds_per_action_token"], rel=0.01)
    with_peer = run_benchmark("fixed", "--peer", f"trl={sys.executable}:{peer}")
    ratio = with_peer["samples per second, small divided by"]["trl"]["median"]
    assert ratio == pytest.approx(with_peer["runs"]["small"]["samples_per_second"]["median"] / 0.5, rel=0.01)


def make_turn(agent: str, step: int, prompt_length: int, length: int) -> Turn:
    numbers = torch.zeros(length)
    completion = Completion(ids=numbers.long(), logprobs=numbers, behavior_logprobs=numbers, text="", finished=True)
    return Turn(agent=agent, step=step, observation="", prompt=[5] * prompt_length, completion=completion)


def make_episode(*turns: Turn) -> Episode:
    return episode(turns=list(turns))


def test_ideal_dialogue_reads_each_token_once() -> None:
    episode = make_episode(make_turn("a", 0, 8, 4), make_turn("b", 1, 20, 9), make_turn("a", 2, 8 + 4 + 5, 3))
    found = turn_tokens([episode, episode], "a")
    # The second turn reads the last token of the first turn, which no forward pass has read yet, and the observation.
    assert found == [
        TurnTokens(kept=0, read=8, written=[4, 4]),
        TurnTokens(kept=8 + 4 - 1, read=1 + 5, written=[3, 3]),
    ]
    # The last of the 4 + 3 generated tokens is never read.
    assert sum(turn.read + turn.written[0] - 1 for turn in found) == 8 + 4 + 5 + 3 - 1


def test_ideal_turn_excludes_finished_rows() -> None:
    found = turn_tokens(
        [make_episode(make_turn("a", 0, 8, 4)), make_episode(make_turn("a", 0, 8, 2), make_turn("a", 1, 12, 6))], "a"
    )
    assert found == [TurnTokens(kept=0, read=8, written=[4, 2]), TurnTokens(kept=9, read=3, written=[6])]


def test_ideal_decoding_reuses_the_cache_of_earlier_turns() -> None:
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=16, **shape))
    shapes: list[tuple[int, ...]] = []
    cache_lengths: list[int] = []

    def record_call(module: object, args: tuple[object, ...], options: dict[str, object]) -> None:
        ids = options["input_ids"]
        cache = options.get("cache", options.get("past_key_values"))
        shapes.append(tuple(ids.shape))  # type: ignore[attr-defined]
        cache_lengths.append(cache.get_seq_length())  # type: ignore[attr-defined]

    model.register_forward_pre_hook(record_call, with_kwargs=True)
    turns = [TurnTokens(kept=0, read=5, written=[3, 1]), TurnTokens(kept=6, read=4, written=[2, 2])]
    assert Ideal(model, micro_batch_tokens=64).decode(turns) > 0.0
    assert shapes == [(2, 5), (1, 1), (1, 1), (2, 4), (2, 1)]
    assert cache_lengths == [0, 5, 6, 6, 10]
