"""Pilots of the smallest real run: weights, numbers that are those of the run, files, ranks and errors."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_scripts import finish, read_output, start_ranks
from small import SMALL, open_trainer, rows, small_config, train
from torch import Tensor

from ippo_cli.cli.start_pilot import start_pilot
from ippo_cli.config.batch_sizes import compute_batch_sizes
from ippo_cli.config.errors import ConfigError
from ippo_cli.pilot import gradient
from ippo_cli.pilot.measure import measure
from ippo_cli.pilot.sample import collect_sample
from ippo_cli.pilot.size import PilotSize
from ippo_cli.planning.model_specs import read_model_specs
from ippo_cli.planning.resources import estimate_run_memory
from ippo_cli.planning.trained_memory import PILOT_PARTS
from ippo_cli.runs.records import find_runs
from ippo_cli.tasks.task import load_task
from ippo_cli.types import StepContext

PILOT = ("mode=pilot", "num_iterations=4", "actor.warmup_iterations=0")


def run_pilot_in(root: Path, *overrides: str) -> dict[str, Any]:
    """Run a pilot by its door; returns its JSON report."""
    config, yaml = small_config(root, *PILOT, *overrides)
    start_pilot(config, yaml, [], ["ippo-train"], None)
    return read_report(root)


def read_report(root: Path) -> dict[str, Any]:
    (file,) = (root / "default" / "pilot").glob("*.json")
    return json.loads(file.read_text())


@pytest.mark.parametrize(
    "overrides",
    [
        ("team=shared_policy",),
        ("algorithm=ppo", "critic=value_head", "rollout.num_generations=4"),
        ("actor=tiny_lora", "team=shared_base", "algorithm=grpo", "rollout.num_generations=4"),
    ],
)
def test_teams_and_critics(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    generations = 4 if "rollout.num_generations=4" in overrides else 1
    size = PilotSize(
        prompts=4 if generations > 1 else 16,
        generations=generations,
        repeats=0,
        repeated_prompts=0,
        episode_tokens=16,
        run_tokens=1024,
    )
    with open_trainer(tmp_path, *PILOT, *overrides) as trainer:
        found, steps = measure(trainer, size), trainer.plan.actor_steps
    agents = [name for policy in found.policies for name in policy.agents]
    assert sorted(agents) == ["high", "low"]
    assert [policy.steps for policy in found.policies] == [4 * steps[policy.agents[0]] for policy in found.policies]
    assert found.episodes == 16
    assert 0 < found.tokens <= 16 * 16
    assert all(policy.step is not None and policy.step.at_configured_rate.kl.value >= 0 for policy in found.policies)
    assert set(found.critics) == (set() if "algorithm=grpo" in overrides else {"low", "high"})


class DeviceTensor:
    """A tensor on a device: it has to be moved to the host before another gradient is computed."""

    def __init__(self, value: Tensor) -> None:
        self._value = value

    def cpu(self) -> Tensor:
        return self._value


def count_living(tensors: list[weakref.ref[Tensor]]) -> int:
    return sum(tensor.numel() for one in tensors if (tensor := one()) is not None)


def test_gradients_of_a_shared_policy_fit_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the gradients that exist at once, in elements of the policy."""
    wholes: list[weakref.ref[Tensor]] = []
    shares: list[weakref.ref[Tensor]] = []
    held: list[tuple[int, int]] = []  # elements of whole gradients and of shares
    compute, share = gradient._policy_gradient, gradient.own_share

    def record(found: list[Tensor], kind: list[weakref.ref[Tensor]]) -> list[Tensor]:
        kind.extend(map(weakref.ref, found))
        held.append((count_living(wholes), count_living(shares)))
        return found

    monkeypatch.setattr(gradient, "_policy_gradient", lambda *given: record(compute(*given), wholes))
    monkeypatch.setattr(gradient, "own_share", lambda whole: [*map(DeviceTensor, record(share(whole), shares))])
    overrides = (*PILOT, "team=shared_policy", "algorithm.entropy_coef=0.01")
    with open_trainer(tmp_path, *overrides) as trainer:
        sizes = {"generations": 1, "repeats": 0, "repeated_prompts": 0, "episode_tokens": 16, "run_tokens": 1024}
        sample = collect_sample(trainer, PilotSize(prompts=2 * PILOT_PARTS, **sizes))
        (learner,) = (one for one in trainer.state.team.learners if one.is_policy)
        context = StepContext(seed=1, iteration=0, num_iterations=4)
        gradient.measure_gradient(trainer, sample, learner, context)
        trained = sum(map(torch.numel, learner.engine.module.parameters()))
        assert gradient.measure_bonus(trainer, sample, learner, context) > 0
        task = load_task(trainer.config.task, trainer.config.seed)
        specs, batches = read_model_specs(trainer.config, task), compute_batch_sizes(trainer.config, 1, len(task.train))
        planned = estimate_run_memory(trainer.config, batches, task, specs, 1, "cpu", 0).trained[0]
    floats = (planned.measuring_bytes - planned.training_bytes) / planned.shape.trained_parameters / 4
    assert max(whole for whole, _ in held) == trained, "one whole gradient at a time"
    assert held[-1][1] <= 2 * trained, "the entropy bonus needs two gradients after the parts are freed"
    assert max(map(sum, held)) / trained + 1 + 2 == floats, "a micro-batch's, and two copies of weights of the step"


def test_pilot_writes_reports_and_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = run_pilot_in(tmp_path)
    assert data["tokens"] <= data["size"]["prompts"] * data["size"]["episode_tokens"] * 4
    assert data["verdict"] in ("learns", "slow")
    printed = capsys.readouterr().out
    assert "at most" in printed
    (text,) = (tmp_path / "default" / "pilot").glob("*.txt")
    assert text.read_text().strip() in printed
    assert find_runs(tmp_path) == []
    assert sorted(path.name for path in (tmp_path / "default").iterdir()) == ["pilot"]
    folder = train(tmp_path, "num_iterations=1")
    assert rows(folder)[-1]["iteration"] == 1


def test_reward_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text("def reward(examples, responses):\n    raise RuntimeError('no route')\n")
    data = run_pilot_in(tmp_path, "reward=function", f"reward.function={tmp_path / 'reward.py'}:reward")
    assert data["verdict"] == "no signal"
    assert "no route" in data["findings"][0]["finding"]


def test_pilot_keys_need_the_mode(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pilot\.kl=0\.1 has an effect with mode=pilot only"):
        small_config(tmp_path, "pilot.kl=0.1")


def test_two_ranks_agree_with_one(tmp_path: Path) -> None:
    overrides = ("algorithm=grpo", "rollout.num_generations=4", "pilot.tokens=640")
    one = run_pilot_in(tmp_path / "one", *overrides)
    (tmp_path / "two").mkdir()
    command = ["ippo_cli.cli.train", *SMALL, *PILOT, *overrides, f"output_dir={tmp_path / 'two'}"]
    assert finish(start_ranks(*command, folder=tmp_path / "two"), limit_s=300) == [0, 0], read_output(tmp_path / "two")
    two = read_report(tmp_path / "two")
    for key in ("verdict", "reason", "findings", "size", "episodes", "tokens", "scores", "examples"):
        assert two[key] == one[key], key
    _assert_close(two["policies"], one["policies"])


def _assert_close(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            _assert_close(found[key], value)
    elif isinstance(expected, list):
        for left, right in zip(found, expected, strict=True):
            _assert_close(left, right)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=2e-3, abs=1e-6)
    else:
        assert found == expected
