"""Every algorithm with every supported critic trains on one rank and on two, with equal results."""

from __future__ import annotations

import math
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_scripts import finish, read_output, start_ranks
from small import SMALL

from ippo_cli.compose.load import config_dir, load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.schema import Config, CriticKind

pytestmark = pytest.mark.slow
# `happo` needs two policies (`tests/training/test_learning_order.py`), `distill` a teacher (`test_distillation.py`),
# `hacpo` agents with equal prompts (`test_shared_rollouts.py`).
ELSEWHERE = ("happo", "distill", "hacpo")
ALGORITHMS = sorted(file.stem for file in (config_dir() / "algorithm").glob("*.yaml") if file.stem not in ELSEWHERE)
TINY = (
    *SMALL,
    "task=sorting_solo",
    "rollout.buffer_size=12",
    "actor.hidden_size=16",
    "actor.warm_start_steps=1",
    "task.train_size=24",
    "rollout.max_new_tokens=5",
    "rollout.temperature=1.5",
    "evaluation.every=0",
    "launch.threads=1",
    "actor.learning_rate=0.01",
    "actor.warmup_iterations=0",
)
# Separate features on algorithms that do not use them by default.
PIECES: dict[str, tuple[str, ...]] = {
    "exact KL in the loss": ("algorithm=ppo", "algorithm.kl.loss.coef=0.1", "algorithm.kl.loss.estimator=full"),
    "exact KL of split weights": (
        "algorithm=ippo",
        "deepspeed=zero3",
        "algorithm.kl.loss.coef=0.1",
        "algorithm.kl.loss.estimator=full",
    ),
    "exact KL in the reward": (
        "algorithm=reinforce_plus_plus",
        "algorithm.kl.reward.estimator=full",
        "algorithm.kl.reward.target=0.01",
        "algorithm.kl.reward.horizon=10000",
    ),
    "straight-through KL": ("algorithm=grpo", "algorithm.kl.loss.estimator=k1+"),
    "token weights": (
        "algorithm=ppo",
        "rollout.top_p=0.8",
        "algorithm.behavior_correction.level=token",
        "algorithm.behavior_correction.cap=2.0",
    ),
    "sequence weights in a band": (
        "algorithm=grpo",
        "rollout.recompute_logprobs=true",
        "algorithm.behavior_correction.level=sequence",
        "algorithm.behavior_correction.band_low=0.01",
        "algorithm.behavior_correction.band_high=2.0",
    ),
    "divergence by KL": (
        "algorithm=dppo",
        "algorithm.trust_region=kl",
        "algorithm.clip_range_low=0.05",
        "algorithm.clip_range_high=0.05",
    ),
    "masked turns": ("algorithm=turn_ppo", "algorithm.objective=mask"),
    "masked probabilities": ("algorithm=sao", "critic=value_head", "algorithm.trust_region=tv"),
    "ratio to a sampler with filters": ("algorithm=cispo", "algorithm.ratio_base=sampler", "rollout.top_k=6"),
    "likelihood of most responses": ("algorithm=vapo", "algorithm.positive_nll.min_score=0.05"),
    "frozen parts of split weights": ("algorithm=ppo", "deepspeed=zero3", "critic.freeze=[*attn*,*embed*]"),
    "adaptive lambda": (
        "algorithm=ppo",
        "algorithm.gae_lambda=null",
        "algorithm.length_adaptive_alpha=0.5",
        "algorithm.critic_gae_lambda=1.0",
        "algorithm.dual_clip=3.0",
    ),
    "rewards to go by turn": ("algorithm=reinforce_plus_plus", "algorithm.credit=turn", "algorithm.gamma=0.9"),
    "automatic credit": ("algorithm=turn_ppo", "algorithm.credit=auto", "algorithm.turn_value=mean"),
    "values at turns": (
        "algorithm=vine_ppo",
        "algorithm.advantage_args.states=turns",
        "algorithm.advantage_args.every=null",
    ),
    "values with KL in the reward": (
        "algorithm=vine_ppo",
        "algorithm.kl.loss.coef=0",
        "algorithm.kl.reward.coef=0.1",
        "algorithm.gae_lambda=0.5",
        "algorithm.truncation=mask",
    ),
    "extremes only": ("algorithm=grpo", "algorithm.reweight.method=max_min"),
    "truncation masked": ("algorithm=rloo", "algorithm.truncation=mask"),
    "truncation penalised": ("algorithm=remax", "algorithm.truncation=penalty", "algorithm.truncation_penalty=0.5"),
    "bootstrap at turns": ("algorithm=turn_ppo", "critic=value_head", "algorithm.truncation=bootstrap"),
}
# Computed before any update, so that ranks differ only by rounding.
BEFORE_THE_UPDATE = ("score/", "rollout/", "targets/", "kl/", "monte_carlo/")


@cache
def critics(algorithm: str) -> tuple[str, ...]:
    """The critics that an algorithm supports."""
    made = load_config([f"algorithm={algorithm}"])
    if made.critic.kind is CriticKind.none:
        return ("none",)
    if made.algorithm.needs_centralized_critic:
        return ("centralized",)
    return ("separate", "value_head")


