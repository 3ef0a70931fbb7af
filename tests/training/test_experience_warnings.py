"""Warnings about an iteration's experience: unused environment rewards, and protocols without rewards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small import experience_of, open_trainer

from ippo_cli.rewards.response_adapter import ResponseRewardAdapter
from ippo_cli.training.experience_warnings import environment_reward_warnings

PROTOCOLS = """
def paying(example, agents):
    yield {"low": "ab", "high": "ab"}
    return {"low": 1.0}

def free(example, agents):
    yield {"low": "ab", "high": "ab"}
"""


@pytest.fixture
def protocols(tmp_path: Path) -> Path:
    (tmp_path / "protocols.py").write_text(PROTOCOLS)
    return tmp_path / "protocols.py"


@pytest.mark.slow
def test_unused_environment_rewards_warn_once(
    protocols: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_trainer(tmp_path, f"task.protocol={protocols}:paying") as trainer:
        looks = ResponseRewardAdapter(trainer.collector.rewards.reward, ["low", "high"], with_episodes=True)
        assert not environment_reward_warnings(trainer.config, looks, experience_of(trainer).episodes, 0)
        for _ in range(2):
            trainer.step()
        result = trainer.run.state.warnings["unread_payments"]
    assert "returns rewards, but reward=exact_match does not use them" in result
    assert capsys.readouterr().out.count("returns rewards") == 1


@pytest.mark.slow
def test_protocol_without_rewards_warns(protocols: Path, tmp_path: Path) -> None:
    with open_trainer(tmp_path, f"task.protocol={protocols}:free", "reward=environment") as trainer:
        config, reward, episodes = trainer.config, trainer.collector.rewards.reward, experience_of(trainer).episodes
        zero = [replace(episodes[0], rewards=[{"low": 0.0}]), *episodes[1:]]
        assert not environment_reward_warnings(config, reward, zero, 0)
        assert not environment_reward_warnings(config, reward, episodes, 1), "later on nobody may have earned anything"
        trainer.step()
        assert "protocols.py:free returned none in the 16 episodes" in trainer.run.state.warnings["nobody_paid"]
