"""The episode in `mode=plan`: prompts, numbers of turns, and maximum lengths."""

from __future__ import annotations

from pathlib import Path

import pytest

from ippo_cli.compose.load import build_config, compose_node, resolve_config
from ippo_cli.config.batch_sizes import compute_batch_sizes
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config
from ippo_cli.models.tiny import character_tokenizer
from ippo_cli.planning.episode_length import EpisodeLength, episode_lengths, length_warnings
from ippo_cli.planning.placeholder_episodes import preview_episode
from ippo_cli.planning.plan import show_conversation
from ippo_cli.reporting.training_warnings import startup_warnings
from ippo_cli.tasks.conversation import PromptFormat, prompt_formats
from ippo_cli.tasks.task import Task, load_task

TALK = (
    "task=sorting",
    "task.protocol=dialogue",
    "rollout.max_prompt_tokens=64",
    "task.agents.low.template='{letters}{heard}>'",
    "task.agents.high.template='{letters}{heard}<'",
)
OWN = """
class Guess:
    def reset(self, seed):
        self.turns = 0
        return "a digit?", {}

    def step(self, action):
        self.turns += 1
        %s
        return f"no {self.turns}", 0.0, self.turns == 2, False, {}

    %s

    def close(self): ...
"""


def prepare_task(*overrides: str) -> tuple[Config, Task, dict[str, PromptFormat]]:
    config = build_config(resolve_config(compose_node([*overrides])))
    tokenizer = character_tokenizer([*(chr(code) for code in range(32, 127)), "\n"])
    formats = prompt_formats(config.task, config.rollout, dict.fromkeys(config.task.agents, tokenizer))
    return config, load_task(config.task, config.seed), formats


def own_world(step: str = "", actions: str = "") -> tuple[Config, Task, dict[str, PromptFormat]]:
    Path("my_env.py").write_text(OWN % (step, actions) + "\ndef make():\n    return Guess()\n")
    return prepare_task("task=environment", "task.environment=my_env.py:make")


def test_dialogue_is_shown_with_placeholders() -> None:
    _, task, formats = prepare_task(*TALK, "task.num_turns=2")
    letters = task.train[0]["letters"]
    shown = preview_episode(task, formats)
    assert [(turn.agent, turn.prompt, turn.action) for turn in shown.turns] == [
        ("low", f"{letters}>", "(answer of low)"),
        ("high", f"{letters}low: (answer of low)<", "(answer of high)"),
        ("low", "\nhigh: (answer of high)\n", "(answer of low)"),
        ("high", "\nlow: (answer of low)\n", "(answer of high)"),
    ]
    assert shown.remaining_turns == 0


def test_long_dialogue_shows_first_turns(capsys) -> None:
    shown = preview_episode(*prepare_task(*TALK, "task.num_turns=5")[1:])
    assert (len(shown.turns), shown.remaining_turns) == (6, 4)
    show_conversation(shown)
    output = capsys.readouterr().out
    assert "... 4 more turns" in output
    assert max(map(len, output.splitlines())) <= 100


def test_environment_with_known_actions_is_played() -> None:
    _, task, formats = prepare_task("task=ladder")
    shown = preview_episode(task, formats)
    first = task.train[0]
    assert shown.turns[0].prompt == f"{first['start']}{first['stride']}>"
    assert len(shown.turns) == 3
    assert all(turn.action in "abcdefgh" for turn in shown.turns if turn.action)
    assert all(len(turn.prompt) == 2 for turn in shown.turns[1:])  # only the new part


