"""`team.share_rollouts`: agents that train on each other's responses to the same prompts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small import (
    SMALL,
    assert_two_ranks_agree,
    experience_of,
    open_trainer,
    rows,
    train,
    train_with_stop,
)

from ippo_cli.agents.team import Team
from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError, IppoError
from ippo_cli.planning.model_specs import read_model_specs
from ippo_cli.tasks.task import load_task
from ippo_cli.training.algorithm_state import AlgorithmState
from ippo_cli.training.methods import shared_rows
from ippo_cli.training.row_inputs import Source
from ippo_cli.training.trainer import Trainer
from ippo_cli.types import Targets

PEERS = (
    "task=sorting_peers",
    "task.agents.second.actor.num_layers=2",
    "rollout.num_generations=4",
    "rollout.max_new_tokens=5",
    "evaluation.every=0",
    "evaluation.greedy=false",
    "num_iterations=3",
    "checkpoint.every=1",
)
HACPO = (*PEERS, "algorithm=hacpo")
WEIGHED = (
    *PEERS,
    "team.share_rollouts=true",
    "rollout.recompute_logprobs=true",
    "reward.team_weight=0.0",
    "reward.agent_weight=1.0",
    "algorithm.behavior_correction.level=token",
    "algorithm.behavior_correction.cap=1.5",
)


def all_targets(trainer: Trainer, recent_scores: Mapping[str, Sequence[float]] | None = None) -> dict[Source, Targets]:
    algorithm = replace(trainer.state.algorithm, state=AlgorithmState(methods={"cross_agent": recent_scores or {}}))
    return algorithm.compute_all_targets(trainer.state.team, experience_of(trainer))[0]


def test_rows_have_author_and_reader_logprobs(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *HACPO) as trainer:
        experience, team = experience_of(trainer), trainer.state.team
        assert {name: list(rows) for name, rows in experience.shared.items()} == {
            "first": ["second"],
            "second": ["first"],
        }
        for reader, author in (("first", "second"), ("second", "first")):
            shared, own = experience.shared[reader][author], experience.rollouts[author]
            mask = own.response_mask
            assert shared.response_ids is own.response_ids
            assert torch.equal(shared.behavior_logprobs, experience.sampled[author].logprobs)
            assert not torch.allclose(shared.logprobs[mask], own.logprobs[mask], atol=1e-2)
            again, _ = team[reader].evaluate_actions(own)
            assert torch.allclose(shared.logprobs[mask], again[mask], atol=1e-5)


def test_ratio_to_an_author_is_before_its_filters(tmp_path: Path) -> None:
    """Copies of one policy have ratio 1, so that no row is outside of the clip range."""
    keys = ("task.agents.second.actor.num_layers=1", "actor=tiny_lora", "team=shared_base", "rollout.top_p=0.5")
    with open_trainer(tmp_path, *HACPO, *keys) as trainer:
        trainer.step()
        row = trainer.state.progress.row
    assert row is not None
    for name in ("first", "second"):
        assert row[f"{name}/rollout/logprob_diff/filter"] > 0.1
        assert row[f"{name}/shared/ratio"] == pytest.approx(1, abs=1e-5)


def test_each_adapter_of_a_shared_base_reads_the_rows_of_the_other(tmp_path: Path) -> None:
    keys = ("task.agents.second.actor.num_layers=1", "actor=tiny_lora", "team=shared_base", "num_iterations=2")
    first, second = rows(train(tmp_path, *HACPO, *keys, "actor.learning_rate=1e-2"))[1:]
    for name in ("first", "second"):
        assert first[f"{name}/shared/ratio"] == pytest.approx(1, abs=1e-6), "adapters start equal"
        assert second[f"{name}/shared/ratio"] != pytest.approx(1, abs=1e-6)
        assert second[f"{name}/policy/ratio_first_step_deviation"] < 1e-5


def test_group_advantages_and_weights_by_hand(tmp_path: Path) -> None:
    recent = {"first": [0.2, 0.4], "second": [0.1]}
    with open_trainer(tmp_path, *HACPO, "algorithm.cross_agent.clip_range=0.9") as trainer:
        experience = experience_of(trainer)
        found = all_targets(trainer, recent_scores=recent)
    ability = {"first": 0.3, "second": 0.1}
    groups = (experience.batch.index // 4).tolist()
    scores = {name: experience.scores[name].raw.sum(dim=1).tolist() for name in ability}
    for agent, author in ((agent, author) for agent in ability for author in ability):
        rollout = experience.rollouts[agent] if agent == author else experience.shared[agent][author]
        targets = found[Source(agent, author)]
        for row, group in enumerate(groups):
            pool = [(name, scores[name][other]) for name in ability for other, one in enumerate(groups) if one == group]
            values = [score for _, score in pool]
            baseline = sum(score * ability[agent] / ability[name] for name, score in pool) / len(pool)
            baseline = min(max(baseline, min(values)), max(values))
            expected = (scores[author][row] - baseline) / (statistics.stdev(values) + 1e-6)
            expected *= ability[author] / ability[agent]
            mask = targets.loss_mask[row]
            assert torch.allclose(targets.advantages[row][mask], torch.tensor(expected), atol=1e-4)
            gap = (rollout.logprobs - rollout.behavior_logprobs)[row][mask].tolist()
            ratio = math.exp(sum(gap) / len(gap)) if gap else 1.0
            weight = ratio**2 if 0.1 <= ratio <= 1.0 else 0.0
            if agent == author:
                weight = 1.0
            assert torch.allclose(targets.behavior_weights[row][mask], torch.tensor(weight), atol=1e-4)


@pytest.mark.parametrize("critic", ["separate", "value_head"])
def test_critics_learn_from_own_rows_only(critic: str, tmp_path: Path) -> None:
    keys = ("algorithm=ppo", f"critic={critic}", "algorithm.mini_batch_size=8", "algorithm.gae_lambda=0.9")
    keys = (*keys, "algorithm.kl.reward.coef=0.0", "algorithm.kl.loss.coef=0.0", "algorithm.target_kl=null")
    keys = (*keys, "algorithm.behavior_correction.cap=1.05")  # so low that some weights are truncated
    with open_trainer(tmp_path, *WEIGHED, *keys) as trainer:
        experience, team = experience_of(trainer), trainer.state.team
        found = all_targets(trainer)
        for source, targets in found.items():
            assert targets.loss_mask.any()
            assert bool(targets.value_mask.any()) is not source.is_shared
            rollout = source.select_rollout(experience)
            values, _ = team[source.agent].values(rollout)
            assert torch.allclose(targets.values, values, atol=1e-5)
        own = found[Source("first", "first")]
        mean = own.advantages[own.loss_mask].mean()
        assert abs(float(mean)) < 1e-5, "advantages are whitened over own rows"
        shared = found[Source("first", "second")]
        assert abs(float(shared.advantages[shared.loss_mask].mean())) > 1e-4
        trainer.step()
        row = trainer.state.progress.row
    assert row is not None
    stage = "joint" if critic == "value_head" else "policy"
    assert row[f"first/{stage}/steps"] == 2 * trainer.config.algorithm.ppo_epochs
    if critic == "separate":
        assert row["first/value/steps"] == 2 * trainer.config.algorithm.ppo_epochs
    assert row["first/shared/rows"] == row["second/shared/rows"] == 16
    assert row["first/shared/row_fraction"] == 0.5
    assert 0 < row["first/shared/weight"] <= 1.05
    assert 0 < row["first/shared/limited_fraction"] < 1


def test_own_metrics_are_those_without_sharing(tmp_path: Path) -> None:
    """Scores, lengths and targets of an agent's rows do not depend on the responses of others."""
    keys = ("algorithm=reinforce_plus_plus", "algorithm.kl.reward.coef=0.0", "num_iterations=1")
    shared = rows(train(tmp_path / "shared", *WEIGHED, *keys))[-1]
    alone = rows(train(tmp_path / "alone", *WEIGHED, *keys, "team.share_rollouts=false"))[-1]
    names = [name for name in alone if "/policy/" not in name and not name.startswith("eval/")]
    assert len(names) > 20
    assert {name: shared[name] for name in names} == {name: alone[name] for name in names}


