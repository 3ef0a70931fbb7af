"""Cross-play: pairings, scores, standard errors and result files."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from folders import model_folder
from small import small_config, train

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, Dtype, LoraActorConfig
from ippo_cli.evaluation.crossplay import (
    _build_tables,
    _gap_standard_error,
    cross_play,
    standard_error,
    table_cells,
)
from ippo_cli.evaluation.evaluate_run import EvaluatedWeights, evaluate_run, load_policies
from ippo_cli.evaluation.mixed_teams import Origin, check_memory
from ippo_cli.models.actor import load_causal_lm
from ippo_cli.models.lora import FrozenBase
from ippo_cli.training.evaluate import Evaluation

NO_EVALUATION = ("evaluation.every=0", "actor.warmup_iterations=0", "actor.learning_rate=5e-3")
CODES = {"one": dict(zip("abcd", "wxyz", strict=True)), "other": dict(zip("abcd", "xyzw", strict=True))}


def test_table_cells() -> None:
    found = {(row, column): pairing for row, column, pairing in table_cells(["a", "b", "c"], "b", 2)}
    assert found == {(0, 0): (0, 0, 0), (0, 1): (1, 0, 1), (1, 0): (0, 1, 0), (1, 1): (1, 1, 1)}


def test_standard_error_ignores_nan() -> None:
    assert standard_error(torch.tensor([1.0, 3.0, math.nan])) == pytest.approx(math.sqrt(2) / math.sqrt(2))
    assert math.isnan(standard_error(torch.tensor([1.0, math.nan])))


def test_standard_error_counts_rows_not_samples() -> None:
    scores = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    errors = []
    for count in (1, 16):
        rows = {f"sampled/{name}": scores.repeat_interleave(count) for name in ("a/score", "b/score", "score")}
        metrics, generations = dict.fromkeys(rows, 0.5), {"sampled": count}
        one = Evaluation(metrics=metrics, samples=[], episode_values=rows, generations=generations, failed_counts={})
        found = {pairing: one for _, _, pairing in table_cells(["a", "b"], "a", 2)}
        [table] = _build_tables(["a", "b"], 2, found, "sampled/score")
        errors.append(table.standard_errors[0][0])
    assert errors[0] == errors[1] == pytest.approx(3**-0.5 / 2)


def test_gap_standard_error_with_missing_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    full = [torch.randn(200, generator=generator, dtype=torch.float64) for _ in range(4)]
    own, cross = torch.stack(full[:2]).mean(dim=0), torch.stack(full[2:]).mean(dim=0)
    assert _gap_standard_error(full[:2], full[2:]) == pytest.approx(standard_error(own - cross))
    few = torch.full_like(full[0], math.nan)
    few[:8] = full[0][:8]  # eight rows determine half of the self-play mean, and have by far the largest error
    assert _gap_standard_error([few, full[1]], full[2:]) == pytest.approx(standard_error(few) / 2, rel=0.2)
    assert math.isnan(_gap_standard_error([torch.full_like(few, math.nan), full[1]], full[2:]))


def record_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "crossplay.json").read_text())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs"), *NO_EVALUATION, "num_iterations=2", "checkpoint.every=1")


@pytest.mark.slow
def test_self_play_matches_evaluation_of_checkpoint(run: Path) -> None:
    config, _ = small_config(run.parents[1])
    written = record_of(cross_play({run: config}, ["all"], []))
    assert [origin["checkpoint"] for origin in written["origins"]] == ["initial", "step_00000001", "step_00000002"]
    together = [cell["metrics"] for cell in written["pairings"] if len(set(cell["agents"].values())) == 1]
    for checkpoint, metrics in zip(("initial", "1", "2"), together, strict=True):
        plain = json.loads(evaluate_run(config, run, checkpoint, []).read_text())
        assert metrics.items() <= plain.items()
        assert len(metrics) > 10
    (table,) = written["tables"]
    assert [table["scores"][number][number] for number in range(3)] == [
        metrics[config.task.primary_metric] for metrics in together
    ]
    apart = [table["scores"][row][column] for row in range(3) for column in range(3) if row != column]
    assert table["cross_play"] == pytest.approx(sum(apart) / 6)
    assert table["gap"] == pytest.approx(table["self_play"] - table["cross_play"])
    assert len(written["pairings"]) == 9
    assert written["models"] == 6


@pytest.mark.slow
def test_agent_without_observations_of_partner_is_unaffected(run: Path) -> None:
    config, _ = small_config(run.parents[1])
    folder = cross_play({run: config}, ["initial", "latest"], [])
    found = record_of(folder)["pairings"]
    scores = {tuple(cell["agents"].values()): cell["metrics"]["sampled/low/response_length"] for cell in found}
    before, after = "initial", "step_00000002"
    assert scores[before, before] == scores[before, after]
    assert scores[after, after] == scores[after, before]
    lines = list(csv.DictReader((folder / "crossplay.csv").read_text().splitlines()))
    assert {(line["agent"], line["agent_from"], line["others_from"]) for line in lines} == {
        ("low", one, other) for one in (before, after) for other in (before, after)
    }
    assert (folder / "crossplay.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_table_per_agent_for_different_rewards(run: Path) -> None:
    reward = run.parents[1] / "versus.py"
    reward.write_text(
        "def reward(examples, responses):\n"
        "    ahead = [len(low) - len(high) for low, high in zip(responses['low'], responses['high'])]\n"
        "    return {'agent': {'low': ahead, 'high': [-number for number in ahead]}}\n"
    )
    keys = ["reward=function", f"reward.function={reward}:reward", "reward.team_weight=0", "reward.agent_weight=1"]
    config, _ = small_config(run.parents[1], *keys, "task.primary_metric=sampled/score", "rollout.temperature=3.0")
    low, high = record_of(cross_play({run: config}, ["initial", "latest"], keys))["tables"]
    assert (low["agent"], low["metric"]) == ("low", "sampled/low/score")
    assert (high["agent"], high["metric"]) == ("high", "sampled/high/score")
    for row in range(2):
        for column in range(2):
            assert low["scores"][row][column] == pytest.approx(-high["scores"][column][row])
    assert low["scores"][0][1] != low["scores"][1][0]


@pytest.mark.slow
def test_runs_with_different_codes_fail_in_cross_play(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sender and receiver learn a different code in each run of the same task."""
    (tmp_path / "eval.jsonl").write_text("".join(json.dumps({"signal": one, "code": "?"}) + "\n" for one in "abcd"))
    runs = {}
    for name, code in CODES.items():
        train_file = tmp_path / f"{name}.jsonl"
        train_file.write_text("".join(json.dumps({"signal": a, "code": b}) + "\n" for a, b in code.items()))
        keys = normalize_arguments(
            [
                "task=jsonl",
                """task.agents={sender:{template:"{signal}>",warm_start_answer:"{code}"},"""
                """receiver:{template:"{agents.sender}<",answer:"{signal}"}}""",
                f"task.train={train_file}",
                f"task.eval={tmp_path}/eval.jsonl",
                "task.protocol=sequential",
                "actor.warm_start_steps=120",
                "actor.warm_start_learning_rate=1e-2",
                "actor.learning_rate=0",
                "num_iterations=1",
                "evaluation.every=0",
            ]
        )
        runs[train(tmp_path, *keys)], _ = small_config(tmp_path, *keys)
    (table,) = record_of(cross_play(runs, ["latest"], []))["tables"]
    assert table["self_play"] == 1
    assert table["cross_play"] == 0
    output = capsys.readouterr().out
    assert "rows: sender's checkpoint, columns: that of receiver" in output
    assert "4 models with " in output
    assert "self-play 1.000, cross-play 0.000, gap 1.000 ± 0.000" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checkpoints", "rule"),
    [(["latest"], "needs agents of at least two checkpoints"), (["1", "7"], "checkpoints=7 cannot be used")],
)
def test_invalid_checkpoints_rejected(checkpoints: list[str], rule: str, run: Path) -> None:
    config, _ = small_config(run.parents[1])
    with pytest.raises(ConfigError, match=rule):
        cross_play({run: config}, checkpoints, [])