def test_environment_without_actions_uses_placeholders(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, task, formats = own_world()
    shown = preview_episode(task, formats)
    result = "(answer of player)"
    assert [(turn.prompt, turn.action) for turn in shown.turns] == [("a digit?\n", result), ("no 1\n", result)]
    assert shown.ending == "terminated"


def test_environment_that_fails_on_placeholder_warns(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    config, task, formats = own_world("int(action)")
    shown = preview_episode(task, formats)
    assert (len(shown.turns), shown.ending) == (1, "fails here with placeholders as responses")
    result = startup_warnings(config, compute_batch_sizes(config, 1, len(task.train)), task)["dry_run"]
    assert "'(answer of player)'" in result
    assert "my_env.py:9: ValueError: invalid literal for int() with base 10" in result
    config, task, _ = own_world("int(action)", "def actions(self): return ['1', '2']")
    assert "dry_run" not in startup_warnings(config, compute_batch_sizes(config, 1, 9), task)


def test_end_of_preview_is_shown(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert preview_episode(*own_world(actions="def actions(self): return ['1', '2']")[1:]).ending == "terminated"
    assert preview_episode(*prepare_task("task=ladder")[1:]).ending == "not over after these turns"


@pytest.mark.parametrize(
    ("step", "actions", "message"),
    [
        ("raise KeyError('moves')", "def actions(self): return ['1', '2']", "my_env.py:9: KeyError: 'moves'"),
        (
            "return 'x', 1.0",
            "",
            r"step must return \(observation, reward, terminated, truncated, info\), not a tuple of 2",
        ),
        ("", "def actions(self): return {}['x']", "KeyError: 'x'"),
    ],
)
def test_always_failing_environment_is_rejected(step: str, actions: str, message: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=f"^task.environment=\\S*my_env.py:make fails .*{message}.*; fix the error there"
    ):
        own_world(step, actions)


def test_lengths_include_all_turns_and_other_responses() -> None:
    config, task, formats = prepare_task(*TALK, "task.num_turns=3", "rollout.max_new_tokens=10")
    lengths = episode_lengths(config, task, formats, {"low": 1000, "high": 60})
    # Later messages are "\nhigh: ", a response, "\n": a prompt of 7, three responses, two messages with a response.
    assert lengths["low"] == EpisodeLength(
        turns=3, sequence_tokens=7 + 3 * 10 + 2 * (8 + 10), row_tokens=7 + 3 * 10 + 2 * (8 + 10), first_turn_tokens=17
    )
    assert lengths["high"] == EpisodeLength(turns=3, sequence_tokens=60, row_tokens=60, first_turn_tokens=32)
    assert length_warnings(config, lengths, {"low": 1000, "high": 60}) == {}
    assert "3 turns of rollout.max_new_tokens=10 do not fit into high's context of 30" in "".join(
        length_warnings(config, lengths, {"low": 1000, "high": 30}).values()
    )


def test_single_turn_length_uses_longest_first_prompt() -> None:
    config, task, formats = prepare_task("rollout.max_new_tokens=10", "task.agents.low.template='{letters} and more<'")
    lengths = episode_lengths(config, task, formats, {"low": 1000, "high": 12})
    assert lengths == {
        "low": EpisodeLength(turns=1, sequence_tokens=16 + 10, row_tokens=16 + 10, first_turn_tokens=26),
        "high": EpisodeLength(turns=1, sequence_tokens=12, row_tokens=12, first_turn_tokens=17),
    }
    assert length_warnings(config, lengths, {"low": 26, "high": 17}) == {}
    (result,) = length_warnings(config, lengths, {"low": 1000, "high": 12}).values()
    assert result.startswith("high: prompts of up to 7 tokens and rollout.max_new_tokens=10 exceed its context of 12")


@pytest.mark.parametrize(("turns", "row"), [(4, 4 * 20), (20, 20 * 20)])
def test_latest_history_has_many_short_sequences(turns: int, row: int, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    own_world()
    config, task, formats = prepare_task(
        "task=environment",
        "task.environment=my_env.py:make",
        f"task.max_turns={turns}",
        "rollout.context=last_only",
        "rollout.max_prompt_tokens=30",
        "rollout.max_new_tokens=11",
    )
    lengths = episode_lengths(config, task, formats, {"player": 1000})
    assert lengths["player"] == EpisodeLength(turns=turns, sequence_tokens=20, row_tokens=row, first_turn_tokens=20)
    assert length_warnings(config, lengths, {"player": 50}) == {}
