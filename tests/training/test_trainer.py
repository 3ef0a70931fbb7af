"""What a run needs, put together: what does not fit is told before the first rollout, and what goes with what after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from small import a_trainer, train

from ippo_cli.config.errors import ConfigError
from ippo_cli.rewards.responses import OfResponses
from ippo_cli.rollout.generator import Draws
from ippo_cli.rollout.playing import environment_seed
from ippo_cli.tasks.environment import Action, EnvironmentPool, Step
from ippo_cli.training.trainer import Stopwatch
from ippo_cli.types import Example


def test_a_prompt_without_room_ends_a_run_before_it_begins(tmp_path: Path) -> None:
    said = "lets in agent low's prompt of 7 tokens, row 0 of the training data, "
    with pytest.raises(ConfigError, match=said):
        train(tmp_path, "rollout.context_limit=7", "num_iterations=99")


def test_an_environments_luck_is_that_of_its_seed_purpose_and_number() -> None:
    seeds = [environment_seed(Draws(seed=3, purpose="train/1"), index) for index in (0, 5)]
    assert seeds == [30391743, 1172200691], "what a run's episodes met before, they meet again"


@pytest.mark.slow
def test_greedy_episodes_are_played_with_the_luck_of_those_that_they_are_a_baseline_for(tmp_path: Path) -> None:
    seeds: list[int] = []

    class Noted:
        def reset(self, example: Example, seed: int) -> Mapping[str, str]:
            seeds.append(seed)
            return {"low": "ab", "high": "ab"}

        def step(self, actions: Mapping[str, Action]) -> Step:
            return Step(observations={}, terminated=True)

        def close(self) -> None: ...

    with a_trainer(tmp_path, "algorithm=remax", "task.num_turns=2", "rollout.max_new_tokens=3") as trainer:
        trainer.environments = EnvironmentPool(Noted)
        experience, _ = trainer.experience(4, Stopwatch())
        assert trainer.state.team["low"].policy.objective.response_budget == 6
    greedy, sampled = seeds[:16], seeds[16:]
    assert greedy == sampled
    draws = Draws(seed=trainer.config.seed, purpose="train/4")
    assert sampled == [environment_seed(draws, index) for index in experience.batch.index.tolist()]
    assert len(set(sampled)) == 16


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
def test_what_a_protocol_pays_and_no_reward_looks_at_is_warned_of_once(
    protocols: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with a_trainer(tmp_path, f"task.protocol={protocols}:paying") as trainer:
        looks = OfResponses(trainer.reward, ["low", "high"], with_episodes=True)
        asked, trainer.reward = trainer.reward, looks
        episodes = trainer._collect(trainer.schedule.batch(0, 0, 1), Draws(seed=0, purpose="train/0"))
        trainer._look_at_payments(0, episodes)
        assert "unread_payments" not in trainer.run.state.warnings
        trainer.reward = asked
        for iteration in range(2):
            trainer.experience(iteration, Stopwatch())
        assert (
            "pays agents, and reward=exact_match does not look at it" in trainer.run.state.warnings["unread_payments"]
        )
    assert capsys.readouterr().out.count("pays agents") == 1


@pytest.mark.slow
def test_a_protocol_that_pays_nobody_at_first_is_warned_of(protocols: Path, tmp_path: Path) -> None:
    with a_trainer(tmp_path, f"task.protocol={protocols}:free", "reward=environment") as trainer:
        batch = trainer.schedule.batch(0, 0, 1)
        episodes = trainer._collect(batch, Draws(seed=0, purpose="train/0"))
        zero = [replace(episodes[0], rewards=[{"low": 0.0}]), *episodes[1:]]
        trainer._look_at_payments(0, zero)
        trainer._look_at_payments(1, episodes)  # later on nobody may have earned anything
        assert "nobody_paid" not in trainer.run.state.warnings
        trainer.experience(0, Stopwatch())
        assert "protocols.py:free paid nobody in the 16 episodes" in trainer.run.state.warnings["nobody_paid"]
