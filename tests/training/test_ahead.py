"""`rollout.ahead`: the next iteration's episodes are collected while this one trains."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_vllm
import pytest
import torch
from fake_engine import FakeEngine
from rank_scripts import finish, read_output, start_ranks
from small import SMALL, assert_metrics_close, final_weights, new_run, open_trainer, rows, stopping_reward, train

from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError, EngineError, Preempted
from ippo_cli.runs.folder import list_checkpoints
from ippo_cli.training.process import run_training

AHEAD = (*fake_vllm.OVERRIDES, "rollout.ahead=1", "algorithm=ppo", "algorithm.mini_batch_size=8")
ITERATIONS = 3
CALLS = 3 * 2 + ITERATIONS  # of the reward: three evaluations, sampled and greedy, and one per iteration


@pytest.fixture
def use_engines(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[FakeEngine]]:
    def use(**options: Any) -> list[FakeEngine]:
        made: list[FakeEngine] = []
        for target, name, value in fake_vllm.patches(made, **options):
            monkeypatch.setattr(target, name, value)
        return made

    return use


@pytest.mark.core
def test_episodes_are_sampled_with_the_weights_before_the_update(tmp_path, use_engines) -> None:
    use_engines()
    found = rows(train(tmp_path, *AHEAD, "evaluation.every=0", "evaluation.greedy=false"))
    trained = [row for row in found if "low/rollout/logprob" in row]
    gaps = [row["low/rollout/logprob_diff/sampler"] for row in trained]
    assert gaps[0] < 1e-5, "no weights are newer than those of the first iteration"
    assert all(gap > 1e-4 for gap in gaps[1:])
    assert "low/rollout/staleness" not in trained[0]
    for row in trained[1:]:
        assert row["low/rollout/staleness"] == row["high/rollout/staleness_max"] == 1.0
        assert row["low/rollout/ess_ratio"] < 1.0, "the difference is corrected"


@pytest.mark.core
def test_later_weights_equal_the_synchronous_ones_until_the_second_iteration(tmp_path, use_engines) -> None:
    use_engines()
    one = ("num_iterations=2", "max_iterations_this_run=1")
    ahead = train(tmp_path / "ahead", *AHEAD, *one)
    same = train(tmp_path / "same", *AHEAD, "rollout.ahead=0", *one)
    assert rows(ahead) == rows(same)
    assert all(torch.equal(value, final_weights(same)[name]) for name, value in final_weights(ahead).items())


@pytest.mark.slow
def test_stop_at_any_reward_call_and_resume_exactly(tmp_path, monkeypatch, use_engines) -> None:
    use_engines()
    monkeypatch.delenv("STOP_AT_CALL", raising=False)
    overrides = [*stopping_reward(tmp_path), *AHEAD, f"num_iterations={ITERATIONS}"]
    whole = train(tmp_path, *overrides)
    expected_rows, expected_weights = rows(whole), final_weights(whole)
    for call in range(1, CALLS):
        config, folder = new_run(tmp_path, *overrides)
        monkeypatch.setenv("STOP_AT_CALL", str(call))
        with pytest.raises(Preempted):
            run_training(config, folder, resumed=False)
        monkeypatch.delenv("STOP_AT_CALL")
        run_training(config, folder, resumed=True)
        assert rows(folder) == expected_rows, f"stopped at call {call}"
        assert all(torch.equal(value, expected_weights[name]) for name, value in final_weights(folder).items())


def without_evaluations(folder: Path) -> list[dict[str, Any]]:
    """The training metrics of a run: where it stopped in between, it was evaluated too."""
    found = [{key: value for key, value in row.items() if not key.startswith("eval/")} for row in rows(folder)]
    return [row for row in found if len(row) > 1]


@pytest.mark.core
@pytest.mark.slow
def test_run_in_parts_equals_a_whole_one(tmp_path, use_engines) -> None:
    use_engines()
    whole = train(tmp_path, *AHEAD, "evaluation.every=0")
    config, folder = new_run(tmp_path, *AHEAD, "evaluation.every=0", "max_iterations_this_run=1", "checkpoint.every=0")
    run_training(config, folder, resumed=False)
    (stored,) = list_checkpoints(folder / "checkpoints")[-1].glob("episodes_rank_*.json")
    assert len(json.loads(stored.read_text())["episodes"]) == 16
    config.max_iterations_this_run = None
    run_training(config, folder, resumed=True)
    assert without_evaluations(folder) == without_evaluations(whole)


@pytest.mark.slow
def test_responses_in_flight_continue_with_new_weights(tmp_path, use_engines) -> None:
    made = use_engines(step_s=0.15)
    folder = train(tmp_path, *AHEAD, "rollout.in_flight_updates=true", "evaluation.every=0", "checkpoint.every=0")
    trained = [row for row in rows(folder) if "low/rollout/staleness" in row]
    assert all(0.0 < row["low/rollout/staleness"] < 1.0 for row in trained), "some tokens are of either weights"
    assert made[0].loads == [1, 2, 3, 4, 5][: len(made[0].loads)]


def test_collection_overlaps_with_training(tmp_path, use_engines) -> None:
    use_engines(step_s=0.05)
    with open_trainer(tmp_path, *AHEAD) as trainer:
        trainer.step()
        time.sleep(1.5)  # in place of a longer training
        trainer.step()
        row = trainer.state.progress.row
        assert row is not None
        assert row["time/ahead"] > 0.25, "five tokens of both agents take that long"
        assert row["time/rollout"] < 0.5 * row["time/ahead"]


@pytest.mark.slow
def test_failed_engine_ends_the_run_which_resumes(tmp_path, use_engines, monkeypatch, capfd) -> None:
    made = use_engines()
    config, folder = new_run(tmp_path, *AHEAD, "evaluation.every=0")
    load = FakeEngine.load_weights

    def fail_later(engine: FakeEngine, *arguments: Any) -> list[str]:
        engine.broken = len(engine.loads) >= 1
        return load(engine, *arguments)

    monkeypatch.setattr(FakeEngine, "load_weights", fail_later)
    with pytest.raises(EngineError, match="the engine has died"):
        run_training(config, folder, resumed=False)
    assert "episodes are lost and will be sampled again" in capfd.readouterr().out
    monkeypatch.setattr(FakeEngine, "load_weights", load)
    assert all(engine.is_closed for engine in made)
    run_training(config, folder, resumed=True)
    assert [row["iteration"] for row in rows(folder)] == [0, 1, 2, 3, 4]


@pytest.mark.slow
def test_placed_actors_sample_from_engines_of_their_ranks(tmp_path, use_engines) -> None:
    use_engines()
    overrides = (*fake_vllm.OVERRIDES, "algorithm=ppo", "algorithm.mini_batch_size=8")
    one = train(tmp_path / "one", *overrides)
    (tmp_path / "two").mkdir()
    placement = "launch.placement={low.actor:0,low.critic:0,high.actor:1,high.critic:1}"
    command = [*SMALL, *overrides, placement, f"output_dir={tmp_path / 'two'}"]
    path = Path(fake_vllm.__file__)
    assert finish(start_ranks(path, *command, folder=tmp_path / "two"), limit_s=300) == [0, 0], read_output(
        tmp_path / "two"
    )
    (metrics,) = (tmp_path / "two").glob("default/*/metrics.jsonl")
    assert_metrics_close(rows(one), rows(metrics.parent))


@pytest.mark.slow
def test_two_ranks_equal_one(tmp_path, use_engines) -> None:
    use_engines()
    one = train(tmp_path / "one", *AHEAD)
    (tmp_path / "two").mkdir()
    command = [*SMALL, *AHEAD, f"output_dir={tmp_path / 'two'}"]
    path = Path(fake_vllm.__file__)
    assert finish(start_ranks(path, *command, folder=tmp_path / "two"), limit_s=300) == [0, 0], read_output(
        tmp_path / "two"
    )
    (metrics,) = (tmp_path / "two").glob("default/*/metrics.jsonl")
    assert_metrics_close(rows(one), rows(metrics.parent))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["rollout.vllm.mode=colocate"],
            "needs engines that sample while the ranks train.*mode=server",
        ),
        (
            ["rollout.ahead=0", "rollout.in_flight_updates=true"],
            "has no effect with rollout.ahead=0",
        ),
        (["reward.reward_batch_rows=4"], "would call the reward for the next iteration's episodes"),
        (
            ["reward.measure_credit_every=2"],
            r"measure_credit_every=2 needs episodes that are sampled with the weights before the update",
        ),
        (
            ["algorithm=grpo", "rollout.num_generations=4", "rollout.refill_rounds=2"],
            "refill_rounds=2 needs the scores of an iteration before the next one begins, and rollout.ahead=1",
        ),
        (
            ["task.curriculum.band_low=0.2", "task.curriculum.band_high=0.8"],
            "task.curriculum needs the scores of an iteration before the next one begins",
        ),
        (["algorithm=remax"], "advantage=greedy_baseline needs episodes that are sampled with the weights before"),
        (["launch.processes=2", "+launch.placement={low.actor:0}"], "collects episodes on each rank separately"),
        (["actor=lora", "actor.model=m", "rollout.in_flight_updates=true"], "does not support the adapters of"),
    ],
)
def test_settings_that_need_current_weights_are_refused(use_engines, overrides, message) -> None:
    use_engines()
    ahead = ["rollout=vllm", "rollout.vllm.mode=server", "rollout.ahead=1"]
    with pytest.raises(ConfigError, match=message):
        check_config(load_config([*ahead, *overrides]), 2)