def test_rows_without_weight_only_lengthen_the_mean(tmp_path: Path) -> None:
    """With weights of 0 for all shared rows, the gradient is that of own rows, divided by twice the rows."""
    keys = (
        "algorithm=reinforce_plus_plus",
        "algorithm.kl.reward.coef=0.0",
        "algorithm.loss_aggregation=seq-mean-token-mean",
        "algorithm.mini_batch_size=16",
        "algorithm.cross_agent.exponent=1.0",
        "algorithm.cross_agent.clip_range=1.0e-9",
        "actor.max_grad_norm=1000.0",
    )
    with open_trainer(tmp_path / "shared", *WEIGHED, *keys) as trainer:
        trainer.step()
        shared = trainer.state.progress.row
    alone_keys = ("team.share_rollouts=false", "algorithm.cross_agent.exponent=null")
    with open_trainer(
        tmp_path / "alone", *WEIGHED, *keys, *alone_keys, "algorithm.cross_agent.clip_range=null"
    ) as trainer:
        trainer.step()
        alone = trainer.state.progress.row
    assert shared is not None
    assert alone is not None
    assert shared["first/shared/weight"] == 0.0
    assert shared["first/shared/limited_fraction"] == 1.0
    for name in ("first", "second"):
        key = f"{name}/policy/grad_norm"
        assert shared[key] == pytest.approx(alone[key] / 2, rel=1e-4)


