"""The schema of results, the tables, and the result of this program's own runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ippo_cli.benchmark.commands import run_subcommand
from ippo_cli.benchmark.result import ArmRun, CrossPlay, Result, read_result, write_result
from ippo_cli.benchmark.run import list_control_settings, list_entry_overrides, read_nash_conv
from ippo_cli.benchmark.table import compare_with_arms, format_results, list_verdicts, read_results, replace_block
from ippo_cli.benchmark.tasks import BENCHMARK_TASKS
from ippo_cli.benchmark.version import task_version
from ippo_cli.cli.command_keys import OWN_KEYS
from ippo_cli.config.errors import PreflightError
from ippo_cli.controls.settings import Differences

TEAM = [1.0, 0.9, 1.0, 0.9] * 4


def make_result(**changes: Any) -> Result:
    """Return a result of 16 seeds: the team beats a single agent, not a shared policy; one run failed."""
    scores = {"team": TEAM, "single_samples": [0.1] * 16, "shared_policy": [1.0, 0.8, None, *TEAM[3:]]}
    runs = [
        ArmRun(arm=arm, seed=seed, score=score, tokens=500, episodes=64, error="lost" if score is None else None)
        for arm, own in scores.items()
        for seed, score in enumerate(own)
    ]
    values: dict[str, Any] = {
        "schema": 1,
        "task": "copy_1",
        "version": task_version("copy_1"),
        "entry": "mine",
        "trainer": "pen 1.0",
        "metric": "sampled/score",
        "overrides": [],
        "alpha": 0.05,
        "differences": Differences.bounded,
        "range": [0.0, 1.0],
        "arms": ["single_samples", "shared_policy", "other_seeds"],
        "missing": {"no_messages": "has no messages"},
        "runs": runs[::-1],
        "cross_play": [CrossPlay(seeds=[0, 1], self_play=0.9, cross_play=0.3)],
    }
    return Result(**values | changes)


def test_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    result = make_result()
    result.runs[0].score = 1.0 + 1e-7  # a rounded mean
    write_result(result, tmp_path / "a" / "result.json")
    assert read_result(tmp_path / "a" / "result.json") == result


def edit_run(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda plain: plain["runs"][0].update(values)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda plain: plain.pop("trainer"), "trainer is missing"),
        (lambda plain: plain.update(note="x"), "note is an unknown key; use one of schema task version"),
        (lambda plain: plain["runs"][0].pop("tokens"), "runs[0].tokens is missing"),
        (edit_run(score="0.5"), "runs[0].score='0.5' has the wrong type"),
        (edit_run(seed=1.5), "runs[0].seed=1.5 must be a whole number"),
        (edit_run(score=float("nan")), "cannot be read (NaN is not a score)"),
        (edit_run(score=1.5), "has the score 1.5, outside of range=[0.0, 1.0]"),
        (edit_run(score=None), "has a score and an error, or neither"),
        (edit_run(arm="unknown"), "arm=unknown is not among arms="),
        (edit_run(seed=0), "has 2 runs with seed 0; keep one"),
        (edit_run(tokens=-1), "tokens=-1; use null"),
        (lambda plain: plain.update(schema=2), "schema=2 is not the version of this program, 1"),
        (lambda plain: plain.update(task="copy_9"), "task=copy_9 is not a task; ippo-bench list"),
        (lambda plain: plain.update(version="00000000"), "version=00000000 is another version of copy_1"),
        (lambda plain: plain.update(differences="equal"), "differences=equal is not known; use one of bounded normal"),
        (lambda plain: plain.update(range=[1, 0]), "is not a lower and an upper limit"),
        (lambda plain: plain.update(alpha=1), "alpha=1 is not a probability"),
        (lambda plain: plain["cross_play"][0].update(seeds=[1, 1]), "seeds=[1, 1] are not two seeds"),
        (lambda plain: plain.update(runs=[run for run in plain["runs"] if run["arm"] != "team"]), "none is of the arm"),
    ],
)
def test_wrong_result_is_refused(edit: Callable[[dict[str, Any]], Any], words: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    write_result(make_result(), file)
    plain = json.loads(file.read_text())
    edit(plain)
    file.write_text(json.dumps(plain))
    with pytest.raises(PreflightError) as raised:
        read_result(file)
    assert words in str(raised.value)
    assert "result.json: " in str(raised.value)


def test_differences_are_paired_by_seed() -> None:
    single, shared, others = compare_with_arms(make_result())
    assert single.differences == pytest.approx([score - 0.1 for score in TEAM])
    assert shared.seeds == [0, 1, *range(3, 16)]
    assert shared.differences == pytest.approx([0.0, 0.1, *[0.0] * 13])
    assert others.differences == pytest.approx([0.6])
    assert [found.verdict for found in (single, shared, others)] == ["team better", "undecided", "undecided"]
    # The error probability of an arm is a third; without the split the interval would be narrower.
    alone = make_result(arms=["single_samples"], cross_play=[])
    alone.runs = [run for run in alone.runs if run.arm != "shared_policy"]
    assert compare_with_arms(alone)[0].lower[-1] > single.lower[-1]


def test_tables_are_normalised(tmp_path: Path) -> None:
    result = make_result()
    text = format_results([result], is_page=True)
    mean = (sum(TEAM) / len(TEAM) - 1 / 3) / (2 / 3)
    assert f"| copy_1 | mine | pen 1.0 | 16 | 0.950 | {mean:.3f} [" in text
    assert f"| single_samples | 16 | {0.85 / (2 / 3):.3f} [" in text
    assert list(list_verdicts([result])) == [
        "settled (copy_1, mine): team better than single_samples",
        "not settled (copy_1, mine): shared_policy, other_seeds",
        "missing (copy_1, mine): no_messages",
    ]
    assert "- failed and not counted (copy_1, mine): shared_policy-2" in text
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- benchmark results -->\nold\n<!-- /benchmark results -->\nb\n")
    for _ in range(2):
        replace_block(page, "benchmark results", text)
        assert page.read_text() == f"a\n<!-- benchmark results -->\n{text}\n<!-- /benchmark results -->\nb\n"
    page.write_text("a\n")
    with pytest.raises(PreflightError, match="has not one place for the table"):
        replace_block(page, "benchmark results", text)


def test_one_result_of_an_entry_on_a_task(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_result(make_result(), tmp_path / f"{name}.json")
    with pytest.raises(PreflightError, match=r"b.json: has the entry mine on copy_1, as .*a.json has; leave one"):
        read_results([tmp_path])


def test_version_depends_on_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {name: task_version(name) for name in ("copy_1", "signalling", "kuhn", "meet")}
    assert len(set(versions.values())) == 4
    task_version.cache_clear()
    assert task_version("copy_1") == versions["copy_1"]
    monkeypatch.setattr("ippo_cli.benchmark.environments.CELLS", 6)  # in `meet`
    task_version.cache_clear()
    assert task_version("copy_1") == versions["copy_1"]
    assert task_version("meet") != versions["meet"]
    task_version.cache_clear()


def test_groups_of_an_entry_replace_those_of_the_baseline() -> None:
    task = BENCHMARK_TASKS["copy_1"]
    baseline = list_entry_overrides(task, [])
    assert "actor.hidden_size=64" in baseline
    typed = ["actor=full", "actor.model=M", "algorithm.ppo_epochs=2", "seed=3"]
    found = list_entry_overrides(task, typed)
    assert found[-4:] == typed
    removed = {text for text in baseline if text.startswith("actor.")} | {"algorithm.ppo_epochs=4"}
    assert [text for text in baseline if text not in removed] == found[:-4]
    assert set(task.overrides) < set(found)


def test_settings_of_controls_follow_the_task() -> None:
    task = BENCHMARK_TASKS["kuhn"]
    assert "controls.range=[-4,0]" in list_control_settings(task, {})
    found = list_control_settings(task, {"controls.differences": "normal", "seeds": "3"})
    assert [text.partition("=")[0] for text in found] == ["controls.seeds", "controls.arms", "controls.differences"]
    assert found[0] == "controls.seeds=3"


def test_nash_conv_is_evaluated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations that a user has made, perhaps of another checkpoint, are not used."""
    run, calls = tmp_path / "team-0", []
    (run / "evaluations").mkdir(parents=True)
    (run / "evaluations" / "exploitability-step_1.json").write_text('{"exploitability": {"nash_conv": 9.0}}')

    def evaluate(folder: Path, keys: tuple[str, ...], pattern: str) -> dict[str, Any]:
        calls.append(keys)
        return {"exploitability": {"nash_conv": 0.25}}

    monkeypatch.setattr("ippo_cli.benchmark.run.run_evaluation", evaluate)
    assert [read_nash_conv(run), read_nash_conv(run)] == [-0.25, -0.25]
    assert calls == [(f"run={run}", "exploitability=exact")]


@pytest.mark.slow
def test_own_entry_is_trained_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["num_iterations=1", "evaluation.every=1", "rollout.buffer_size=16", "algorithm.mini_batch_size=16"]
    small += ["actor.hidden_size=16", "actor.warm_start_steps=2", "actor.warmup_iterations=0"]
    for name, arms in (("kuhn", "[shared_policy]"), ("copy_1", "[single_samples,single_tokens,other_seeds]")):
        keys = [name, *small, "entry=try", "seeds=2", f"controls.arms={arms}", f"to={name}.json"]
        run_subcommand("run", keys, OWN_KEYS["ippo-bench"], OWN_KEYS["ippo-controls"])
    kuhn, copy = read_results([Path("kuhn.json"), Path("copy_1.json")])[::-1]
    assert [run.arm for run in kuhn.runs] == ["team"] * 2 + ["shared_policy"] * 2
    assert all(run.score is not None and -4 <= run.score < -0.01 for run in kuhn.runs)
    assert [run.episodes for run in copy.runs] == [16] * len(copy.runs)
    assert {run.arm for run in copy.runs} == {"team", "single_samples", "single_tokens"}
    assert [pair.seeds for pair in copy.cross_play] == [[0, 1]]
    assert copy.missing == {}
