"""The tables of claims about teams: measures, recorded measurements, and cells."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pettingzoo", reason="needs ippo-cli[environments]")
SCRIPT = Path(__file__).parents[2] / "scripts" / "bench" / "team_tables.py"
sys.path.insert(0, str(SCRIPT.parent))

import team_claims  # noqa: E402
import team_tables  # noqa: E402
import team_worlds  # noqa: E402
from learning import Outcome, Point  # noqa: E402
from team_claims import TABLES, Training  # noqa: E402
from team_games import Bounds  # noqa: E402


def make_training(table: str, variant: str, *points: tuple[int, float]) -> Training:
    curve = [Point(samples=samples, seconds=0.0, score=score, held_out=True) for samples, score in points]
    outcome = Outcome(task="task", variant=variant, seed=0, overrides=(), last=curve[-1].score, curve=curve)

    def fail() -> Training:
        raise AssertionError

    return Training(
        outcome=outcome,
        folder=Path("/unused"),
        bounds=Bounds(0.0, 0.5),
        variant=TABLES[table].variants[variant],
        train_other_seed=fail,
    )


def test_equal_tokens_are_fewer_episodes_of_the_team() -> None:
    points = ((0, 0.0), (900, 0.45))
    single = team_claims.measure_at_equal_tokens(make_training("single_agent", "single", *points))
    team = team_claims.measure_at_equal_tokens(make_training("single_agent", "team", *points))
    over = {"score_over_training": 0.45}
    assert single == pytest.approx(over | {"score": 0.9, "score_at_equal_tokens": 0.9})
    assert team == pytest.approx(over | {"score": 0.9, "score_at_equal_tokens": 0.9 * 7 / 10})


def test_single_agent_plays_both_parts_of_copy() -> None:
    team, alone = team_worlds.Copy(length=2), team_worlds.CopyAlone(length=2)
    observations, _ = team.reset(5)
    assert alone.reset(5)[0] == {"solo": observations["first"]}
    word = observations["first"]
    answers = {
        "right": word + "".join("bca"["abc".index(letter)] for letter in word),
        "half": word * 2,
        "long": "abcab",
    }
    rewards = {}
    for name, text in answers.items():
        alone.reset(5)
        rewards[name] = alone.step({"solo": text})[1]["solo"]
        team.reset(5)
        assert rewards[name] == team.step({"first": text[:2], "second": text[2:]})[1]["first"]
    assert rewards == {"right": 1.0, "half": 0.5, "long": 0.0}


def test_exploitability_is_the_negative_score_of_evaluations() -> None:
    training = make_training("exploitability", "simultaneous", *enumerate((-1.2, -0.8, -0.4, -0.7, -0.6, -0.5)))
    assert team_claims.measure_exploitability(training) == pytest.approx(
        {"start": 1.2, "third": 0.4, "two_thirds": 0.6, "end": 0.5, "lowest": 0.4}
    )


def test_shares_are_fractions_of_the_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(*_: Any) -> dict[str, Any]:
        shares = {"low": {"shapley": 0.1}, "high": {"shapley": 0.3}}
        scores = {"metric": "sampled/score", "baseline": 0.1, "score": 0.5, "shares": shares}
        return {"primary_metric": "sampled/score", "attribution": [scores | {"metric": "other"}, scores]}

    monkeypatch.setattr(team_claims, "evaluate", evaluate)
    found = team_claims.measure_shares(make_training("lazy_agents", "none", (0, 0.1), (100, 0.4)))
    assert found == pytest.approx({"score": 0.8, "smallest_share": 0.25})


def test_recorded_measurements_are_not_repeated(tmp_path: Path) -> None:
    trainer = team_tables.Trainer(tmp_path)
    variant = TABLES["one_trained"].variants["first"]
    job = trainer.make_job("copy_1", "first", variant, 3)
    assert job.config.task.agents["second"].frozen
    assert not job.config.task.agents["first"].frozen
    record = team_tables.Measurements(tmp_path / "data.json")
    record.add("one_trained", job, {"score": 0.25, "unknown": float("nan")})
    again = team_tables.Measurements(tmp_path / "data.json")
    assert again.has("one_trained", job)
    assert not again.has("one_trained", replace(job, seed=4))
    assert not again.has("one_trained", replace(job, overrides=(*job.overrides, "num_iterations=1")))
    (row,) = again.rows.values()
    assert row["values"] == {"score": 0.25, "unknown": None}


def test_equal_trainings_of_tables_have_one_folder(tmp_path: Path) -> None:
    trainer = team_tables.Trainer(tmp_path)
    pairs = [("one_trained", "both"), ("cross_play", "independent"), ("cross_play", "shared")]
    names = [trainer.make_job("copy_1", name, TABLES[table].variants[name], 0).config.name for table, name in pairs]
    assert names[0] == names[1] != names[2]


def test_rows_of_a_table_are_means_over_seeds() -> None:
    rows = [
        {"task": "copy_1", "variant": "both", "seed": seed, "values": {"score": score}}
        for seed, score in enumerate((0.8, 1.0))
    ]
    lines = team_tables.render("one_trained", rows)
    assert lines[-1] == "| `copy_1` | both agents are trained | 0.90 [0.80, 1.00] | 2 |"
    assert team_tables.render("one_trained", []) == ["Not measured."]


def test_new_page_has_every_claim_and_block(tmp_path: Path) -> None:
    page = tmp_path / "team_tables.md"
    page.write_text(team_tables.empty_page())
    for name, table in TABLES.items():
        team_tables.write_between(page, f"table of {name}", team_tables._markers(name))
        assert f"## {table.title}\n" in page.read_text()
        assert f"<!-- {name} -->\ntable of {name}\n<!-- /{name} -->" in page.read_text()