@pytest.mark.parametrize("team", ["independent", "shared_base"])
def test_adapters_share_one_base(team: str, tmp_path: Path) -> None:
    folder = str(model_folder(tmp_path / "model", "abcdefghij<>"))
    keys = ["actor=lora", f"actor.model={folder}", "actor.rank=4", "actor.dtype=fp32", "critic=separate"]
    config, _ = small_config(tmp_path, *keys, f"team={team}")
    base = {"model": folder, "commit": None, "sha256": {}}
    policies: list[Any] = []
    loaded: dict[Any, Any] = {}
    for name in ("one", "other"):
        adapters = {agent: saved_adapter(tmp_path / name / agent, folder, config) for agent in config.task.agents}
        models = {agent: base | {"adapter": base | {"model": str(place)}} for agent, place in adapters.items()}
        origin = Origin(name=name, config=config, weights=EvaluatedWeights(name=name, models=models, metadata={}))
        policies += load_policies(config, origin.weights, torch.device("cpu"), loaded).values()
    assert check_memory("crossplay=true", [origin]).num_models == 1 == len({id(one.policy.lm) for one in policies})
    assert len({one.policy.adapter.name for one in policies}) == 4


def saved_adapter(place: Path, folder: str, config: Config) -> Path:
    actor = config.task.agents["low"].actor
    assert isinstance(actor, LoraActorConfig)
    adapter = FrozenBase(load_causal_lm(folder, None, Dtype.fp32), folder).add_adapter(actor, "actor", 0)
    adapter.save(place, adapter.state_dict())
    return place
