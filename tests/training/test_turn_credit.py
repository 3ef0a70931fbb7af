"""Counterfactual credit by turn in whole iterations: sampled alternatives against complete replays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from small import (
    assert_resume_is_exact,
    experience_of,
    open_trainer,
    rows,
    stopping_reward,
    train,
    train_on_two_ranks,
)
from test_calls import CALLS

from ippo_cli.rewards.score import compute_raw_scores
from ippo_cli.rollout.alternatives import AlternativeGenerator
from ippo_cli.rollout.branches import State
from ippo_cli.rollout.collect import collect
from ippo_cli.rollout.generator import SamplingStream
from ippo_cli.training.trainer import Trainer
from ippo_cli.types import Batch, Completion, Episode, Experience

SHORT = ("num_iterations=3", "evaluation.every=0", "checkpoint.every=0", "actor.warmup_iterations=0")
PLAIN = (
    "algorithm=reinforce_plus_plus",
    "algorithm.mini_batch_size=null",
    "algorithm.kl.reward.coef=0",
    "algorithm.advantage_normalization=false",
)
HEARD = (
    "task.agents.low.template='{letters}{heard}<'",
    "task.agents.high.template='{letters}{heard}>'",
    "rollout.max_new_tokens=4",
)
COUNTERFACTUAL = ("reward.credit_assignment=counterfactual", "reward.credit_alternatives=2")
SEQUENTIAL = ("task.protocol=sequential", *HEARD)
DIALOGUE = ("task.protocol=dialogue", "task.num_turns=2", *HEARD)
TURN_REWARD = """
def reward(examples, responses, episodes):
    by_step = [[len(turn.text) + turn.text.count("a") for turn in episode.turns] for episode in episodes]
    return {"team_by_step": by_step, "team": [float(len(set(str(one.turns[-1].text)))) for one in episodes]}
