"""Centralised critics in whole runs: for one agent, one per agent, one for all, and text critics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small import (
    assert_resume_is_exact,
    assert_two_ranks_agree,
    experience_of,
    final_weights,
    open_trainer,
    rows,
    small_config,
    stopping_reward,
    train,
)
from transformers import AutoTokenizer

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.evaluation.evaluate_run import evaluate_run
from ippo_cli.models.critic import ValueModel
from ippo_cli.planning.plan import show_plan
from ippo_cli.runs.checkpoint_files import newest_intact_checkpoint
from ippo_cli.training.trainer import Trainer

CENTRAL = "critic=centralized"
SHORT = ("num_iterations=2", "evaluation.every=0", "checkpoint.every=0", "actor.warmup_iterations=0")
BY_TURN = ("algorithm.credit=turn", "algorithm.turn_value=first", "algorithm.value_unit=turn")
TALK = (
    "task.protocol=dialogue",
    "task.num_turns=2",
    "task.agents.low.template='{letters}{heard}<'",
    "task.agents.low.turn_template='{heard}<'",
    "task.agents.high.template='{letters}{heard}>'",
    "task.agents.high.turn_template='{heard}>'",
    "rollout.max_new_tokens=6",
    "rollout.temperature=2.0",
)
FEW = ("task.train_size=16", "task.eval_size=8")
UNLIKE = ("actor.alphabet=auto", "task.agents.high.actor.alphabet=printable")

REWARD = """
def reward(examples, responses):
    counted = {name: [len(set(text)) / 9 for text in texts] for name, texts in responses.items()}
    return {"agent": counted, "team": [low * high for low, high in zip(counted["low"], counted["high"])]}
