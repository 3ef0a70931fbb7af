"""Update orders: simultaneous, round robin, and sequential with HAPPO's factor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small import (
    assert_metrics_close,
    assert_resume_is_exact,
    experience_of,
    final_weights,
    open_trainer,
    rows,
    small_config,
    stopping_reward,
    train,
    train_on_two_ranks,
)
from torch import Tensor

from ippo_cli.agents.learner import Learner
from ippo_cli.training.methods.happo import SequentialCorrection, environment_steps
from ippo_cli.training.minibatches import iterate_steps
from ippo_cli.training.team_update import PlacedUpdates, policy_update_order, update_team
from ippo_cli.training.trainer import Trainer
from ippo_cli.training.update import update_learner
from ippo_cli.types import Rollout, StepContext

HAPPO = ("algorithm=happo", "algorithm.mini_batch_size=8", "algorithm.sequential_correction.cap=1.2")
ROUND_ROBIN = ("team.update_order=round_robin", "team.round_robin_every=1")
SHORT = ("num_iterations=2", "evaluation.every=0", "checkpoint.every=0", "actor.warmup_iterations=0")
LARGE_STEPS = ("actor.learning_rate=0.01", "rollout.temperature=2.0")
MID = ("++task.agents={mid:{}}", "task.agents.mid.template='{letters}|'", "task.agents.mid.answer='{low}'")
TALK = ("++task.agents.low.turn_template='{heard}<'", "++task.agents.high.turn_template='{heard}>'")
TWO_TURNS = (*TALK, "task.num_turns=2")
CONTEXT = StepContext(seed=0, iteration=0, num_iterations=2)


def slow_logprobs(trainer: Trainer, name: str, rollout: Rollout) -> Tensor:
    """Log-probabilities of the action tokens, one row at a time, directly from the language model."""
    lm = trainer.state.team[name].policy.engine.module.lm
    found = torch.zeros(rollout.response_mask.shape)
    for row in range(len(rollout.texts)):
        prompt = rollout.prompt_ids[row][rollout.prompt_mask[row]]
        response = rollout.response_ids[row][: int(rollout.length[row])]
        with torch.no_grad():
            logits = lm(torch.cat([prompt, response])[None]).logits[0].float() / trainer.config.rollout.temperature
        result = logits[len(prompt) - 1 : -1].log_softmax(dim=-1).gather(1, response[:, None])[:, 0]
        found[row, : len(response)] = result
    return found * rollout.response_mask


def weights(learner: Learner) -> Mapping[str, Tensor]:
    found = learner.engine.full_state_dict()
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [(), MID, TWO_TURNS], ids=["two agents", "three agents", "two turns"])
def test_factors_match_reference_and_affect_later_policies(overrides: tuple[str, ...], tmp_path: Path) -> None:
    keys = (*SHORT, *LARGE_STEPS, *overrides)
    factors: dict[str, Tensor] = {}
    with open_trainer(tmp_path, *keys, *HAPPO) as trainer:
        team = trainer.state.team
        order = policy_update_order(trainer.config, list(team), 0)
        experience = experience_of(trainer)
        targets, _ = trainer.state.algorithm.compute_targets(team, experience)
        before = {name: slow_logprobs(trainer, name, experience.rollouts[name]) for name in team}
        updates = PlacedUpdates(team, experience, CONTEXT, methods=trainer.methods)
        stats = {key: value for one in update_team(updates, targets, trainer.config) for key, value in one.items()}
        after = {name: slow_logprobs(trainer, name, experience.rollouts[name]) for name in team}
        expected = {learner.name: weights(learner) for learner in team.learners if learner.is_policy}
        turns = {name: [episode.turns_of_agent(name) for episode in experience.episodes] for name in team}
    for place, name in enumerate(order):
        rollout = experience.rollouts[name]
        factors[name] = rollout.response_mask.float()
        for row in range(16):
            for number, turn in enumerate(turns[name][row]):
                log = 0.0
                for other in order[:place]:
                    theirs = experience.rollouts[other]
                    for their_number, their_turn in enumerate(turns[other][row]):
                        if their_turn.step == turn.step:
                            there = theirs.turn[row] == their_number
                            log += float((after[other] - before[other])[row][there].sum())
                factors[name][row][rollout.turn[row] == number] = min(math.exp(log), 1.2)
        own = factors[name][targets[name].loss_mask]
        assert stats[f"{name}/policy/order"] == place + 1
        assert stats[f"{name}/policy/correction"] == pytest.approx(float(own.mean()), rel=1e-4)
        assert stats[f"{name}/policy/correction_max"] == pytest.approx(float(own.max()), rel=1e-4)
    last = factors[order[-1]][experience.rollouts[order[-1]].response_mask]
    assert float(last.max()) == pytest.approx(1.2)  # truncated
    assert float(last.min()) < 0.95
    assert (factors[order[0]] == experience.rollouts[order[0]].response_mask).all()
    plain = [f"algorithm.{key}" for key in ("ppo_epochs=2", "mini_batch_size=8")]
    with open_trainer(tmp_path, *keys, "algorithm=ppo", *plain) as trainer:  # same samples, computed manually
        team = trainer.state.team
        for learner in team.learners:
            if learner.is_policy:
                own = targets[learner.name]
                by_hand = {learner.name: replace(own, advantages=own.advantages * factors[learner.name])}
                update_learner(learner, iterate_steps(learner, experience.rollouts, by_hand, CONTEXT), CONTEXT)
                for key, value in weights(learner).items():
                    torch.testing.assert_close(value, expected[learner.name][key], rtol=1e-3, atol=2e-5)
                update_learner(learner, iterate_steps(learner, experience.rollouts, targets, CONTEXT), CONTEXT)


@pytest.mark.slow
def test_factor_of_unchanged_policy_is_one(tmp_path: Path) -> None:
    config, _ = small_config(tmp_path, *HAPPO)
    (first, last), _ = (policy_update_order(config, ["low", "high"], iteration) for iteration in (0, 1))
    keys = ["algorithm.mini_batch_size=8", *SHORT, *LARGE_STEPS, "num_iterations=1"]
    still = [*keys, f"task.agents.{first}.actor.learning_rate=0", "++actor.weight_decay=0"]
    sequential, together = train(tmp_path, *still, *HAPPO), train(tmp_path, *still, "algorithm=ppo")
    row = rows(sequential)[-1]
    assert (row[f"{last}/policy/correction"], row[f"{last}/policy/correction_max"]) == (1.0, 1.0)
    of_the_order = {key: value for key, value in row.items() if key not in rows(together)[-1]}
    assert {key.split("/", 1)[1] for key in of_the_order} == {
        "policy/order",
        "policy/correction",
        "policy/correction_max",
    }
    assert rows(together)[-1].items() <= row.items()
    expected, found = final_weights(together), final_weights(sequential)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["separate", "value_head"])
def test_round_robin_keeps_other_policies_unchanged(critic: str, tmp_path: Path) -> None:
    keys = ("algorithm=ippo", f"critic={critic}", "team.update_order=round_robin", "team.round_robin_every=2")
    with open_trainer(tmp_path, *SHORT, *keys, "num_iterations=5", "algorithm.critic_warmup=1") as trainer:
        learners = {f"{learner.name} {learner.stage}": learner for learner in trainer.state.team.learners}
        moved = []
        for _ in range(5):
            before = {name: weights(learner) for name, learner in learners.items()}
            trainer.step()
            after = {name: weights(learner) for name, learner in learners.items()}
            moved.append(
                {
                    name
                    for name, value in before.items()
                    if any(not torch.equal(part, after[name][key]) for key, part in value.items())
                }
            )
    turns = [set(), {"low"}, {"low"}, {"high"}, {"high"}]
    if critic == "separate":
        critics = {"low value", "high value"}
        assert moved == [critics | {f"{name} policy" for name in turn} for turn in turns]
    else:  # during the critic warmup both learn; then a policy's values are updated only with the policy
        assert moved == [{"low joint", "high joint"}, *({f"{name} joint" for name in turn} for turn in turns[1:])]


def test_update_order_depends_on_seed_and_iteration_only(tmp_path: Path) -> None:
    names = ["a", "b", "c"]
    one, other = small_config(tmp_path, *HAPPO)[0], small_config(tmp_path, *HAPPO, "seed=1")[0]
    orders = [tuple(policy_update_order(one, names, iteration)) for iteration in range(60)]
    assert len(set(orders)) == 6
    assert all(sorted(order) == names for order in orders)
    assert orders == [tuple(policy_update_order(one, names, iteration)) for iteration in range(60)]
    assert orders != [tuple(policy_update_order(other, names, iteration)) for iteration in range(60)]


@pytest.mark.slow
def test_no_joint_actions_warns(tmp_path: Path) -> None:
    (tmp_path / "turns.py").write_text(
        'def turns(example, agents):\n    for name in agents:\n        yield {name: example["letters"] + "<"}\n'
    )
    folder = train(tmp_path, *HAPPO, *SHORT, "num_iterations=1", f"task.protocol={tmp_path / 'turns.py'}:turns")
    assert "no two policies acted at the same step" in (folder / "run.json").read_text()
    assert rows(folder)[-1]["low/policy/correction_max"] == rows(folder)[-1]["high/policy/correction_max"] == 1.0


@pytest.mark.core
@pytest.mark.slow
def test_two_ranks_correct_as_one_rank(tmp_path: Path) -> None:
    keys = [*SHORT, *HAPPO, *LARGE_STEPS, "rollout.zero3_gather=all"]
    one = rows(train(tmp_path / "one", *keys))
    folder = train_on_two_ranks(tmp_path / "two", *keys, "deepspeed=zero3")
    first = one[1]
    assert max(first["low/policy/correction_max"], first["high/policy/correction_max"]) > 1.0
    assert_metrics_close(one[:2], rows(folder)[:2], rel=2e-3, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("order", [HAPPO, ROUND_ROBIN], ids=["happo", "round robin"])
def test_resume_keeps_the_update_order(order: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [*SHORT, *order, *LARGE_STEPS, *stopping_reward(tmp_path), "num_iterations=3"]
    assert_resume_is_exact(tmp_path, monkeypatch, *keys)


@pytest.mark.slow
def test_two_ranks_round_robin_with_frozen_agent_and_opponents(tmp_path: Path) -> None:
    keys = [*SHORT, *MID, *ROUND_ROBIN, "task.agents.mid.frozen=true", "critic=centralized"]
    keys += ["team.opponent_pool.every=1", "team.opponent_pool.size=2", "team.opponent_pool.share=0.25"]
    keys += ["evaluation.size=5", "evaluation.num_generations=3"]  # samples of a row are split over ranks
    one = rows(train(tmp_path / "one", *keys))
    assert {"eval/sampled/exact/pass@2", "eval/sampled/exact/pass@3"} <= one[0].keys()
    folder = train_on_two_ranks(tmp_path / "two", *keys)
    assert [("low/policy/steps" in row, "high/policy/steps" in row) for row in one[1:]] == [
        (True, False),
        (False, True),
    ]
    assert all(row["team/opponents/fraction"] == 0.25 for row in one[1:])
    assert_metrics_close(one[:2], rows(folder)[:2], rel=2e-3, abs=1e-4)


def test_token_steps_match_turn_steps(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *SHORT, *TWO_TURNS) as trainer:
        experience = experience_of(trainer)
    for name, rollout in experience.rollouts.items():
        assert torch.equal(
            environment_steps(experience.episodes, name, rollout), rollout.turn
        )  # both act at every step
        assert (rollout.turn == 1).any()


def test_corrections_have_a_metric_for_each_turn(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *SHORT, *TWO_TURNS, *HAPPO) as trainer:
        team, experience = trainer.state.team, experience_of(trainer)
        targets, _ = trainer.state.algorithm.compute_targets(team, experience)
        correction = SequentialCorrection(trainer.config.algorithm.sequential_correction, experience)
        correction.logratio = torch.tensor([0.0, -0.5]).expand(16, 2)  # by step; both agents act at each
        corrected, metrics = correction.correct(team["high"].policy, targets, {"high": 2})
    assert metrics["high/policy/correction/turn/1"] == 1.0
    assert metrics["high/policy/correction/turn/2"] == pytest.approx(math.exp(-0.5))
    assert math.exp(-0.5) < metrics["high/policy/correction"] < 1.0
    second = experience.rollouts["high"].turn == 1
    assert torch.equal(corrected["low"].advantages, targets["low"].advantages)
    before, after = targets["high"].advantages[second], corrected["high"].advantages[second]
    torch.testing.assert_close(after, before * math.exp(-0.5))
