"""The benchmark of algorithms: table, pictures, and reuse of finished runs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench" / "algorithms.py"
sys.path.insert(0, str(SCRIPT.parent))

import algorithms  # noqa: E402

Bench = Callable[..., int]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Function that runs the benchmark in the test's folder and returns its exit code."""
    common = ["--quick", "--tasks", "probe_constant", "--output", str(tmp_path / "out"), "--docs", str(tmp_path)]

    def run_benchmark(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *common, *arguments])
        return algorithms.main()

    return run_benchmark


@pytest.mark.slow
def test_benchmark_writes_table_and_pictures_and_reuses_runs(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "results.md"
    page.write_text("# Mine\n\n<!-- learning table -->\nold\n<!-- end of learning table -->\n\nthe rest\n")
    assert bench("--algorithms", "ippo", "ppo/value_head", "--seeds", "3") == 0
    results = json.loads((tmp_path / "data/learning.json").read_text())
    assert [(row["variant"], row["seed"], row["error"]) for row in results] == [
        ("ippo/separate", 3, None),
        ("ppo/value_head", 3, None),
    ]
    for row in results:
        scores = [point["score"] for point in row["curve"]]
        assert [point["samples"] for point in row["curve"]] == [0, 256, 512, 768]
        assert (scores[0], scores[-1]) == (row["first"], row["last"])
        assert row["wall_seconds"] > row["curve"][-1]["seconds"] > 0
    text = page.read_text()
    assert text.startswith("# Mine\n")
    assert text.endswith("\nthe rest\n")
    assert "old" not in text
    first, last = results[1]["first"], results[1]["last"]
    assert f"| [`ppo/value_head`](pictures/learning-ppo-value_head.svg) | {first:.2f} -> {last:.2f}, " in text
    for name in ("ippo-separate", "ppo-value_head"):
        assert "<svg" in (tmp_path / f"pictures/learning-{name}.svg").read_text()

    assert bench("--algorithms", "ippo", "ppo/value_head", "--seeds", "3") == 0
    assert "0 runs to do" in capsys.readouterr().out
    (tmp_path / "data/learning.json").unlink()
    runs = sorted((tmp_path / "out/runs").glob("*/*/run.json"))
    changed = runs[0].with_name("config.yaml")  # as after a change of conf/
    changed.write_text(changed.read_text().replace("gae_lambda: 0.95", "gae_lambda: 0.5"))
    assert bench("--algorithms", "ippo", "ppo/value_head", "--seeds", "3") == 0
    new = set((tmp_path / "out/runs").glob("*/*/run.json")) - set(runs)
    assert [run.parents[1] for run in new] == [runs[0].parents[1]]


def test_unknown_algorithm_is_rejected(bench: Bench) -> None:
    with pytest.raises(SystemExit, match="no algorithm is named nope"):
        bench("--algorithms", "nope")


def test_unsupported_algorithm_is_skipped(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"learning\.json has no runs; the table remains"):
        bench("--algorithms", "hacpo", "--seeds", "3")
    assert "skipped: hacpo/none probe_constant: " in capsys.readouterr().out


def test_score_after_interpolates_evaluations() -> None:
    from learning import Outcome, Point, score_after

    found = ((0.0, 0.0, True), (1.0, 0.9, False), (2.0, 0.4, True), (4.0, 1.0, True))
    curve = [Point(samples=0, seconds=seconds, score=score, held_out=held_out) for seconds, score, held_out in found]
    result = Outcome(task="t", variant="a/c", seed=0, overrides=(), curve=curve)
    assert [score_after(result, seconds) for seconds in (0.0, 1.0, 2.0, 3.0, 9.0)] == pytest.approx(
        [0.0, 0.2, 0.4, 0.7, 1.0]
    )


def test_equal_time_is_that_of_the_fastest_algorithm() -> None:
    from learning import Outcome, Point, tables

    def make_outcome(variant: str, seconds: float) -> Outcome:
        curve = [
            Point(samples=0, seconds=0.0, score=0.0, held_out=True),
            Point(samples=8, seconds=seconds, score=1.0, held_out=True),
        ]
        return Outcome(task="t", variant=variant, seed=0, overrides=(), last=1.0, wall_seconds=seconds, curve=curve)

    text = tables([make_outcome("ippo/separate", 20.0), make_outcome("comlrl_iac/separate", 40.0)], (), ())
    assert "| task | seconds | `ippo/separate` | `comlrl_iac/separate` |" in text
    assert "| `t` | 20 | 1.00 | 0.50 |" in text
    assert "at equal time" not in tables([make_outcome("ippo/separate", 20.0)], (), ())


def test_curves_are_in_processor_time() -> None:
    from learning import Outcome, Point, convert_to_processor_time

    curve = [Point(samples=8, seconds=20.0, score=1.0, held_out=True)]
    run = Outcome(task="t", variant="a/c", seed=0, overrides=(), wall_seconds=30.0, cpu_seconds=15.0, curve=curve)
    assert convert_to_processor_time(run).curve[0].seconds == 10.0
    run.cpu_seconds = 0.0  # unknown
    assert convert_to_processor_time(run).curve[0].seconds == 20.0


def test_failed_training_is_in_its_table_cell() -> None:
    from learning import Outcome, tables

    failed = Outcome(task="t", variant="a/c", seed=0, overrides=(), error="exit code 10")
    assert "| [`a/c`](pictures/learning-a-c.svg) | 1 failed |" in tables([failed], (), ())


def test_embedded_job_has_its_own_picture(tmp_path: Path) -> None:
    from curves import draw
    from learning import EMBEDDED, Outcome, Point

    curve = [Point(samples=512 * n, seconds=float(n), score=0.4 + 0.1 * n, held_out=n % 2 == 0) for n in range(5)]
    results = [
        Outcome(task=task, variant=variant, seed=seed, overrides=(), curve=curve)
        for task, variant in (EMBEDDED, ("probe_grid", EMBEDDED[1]))
        for seed in (0, 7)
    ]
    assert tmp_path / "embedded.svg" in draw(results, tmp_path)
    assert "seed=7" in (tmp_path / "embedded.svg").read_text()
    assert tmp_path / "embedded.svg" not in draw(results[2:], tmp_path)


def test_trials_are_not_recorded_in_the_documents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def parse(*arguments: str) -> Path:
        monkeypatch.setattr(sys, "argv", ["bench", "--output", str(tmp_path), *arguments])
        return algorithms.with_common_arguments(argparse.ArgumentParser(), folder="x", page="x.md").docs

    assert parse() == algorithms.ROOT / "docs"
    assert parse("--quick") == tmp_path
    assert parse("--quick", "--docs", str(tmp_path / "docs")) == tmp_path / "docs"