"""


def without(row: dict[str, float], *parts: str) -> dict[str, float]:
    return {key: value for key, value in row.items() if not any(part in key for part in parts)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [
        ("task=sorting_solo", "algorithm=ppo", "algorithm.mini_batch_size=8"),
        ("task=ladder", *FEW, "algorithm.truncation=bootstrap"),
        ("task=ladder", *FEW, "rollout.context=last_only"),
    ],
)
def test_single_agent_view_equals_separate_critic(tmp_path: Path, task: tuple[str, ...]) -> None:
    separate = train(tmp_path, *task, *SHORT)
    (name,) = load_config(list(task)).task.agents
    expected = final_weights(separate, [name])
    for shared in ("false", "true"):
        central = train(tmp_path, *task, *SHORT, CENTRAL, f"critic.shared={shared}")
        for before, after in zip(rows(separate), rows(central), strict=True):
            renamed = {key.replace("team/value/", f"{name}/value/"): value for key, value in after.items()}
            assert without(renamed, "read_tokens", "truncated_context_fraction") == before
        assert rows(central)[-1][f"{name}/value/truncated_context_fraction"] == 0
        checkpoint = newest_intact_checkpoint(central / "checkpoints")
        assert checkpoint is not None
        critic = load_file(checkpoint / ("team" if shared == "true" else name) / "critic" / "model.safetensors")
        found = {f"{name}/critic/{key}": value for key, value in critic.items()}
        actor = load_file(checkpoint / name / "actor" / "model.safetensors")
        found |= {f"{name}/actor/{key}": value for key, value in actor.items()}
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], value) for key, value in expected.items())


def test_values_match_direct_forward_pass(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *TALK, *SHORT, CENTRAL, "deepspeed.forward_batch_tokens=64") as trainer:
        speak_up(trainer)
        experience = experience_of(trainer)
        for name, agent in trainer.state.team.items():
            assert agent.critic is not None
            module, end = agent.critic.engine.module, [agent.tokenizer.eos_token_id]
            values, _ = agent.values(experience.rollouts[name], experience.views[name])
            for row, episode in enumerate(experience.episodes[:4]):
                read: list[int] = []
                found = values[row][experience.rollouts[name].response_mask[row]].tolist()
                for turn in episode.turns:  # one agent acts at a time
                    result = turn.completion.ids.tolist()
                    observations = list(agent.tokenizer(turn.observation).input_ids)
                    if turn.agent != name:
                        read += [*([] if not read or read[-1:] == end else end), *observations, *end]
                        read += [*result, *([] if result[-1:] == end else end)]
                        continue
                    read += observations
                    for token in result:
                        hidden = module.backbone(input_ids=torch.tensor([read])).last_hidden_state[0, -1]
                        assert found.pop(0) == pytest.approx(module.value_head(hidden).item(), rel=1e-4, abs=1e-5)
                        read.append(token)
                assert not found


def speak_up(trainer: Trainer) -> None:
    """Critics whose values depend on the state: value heads are initialised with zeros."""
    torch.manual_seed(1)
    for agent in trainer.state.team.values():
        assert agent.critic is not None
        torch.nn.init.normal_(agent.critic.engine.module.value_head.out.weight)


@pytest.mark.slow
def test_shared_critic_learns_from_all_rows_and_is_saved_once(tmp_path: Path) -> None:
    keys = [*TALK, *SHORT, "algorithm=mappo", "critic.shared=true", "algorithm.ppo_epochs=1"]
    folder = train(tmp_path, *keys)
    last = rows(folder)[-1]
    assert {key.split("/")[0] for key in last if "/value/grad_norm" in key} == {"team"}
    losses = [last[f"{name}/value/loss"] for name in ("team", "low", "high")]
    assert losses[0] == pytest.approx((losses[1] + losses[2]) / 2, rel=0.2)  # numbers of tokens differ slightly
    assert last["team/value/steps"] == 8
    assert {"low/value/explained_variance", "high/value/read_tokens"} <= last.keys()
    assert last["low/value/read_tokens"] > last["low/rollout/response_length"] + last["low/rollout/observation_tokens"]
    checkpoint = newest_intact_checkpoint(folder / "checkpoints")
    assert checkpoint is not None
    assert sorted(folder.name for folder in checkpoint.iterdir() if folder.is_dir()) == ["high", "low", "team"]
    assert not (checkpoint / "low" / "critic").exists()
    initial = load_file(folder / "initial" / "low" / "model.safetensors")  # of the first agent
    critic = ValueModel.from_pretrained(checkpoint / "team" / "critic").state_dict()
    moved = [
        (critic[f"backbone.{key.removeprefix('model.')}"] - value).abs().max()
        for key, value in initial.items()
        if key != "lm_head.weight"
    ]
    assert 0 < max(moved) < 0.1
    config, _ = small_config(tmp_path, *keys)
    written = json.loads(evaluate_run(config, folder, "latest", []).read_text())
    assert set(written["models"]) == {"low", "high"}
    more = train(tmp_path, *keys, f"critic.warm_start={checkpoint / 'team' / 'critic'}")
    assert rows(more)[1]["low/targets/value"] != 0


@pytest.mark.slow
@pytest.mark.parametrize("paid", ["low", "high"])
def test_shared_critic_learns_from_any_agents_reward(paid: str, tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(
        "def reward(examples, responses):\n"
        f'    return {{"agent": {{name: [float(name == "{paid}")] * len(own) for name, own in responses.items()}}}}\n'
    )
    keys = [*TALK, *SHORT, "algorithm=mappo", "critic.shared=true", "algorithm.ppo_epochs=1", "reward=function"]
    keys += [f"reward.function={tmp_path / 'reward.py'}:reward", "reward.team_weight=0", "reward.agent_weight=1"]
    with open_trainer(tmp_path, *keys) as trainer:
        trainer.step()
        row = trainer.state.progress.row
    assert row is not None
    assert row["team/value/grad_norm"] > 0  # all values are 0, and so are the returns of agents without rewards
    assert row["team/value/loss"] > 0
    assert row[f"{'high' if paid == 'low' else 'low'}/targets/return"] == 0


@pytest.mark.slow
def test_team_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [*TALK, *SHORT, *stopping_reward(tmp_path), CENTRAL, "critic.shared=true"]
    assert_resume_is_exact(tmp_path, monkeypatch, *keys)


@pytest.mark.core
@pytest.mark.slow
def test_two_ranks_match_one_rank(tmp_path: Path) -> None:
    # Also by turn and as text, in which case critic rows differ from the agents' rows.
    (tmp_path / "reward.py").write_text(REWARD)
    unlike = [*UNLIKE, *BY_TURN, "reward=function", f"reward.function={tmp_path / 'reward.py'}:reward"]
    keys = [*TALK, *SHORT, *unlike, "algorithm=ppo", "algorithm.mini_batch_size=8", CENTRAL, "critic.shared=true"]
    assert_two_ranks_agree(tmp_path, *keys, ranks=["deepspeed=zero3"])


@pytest.mark.slow
def test_different_tokenizers_use_text_critic_with_one_value_per_turn(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *TALK, *SHORT, *UNLIKE, *BY_TURN, CENTRAL) as trainer:
        speak_up(trainer)
        experience = experience_of(trainer)
        targets, _ = trainer.state.algorithm.compute_targets(trainer.state.team, experience)
        for name, own in experience.rollouts.items():
            assert (experience.views[name].rollout.response_mask.sum(dim=1) == own.turn.amax(dim=1) + 1).all()
            for row in range(4):
                for number in range(2):
                    of_turn = targets[name].values[row][own.turn[row] == number]
                    assert len(set(of_turn.tolist())) == 1
                    assert of_turn[0] != 0
        trainer.step()
        row = trainer.state.progress.row
        assert row is not None
        assert row["low/value/steps"] > 0
        assert trainer.checkpoints.save(trainer.state)
    (saved,) = (tmp_path / "default").glob("*/checkpoints/step_*")
    sizes = {name: len(AutoTokenizer.from_pretrained(saved / name / "critic")) for name in ("low", "high")}
    assert sizes["low"] < 30
    assert sizes["high"] > 256


def test_text_critic_requires_turn_values(tmp_path: Path) -> None:
    config, _ = small_config(tmp_path, *UNLIKE, CENTRAL)
    keys = "algorithm.credit=turn algorithm.turn_value=first algorithm.value_unit=turn"
    wanted = rf"critic=centralized reads text .* low and high .*; set {keys}"
    with pytest.raises(ConfigError, match=wanted):
        show_plan(config)


def test_local_models_share_one_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(small_config(tmp_path, CENTRAL, "critic.context_limit=20", "critic.shared=true")[0])
    output = " ".join(capsys.readouterr().out.split())
    assert "team steps critic 8 optimizer steps per iteration, on the rows of low and high" in output
    assert (
        "team critic reads observations and responses of low and high, one value per token: up to 34 tokens per episode"
        in output
    )
    assert "warning the critic of team may need up to 34 tokens per episode, but its context has 20" in output
    assert "low critic" not in output
