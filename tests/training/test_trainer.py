"""What a run needs, put together: what does not fit is told before the first rollout, and what goes with what after."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from small import a_trainer, experience_of, train

from ippo_cli.config.errors import ConfigError
from ippo_cli.rollout.episode_state import environment_seed
from ippo_cli.rollout.generator import SamplingStream
from ippo_cli.tasks.environment import Action, EnvironmentPool, Step
from ippo_cli.types import Example


def test_a_prompt_without_room_ends_a_run_before_it_begins(tmp_path: Path) -> None:
    said = "lets in agent low's prompt of 7 tokens, row 0 of the training data, "
    with pytest.raises(ConfigError, match=said):
        train(tmp_path, "rollout.context_limit=7", "num_iterations=99")


def test_an_environments_luck_is_that_of_its_seed_purpose_and_number() -> None:
    seeds = [environment_seed(SamplingStream(seed=3, purpose="train/1"), index) for index in (0, 5)]
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
        trainer.source.environments = EnvironmentPool(Noted)
        experience = experience_of(trainer, 4)
        assert trainer.state.team["low"].policy.objective.response_budget == 6
    greedy, sampled = seeds[:16], seeds[16:]
    assert greedy == sampled
    draws = SamplingStream(seed=trainer.config.seed, purpose="train/4")
    assert sampled == [environment_seed(draws, index) for index in experience.batch.index.tolist()]
    assert len(set(sampled)) == 16
