"""`algorithm=distill`: policies learn from the KL to a teacher on their own samples, and scores train nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small import (
    assert_two_ranks_agree,
    experience_of,
    open_trainer,
    rows,
    small_config,
    train,
)

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.model_hub import find_model_keys

SCORE = """
def score(examples, responses):
    return {{"team": [{value} * len(text) for text in responses["low"]]}}
"""
RUN = ("num_iterations=2", "actor.learning_rate=0.01", "actor.warmup_iterations=0", "evaluation.every=0")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("teacher"), *RUN, "seed=5", "algorithm=ppo")


def distill(teacher: Path, *more: str) -> tuple[str, ...]:
    return ("algorithm=distill", f"actor.reference={teacher}", *RUN, *more)


@pytest.mark.slow
def test_scores_train_nothing_and_the_kl_falls(tmp_path: Path, teacher: Path) -> None:
    found = []
    for value in (1, -3):
        (tmp_path / "score.py").write_text(SCORE.format(value=value))
        reward = ("reward=function", f"reward.function={tmp_path / 'score.py'}:score", "num_iterations=4")
        found.append(train(tmp_path, *distill(teacher, *reward)))
    one, two = map(final_actors, found)
    assert all(two[name].equal(value) for name, value in one.items())
    kl = [row["low/policy/kl_loss"] for row in rows(found[0])[1:]]
    assert kl[-1] < 0.8 * kl[0]
    assert rows(found[0])[1]["low/score/mean"] != rows(found[1])[1]["low/score/mean"]


def final_actors(folder: Path) -> dict[str, torch.Tensor]:
    newest = max((folder / "checkpoints").glob("step_*"))
    return {
        f"{agent}/{name}": value
        for agent in ("low", "high")
        for name, value in load_file(newest / agent / "actor" / "model.safetensors").items()
    }


@pytest.mark.slow
def test_loss_is_the_exact_kl_to_the_teacher(tmp_path: Path, teacher: Path) -> None:
    """The logged KL of the first step against softmax tables of both models."""
    with open_trainer(tmp_path, *distill(teacher, "algorithm.mini_batch_size=null")) as trainer:
        agent = trainer.state.team["low"]
        rollout = experience_of(trainer).rollouts["low"]
        models = agent.policy.engine.module.lm, agent.reference.lm
        total = count = 0.0
        for row in range(len(rollout.texts)):
            prompt = rollout.prompt_ids[row][rollout.prompt_mask[row].bool()]
            response = rollout.response_ids[row][rollout.response_mask[row]]
            ids = torch.cat([prompt, response])[None]
            with torch.no_grad():
                student, target = (model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1) for model in models)
            total += float((student.exp() * (student - target)).sum())
            count += len(response)
        _, _ = trainer.step()
        assert trainer.state.progress.row is not None
        assert trainer.state.progress.row["low/policy/kl_loss"] == pytest.approx(total / count, rel=1e-4)
        assert trainer.state.progress.row["low/policy/loss"] == 0.0


@pytest.mark.slow
def test_two_ranks_equal_one(tmp_path: Path, teacher: Path) -> None:
    assert_two_ranks_agree(tmp_path, *distill(teacher))


@pytest.mark.slow
def test_teacher_of_a_run_is_the_agent_of_the_same_name(tmp_path: Path, teacher: Path) -> None:
    config, _ = small_config(tmp_path, *distill(teacher))
    newest = max((teacher / "checkpoints").glob("step_*"))
    for name in ("low", "high"):
        place = Path(config.task.agents[name].actor.reference)
        assert place.parts[-2:] == (name, "actor")
        assert place.parent.parent.parent == newest.parent
    with pytest.raises(ConfigError, match="without an agent solo; its agents are low high"):
        small_config(tmp_path, "task=sorting_solo", *distill(teacher))


def test_hub_ids_are_models_to_download(tmp_path: Path) -> None:
    config, _ = small_config(tmp_path, "algorithm=distill", "actor.reference=owner/teacher")
    named = [(setting, getattr(holder, key)) for setting, holder, key, _ in find_model_keys(config)]
    assert named.count(("actor.reference", "owner/teacher")) == 2
