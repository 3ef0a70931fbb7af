"""`algorithm.advantage=role_baseline`: baselines by agent and role, over ranks, and after a resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lab_errors import find_errors
from small import (
    assert_resume_is_exact,
    assert_two_ranks_agree,
    experience_of,
    open_trainer,
    rows,
    stopping_reward,
)

from ippo_cli.compose.former_keys import convert_config, convert_overrides
from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.runs.checkpoint_files import newest_intact_checkpoint, read_method_states
from ippo_cli.training.algorithm_state import AlgorithmState

DIALOGUE = ("task.protocol=dialogue", "task.num_turns=2")
RAE = ("algorithm=rae", "algorithm.advantage_args.decay=0.8")


def test_baseline_of_each_agent_and_role(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *RAE) as trainer:
        algorithm, team, experience = trainer.state.algorithm, trainer.state.team, experience_of(trainer)
        algorithm.state = AlgorithmState(methods={"role_baseline": {"low": 1.0, "high/first": -2.0, "high/idle": 7.0}})
        episodes = [
            replace(episode, roles={"high": "first" if place % 3 else "second"})
            for place, episode in enumerate(experience.episodes)
        ]
        valid = experience.scores["high"].valid.clone()
        valid[4] = False
        scores = {**experience.scores, "high": replace(experience.scores["high"], valid=valid)}
        targets, state = algorithm.compute_targets(team, replace(experience, episodes=episodes, scores=scores))
    means = {"low": 1.0, "high/first": -2.0, "high/second": 0.0}
    for name in ("low", "high"):
        for row, score in enumerate(experience.scores[name].score.sum(dim=1).tolist()):
            if name == "high" and row == 4:
                assert not targets[name].loss_mask[row].any()
                continue
            key = "low" if name == "low" else f"high/{episodes[row].roles['high']}"
            own = targets[name].advantages[row][targets[name].loss_mask[row]]
            assert torch.allclose(own, torch.tensor(score - means[key]), atol=1e-5)
            means[key] = 0.8 * means[key] + 0.2 * score
    assert state.methods["role_baseline"] == pytest.approx(means | {"high/idle": 7.0})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["critic=separate", "algorithm.value_loss_coef=0.5"],
            "needs a run without a critic, and critic=separate trains values that it does not use; use critic=none",
        ),
        (
            ["algorithm.gamma=1.0"],
            "algorithm.gamma=1.0 has no effect: advantage=role_baseline does not read it; use null",
        ),
        (["algorithm.credit=turn"], "algorithm.credit=turn has no effect: advantage=role_baseline does not read it"),
        (
            ["rollout.num_generations=4", "rollout.refill_rounds=2"],
            "needs groups of equal scores, from which it learns too, and rollout.refill_rounds=2 replaces such groups",
        ),
        (
            [*DIALOGUE, "reward.credit_assignment=counterfactual", "reward.credit_alternatives=2"],
            "needs one score for all turns of a row, and reward.credit_assignment=counterfactual "
            "reward.credit_alternatives=2 gives a credit for each turn; use reward.credit_assignment=none",
        ),
        (
            ["algorithm.advantage_args.decay=1"],
            "algorithm.advantage_args.decay=1 is out of range; it must be in [0, 1)",
        ),
        (["algorithm.advantage_args.rate=1"], "algorithm.advantage_args.rate=1 is not a key of"),
    ],
)
def test_keys_that_do_not_fit_are_refused(overrides: list[str], message: str) -> None:
    (error,) = find_errors(["algorithm=rae", *overrides])
    assert message in error


def test_preset_fits() -> None:
    assert find_errors(["algorithm=rae"]) == []


def test_former_keys() -> None:
    with pytest.raises(
        ConfigError, match=r"role_baseline_decay.* is not a key here .*; use algorithm\.advantage_args\.decay"
    ):
        load_config(["algorithm=rae", "algorithm.role_baseline_decay=0.9"])
    assert convert_overrides(["algorithm.role_baseline_decay=0.9"]) == ["algorithm.advantage_args.decay=0.9"]
    saved = {"advantage": "role_baseline", "role_baseline_decay": 0.9}
    assert convert_config({"algorithm": saved}) == {
        "algorithm": {"advantage": "role_baseline", "advantage_args": {"decay": 0.9}}
    }
    others = {"advantage": "gae", "role_baseline_decay": None}
    assert convert_config({"algorithm": others}) == {"algorithm": {"advantage": "gae"}}


@pytest.mark.slow
def test_one_rank_and_two_agree(tmp_path: Path) -> None:
    keys = (*RAE, "num_iterations=3", "evaluation.every=0", "checkpoint.every=0", "deepspeed=zero2")
    one = assert_two_ranks_agree(tmp_path, *keys)
    assert one[-1]["low/targets/role_baseline"] != one[-2]["low/targets/role_baseline"]


@pytest.mark.slow
def test_resume_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = assert_resume_is_exact(tmp_path, monkeypatch, *stopping_reward(tmp_path), *RAE)
    checkpoint = newest_intact_checkpoint(whole / "checkpoints")
    assert checkpoint is not None
    stored = read_method_states(checkpoint)["role_baseline"]
    assert stored == {name: rows(whole)[-1][f"{name}/targets/role_baseline"] for name in ("low", "high")}