def test_capabilities_are_of_earlier_iterations(tmp_path: Path) -> None:
    found = rows(train(tmp_path, *HACPO, "algorithm.cross_agent.capability_window=2", "num_iterations=4"))[1:]
    assert "first/shared/capability" not in found[0]
    for number in (1, 2, 3):
        for name in ("first", "second"):
            before = [row[f"{name}/score/mean"] for row in found[max(number - 2, 0) : number]]
            assert found[number][f"{name}/shared/capability"] == pytest.approx(statistics.mean(before), abs=1e-6)


def test_three_agents_with_a_frozen_one(tmp_path: Path) -> None:
    third = '+task.agents={third:{template:"{letters}=",answer:"{sorted}",frozen:true}}'
    with open_trainer(tmp_path, *HACPO, third) as trainer:
        experience = experience_of(trainer)
        assert {name: list(rows) for name, rows in experience.shared.items()} == {
            "first": ["second", "third"],
            "second": ["first", "third"],
        }
        trainer.step()
        row = trainer.state.progress.row
    assert row is not None
    assert row["first/shared/rows"] == 32


def test_unequal_prompts_end_the_run(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *HACPO) as trainer:
        experience = experience_of(trainer)
        changed = experience.episodes[0].turns[1]
        turns = [experience.episodes[0].turns[0], replace(changed, prompt=[*changed.prompt, 3])]
        with pytest.raises(IppoError, match="prompts of first and second have different tokens"):
            shared_rows.share_rollouts(
                Team(agents={}, learners=[]), [replace(experience.episodes[0], turns=turns)], {}, lambda: None
            )


def test_other_vocabularies_are_rejected() -> None:
    config = load_config((*SMALL, *HACPO, "task.agents.second.actor.alphabet=printable"))
    check_config(config, 1)
    with pytest.raises(ConfigError, match=r"^team\.share_rollouts=true trains second on the tokens of first.*vocab"):
        read_model_specs(config, load_task(config.task, config.seed))


@pytest.mark.slow
@pytest.mark.parametrize("keys", [HACPO, (*WEIGHED, "algorithm=actor_critic", "algorithm.kl.loss.coef=0.0")])
def test_one_rank_and_two_agree(keys: tuple[str, ...], tmp_path: Path) -> None:
    keys = (*keys, "num_iterations=2", "deepspeed=zero2", "algorithm.mini_batch_size=8")
    assert assert_two_ranks_agree(tmp_path, *keys)[-1]["first/shared/rows"] > 0


@pytest.mark.slow
def test_resume_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(tmp_path / "whole", *HACPO)
    stopped = train_with_stop(
        tmp_path / "stopped", monkeypatch, "ippo_cli.training.experience.share_rollouts", 3, *HACPO
    )
    assert rows(stopped) == rows(whole)
