"""`task.agents.NAME.actor=server`: a frozen partner at an inference server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import fake_vllm
import pytest
from fake_engine import FakeEngine
from model_server import save_partner, serve_model
from small import (
    assert_two_ranks_agree,
    final_weights,
    new_run,
    open_trainer,
    rows,
    train,
)

from ippo_cli import Run
from ippo_cli.config.errors import ConfigError, EngineError, UnusableServer
from ippo_cli.evaluation.evaluate_run import evaluate_run
from ippo_cli.evaluation.export import ExportRequest, export_agents
from ippo_cli.planning.plan import show_plan
from ippo_cli.planning.trial import check_trainable
from ippo_cli.rollout.served_policy import ServedPolicy
from ippo_cli.training.process import run_training

pytest.importorskip("httpx2", reason="needs the extra `http`")
SHORT = ("num_iterations=2", "evaluation.every=0", "checkpoint.every=0", "actor.warmup_iterations=0")
HIGH = "task.agents.high"
# One token is certain, so that samples do not depend on random numbers, which differ between samplers.
CERTAIN = (f"{HIGH}.frozen=true", f"{HIGH}.rollout.top_k=1")


def partner_at(url: str, model: Path) -> tuple[str, ...]:
    where = f"{HIGH}.actor"
    return (f"{where}.kind=server", f"{where}.url={url}", f"{where}.model={model}")


@pytest.mark.core
def test_run_equals_that_with_the_partner_in_its_process(tmp_path: Path) -> None:
    model = save_partner(tmp_path / "partner")
    where = f"{HIGH}.actor"
    local = (f"{where}.kind=full", f"{where}.model={model}", f"{where}.dtype=fp32")
    expected = train(tmp_path / "local", *SHORT, *CERTAIN, *local)
    with serve_model(model) as (url, server):
        found = train(tmp_path / "served", *SHORT, *CERTAIN, *partner_at(url, model))
        assert server.prompts
    for one, other in zip(rows(found), rows(expected), strict=True):
        assert one.keys() == other.keys()
        assert {key: one[key] for key in one if not key.startswith("high/rollout/")} == {
            key: other[key] for key in other if not key.startswith("high/rollout/")
        }
    weights = final_weights(expected, ["low"])
    assert all((final_weights(found, ["low"])[name] == value).all() for name, value in weights.items())
    record = json.loads((found / "initial" / "high.json").read_text())
    assert record["model"] == str(model)
    assert "tokenizer.json" in record["sha256"]
    assert "model.safetensors" not in record["sha256"]


def test_only_the_tokenizer_of_the_partner_is_loaded(tmp_path: Path) -> None:
    model = save_partner(tmp_path / "partner")
    (model / "model.safetensors").rename(tmp_path / "model.safetensors")
    with pytest.raises(UnusableServer):
        train(tmp_path, *SHORT, *CERTAIN, *partner_at("http://127.0.0.1:9", model), f"{HIGH}.actor.start_timeout_s=0.1")
    (tmp_path / "model.safetensors").rename(model / "model.safetensors")
    with serve_model(model) as (url, _):
        (model / "model.safetensors").unlink()
        with open_trainer(tmp_path, *SHORT, *CERTAIN, *partner_at(url, model)) as trainer:
            team = trainer.state.team
            assert (list(team), list(team.frozen), list(team.generation_policies)) == (
                ["low"],
                ["high"],
                ["low", "high"],
            )
            assert isinstance(team.frozen["high"], ServedPolicy)
            experience, _ = trainer.step()
            assert experience.sampled["high"].response_mask.any()


def test_absent_server_is_reported_before_a_model_loads(tmp_path: Path) -> None:
    model = save_partner(tmp_path / "partner")
    config, folder = new_run(
        tmp_path, *SHORT, *CERTAIN, *partner_at("http://127.0.0.1:9", model), f"{HIGH}.actor.start_timeout_s=0.1"
    )
    with pytest.raises(
        UnusableServer, match=r"high\.actor\.url=http://127.0.0.1:9: high: the server is not ready .*; start it first"
    ) as error:
        check_trainable(config, 1)
    assert error.value.exit_code == 2
    with pytest.raises(UnusableServer):
        run_training(config, folder, resumed=False)


def test_server_that_dies_ends_the_run(tmp_path: Path) -> None:
    model = save_partner(tmp_path / "partner")
    keys = (*SHORT, *CERTAIN, "num_iterations=4", "evaluation.greedy=false")
    # 2 checks of its answers, 8 of the first evaluation, and 16 in each iteration.
    with serve_model(model, fails_after=2 + 8 + 16 + 5) as (url, _):
        config, folder = new_run(tmp_path, *keys, *partner_at(url, model))
        with pytest.raises(EngineError, match=r"high\.actor\.url=.* status 500: the engine has died") as error:
            run_training(config, folder, resumed=False)
        assert error.value.exit_code == 16
    assert [row["iteration"] for row in rows(folder) if "low/score/mean" in row] == [1]
    with serve_model(model) as (url, _):  # at another address
        moved = replace(config.task.agents["high"], actor=replace(config.task.agents["high"].actor, url=url))
        task = replace(config.task, agents=config.task.agents | {"high": moved})
        run_training(replace(config, task=task), folder, resumed=True)
    assert rows(folder)[-1]["iteration"] == 4


@pytest.mark.core
def test_partner_in_episodes_that_do_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[FakeEngine] = []
    for target, name, value in fake_vllm.patches(made):
        monkeypatch.setattr(target, name, value)
    model = save_partner(tmp_path / "partner")
    ahead = (*fake_vllm.OVERRIDES, "rollout.ahead=1", "algorithm=ppo", "algorithm.mini_batch_size=8")
    with serve_model(model) as (url, server):
        found = rows(train(tmp_path, *SHORT, *CERTAIN, *ahead, *partner_at(url, model)))
        assert len(server.prompts) >= 2 * 16
    trained = [row for row in found if "low/rollout/logprob" in row]
    assert trained[1]["low/rollout/staleness"] == 1.0
    assert len(made) == 1


def test_commands_ask_the_partner_at_its_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_partner(tmp_path / "partner")
    with serve_model(model) as (url, server):
        config, folder = new_run(tmp_path, *SHORT, *CERTAIN, *partner_at(url, model))
        run_training(config, folder, resumed=False)
        before = len(server.prompts)
        written = json.loads(evaluate_run(config, folder, "latest", []).read_text())
        assert len(server.prompts) > before
        assert written["models"]["high"]["served_model"] == str(model)
        capsys.readouterr()
        show_plan(config)
        plan = capsys.readouterr().out
    assert "".join(f"high server {model} at {url}, no memory here; ready".split()) in "".join(plan.split())
    assert "high actor" not in plan
    with pytest.raises(UnusableServer, match="the server is not ready"):
        show_plan(config)
    assert "unusable, see below" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"load_actor\(\) finds no weights: they are at http"):
        Run(folder).agents["high"].load_actor()
    request = ExportRequest(
        run_folder=folder,
        checkpoint="latest",
        target=tmp_path / "exported",
        agents=(),
        is_merged=True,
        needs_critic=False,
        command="",
    )
    lines: list[str] = []
    export_agents(config, request, lines.append)
    assert lines[-1] == "high is not exported: its weights are at its server only"
    with pytest.raises(ConfigError, match=r"agent=high is at the server http.*; use low"):
        export_agents(config, replace(request, agents=["high"], target=tmp_path / "other"), lines.append)


@pytest.mark.slow
@pytest.mark.core
def test_each_rank_asks_for_its_rows(tmp_path: Path) -> None:
    model = save_partner(tmp_path / "partner")
    with serve_model(model) as (url, _):
        keys = (*SHORT, *CERTAIN, *partner_at(url, model))
        assert_two_ranks_agree(tmp_path, *keys)
