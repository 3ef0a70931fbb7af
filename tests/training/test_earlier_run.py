"""A run of an earlier version, with former names of keys and metrics, is resumed and evaluated.

`recorded/earlier_run.tar.gz` has the folder of a run that stopped after one of two iterations, and the metrics of the
same run without a stop, both written by that version. The other archives, of `recorded/record.py`, have methods with a
state of their own, adapters on a shared base, and two ranks.
"""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

import forked
import pytest
import yaml

from ippo_cli.compose.former_keys import convert_config, convert_overrides
from ippo_cli.runs.metric_names import present_metric_name
from ippo_cli.training.checkpoint import TrainingProgress

ARCHIVE = Path(__file__).parent / "recorded" / "earlier_run.tar.gz"
MEASURED = ("time/", "perf/", "memory/")


def command(name: str, *arguments: str, folder: Path) -> str:
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    run = forked.run(f"ippo_cli.cli.{name}", *arguments, folder=folder, environment=environment)
    assert run.returncode == 0, run.stderr + run.stdout
    return run.stdout


def rows(file: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in file.read_text().splitlines()]
    return [{present_metric_name(key): row[key] for key in row if not key.startswith(MEASURED)} for row in found]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "run"


@pytest.mark.core
@pytest.mark.slow
def test_earlier_run_resumes_with_equal_metrics(run: Path) -> None:
    saved = yaml.safe_load((run / "config.yaml").read_text())
    assert (saved["stop_after"], saved["rollout"]["history"]) == (1, "latest"), "the archive has former names"
    command("train", f"resume={run}", "max_iterations_this_run=null", folder=run.parent)
    resumed, uninterrupted = rows(run / "metrics.jsonl"), rows(run.parent / "uninterrupted.jsonl")
    assert [row["iteration"] for row in resumed] == [0, 1, 2]
    shared = resumed[2].keys() & uninterrupted[2].keys()
    assert "climber/rollout/truncated_fraction" in shared
    assert len(shared) > 40
    for key in shared:  # recorded on another processor
        value, expected = resumed[2][key], uninterrupted[2][key]
        # rounding differs between processors
        close = isinstance(expected, float) and value == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert close or value == expected, key
    assert not uninterrupted[2].keys() - shared, "a metric that this version does not have"


@pytest.mark.core
@pytest.mark.slow
def test_earlier_run_is_evaluated(run: Path) -> None:
    output = command("evaluate", f"run={run}", "evaluation.size=2", folder=run.parent)
    assert "sampled/score" in output


