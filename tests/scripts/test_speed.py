"""The benchmark of speed, end to end on a model that takes no time."""

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
def timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """What the script says of one iteration of the small model."""
    brief = ["--iterations", "1", "--threads", "1", "--variant", f"small: {SMALL}"]

    def call(*asked: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *asked, *brief])
        speed.main()
        return json.loads(capsys.readouterr().out)

    return call


@pytest.mark.slow
def test_a_dialogue_its_turn_and_a_peer_are_timed_beside_each_other(
    timed: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    peer = tmp_path / "peer.py"
    peer.write_text("print({'loss': 1.0})\nprint('{\\n\"episodes_per_sec_excl_first\": 0.5\\n}')\n")
    said = timed("dialogue", "fixed", "--ideal")
    assert list(said["runs"]) == ["dialogue small", "fixed small"]
    talk, once = (
        {key: value["median"] for key, value in said["runs"][f"{name} small"].items()} for name in ("dialogue", "fixed")
    )
    assert (talk["response_length"], once["response_length"]) == (96.0, 32.0)
    for run in (talk, once):
        phases = sum(run[f"{phase}_s"] for phase in ("rollout", "score", "targets", "update"))
        assert phases <= run["iteration_s"] * 1.01
        assert run["samples_per_second"] == pytest.approx(2 * 16 / run["iteration_s"], rel=0.01)
        tokens = 2 * 16 * run["response_length"]
        assert run["seconds_per_action_token"] == pytest.approx(run["iteration_s"] / tokens, rel=0.01)
        assert 0.0 < run["efficiency"] < 1.5
    ratio = said["seconds per action token, dialogue small divided by"]["fixed small"]["median"]
    assert ratio == pytest.approx(talk["seconds_per_action_token"] / once["seconds_per_action_token"], rel=0.01)
    beside = timed("fixed", "--peer", f"trl={sys.executable}:{peer}")
    ratio = beside["samples per second, small divided by"]["trl"]["median"]
    assert ratio == pytest.approx(beside["runs"]["small"]["samples_per_second"]["median"] / 0.5, rel=0.01)


def spoken(agent: str, step: int, prompt: int, written: int) -> Turn:
    numbers = torch.zeros(written)
    said = Completion(ids=numbers.long(), logprobs=numbers, behavior_logprobs=numbers, text="", finished=True)
    return Turn(agent=agent, step=step, observation="", prompt=[5] * prompt, completion=said)


def talk(*turns: Turn) -> Episode:
    return episode(turns=list(turns))


def test_an_ideal_dialogue_reads_every_token_but_the_last_once() -> None:
    episode = talk(spoken("a", 0, 8, 4), spoken("b", 1, 20, 9), spoken("a", 2, 8 + 4 + 5, 3))
    found = turn_tokens([episode, episode], "a")
    # The second turn reads the token that was written last, which no forward has read yet, and the observation.
    assert found == [
        TurnTokens(kept=0, read=8, written=[4, 4]),
        TurnTokens(kept=8 + 4 - 1, read=1 + 5, written=[3, 3]),
    ]
    # Of the 4 + 3 tokens written, the last is read by nobody.
    assert sum(turn.read + turn.written[0] - 1 for turn in found) == 8 + 4 + 5 + 3 - 1


def test_an_ideal_turn_is_over_for_rows_that_have_ended() -> None:
    found = turn_tokens([talk(spoken("a", 0, 8, 4)), talk(spoken("a", 0, 8, 2), spoken("a", 1, 12, 6))], "a")
    assert found == [TurnTokens(kept=0, read=8, written=[4, 2]), TurnTokens(kept=9, read=3, written=[6])]


def test_ideal_decoding_goes_on_with_what_earlier_turns_left() -> None:
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=16, **shape))
    read: list[tuple[int, ...]] = []
    seen: list[int] = []

    def watch(module: object, given: tuple[object, ...], options: dict[str, object]) -> None:
        ids = options["input_ids"]
        cache = options.get("cache", options.get("past_key_values"))
        read.append(tuple(ids.shape))  # type: ignore[attr-defined]
        seen.append(cache.get_seq_length())  # type: ignore[attr-defined]

    model.register_forward_pre_hook(watch, with_kwargs=True)
    turns = [TurnTokens(kept=0, read=5, written=[3, 1]), TurnTokens(kept=6, read=4, written=[2, 2])]
    assert Ideal(model, micro_batch_tokens=64).decode(turns) > 0.0
    assert read == [(2, 5), (1, 1), (1, 1), (2, 4), (2, 1)]
    assert seen == [0, 5, 6, 6, 10]
