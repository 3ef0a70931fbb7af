"""`algorithm=at_grpo`: rows with candidates, their advantages, ranks and resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lab_errors import find_errors
from small import (
    assert_two_ranks_agree,
    experience_of,
    open_trainer,
    rows,
    train,
    train_with_stop,
)

from ippo_cli.compose.former_keys import convert_config, convert_overrides

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
    "algorithm.advantage_args.candidates=3",
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
    keys = talk(tmp_path, f"algorithm.advantage_args.follow={follow}", f"algorithm.gamma={gamma}")
    with open_trainer(tmp_path, *keys) as trainer:
        experience, team = experience_of(trainer), trainer.state.team
        targets, _ = trainer.state.algorithm.compute_targets(team, experience)
        again = {name: team[name].recompute_logprobs(experience.rollouts[name]).logprobs for name in team}
    for name, groups in experience.additions["turn_group"].items():
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
    keys = ("algorithm=at_grpo", "algorithm.advantage_args.candidates=4", "algorithm.advantage_args.follow=best")
    with open_trainer(tmp_path, *keys, "evaluation.every=0") as trainer:  # low and high act at the same step
        experience = experience_of(trainer)
        logged = trainer.config.tracker.turns
    assert logged > 1
    for name in ("low", "high"):
        groups = experience.additions["turn_group"][name]
        assert (groups.label[:, 0] >= 0).all(), "the executed turn is the selected candidate"
        for row, episode in enumerate(experience.episodes):
            own = groups.returns[groups.label == groups.label[row, 0]]
            assert groups.returns[row, 0] == own.max()
            assert len(episode.turns_of_agent(name)) == 1
        assert not (groups.label[:, 1:logged] >= 0).any(), "numbers of other candidates are above those of logged turns"


TURN_GROUP = "algorithm.advantage=turn_group"
CURRENT = "episodes in which all agents act with their current policies"
FIXED = "scores that depend on their own response alone"
ONE_EPISODE = f"needs rows of one episode each, and {TURN_GROUP} puts candidates of several episodes into a row"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["team.opponent_pool.every=2", "team.opponent_pool.size=4", "team.opponent_pool.share=0.5"],
            f"{TURN_GROUP} needs {CURRENT}, and team.opponent_pool.every=2",
        ),
        (["reward.measure_credit_every=2"], f"reward.measure_credit_every=2 does not support {TURN_GROUP}"),
        (
            ["team.update_order=sequential", "algorithm.sequential_correction.pooling=sum"],
            f"team.update_order=sequential {ONE_EPISODE}",
        ),
        (["reward.credit_assignment=leave_out"], f"{TURN_GROUP} needs {FIXED}, and reward.credit_assignment=leave_out"),
        (
            ["reward=function", "reward.function=a.py:f", "reward.whole_batch=true"],
            f"{TURN_GROUP} needs {FIXED}, and reward.whole_batch=true",
        ),
        (["algorithm.kl.reward.coef=0.1"], f"algorithm.kl.reward.coef=0.1 {ONE_EPISODE}"),
        (
            ["algorithm.reweight.method=pow", "algorithm.reweight.power=2", "rollout.num_generations=4"],
            f"algorithm.reweight.method=pow {ONE_EPISODE}",
        ),
        (["algorithm.truncation=mask"], f"algorithm.truncation=mask {ONE_EPISODE}"),
        (
            ["reward.processor=[running_zscore]"],
            f"{TURN_GROUP} needs {FIXED}, and reward.processor=[running_zscore]",
        ),
        (
            ["algorithm.positive_nll.coef=0.1", "algorithm.positive_nll.min_score=1"],
            f"algorithm.positive_nll.coef=0.1 {ONE_EPISODE}",
        ),
        (
            [
                "rollout.top_k=3",
                "algorithm.behavior_correction.level=token",
                "algorithm.behavior_correction.cap=2",
                "team.share_rollouts=true",
                "rollout.recompute_logprobs=true",
                "reward.team_weight=0",
                "reward.agent_weight=1",
                "task=sorting_peers",
            ],
            f"{TURN_GROUP} needs rows that the agent's own policy has sampled",
        ),
        (
            ["algorithm.ratio_level=sequence", "algorithm.ratio_pooling=sum"],
            f"algorithm.ratio_level=sequence {ONE_EPISODE}",
        ),
        (["critic=separate", "algorithm.value_loss_coef=0.5"], f"{TURN_GROUP} needs a run without a critic"),
        (["algorithm.scale_by_std=null"], "algorithm.scale_by_std=null is needed by this algorithm; use true (GRPO)"),
        (["algorithm.gamma=null"], "algorithm.gamma=null is needed by this algorithm; use 1.0"),
        (["algorithm.gae_lambda=1.0"], "algorithm.gae_lambda=1.0 has no effect: advantage=turn_group does not read it"),
        (["algorithm.advantage_args.candidates=1"], "algorithm.advantage_args.candidates=1 is out of range"),
        (
            ["algorithm.advantage_args.follow=worst"],
            "algorithm.advantage_args.follow=worst is not known; use one of random best",
        ),
    ],
)
def test_keys_that_do_not_fit_are_refused(overrides: list[str], message: str) -> None:
    assert any(error.startswith(message) for error in find_errors(["algorithm=at_grpo", *overrides]))


def test_keys_that_fit() -> None:
    assert find_errors(["algorithm=at_grpo", "algorithm.credit=turn"]) == []


def test_former_keys() -> None:
    keys = ["algorithm.turn_groups.candidates=3", "algorithm.turn_groups.follow=random"]
    assert convert_overrides(keys) == [
        "algorithm.advantage_args.candidates=3",
        "algorithm.advantage_args.follow=random",
    ]
    groups = {"candidates": 3, "follow": "best"}
    assert convert_config({"algorithm": {"advantage": "turn_group", "turn_groups": dict(groups)}}) == {
        "algorithm": {"advantage": "turn_group", "advantage_args": groups}
    }
    unused = {"advantage": "gae", "advantage_args": {}, "turn_groups": {"candidates": 1, "follow": "random"}}
    assert convert_config({"algorithm": unused}) == {"algorithm": {"advantage": "gae", "advantage_args": {}}}


@pytest.mark.slow
def test_one_rank_and_two_agree(tmp_path: Path) -> None:
    keys = talk(tmp_path, "num_iterations=2", "deepspeed=zero2")
    assert assert_two_ranks_agree(tmp_path, *keys)[-1]["turn_groups/branch_tokens"] > 0


@pytest.mark.slow
def test_resume_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = talk(tmp_path)
    whole = train(tmp_path / "whole", *keys)
    stopped = train_with_stop(tmp_path / "stopped", monkeypatch, "ippo_cli.lab.turn_group.branch_episodes", 2, *keys)
    assert rows(stopped) == rows(whole)