JOBS = ("ppo", "happo_pool", "lora", "refill", "rae", "at_grpo", "vine", "two_ranks")
READ = ("ppo", "happo_pool")  # in the standard tier: what reads a run does not depend on what wrote it


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "reads"),
    [
        *(pytest.param(job, job in READ, marks=pytest.mark.core) for job in JOBS),
        *((job, True) for job in JOBS if job not in READ),
    ],
)
def test_recorded_run_resumes_verifies_reports_and_is_evaluated(tmp_path: Path, job: str, reads: bool) -> None:
    with tarfile.open(ARCHIVE.parent / f"{job}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    run = tmp_path / "run"
    command("train", f"resume={run}", "max_iterations_this_run=null", folder=tmp_path)
    assert_rows_equal_on_another_processor(rows(run / "metrics.jsonl"), rows(tmp_path / "uninterrupted.jsonl"))
    if reads:  # all files, and the iteration of this processor: the first one was recorded on another, which rounds
        command("verify", str(run), "iterations=2", folder=tmp_path)
        command("report", str(run), folder=tmp_path)
        assert "sampled/score" in command("evaluate", f"run={run}", "evaluation.size=2", folder=tmp_path)


def assert_rows_equal_on_another_processor(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Equal up to rounding, which differs between processors; metrics may have been added since."""
    assert [row["iteration"] for row in found] == [row["iteration"] for row in expected]
    for one, other in zip(found, expected, strict=True):
        assert not other.keys() - one.keys(), "a metric that this version does not have"
        for key, value in other.items():
            close = isinstance(value, float) and one[key] == pytest.approx(value, rel=1e-4, abs=1e-6)
            assert close or one[key] == value, key


@pytest.mark.parametrize(
    ("saved", "present"),
    [
        ("rollout.history=latest", "rollout.context=last_only"),
        ("+rollout.history=turns", "+rollout.context=retokenize"),
        ("task.agents.low.rollout.history=prefix", "task.agents.low.rollout.context=append"),
        ("algorithm.turn_value=after", "algorithm.turn_value=post"),
        ("algorithm.turn_value=mean", "algorithm.turn_value=mean"),
        ("stop_after=1", "max_iterations_this_run=1"),
        ("reward.parts.grade.lowest=1", "reward.parts.grade.min_score=1"),
        ("team.partners.every=2", "team.opponent_pool.every=2"),
        ("task.agents.low.template=history=latest", "task.agents.low.template=history=latest"),
        ("name=rollout.history", "name=rollout.history"),
        ("--help", "--help"),
    ],
)
def test_saved_override_has_present_name(saved: str, present: str) -> None:
    assert convert_overrides([saved, "plan.tflops=989"]) == [present]


def test_saved_config_has_present_names() -> None:
    judge = {"kind": "judge", "lowest": 1.0, "highest": 10.0, "keep_answers": True}
    saved = {
        "stop_after": None,
        "rollout": {"kind": "hf", "history": "turns", "temperature": 1.0},
        "algorithm": {"turn_value": "after"},
        "team": {"partners": {"every": 2, "size": 4, "share": 0.5, "elo": True}, "kind": "independent"},
        "checkpoint": {"must_save_by": "auto"},
        "plan": {"tflops": 989.0, "devices": 8},
        "reward": {"kind": "mix", "parts": {"grade": judge}},
        "task": {"too_long": "drop", "agents": {"low": {"reward": {"right": 1.0}, "template": "x"}}},
    }
    assert convert_config(saved) == {
        "max_iterations_this_run": None,
        "rollout": {"kind": "hf", "context": "retokenize", "temperature": 1.0, "sampling": "inverse_cdf"},
        "algorithm": {"turn_value": "post"},
        "team": {"opponent_pool": {"every": 2, "size": 4, "share": 0.5, "elo": True}, "kind": "independent"},
        "checkpoint": {"save_deadline": "auto"},
        "plan": {"devices": 8},
        "reward": {
            "kind": "mix",
            "parts": {"grade": {"kind": "judge", "min_score": 1.0, "max_score": 10.0, "cache_answers": True}},
        },
        "task": {"overlong": "drop", "agents": {"low": {"reward": {"exact_weight": 1.0}, "template": "x"}}},
    }
    assert saved["stop_after"] is None, "the argument is not changed"


@pytest.mark.parametrize(
    ("earlier", "present"),
    [
        ("low/score/failed_share", "low/score/failed_fraction"),
        ("low/rollout/cut_share/turn/2", "low/rollout/cut_fraction/turn/2"),
        ("low/rollout/sampler_gap_max", "low/rollout/prob_diff/sampler_max"),
        ("low/rollout/filter_gap", "low/rollout/logprob_diff/filter"),
        ("low/targets/advantage_spread/turn/1", "low/targets/advantage_std/turn/1"),
        ("eval/sampled/low/overflow_share", "eval/sampled/low/overflow_fraction"),
        ("team/partners/share", "team/opponents/fraction"),
        ("low/score/market_share", "low/score/market_share"),
    ],
)
def test_earlier_metric_has_present_name(earlier: str, present: str) -> None:
    assert present_metric_name(earlier) == present


def test_a_row_that_waits_to_be_logged_gets_present_names() -> None:
    saved = {"iteration": 3, "row": {"low/rollout/truncated_share": 0.5}, "metrics_bytes": 10}
    assert TrainingProgress.from_saved(saved).row == {"low/rollout/truncated_fraction": 0.5}
    assert TrainingProgress.from_saved(saved | {"row": None}).row is None
