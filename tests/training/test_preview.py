"""What `mode=plan` shows of an episode: what agents will read, how often they speak, and how long that may get."""

from __future__ import annotations

from pathlib import Path

import pytest

from ippo_cli.config.load import compose_node, resolve, typed
from ippo_cli.config.schema import Config
from ippo_cli.models.tiny import character_tokenizer
from ippo_cli.tasks.conversation import PromptFormat, prompt_formats
from ippo_cli.tasks.task import Task, load_task
from ippo_cli.training.episode_length import EpisodeLength, episode_lengths, too_long
from ippo_cli.training.plan import _show_conversation
from ippo_cli.training.preview import preview

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


def prepared(*overrides: str) -> tuple[Config, Task, dict[str, PromptFormat]]:
    config = typed(resolve(compose_node([*overrides])))
    tokenizer = character_tokenizer([*(chr(code) for code in range(32, 127)), "\n"])
    formats = prompt_formats(config.task, config.rollout, dict.fromkeys(config.task.agents, tokenizer))
    return config, load_task(config.task, config.seed), formats


def own_world(step: str = "", actions: str = "") -> tuple[Config, Task, dict[str, PromptFormat]]:
    Path("my_env.py").write_text(OWN % (step, actions) + "\ndef make():\n    return Guess()\n")
    return prepared("task=environment", "task.environment=my_env.py:make")


def test_a_dialogue_is_shown_as_each_agent_reads_it_with_placeholders_for_answers() -> None:
    config, task, formats = prepared(*TALK, "task.num_turns=2")
    letters = task.train[0]["letters"]
    shown = preview(config, task, formats)
    assert [(turn.agent, turn.read, turn.written) for turn in shown.turns] == [
        ("low", f"{letters}>", "(what low says)"),
        ("high", f"{letters}low: (what low says)<", "(what high says)"),
        ("low", "\nhigh: (what high says)\n", "(what low says)"),
        ("high", "\nlow: (what low says)\n", "(what high says)"),
    ]
    assert shown.more == 0


def test_of_a_long_dialogue_the_first_turns_are_shown_and_the_others_counted(capsys) -> None:
    shown = preview(*prepared(*TALK, "task.num_turns=5"))
    assert (len(shown.turns), shown.more) == (6, 4)
    _show_conversation(shown)
    said = capsys.readouterr().out
    assert "... 4 more turns" in said
    assert max(map(len, said.splitlines())) <= 160


def test_a_world_that_knows_its_answers_is_played_for_a_few_steps() -> None:
    config, task, formats = prepared("task=ladder")
    shown = preview(config, task, formats)
    first = task.train[0]
    assert shown.turns[0].read == f"{first['start']}{first['stride']}>"
    assert len(shown.turns) == 3
    assert all(turn.written in "abcdefgh" for turn in shown.turns if turn.written)
    assert all(len(turn.read) == 2 for turn in shown.turns[1:])  # what is new, and not all that was said before


def test_a_world_that_does_not_is_shown_with_what_it_tells_first(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = preview(*own_world())
    assert [(turn.read, turn.written) for turn in shown.turns] == [("a digit?\n", None)]


def test_how_the_shown_episode_ends_is_told(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert preview(*own_world(actions="def actions(self): return ['1', '2']")).end == "ended by itself"
    broken = preview(*own_world("raise KeyError('moves')", "def actions(self): return ['1', '2']"))
    assert broken.end == "failed: my_env.py:9: KeyError: 'moves'"
    assert len(broken.turns) == 1


def test_lengths_count_all_turns_and_what_others_write_between_them() -> None:
    config, task, formats = prepared(*TALK, "task.num_turns=3", "rollout.max_new_tokens=10")
    lengths = episode_lengths(config, task, formats, {"low": 1000, "high": 120})
    # Later messages are "\nlow: ", an answer, "\n": a prompt, three answers, two messages with an answer in each.
    assert lengths["low"] == EpisodeLength(turns=3, sequence=64 + 3 * 10 + 2 * (8 + 10), row=64 + 3 * 10 + 2 * (8 + 10))
    assert lengths["high"] == EpisodeLength(turns=3, sequence=120, row=120)
    assert too_long(config, lengths, {"low": 1000, "high": 120}) == {}
    assert "3 turns of rollout.max_new_tokens=10 do not fit into high's context of 30" in "".join(
        too_long(config, lengths, {"low": 1000, "high": 30}).values()
    )


def test_one_turn_is_as_long_as_the_limits_say() -> None:
    config, task, formats = prepared("rollout.max_prompt_tokens=64", "rollout.max_new_tokens=10")
    lengths = episode_lengths(config, task, formats, {"low": 1000, "high": 50})
    assert lengths == {
        "low": EpisodeLength(turns=1, sequence=74, row=74),
        "high": EpisodeLength(turns=1, sequence=50, row=50),
    }


@pytest.mark.parametrize(("turns", "row"), [(4, 4 * 20), (20, 20 * 20)])
def test_where_only_the_latest_is_read_a_row_is_many_short_sequences(
    turns: int, row: int, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own_world()
    config, task, formats = prepared(
        "task=environment",
        "task.environment=my_env.py:make",
        f"task.max_turns={turns}",
        "rollout.history=latest",
        "rollout.max_prompt_tokens=30",
        "rollout.max_new_tokens=11",
    )
    lengths = episode_lengths(config, task, formats, {"player": 1000})
    assert lengths["player"] == EpisodeLength(turns=turns, sequence=41, row=row)
    assert too_long(config, lengths, {"player": 50}) == {}
