"""`algorithm=at_grpo`: rows with candidates, their advantages, ranks and resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small import (
    assert_metrics_close,
    experience_of,
    open_trainer,
    rows,
    train,
    train_on_two_ranks,
    train_with_stop,
)

TALK = '''
class Talk:
    """Two agents act one after another, in one to three rounds, each with a reward of its own."""

    def reset(self, seed):
        self.seed, self.number, self.last = seed, 0, ""
        return self.show(), {}

    def step(self, action):
        (agent, text), = action.items()
        self.number += 1
        self.last = text[:2]
        over = self.number >= 2 * (self.seed % 3 + 1)
        return ({} if over else self.show()), {agent: text.count("a") + len(text) / 7}, over, False, {}

    def show(self):
        name = ("low", "high")[self.number % 2]
        return {name: f"{self.seed % 10}{self.number}{self.last}{name}"}


def make():
    return Talk()
'''
SHORT = (
    "algorithm=at_grpo",
    "algorithm.turn_groups.candidates=3",
    "reward=environment",
    "task=environment",
    "rollout.max_new_tokens=4",
    "actor.alphabet=printable",
    "evaluation.every=0",
    "evaluation.greedy=false",
    "task.eval_size=4",
    "rollout.buffer_size=6",
    "~task.agents.player",
    '+task.agents={low:{template:"{observation}"},high:{template:"{observation}"}}',
    "num_iterations=3",
    "checkpoint.every=1",
)


def talk(root: Path, *more: str) -> list[str]:
    root.mkdir(parents=True, exist_ok=True)
    (root / "talk.py").write_text(TALK)
    return [*SHORT, f"task.environment={root / 'talk.py'}:make", *more]


@pytest.mark.parametrize("follow", ["best", "random"])
@pytest.mark.parametrize("gamma", [1.0, 0.0])
def test_rows_and_advantages(tmp_path: Path, follow: str, gamma: float) -> None:
    keys = talk(tmp_path, f"algorithm.turn_groups.follow={follow}", f"algorithm.gamma={gamma}")
    with open_trainer(tmp_path, *keys) as trainer:
        experience, team = experience_of(trainer), trainer.state.team
        targets, _ = trainer.state.algorithm.compute_targets(team, experience)
        again = {name: team[name].recompute_logprobs(experience.rollouts[name]).logprobs for name in team}
    for name, groups in experience.turn_groups.items():
        rollout, found = experience.rollouts[name], targets[name]
        mask = rollout.response_mask
        # The tokens of a candidate are conditioned on the prompt of its state.
        assert torch.allclose(again[name][mask], rollout.logprobs[mask], atol=1e-4)
        turns = [len(episode.turns_of_agent(name)) for episode in experience.episodes]
        labels = groups.label[groups.label >= 0]
        assert len(labels.unique()) == sum(turns), "each turn of the episode has a group"
        assert set(labels.unique(return_counts=True)[1].tolist()) == {3}
        for row, column in (groups.label >= 0).nonzero().tolist():
            own = groups.returns[groups.label == groups.label[row, column]].double()
            expected = (groups.returns[row, column].double() - own.mean()) / (own.std() + 1e-6)
            tokens = rollout.turn[row] == column
            assert tokens.any()
            assert found.loss_mask[row][tokens].all()
            assert torch.allclose(found.advantages[row][tokens].double(), expected, atol=1e-4)
        for row, episode in enumerate(experience.episodes):
            rewards = [episode.rewards[turn.step][name] for turn in episode.turns_of_agent(name)]
            for place in range(len(rewards)):  # second implementation of the return of the episode's own turn
                value = sum(gamma**later * reward for later, reward in enumerate(rewards[place:]))
                is_last = place == len(rewards) - 1
                if follow == "random" or is_last:  # earlier turns have the return of their own branch
                    assert float(groups.returns[row, place]) == pytest.approx(value, abs=1e-5)
                if follow == "best" and is_last:
                    own = groups.returns[groups.label == groups.label[row, place]]
                    assert groups.returns[row, place] == own.max()


def test_selected_actions_of_one_step_are_executed_together(tmp_path: Path) -> None:
    keys = ("algorithm=at_grpo", "algorithm.turn_groups.candidates=4", "algorithm.turn_groups.follow=best")
    with open_trainer(tmp_path, *keys, "evaluation.every=0") as trainer:  # low and high act at the same step
        experience = experience_of(trainer)
        logged = trainer.config.tracker.turns
    assert logged > 1
    for name in ("low", "high"):
        groups = experience.turn_groups[name]
        assert (groups.label[:, 0] >= 0).all(), "the executed turn is the selected candidate"
        for row, episode in enumerate(experience.episodes):
            own = groups.returns[groups.label == groups.label[row, 0]]
            assert groups.returns[row, 0] == own.max()
            assert len(episode.turns_of_agent(name)) == 1
        assert not (groups.label[:, 1:logged] >= 0).any(), "numbers of other candidates are above those of logged turns"


@pytest.mark.slow
def test_one_rank_and_two_agree(tmp_path: Path) -> None:
    keys = talk(tmp_path, "num_iterations=2", "deepspeed=zero2")
    one = rows(train(tmp_path / "one", *keys))
    assert one[-1]["turn_groups/branch_tokens"] > 0
    assert_metrics_close(one, rows(train_on_two_ranks(tmp_path / "two", *keys)))


@pytest.mark.slow
def test_resume_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = talk(tmp_path)
    whole = train(tmp_path / "whole", *keys)
    stopped = train_with_stop(
        tmp_path / "stopped", monkeypatch, "ippo_cli.training.experience.collect_candidates", 2, *keys
    )
    assert rows(stopped) == rows(whole)
