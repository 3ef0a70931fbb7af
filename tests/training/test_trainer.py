"""Trainer: errors before the first rollout, and random numbers of environments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from small import experience_of, open_trainer, train

from ippo_cli.config.errors import ConfigError
from ippo_cli.rollout.episode_state import environment_seed
from ippo_cli.rollout.generator import SamplingStream
from ippo_cli.tasks.environment import Action, EnvironmentPool, Step
from ippo_cli.types import Example


def test_too_long_prompt_is_rejected_before_training(tmp_path: Path) -> None:
    result = "allows agent low's prompt of 7 tokens, row 0 of the training data, "
    with pytest.raises(ConfigError, match=result):
        train(tmp_path, "rollout.context_limit=7", "num_iterations=99")


def test_environment_rng_depends_on_seed_purpose_and_index() -> None:
    seeds = [environment_seed(SamplingStream(seed=3, purpose="train/1"), index) for index in (0, 5)]
    assert seeds == [30391743, 1172200691], "what a run's episodes met before, they meet again"


@pytest.mark.slow
def test_greedy_episodes_use_the_same_environment_rng(tmp_path: Path) -> None:
    seeds: list[int] = []

    class Noted:
        def reset(self, example: Example, seed: int) -> Mapping[str, str]:
            seeds.append(seed)
            return {"low": "ab", "high": "ab"}

        def step(self, actions: Mapping[str, Action]) -> Step:
            return Step(observations={}, terminated=True)

        def close(self) -> None: ...

    with open_trainer(tmp_path, "algorithm=remax", "task.num_turns=2", "rollout.max_new_tokens=3") as trainer:
        trainer.collector.environments = EnvironmentPool(Noted)
        experience = experience_of(trainer, 4)
        assert trainer.state.team["low"].policy.objective.response_budget == 6
    greedy, sampled = seeds[:16], seeds[16:]
    assert greedy == sampled
    draws = SamplingStream(seed=trainer.config.seed, purpose="train/4")
    assert sampled == [environment_seed(draws, index) for index in experience.batch.index.tolist()]
    assert len(set(sampled)) == 16
