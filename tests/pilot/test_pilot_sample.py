"""The sample, gradients and step of a pilot with the smallest trainer: its rows are the run's, its weights return."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from small import experience_of, open_trainer
from torch import Tensor

from ippo_cli.algorithms.objectives import PolicyObjective
from ippo_cli.pilot.change import measure_change, read_logprobs
from ippo_cli.pilot.gradient import build_batch, measure_bonus, measure_gradient, share_learner_rows, start_updates
from ippo_cli.pilot.sample import PilotSample, collect_sample
from ippo_cli.pilot.size import PilotSize
from ippo_cli.pilot.step import FirstStep, measure_step
from ippo_cli.training.team_update import update_team
from ippo_cli.training.trainer import Trainer
from ippo_cli.types import StepContext

PILOT = ("mode=pilot", "actor.warmup_iterations=0", "algorithm=ppo", "algorithm.mini_batch_size=8")
SIZE = PilotSize(prompts=16, generations=1, repeats=3, repeated_prompts=8, episode_tokens=16, run_tokens=1024)
CONTEXT = StepContext(seed=0, iteration=0, num_iterations=4)


def weights(trainer: Trainer) -> list[Tensor]:
    return [
        param.detach().clone()
        for learner in trainer.state.team.learners
        for param in learner.engine.module.parameters()
    ]


@pytest.fixture(scope="module")
def pilot_trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    with open_trainer(tmp_path_factory.mktemp("pilot"), *PILOT) as trainer:
        yield trainer


@pytest.fixture(scope="module")
def sample(pilot_trainer: Trainer) -> PilotSample:
    return collect_sample(pilot_trainer, SIZE)


def test_sample_is_the_first_buffer_and_repeats(pilot_trainer: Trainer, sample: PilotSample) -> None:
    experience = experience_of(pilot_trainer)
    assert [episode.turns[0].text for episode in sample.experience.episodes] == [
        episode.turns[0].text for episode in experience.episodes
    ]
    assert len(sample.rows) == SIZE.rows == 40
    assert sum(map(len, sample.scores_by_prompt("low"))) == 40
    assert sorted({row.index for row in sample.rows}) == list(range(16))


def test_reward_scores_the_buffer_twice(sample: PilotSample) -> None:
    """A reward without chance repeats its scores; further responses are scored once."""
    twice = [row for row in sample.rows if row.repeated_scores is not None]
    assert len(twice) == 16
    assert all(row.repeated_scores == row.scores for row in twice)
    pairs = [pair for _, own in sample.pairs_by_prompt("low") for pair in own]
    assert sorted(pairs) == sorted((row.scores["low"], row.scores["low"]) for row in twice)


def test_bonus_is_compared_with_the_scores(pilot_trainer: Trainer, sample: PilotSample) -> None:
    """Its gradient is proportional to the coefficient."""
    learner = pilot_trainer.state.team["low"].policy
    assert isinstance(learner.objective, PolicyObjective)
    before, found = learner.objective, []
    try:
        for coef in (0.0, 0.1, -0.2):
            learner.objective = replace(before, config=replace(before.config, entropy_coef=coef))
            found.append(measure_bonus(pilot_trainer, sample, learner, CONTEXT))
    finally:
        learner.objective = before
    assert found[0] == 0
    assert found[1] > 0
    assert found[2] == pytest.approx(2 * found[1], rel=1e-4)


def test_parts_of_the_sample_are_whole_prompts(sample: PilotSample) -> None:
    half = sample.select_part(1, 2, 1)
    assert half.own_targets["low"].sample_counts.tolist() == [0, 1] * 8
    assert sample.rows_outside(1, 2, 1).tolist() == [True, False] * 8


def test_step_is_undone(pilot_trainer: Trainer, sample: PilotSample) -> None:
    """The weights return to the bit, and the last measured rate has nearly the wanted KL."""
    before = weights(pilot_trainer)
    learner = pilot_trainer.state.team["low"].policy
    step = measure_step(pilot_trainer, sample, learner)
    assert all(map(torch.equal, before, weights(pilot_trainer)))
    assert step.learning_rate == learner.optimizer.learning_rate
    assert step.at_configured_rate.kl.value > 0
    assert step.stats["low/policy/steps"] == 1
    first, second, *_ = step.changes
    assert second.scale == pytest.approx(math.sqrt(0.02 / first.kl.value))
    assert step.changes[-1].kl.value == pytest.approx(0.02, rel=0.5)
    assert step.rate_at_limit == pytest.approx(step.changes[-1].scale * step.learning_rate, rel=0.5)


def test_gradients_of_parts_sum_to_that_of_the_sample(pilot_trainer: Trainer, sample: PilotSample) -> None:
    """The loss is a mean over tokens: the whole gradient is the mean of those of parts, weighted by their tokens."""
    learner = pilot_trainer.state.team["low"].policy

    def gradient(selected: PilotSample) -> tuple[Tensor, int]:
        batch = build_batch(learner, share_learner_rows(pilot_trainer, selected, learner, CONTEXT), CONTEXT)
        assert batch is not None
        parts = learner.compute_gradient(batch, CONTEXT)
        return torch.cat([part.flatten() for part in parts]), batch.num_tokens

    whole, total = gradient(sample)
    halves = [gradient(sample.select_part(part, 2, 1)) for part in (0, 1)]
    assert sum(tokens for _, tokens in halves) == total
    torch.testing.assert_close(sum(tokens / total * half for half, tokens in halves), whole, atol=1e-6, rtol=1e-4)


def test_gradient_measures_each_agent(pilot_trainer: Trainer, sample: PilotSample) -> None:
    learner = pilot_trainer.state.team["low"].policy
    found = measure_gradient(pilot_trainer, sample, learner, CONTEXT)
    assert found.by_agent.keys() == {"low"}
    assert found.whole == found.by_agent["low"]
    assert -1 <= found.whole.cosine <= 1
    assert found.whole.norm > 0


def test_step_is_that_of_the_run(pilot_trainer: Trainer, sample: PilotSample) -> None:
    """The run's own update on the same half, ended after one step, changes the policy as much.

    The last test of this trainer: it changes the weights. A second Adam step with the same gradient equals the first.
    """
    learner, half = pilot_trainer.state.team["high"].policy, sample.select_part(0, 2, 1)
    measured = measure_step(pilot_trainer, sample, learner)
    before = read_logprobs(pilot_trainer, sample, learner)
    updates = start_updates(pilot_trainer, half, CONTEXT, [FirstStep()])
    stats = update_team(updates, half.own_targets, pilot_trainer.config)
    after = read_logprobs(pilot_trainer, sample, learner)
    found = measure_change(pilot_trainer, sample, learner, before, after, 1.0)
    assert {row.get("high/policy/steps", 1.0) for row in stats} == {1.0}
    assert found.kl.value == pytest.approx(measured.at_configured_rate.kl.value, rel=1e-3)
    assert found.largest_logratio == pytest.approx(measured.at_configured_rate.largest_logratio, rel=1e-3)