def cases(root: Path) -> dict[str, Config]:
    """Name -> configuration: each algorithm with its supported critics, and the features."""
    wanted: dict[str, tuple[str, ...]] = {}
    for name in ALGORITHMS:
        for critic in critics(name):
            wanted[f"{name} {critic}"] = (f"algorithm={name}", f"critic={critic}")
    found = {
        name: load_config([*TINY, f"output_dir={root}", *overrides]) for name, overrides in (wanted | PIECES).items()
    }
    for config in found.values():
        config.algorithm.critic_warmup = 0
        if config.algorithm.mini_batch_size is not None:
            config.algorithm.mini_batch_size = 6
            for agent in config.task.agents.values():
                agent.algorithm.mini_batch_size = 6
        if config.rollout.num_generations > 1:
            config.rollout.num_generations = 4  # the second of three groups is on both of two ranks
        check_config(config, 2)
    return found


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """World size -> case -> metrics of two iterations, and the changed parameters."""
    folders = {size: tmp_path_factory.mktemp(f"world{size}") for size in (1, 2)}
    configs, script = pickle.dumps(cases(folders[1])), Path(__file__).with_name("matrix.py")
    for size, folder in folders.items():
        (folder / "cases.pkl").write_bytes(configs)
        finish(start_ranks(script, str(folder), folder=folder, world_size=size), limit_s=200)
        assert (folder / "results.pt").exists(), read_output(folder)
    return {size: torch.load(folder / "results.pt", weights_only=False) for size, folder in folders.items()}


@pytest.fixture(params=(1, 2), ids=("1 rank", "2 ranks"))
def results(worlds: dict[int, dict[str, Any]], request: pytest.FixtureRequest) -> dict[str, Any]:
    return worlds[request.param]


def test_all_algorithms_included(results: dict[str, Any]) -> None:
    free = {case.split()[0] for case, found in results.items() if found["critic"] == "none" and case not in PIECES}
    with_groups = {"grpo", "dr_grpo", "rloo", "dapo", "gspo", "gmpo", "cispo", "dppo"}
    without_groups = {"reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "vine_ppo", "rae", "at_grpo"}
    assert free == with_groups | without_groups
    assert len(results) == sum(len(critics(name)) for name in ALGORITHMS) + len(PIECES)


FROZEN = {"sao separate": ("attn",), "frozen parts of split weights": ("attn", "embed")}
"""Parts of the names of frozen parameters, by case."""


def test_all_parameters_change_except_frozen(results: dict[str, Any]) -> None:
    for case, found in results.items():
        assert found["moved"]
        kept = {name for name, moved in found["moved"].items() if not moved}
        parts = FROZEN.get(case, ())
        critic = {name for name in found["moved"] if name.startswith("value/")}
        assert kept == {name for name in critic if any(part in name for part in parts)}, (case, kept)
    assert FROZEN.keys() <= results.keys()


def test_metrics_finite(results: dict[str, Any]) -> None:
    for case, found in results.items():
        for row in found["rows"]:
            assert all(math.isfinite(value) for value in row.values()), case
            assert ("solo/value/loss" in row) == ("solo/targets/value" in row) == (found["critic"] != "none"), case


def test_first_ratio_is_one(results: dict[str, Any]) -> None:
    for case, found in results.items():
        for row in found["rows"]:
            assert row["solo/policy/ratio_first_step_deviation"] < 1e-4, case


def test_two_ranks_match_one_before_update(worlds: dict[int, dict[str, Any]]) -> None:
    assert worlds[1].keys() == worlds[2].keys()
    for case, one in worlds[1].items():
        for key, value in one["rows"][0].items():
            if key.removeprefix("solo/").startswith(BEFORE_THE_UPDATE):
                assert worlds[2][case]["rows"][0][key] == pytest.approx(value, rel=1e-4, abs=1e-5), (case, key)


def test_two_ranks_match_one_after_step(worlds: dict[int, dict[str, Any]]) -> None:
    compared = 0
    for case, one in worlds[1].items():
        row, other = one["rows"][0], worlds[2][case]["rows"][0]
        if row.get("solo/policy/steps", row.get("solo/joint/steps")) == 1:
            compared += 1
            for key in row:
                if key.startswith(("solo/policy/", "solo/value/", "solo/joint/")):
                    assert other[key] == pytest.approx(row[key], rel=1e-3, abs=1e-5), (case, key)
    assert compared >= 6


def test_features_change_metrics(results: dict[str, Any]) -> None:
    first = {case: found["rows"][0] for case, found in results.items()}
    assert first["pf_ppo separate"]["solo/targets/resampled_fraction"] < 1.0
    assert first["ppo separate"]["solo/targets/resampled_fraction"] == 1.0
    assert first["sequence weights in a band"]["solo/rollout/ess_ratio"] < 0.9
    assert first["token weights"]["solo/rollout/prob_diff/behavior"] > 0.0
    assert "solo/score/greedy" in first["remax none"]
    assert "solo/score/greedy" not in first["rloo none"]
    assert first["vine_ppo none"]["solo/monte_carlo/states"] > 1.5
    assert first["values at turns"]["solo/monte_carlo/states"] == 1.0
    assert 0.0 < first["likelihood of most responses"]["solo/policy/positive_fraction"] < 1.0
    assert first["likelihood of most responses"]["solo/policy/nll_loss"] > 0.1
    assert "solo/policy/nll_loss" not in first["ppo separate"]
    assert first["truncation masked"]["solo/rollout/truncated_fraction"] > 0.0
    second = results["exact KL in the reward"]["rows"][1]
    assert second["solo/kl/reward_coef"] != first["exact KL in the reward"]["solo/kl/reward_coef"]
    assert results["exact KL in the loss"]["rows"][1]["solo/policy/kl_loss"] > 1e-6


def test_exact_kl_of_sharded_weights(
    worlds: dict[int, dict[str, Any]],
) -> None:
    one, two = (worlds[size]["exact KL of split weights"]["rows"][1]["solo/policy/kl_loss"] for size in (1, 2))
    assert one > 1e-6
    assert two == pytest.approx(one, rel=1e-2)
