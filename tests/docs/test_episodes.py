"""Examples of docs/episodes.md: files are valid, commands compose, episodes can be played."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from spoken import episode

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.compose.user_files import check_user_files
from ippo_cli.config.checks import check_config
from ippo_cli.config.schema import ConversationConfig, ReasoningGymConfig
from ippo_cli.models.tiny import character_tokenizer
from ippo_cli.planning.placeholder_episodes import preview_episode
from ippo_cli.reporting.samples import sample_rows
from ippo_cli.rewards.build import build_reward
from ippo_cli.tasks.conversation import prompt_formats
from ippo_cli.tasks.task import load_task

PAGE = (Path(__file__).parents[2] / "docs" / "episodes.md").read_text()
FILES = {name: text for name, text in re.findall(r"```\w+\n# (\S+\.(?:yaml|py))\n(.*?)```", PAGE, re.DOTALL)}
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with all files of the page; the current directory."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    Path("letters.jsonl").write_text('{"letter": "a"}\n{"letter": "b"}\n')
    return tmp_path


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_command_composes_and_its_episode_is_played(words: list[str], folder: Path) -> None:
    overrides = normalize_arguments(words)
    check_user_files(overrides)
    config = load_config(overrides)
    package = config.task.kind
    if package in ("gymnasium", "pettingzoo", "reasoning_gym", "textarena") and find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    check_config(config, config.launch.processes)
    build_reward(config.reward, config.task.agents)
    tokenizer = character_tokenizer([*(chr(code) for code in range(32, 127)), "\n"])
    formats = prompt_formats(config.task, config.rollout, dict.fromkeys(config.task.agents, tokenizer))
    preview = preview_episode(load_task(config.task, config.seed), formats)
    assert not preview.ending.startswith("fails")
    has_one_turn = isinstance(config.task, ReasoningGymConfig) or "task=ask.yaml" in words  # a placeholder is no call
    assert len(preview.turns) >= (1 if has_one_turn else 2)
    if isinstance(config.task, ConversationConfig):
        assert all(turn.action for turn in preview.turns)


def test_page_covers_protocols_environments_and_sample_keys() -> None:
    commands = " ".join(word for words in COMMANDS for word in words) + "".join(FILES.values())
    for word in (
        "sequential",
        "dialogue",
        "calls",
        "gymnasium",
        "pettingzoo",
        "reasoning_gym",
        "textarena",
        "environment",
        "task.protocol=",
    ):
        assert word in commands
    assert {
        "pass_on.yaml",
        "talk.yaml",
        "second_look.py",
        "guess.py",
        "duel.py",
        "duel.yaml",
        "brief.py",
        "lake.yaml",
        "both.yaml",
        "ask.yaml",
    } == set(FILES)
    section = PAGE.split("## Samples")[1]
    [row] = sample_rows("train", [episode()], {}, 1)
    assert all(f"| `{key}` |" in section for key in row)
