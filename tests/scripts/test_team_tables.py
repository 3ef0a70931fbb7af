"""The tables of claims about teams: measures, recorded measurements, and cells."""

from __future__ import annotations

import json
import math
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
from algorithms import Job  # noqa: E402
from learning import Outcome, Point  # noqa: E402
from team_claims import TABLES, Training  # noqa: E402
from team_games import Bounds  # noqa: E402

from ippo_cli.benchmark import environments  # noqa: E402


def make_training(table: str, variant: str, *points: tuple[int, float]) -> Training:
    curve = [Point(samples=samples, seconds=0.0, score=score, held_out=True) for samples, score in points]
    outcome = Outcome(
        task=TABLES[table].tasks[0], variant=variant, seed=0, overrides=(), last=curve[-1].score, curve=curve
    )

    def fail() -> Training:
        raise AssertionError

    return Training(
        outcome=outcome,
        folder=Path("/unused"),
        bounds=Bounds(0.0, 0.5),
        variant=TABLES[table].variants[variant],
        train_other_seed=fail,
    )


def test_equal_tokens_are_fewer_iterations_of_the_team(tmp_path: Path) -> None:
    trainer = team_tables.Trainer(tmp_path)
    variants = TABLES["single_agent"].variants
    iterations = {
        name: trainer.make_job("copy_1", name, variant, 0).config.num_iterations for name, variant in variants.items()
    }
    assert iterations == {"team": 80, "single": 80, "fewer": 56}
    assert 80 * (3 + 4) == 56 * 2 * (3 + 2), "tokens per episode: of the single agent, of the team"


def test_initial_agents_give_valid_answers_unless_only_learning_is_measured(tmp_path: Path) -> None:
    trainer = team_tables.Trainer(tmp_path)
    steps = {
        table: {
            trainer.make_job("copy_1", name, variant, 0).config.actor.warm_start_steps
            for name, variant in TABLES[table].variants.items()
            if variant.partner is None
        }
        for table in ("single_agent", "one_trained", "lazy_agents")
    }
    assert steps == {"single_agent": {10}, "one_trained": {100}, "lazy_agents": {100}}


def test_curve_is_the_mean_over_training() -> None:
    for places in ((0, 900), (0, 300, 600, 900), (0, 300, 600, 750, 900)):  # a line from 0 to .45
        points = [(place, 0.45 * place / 900) for place in places]
        found = team_claims.measure_curve(make_training("single_agent", "single", *points))
        assert found == pytest.approx({"score": 0.9, "score_over_training": 0.45})


def test_cross_play_compares_with_self_play_of_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"scores": [[0.5, 0.1], [0.2, 0.3]], "self_play": 0.4, "cross_play": 0.15}
    monkeypatch.setattr(team_claims, "evaluate", lambda *_: {"tables": [table]})
    training = make_training("cross_play", "independent", (0, 0.0))
    found = team_claims.measure_cross_play(replace(training, train_other_seed=lambda: training))
    assert found == pytest.approx({"self_play": 1.0, "cross_play": 0.3, "gap": 0.7})


def test_credit_is_averaged_over_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    def kind(within: float | None, across: float) -> dict[str, Any]:
        values = {"rank_correlation_within_corrected": within, "rank_correlation_corrected": across}
        return {"none": {name: {"value": value} for name, value in values.items()}}

    agents = {"first": kind(0.2, 0.5), "second": kind(0.4, 0.7)}
    monkeypatch.setattr(team_claims, "evaluate", lambda *_: {"agents": agents})
    training = make_training("credit", "early", (0, 0.0))
    assert team_claims.measure_credit(training) == pytest.approx({"none": 0.3, "none_all": 0.6})
    agents["second"] = kind(None, 0.7)  # references of an agent are equal: no mean over both
    found = team_claims.measure_credit(training)
    assert math.isnan(found["none"])
    assert found["none_all"] == pytest.approx(0.6)