"""


class Anew(AlternativeGenerator):
    """Reference: generates every turn, those of the episode too."""

    def _find_completion(self, request: Any) -> Completion | None:
        return None


def turn_reward(root: Path) -> list[str]:
    (root / "turns.py").write_text(TURN_REWARD)
    return ["reward=function", f"reward.function={root / 'turns.py'}:reward"]


def reference_credit(trainer: Trainer, experience: Experience, agent: str, gamma: float) -> list[list[float]]:
    """Credit by row and turn, from one complete replay for each alternative."""
    collector, config = trainer.collector, trainer.config
    draws = SamplingStream(seed=config.seed, purpose="train/0")

    def returns(episode: Episode, turn: int) -> float:
        weights = {name: one.reward for name, one in config.task.agents.items()}
        numbers = compute_raw_scores(collector.rewards.reward, [episode], weights, [agent], config.reward).numbers[
            agent
        ][0]
        return sum(gamma**place * number for place, number in enumerate(numbers[turn:].tolist()))

    credit = []
    for row, episode in enumerate(experience.episodes):
        credit.append([])
        for turn in range(len(episode.turns_of_agent(agent))):
            found = []
            for number in (1, 2):
                generator = Anew(collector.generator, [(State(0, agent, turn, 0), number)], [episode])
                batch = Batch(examples=[episode.example], index=torch.tensor([episode.index]))
                (other,) = collect(collector.environments, collector.formats, batch, generator, draws)
                found.append(returns(other, turn))
            credit[row].append(returns(episode, turn) - sum(found) / 2)
    return credit


@pytest.mark.parametrize(
    ("protocol", "gamma"),
    [(SEQUENTIAL, 1.0), (DIALOGUE, 1.0), (DIALOGUE, 0.5)],
    ids=["sequential", "dialogue", "discounted"],
)
def test_advantage_of_turn_is_return_minus_mean_of_replays(
    tmp_path: Path, protocol: Sequence[str], gamma: float
) -> None:
    discount = () if gamma == 1.0 else (f"algorithm.gamma={gamma}", "algorithm.credit=turn")
    keys = [*SHORT, *PLAIN, *protocol, *turn_reward(tmp_path), *COUNTERFACTUAL, *discount, "rollout.buffer_size=8"]
    keys += ["task.agents.high.reward.team_weight=2"]
    with open_trainer(tmp_path, *keys) as trainer:
        experience = experience_of(trainer)
        agents = trainer.state.team
        targets, _ = trainer.state.algorithm.compute_targets(agents, experience)
        for name in agents:
            expected = torch.tensor(reference_credit(trainer, experience, name, gamma))
            scores, rollout = experience.scores[name], experience.rollouts[name]
            torch.testing.assert_close(scores.credit["counterfactual"], expected)
            assert bool(expected.any())
            mask = rollout.response_mask
            by_token = expected.gather(1, rollout.turn.clamp(min=0))
            torch.testing.assert_close(targets[name].advantages[mask], by_token[mask], atol=1e-5, rtol=1e-5)
            assert bool(scores.measured.all())


def test_credit_of_calls_includes_the_turns_that_they_cause(tmp_path: Path) -> None:
    keys = [*SHORT, *PLAIN, *CALLS, *turn_reward(tmp_path), *COUNTERFACTUAL]
    with open_trainer(tmp_path, *keys) as trainer:
        experience = experience_of(trainer)
        numbers = [len(episode.turns) for episode in experience.episodes]
        assert {1, 5} <= set(numbers), "episodes without a call, and with the most calls"
        for name in ("low", "high"):
            scores = experience.scores[name]
            for row, expected in enumerate(reference_credit(trainer, experience, name, 1.0)):
                found = scores.credit["counterfactual"][row]
                assert scores.measured[row].tolist() == [turn < len(expected) for turn in range(len(found))]
                torch.testing.assert_close(found[: len(expected)], torch.tensor(expected))
            assert bool(scores.credit["counterfactual"].nan_to_num().any())
        targets, _ = trainer.state.algorithm.compute_targets(trainer.state.team, experience)
        assert all(bool(own.advantages.isfinite().all()) for own in targets.values())


def test_selected_turns_only_are_trained(tmp_path: Path) -> None:
    keys = [*SHORT, *PLAIN, *DIALOGUE, "task.num_turns=3", *turn_reward(tmp_path), *COUNTERFACTUAL]
    with open_trainer(tmp_path, *keys) as trainer:
        whole = experience_of(trainer)
    with open_trainer(tmp_path, *keys, "reward.credit_turns=1") as trainer:
        experience = experience_of(trainer)
        targets, _ = trainer.state.algorithm.compute_targets(trainer.state.team, experience)
        selected = []
        for name in ("low", "high"):
            scores, rollout = experience.scores[name], experience.rollouts[name]
            assert scores.measured.sum(dim=1).tolist() == [1] * 16
            selected.append(scores.measured.long().argmax(dim=1).tolist())
            credit, all_credit = scores.credit["counterfactual"], whole.scores[name].credit["counterfactual"]
            assert torch.equal(credit[scores.measured], all_credit[scores.measured])
            assert bool(credit[~scores.measured].isnan().all())
            trained = scores.measured.gather(1, rollout.turn.clamp(min=0)) & rollout.response_mask
            assert torch.equal(targets[name].loss_mask, trained)
            returns = all_credit.gather(1, rollout.turn.clamp(min=0))
            torch.testing.assert_close(targets[name].advantages[trained], returns[trained], atol=1e-5, rtol=1e-5)
        assert len(set(selected[0])) == 3, "turns are selected at random"
        assert selected[0] != selected[1]


def test_one_turn_tasks_keep_the_estimator_of_other_answers(tmp_path: Path) -> None:
    keys = [*SHORT, *PLAIN, "reward.credit_assignment=counterfactual", "rollout.num_generations=4"]
    with open_trainer(tmp_path, *keys) as trainer:
        generate, calls = trainer.collector.generator.generate, []
        trainer.collector.generator.generate = lambda *args, **more: (  # type: ignore[method-assign]
            calls.append(args),
            generate(*args, **more),
        )[1]
        experience_of(trainer)
        assert len(calls) == 2  # of the episodes: nothing else is sampled


@pytest.mark.slow
def test_run_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [*SHORT, *DIALOGUE, *stopping_reward(tmp_path), *COUNTERFACTUAL, "reward.credit_turns=1"]
    whole = assert_resume_is_exact(tmp_path, monkeypatch, *keys, at_call=7)
    row = rows(whole)[-1]
    assert row["low/credit/counterfactual/std"] > 0
    assert row["low/credit/counterfactual/unknown_fraction"] == 0.5  # one of two turns
    assert "low/credit/counterfactual/mean/turn/2" in row


@pytest.mark.slow
def test_two_ranks_measure_the_credit_of_one(tmp_path: Path) -> None:
    own = [*SHORT, "num_iterations=1", "rollout.buffer_size=6", *DIALOGUE, *COUNTERFACTUAL, "reward.credit_turns=1"]
    alone = rows(train(tmp_path, *own))[-1]
    both = rows(train_on_two_ranks(tmp_path / "two", *own))[-1]
    keys = [key for key in alone if "/credit/" in key or "/score/" in key]
    assert any("/credit/" in key for key in keys)
    assert {key: both[key] for key in keys} == pytest.approx({key: alone[key] for key in keys}, abs=1e-5)
