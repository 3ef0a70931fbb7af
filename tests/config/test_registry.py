"""Options are registered at their schema class; adding one touches three places."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.config import schema
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema.registry import IMPLEMENTATIONS
from ippo_cli.rewards.build import build_reward

# The three places: the schema with its keys, the implementation, the values.
SCHEMA = """
from __future__ import annotations
from dataclasses import dataclass
from ippo_cli.config.constraints import UnitFloat
from ippo_cli.config.schema.registry import option
from ippo_cli.config.schema.reward import RewardConfig

@option("reward", "vowels", build="added_reward:build_vowels_reward")
@dataclass
class VowelsRewardConfig(RewardConfig):
    share: UnitFloat  # fraction of vowels with reward 1
"""
IMPLEMENTATION = """
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.response_adapter import adapt_response_reward

def build_vowels_reward(config, agents):
    def score(examples, responses):
        texts = zip(*responses.values())
        rows = [float(sum(c in "aeiou" for text in row for c in text) >= config.share) for row in texts]
        return Reward(team=rows)
    return adapt_response_reward(score, agents)
"""
VALUES = "defaults: [/base/reward@_here_, _self_]\nkind: vowels\nshare: 0.5\n"


@pytest.mark.parametrize(("group", "kind", "role"), IMPLEMENTATIONS)
def test_implementations_can_be_imported(group: str, kind: str, role: str) -> None:
    assert callable(schema.load_implementation(group, kind, role))


def test_rewards_tasks_and_generators_have_implementations() -> None:
    for group, role in (("reward", "build"), ("task", "examples"), ("rollout", "generator")):
        assert {kind for at, kind, name in IMPLEMENTATIONS if (at, name) == (group, role)} == set(schema.OPTIONS[group])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "reward").mkdir()
    (tmp_path / "added_schema.py").write_text(SCHEMA)
    (tmp_path / "added_reward.py").write_text(IMPLEMENTATION)
    (tmp_path / "reward" / "vowels.yaml").write_text(VALUES)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("added_schema")
    yield tmp_path
    del schema.OPTIONS["reward"]["vowels"], schema.SCHEMAS["reward_vowels"]
    del IMPLEMENTATIONS["reward", "vowels", "build"], sys.modules["added_schema"]
    sys.modules.pop("added_reward", None)


def test_reward_and_key_are_added_in_three_places(folder: Path) -> None:
    config = load_config([f"hydra.searchpath=[{folder}]", "reward=vowels", "reward.share=0.25"])
    assert (config.reward.kind, config.reward.share) == ("vowels", 0.25)  # type: ignore[attr-defined]
    reward = build_reward(config.reward, config.task.agents)
    assert getattr(reward, "agents", None) == ["low", "high"]


@pytest.mark.parametrize("group", ["reward", "task", "rollout"])
def test_unknown_kind_is_reported_with_known_kinds(group: str) -> None:
    known = " ".join(schema.OPTIONS[group])
    with pytest.raises(ConfigError, match=rf"^{group}\.kind=other is not known; use one of {known}"):
        load_config([f"{group}.kind=other"])
