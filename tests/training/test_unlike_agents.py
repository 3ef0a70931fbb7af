"""Agents with different model families, dtypes, sampling settings and batch shares in one run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from families import family, mixed
from safetensors.torch import load_file
from small import (
    assert_resume_is_exact,
    experience_of,
    final_weights,
    open_trainer,
    rows,
    stopping_reward,
    train,
)

pytestmark = pytest.mark.slow

AGENTS = ("writer", "reader")
UNLIKE = (
    "task.agents.writer.rollout.temperature=0.5",
    "task.agents.writer.rollout.max_new_tokens=4",
    "task.agents.reader.rollout.temperature=1.5",
    "task.agents.reader.rollout.top_k=20",
    "task.agents.reader.algorithm.mini_batch_size=4",
    "task.agents.reader.algorithm.ppo_epochs=2",
    "task.agents.reader.critic.mini_batch_size=16",
    "task.agents.reader.critic.ppo_epochs=3",
)


@pytest.mark.parametrize(
    ("protocol", "second"), [("sequential", "gpt2"), ("dialogue", "gpt2"), ("sequential", "mamba")]
)
def test_different_families_train_together(protocol: str, second: str, tmp_path: Path) -> None:
    with open_trainer(tmp_path, *mixed(tmp_path, *UNLIKE, protocol=protocol, second=second)) as trainer:
        team = trainer.state.team
        kinds = [agent.model_config.model_type for agent in team.values()]
        assert kinds == ["llama", second]
        formats = [next(agent.policy.engine.module.parameters()).dtype for agent in team.values()]
        assert formats == [torch.bfloat16, torch.float32]
        before = [learner.engine.module.state_dict() for learner in team.learners]
        before = [{name: value.clone() for name, value in weights.items()} for weights in before]
        experience, _ = trainer.step()
        for episode in experience.episodes:
            message = next(turn.completion.text for turn in episode.turns if turn.agent == "writer")
            read = next(turn.prompt for turn in episode.turns if turn.agent == "reader")
            assert message in team["reader"].tokenizer.decode(read)
            if protocol == "dialogue":
                answer = next(turn.completion.text for turn in episode.turns if turn.agent == "reader")
                again = [turn.prompt for turn in episode.turns if turn.agent == "writer"][1]
                assert answer in team["writer"].tokenizer.decode(again)
        assert any(episode.turns[1].completion.text for episode in experience.episodes)
        row = trainer.state.progress.row
        assert row is not None
        for learner, weights in zip(team.learners, before, strict=True):
            after = learner.engine.module.state_dict()
            assert any(not torch.equal(after[name], value) for name, value in weights.items()), learner.name


def test_agents_use_their_own_sampling_settings(tmp_path: Path) -> None:
    """In fp32, the first ratios are 1 if the update uses the sampling temperature."""
    exact = ["task.agents.writer.actor.dtype=fp32", "task.agents.reader.rollout.stop_strings=[ab]"]
    with open_trainer(tmp_path, *mixed(tmp_path, *UNLIKE, *exact)) as trainer:
        trainer.step()
        row = trainer.state.progress.row
    assert row is not None
    assert row["writer/policy/ratio_first_step_deviation"] < 1e-4
    assert row["reader/policy/ratio_first_step_deviation"] < 1e-4
    assert row["writer/rollout/response_length"] <= 4 < row["reader/rollout/response_length"] <= 6
    assert "writer/rollout/logprob_diff/filter" not in row
    assert row["reader/rollout/logprob_diff/filter"] > 0
    steps = {key: row[f"{key}/steps"] for key in ("writer/policy", "reader/policy", "writer/value", "reader/value")}
    assert steps == {"writer/policy": 2, "reader/policy": 8, "writer/value": 2, "reader/value": 3}


def test_results_are_independent_of_the_other_agent(tmp_path: Path) -> None:
    """The first agent of a sequence observes no other agent, so its prompts are the same with any other agent."""
    common = mixed(tmp_path)
    other = mixed(tmp_path, *[text for text in UNLIKE if "reader" in text], "task.agents.reader.actor.learning_rate=0")
    mamba = mixed(tmp_path, "task.agents.reader.rollout.max_new_tokens=3", second="mamba")
    runs = [train(tmp_path / str(number), *keys) for number, keys in enumerate((common, other, mamba))]
    expected = [{key: value for key, value in row.items() if "writer/" in key} for row in rows(runs[0])]
    assert len(expected[-1]) > 20
    weights = final_weights(runs[0], ["writer"])
    for run in runs[1:]:
        for own, row in zip(expected, rows(run), strict=True):
            assert own.items() <= row.items()
        found = final_weights(run, ["writer"])
        assert all(torch.equal(found[name], value) for name, value in weights.items())
        assert rows(run)[-1]["reader/rollout/logprob"] != rows(runs[0])[-1]["reader/rollout/logprob"]
    frozen = load_file(tmp_path / "gpt2" / "model.safetensors")
    kept, moved = (final_weights(run, ["reader"]) for run in (runs[1], runs[0]))
    assert all(torch.equal(kept[f"reader/actor/{name}"], value) for name, value in frozen.items())
    assert any(not torch.equal(moved[f"reader/actor/{name}"], value) for name, value in frozen.items())


def test_mixed_team_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = [text.replace("reward=function", "") for text in stopping_reward(tmp_path)][1:]
    source = tmp_path / "reward.py"
    paid = 'return {"agent": {name: [len(text) + noise for text in texts] for name, texts in responses.items()}}'
    text = source.read_text()
    source.write_text(text[: text.index("return")] + paid + "\n")
    stopping = source.read_text()
    keys = mixed(tmp_path, *UNLIKE, *reward, "algorithm.kl.reward.coef=0.1", protocol="dialogue")
    source.write_text(stopping)
    assert_resume_is_exact(tmp_path, monkeypatch, *keys)


@pytest.mark.parametrize("other", ["value_head", "separate"])
def test_local_and_pretrained_models_in_one_run(other: str, tmp_path: Path) -> None:
    model = family(tmp_path / "gpt2", "gpt2")
    keys = [
        "task=relay",
        "num_iterations=1",
        "evaluation.every=0",
        "checkpoint.every=0",
        "task.agents.first.actor.kind=full",
        f"task.agents.first.actor.model={model}",
        f"task.agents.first.critic.kind={other}",
        "task.agents.second.actor.alphabet=printable",
    ]
    with open_trainer(tmp_path, *keys) as trainer:
        first, second = trainer.state.team.values()
        assert (first.model_config.model_type, second.model_config.model_type) == ("gpt2", "llama")
        assert second.model_config.hidden_size == 32, "the run's own"
        assert (first.critic is None) == (other == "value_head")
        assert second.critic is not None
        experience_of(trainer)
        trainer.step()
        assert trainer.state.progress.row is not None