def test_gradients_are_counted_above_the_clip_limit(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: {agents: {low: {actor: {max_grad_norm: 2.0}}}}\n")
    rows = [{"eval/sampled/low/score": 0.1, "eval/sampled/high/score": -1.0}]
    for low, high in ((1.0, 3.0), (5.0, 1.0), (0.1, 4.0), (0.2, 5.0)):
        row = {"low/score/mean": 0.0, "low/policy/grad_norm": low, "high/policy/grad_norm": high}
        rows.append(row | {"low/policy/grad_norm_spikes": 1, "high/policy/grad_norm_spikes": 0})
    rows[-1] |= {"eval/sampled/low/score": 0.5, "eval/sampled/high/score": 7.0}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    training = replace(make_training("normalisation", "team", (0, 0.0)), folder=tmp_path)
    assert team_claims.measure_gradients(training) == {
        "low": 0.5,
        "high": 0.5,
        "low_clipped": 0.25,
        "high_clipped": 0.75,
        "spikes": 4,
    }


def test_single_agent_plays_both_parts_of_copy() -> None:
    team, alone = environments.Copy(length=2), environments.copy_alone()
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
    assert answers["half"] in alone.actions()["solo"], "what the warm start teaches"
    assert len(alone.actions()["solo"]) == 9 * 9


def test_exploitability_is_measured_at_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def evaluate(*arguments: Any) -> dict[str, Any]:
        read.append(arguments[-1].removeprefix("checkpoint="))
        return {"exploitability": {"nash_conv": float(len(read))}}

    monkeypatch.setattr(team_claims, "evaluate", evaluate)
    for step in (16, 32, 48, 64, 80):
        (tmp_path / "checkpoints" / f"step_{step:08}").mkdir(parents=True)
    training = replace(make_training("exploitability", "simultaneous", (0, 0.0)), folder=tmp_path)
    found = team_claims.measure_exploitability(training)
    assert found == {"start": 1.0, "two_fifths": 2.0, "four_fifths": 3.0, "end": 4.0}
    assert read == ["initial", "32", "64", "80"]


@pytest.mark.parametrize("task", TABLES["exploitability"].tasks)
@pytest.mark.parametrize("variant", TABLES["exploitability"].variants)
def test_games_have_a_checkpoint_at_each_fifth(task: str, variant: str, tmp_path: Path) -> None:
    settings = TABLES["exploitability"].variants[variant]
    config = team_tables.Trainer(tmp_path).make_job(task, variant, settings, 0).config
    assert config.checkpoint.every * 5 == config.num_iterations
    assert config.checkpoint.keep >= 5


def test_only_current_measurements_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, variant = team_tables.Trainer(tmp_path), TABLES["one_trained"].variants["first"]
    record = team_tables.Measurements(tmp_path / "data.json")
    record.add("one_trained", trainer.make_job("copy_1", "first", variant, 0), {"score": 0.25})
    (row,) = record.rows.values()
    assert team_tables.is_current(row, trainer)
    assert not team_tables.is_current(row | {"overrides": [*row["overrides"], "num_iterations=1"]}, trainer)
    assert not team_tables.is_current(row | {"variant": "former"}, trainer)
    monkeypatch.setitem(TABLES, "one_trained", replace(TABLES["one_trained"], version=2))
    assert not team_tables.is_current(row, trainer)


def test_shares_are_fractions_of_the_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate(*_: Any) -> dict[str, Any]:
        shares = {"low": {"shapley": 0.1}, "high": {"shapley": 0.3}}
        scores = {"metric": "sampled/score", "baseline": 0.1, "score": 0.5, "shares": shares}
        return {"primary_metric": "sampled/score", "attribution": [scores | {"metric": "other"}, scores]}

    monkeypatch.setattr(team_claims, "evaluate", evaluate)
    found = team_claims.measure_shares(make_training("lazy_agents", "none", (0, 0.1), (100, 0.4)))
    assert found == pytest.approx({"score": 0.8, "smallest_share": 0.25})


def test_recorded_measurements_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setitem(TABLES, "one_trained", replace(TABLES["one_trained"], version=2))
    assert not again.has("one_trained", job), "the measure has changed"


def test_measurements_of_other_settings_are_dropped(tmp_path: Path) -> None:
    trainer = team_tables.Trainer(tmp_path)
    variant = TABLES["one_trained"].variants["first"]
    record = team_tables.Measurements(tmp_path / "data.json")
    for seed in (0, 1):
        record.add("one_trained", trainer.make_job("copy_1", "first", variant, seed), {"score": 0.25})
    assert len(record.rows) == 2
    changed = replace(variant, overrides=(*variant.overrides, "num_iterations=3"))
    record.add("one_trained", trainer.make_job("copy_1", "first", changed, 0), {"score": 0.5})
    (row,) = record.rows.values()
    assert (row["seed"], row["values"]["score"]) == (0, 0.5)


def test_equal_trainings_of_tables_have_one_folder(tmp_path: Path) -> None:
    trainer = team_tables.Trainer(tmp_path)
    pairs = [("one_trained", "both"), ("cross_play", "independent"), ("cross_play", "shared")]
    names = [trainer.make_job("copy_1", name, TABLES[table].variants[name], 0).config.name for table, name in pairs]
    assert names[0] == names[1] != names[2]


def test_partner_is_trained_with_the_next_seed_and_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, exported = [], []

    def train(job: Job) -> Outcome:
        trained.append((job.seed, [name for name, agent in job.config.task.agents.items() if agent.frozen]))
        return replace(make_training("one_trained", "both", (0, 0.5)).outcome, overrides=job.overrides)

    def export(name: str, *arguments: str) -> None:
        exported.append((name, *arguments))
        Path(arguments[-1].removeprefix("to=")).mkdir(parents=True)

    monkeypatch.setattr(team_tables, "run", train)
    monkeypatch.setattr(team_tables, "finished_run", lambda config: tmp_path / config.name)
    monkeypatch.setattr(team_tables, "run_module", export)
    trainer = team_tables.Trainer(tmp_path)
    variant = TABLES["one_trained"].variants["first_with_trained"]
    for _ in range(2):
        trainer.train("signalling", "first_with_trained", variant, 4)
    assert trained == [(0, []), (4, ["receiver"])] * 2
    ((name, run, to),) = exported
    partner = trainer.make_job("signalling", "both", TABLES["one_trained"].variants["both"], 0).config.name
    assert (name, run, to) == ("export", f"run={tmp_path / partner}", f"to={tmp_path / 'partners' / partner}")
    config = trainer.make_job("signalling", "first_with_trained", variant, 4).config
    other = team_tables.Trainer(tmp_path / "other").make_job("signalling", "first_with_trained", variant, 4).config
    assert other.name == config.name, "the name does not depend on the folder of runs"
    assert config.task.agents["receiver"].actor.model == str(tmp_path / "partners" / partner / "receiver")


def test_rows_of_a_table_are_means_over_seeds() -> None:
    rows = [
        {"task": "copy_1", "variant": "both", "seed": seed, "values": {"score": score}}
        for seed, score in enumerate((0.8, 1.0))
    ]
    lines = team_tables.render("one_trained", rows)
    assert lines[-1] == "| `copy_1` | both agents are trained | 0.90 [-0.37, 2.17] | 2 |"
    assert team_tables.render("one_trained", []) == ["Not measured."]


def test_report_writes_claims_and_tables_into_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "team_tables.md"
    page.write_text(team_tables.empty_page() + "\n**Seen**: text by hand.\n")
    monkeypatch.setattr(sys, "argv", ["team_tables.py", "--report", "--docs", str(tmp_path)])
    for _ in range(2):
        assert team_tables.main() == 0
        text = page.read_text()
        assert text.count("This page tests") == 1
        assert text.endswith("**Seen**: text by hand.\n")
        for name, table in TABLES.items():
            block = text.partition(f"## {table.title}\n\n<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]
            assert " ".join(block.split()) == f"{table.about} Not measured."


def test_unequal_roles_act_and_are_rewarded_alone() -> None:
    game = environments.unequal_roles(turns=2)
    observed, _ = game.reset(3)
    assert set(observed) == set(game.actions()) == {"first"}
    observed, rewards, is_over, _, parts = game.step({"first": f" {observed['first']} "})
    assert (rewards, is_over, parts, set(observed)) == ({"first": 0.5, "second": 0.0}, False, {}, {"first", "second"})
    following = {"a": "b", "b": "c", "c": "a"}[observed["second"]]
    _, rewards, is_over, _, parts = game.step({"first": "?", "second": following})
    assert (rewards, is_over, parts) == ({"first": 0.0, "second": 1.0}, True, {"copied": 0.0})


def test_roles_are_means_over_iterations_and_final_scores(tmp_path: Path) -> None:
    norms = {"first/policy/role_grad_norm": 3.0, "second/policy/role_grad_norm": 1.0}
    scores = {"eval/sampled/first/score": 0.5, "eval/sampled/second/score": 0.25, "eval/sampled/copied": 0.5}
    rows = [{"iteration": 0, **scores}, norms, {**norms, "first/policy/role_grad_norm": 5.0, **scores}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    training = replace(make_training("role_gradients", "none", (0, 0.0)), folder=tmp_path)
    found = team_claims.measure_roles(training)
    assert (found["first"], found["second"], found["copied"]) == (1.0, 0.5, 0.5)
    assert (found["first_norm"], found["second_norm"]) == (4.0, 1.0)
    assert math.isnan(found["weight"])
