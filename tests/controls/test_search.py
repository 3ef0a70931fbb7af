"""Rounds, verdicts and reports of a comparison, from folders of runs with given scores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ippo_cli.config.errors import ConfigError
from ippo_cli.controls.arms import ControlPlan
from ippo_cli.controls.assess import assess_arms, check_scores, difference_bounds, estimate_more, minimum_seeds
from ippo_cli.controls.compare_arms import ControlSearch
from ippo_cli.controls.report import check_same_comparison, format_terminal, write_report
from ippo_cli.controls.runs import Runs, read_runs
from ippo_cli.controls.settings import Differences
from ippo_cli.sweeps.folder import JobRow, set_state

PLAN = ControlPlan(
    team=("task=signalling",),
    arms={"shared_policy": ("task=signalling", "team=shared_policy"), "no_messages": ("task=signalling", "x=1")},
    refused={"single_samples": "names no task"},
    of_sweep=(),
    search_paths=(),
    metric="sampled/score",
    score_range=(0.0, 1.0),
    differences=Differences.bounded,
    first_seed=3,
    seeds=12,
    alpha=0.1,
)
TOKENS = {"team": 80, "single_samples": 160}  # of an iteration; 40 for other runs


class Comparison:
    """A folder in which runs finish at once with given scores; None: a failed run."""

    def __init__(self, folder: Path, plan: ControlPlan, scores: Mapping[str, float | None]) -> None:
        self.folder, self.plan, self.scores = folder, plan, scores
        self.search = ControlSearch(plan, max_parallel=1)
        self.rows: list[JobRow] = []
        self.rounds: list[list[str]] = []

    def run_round(self) -> list[str]:
        new = self.search.new_rows(self.folder, self.rows)
        for row in new:
            name, _, _ = row.folder.rpartition("-")
            self.finish(row, self.scores.get(row.folder, self.scores[name]))
        self.rows += new
        self.rounds.append([row.folder for row in new])
        return self.rounds[-1]

    def run(self) -> Runs:
        while self.run_round():
            pass
        return read_runs(self.folder, self.rows)

    def finish(self, row: JobRow, score: float | None) -> None:
        typed = [text.partition("=")[2] for text in row.overrides if text.startswith("num_iterations=")]
        iterations = int(typed[0]) if typed and typed[0] != "null" else 4
        state = "failed" if score is None else "done"
        set_state(row, state, 0, None if score is not None else "non-finite loss")
        known = {"state": state, "iterations": iterations, "evaluation": {"last": {"iteration": 4, "score": score}}}
        (self.folder / row.folder).mkdir()
        (self.folder / row.folder / "run.json").write_text(json.dumps(known))
        rate = TOKENS.get(row.folder.rpartition("-")[0], 40) / 0.8
        metrics = [{"iteration": 0}] + [
            {"iteration": number, "perf/tokens_per_second": rate, "time/rollout": 0.8}
            for number in range(1, iterations + 1)
        ]
        lines = "".join(f"{json.dumps(one)}\n" for one in metrics)
        (self.folder / row.folder / "metrics.jsonl").write_text(lines)


def test_arm_ends_as_soon_as_its_answer_is_known(tmp_path: Path) -> None:
    comparison = Comparison(tmp_path, PLAN, {"team": 0.9, "shared_policy": 0.85, "no_messages": 0.1})
    runs = comparison.run()
    least = minimum_seeds(PLAN)
    first = [f"{name}-{seed}" for seed in range(3, 3 + least) for name in ("team", "shared_policy", "no_messages")]
    assert comparison.rounds[0] == first, "there is no verdict before"
    results = assess_arms(PLAN, tmp_path, runs)
    decided = len(results["no_messages"].seeds)
    assert least <= decided < 12
    assert results["no_messages"].lower[decided - 2] <= 0 < results["no_messages"].lower[-1]
    assert (results["no_messages"].verdict, results["no_messages"].more) == ("team better", None)
    assert comparison.rounds[-2] == ["team-14", "shared_policy-14"], "one seed a round, and the arm is over"
    assert results["shared_policy"].verdict == "undecided"
    assert results["shared_policy"].mean == pytest.approx(0.05)
    assert results["shared_policy"].more is not None
    more = results["shared_policy"].more
    assert results["shared_policy"].more_tokens == more * 4 * (80 + 40)
    assert sum(run.tokens for run in runs.values() if run.name == "team") == 12 * 4 * 80


def test_jobs_of_an_unfinished_round_come_first(tmp_path: Path) -> None:
    comparison = Comparison(tmp_path, PLAN, {"team": 0.9, "shared_policy": 0.85, "no_messages": 0.1})
    comparison.run_round()
    comparison.rows[-1].state = "waiting"
    assert comparison.run_round() == []
    assert (tmp_path / "controls.json").is_file(), "the statistics are recorded before the first score"
    comparison.rows[-1].state = "done"
    assert comparison.run_round() != []


def test_parallel_jobs_take_several_seeds_a_round(tmp_path: Path) -> None:
    comparison = Comparison(tmp_path, PLAN, {"team": 0.9, "shared_policy": 0.9, "no_messages": 0.9})
    comparison.search.max_parallel = 7
    comparison.run()
    assert len(comparison.rounds[1]) == 6


def test_failed_runs_are_not_counted(tmp_path: Path) -> None:
    scores = {"team": 0.9, "shared_policy": 0.9, "no_messages": 0.1, "no_messages-4": None}
    runs = Comparison(tmp_path, PLAN, scores).run()
    result = assess_arms(PLAN, tmp_path, runs)["no_messages"]
    assert (result.failed, 4 in result.seeds, result.verdict) == ([4], False, "team better")
    text = format_terminal(PLAN, assess_arms(PLAN, tmp_path, runs), runs)
    assert "no_messages: no score for seeds 4" in text
    assert "no_messages-4 failed: non-finite loss" in text


def test_single_agent_gets_as_many_tokens(tmp_path: Path) -> None:
    single = ("task=solo", "num_epochs=2", "num_iterations=null")
    plan = replace(PLAN, arms={"single_samples": single, "single_tokens": single}, seeds=5)
    comparison = Comparison(tmp_path, plan, {"team": 0.9, "single_samples": 0.5, "single_tokens": 0.5})
    comparison.run()
    [row] = [row for row in comparison.rows if row.folder == "single_tokens-3"]
    assert row.overrides == ["task=solo", "num_iterations=2", "num_epochs=null", "seed=3"]
    assert [len(names) for names in comparison.rounds] == [10, 5, 0], "after the tokens of the first seed are known"


def test_equal_tokens_train_no_second_single_agent(tmp_path: Path) -> None:
    plan = replace(PLAN, arms={"single_samples": ("a=1",), "single_tokens": ("a=1",)}, seeds=5)
    comparison = Comparison(tmp_path, plan, {"team": 0.9, "single_samples": 0.5})
    TOKENS["single_samples"], before = TOKENS["team"], TOKENS["single_samples"]
    try:
        runs = comparison.run()
    finally:
        TOKENS["single_samples"] = before
    results = assess_arms(plan, tmp_path, runs)
    assert results["single_tokens"].differences == results["single_samples"].differences
    assert "single_tokens has the runs of single_samples" in format_terminal(plan, results, runs)


def test_cross_play_counts_pairs_of_seeds(tmp_path: Path) -> None:
    plan = replace(PLAN, arms={"other_seeds": PLAN.team}, alpha=0.2)
    (tmp_path / "cross_play").mkdir()
    for seed in range(3, 15, 2):
        scores = {"self_play": 1.0, "cross_play": 0.0}
        (tmp_path / "cross_play" / f"{seed}-{seed + 1}.json").write_text(json.dumps(scores))
    comparison = Comparison(tmp_path, plan, {"team": 1.0})
    runs = comparison.run()
    result = assess_arms(plan, tmp_path, runs)["other_seeds"]
    assert result.verdict == "team better"
    assert result.seeds == [3, 5, 7, 9, 11][: len(result.seeds)]
    assert len(runs) == 2 * minimum_seeds(plan), "two runs for each difference"


def test_score_out_of_range_is_an_error(tmp_path: Path) -> None:
    comparison = Comparison(tmp_path, PLAN, {"team": 1.2, "shared_policy": 0.9, "no_messages": 0.9})
    comparison.run_round()
    with pytest.raises(ConfigError, match=r"^controls.range=\[0,1\] does not contain the score 1.2 of team-3"):
        comparison.run_round()
    comparison.search.plan = replace(PLAN, score_range=(0.0, 2.0))
    assert comparison.run_round() != []


def test_rounding_of_scores_is_within_the_range() -> None:
    """The mean of four float32 scores of 0.3 is 0.30000001192."""
    plan, rounded = replace(PLAN, score_range=(0.0, 0.3)), float(torch.full([4], 0.3).mean())
    check_scores(plan, {"team-3": [rounded, -1e-9]})
    for score in (0.300001, -1e-6):
        with pytest.raises(ConfigError, match=r"range=\[0,0.3\] does not contain"):
            check_scores(plan, {"team-3": [score]})
    largest, larger = (difference_bounds([top] * 9, plan.differences, (0.0, 0.3), 0.1) for top in (0.3, rounded))
    assert larger == largest


def test_statistics_are_fixed_before_the_first_seed(tmp_path: Path) -> None:
    write_report(PLAN, tmp_path, assess_arms(PLAN, tmp_path, {}), {})
    check_same_comparison(replace(PLAN, seeds=30, score_range=(-1.0, 1.0)), tmp_path)
    for changed in (
        replace(PLAN, alpha=0.2),
        replace(PLAN, arms={"no_messages": PLAN.arms["no_messages"]}),
        replace(PLAN, score_range=(0.5, 1)),
    ):
        with pytest.raises(ConfigError, match="before the first seed"):
            check_same_comparison(changed, tmp_path)


def test_folder_keeps_the_runs_of_one_team(tmp_path: Path) -> None:
    write_report(PLAN, tmp_path, assess_arms(PLAN, tmp_path, {}), {})
    for changed in (replace(PLAN, team=("task=relay",)), replace(PLAN, arms=dict.fromkeys(PLAN.arms, ("y=2",)))):
        with pytest.raises(ConfigError, match=r"with other overrides: .*another folder"):
            check_same_comparison(changed, tmp_path)


@pytest.mark.parametrize("kind", Differences)
def test_estimate_of_further_seeds(kind: Differences) -> None:
    plan = replace(PLAN, differences=kind)
    least = minimum_seeds(plan)
    assert least == {"bounded": 6, "normal": 3}[kind.value]
    assert estimate_more([], plan) == least
    assert estimate_more([1.0, 1.0], plan) == least - 2
    assert estimate_more([0.5, -0.5], plan) is None
    few, many = estimate_more([0.3, 0.4] * 2, plan), estimate_more([0.3, -0.1] * 2, plan)
    assert few is not None
    assert many is not None
    assert few < many


def test_normal_differences_need_no_range(tmp_path: Path) -> None:
    plan = replace(PLAN, differences=Differences.normal, score_range=None)
    scores = {"team": 9.0, "shared_policy": 9.0, "no_messages": 1.0} | {f"no_messages-{seed}": seed for seed in (4, 6)}
    comparison = Comparison(tmp_path, plan, scores)
    results = assess_arms(plan, tmp_path, comparison.run())
    assert results["no_messages"].verdict == "team better"
    assert len(results["no_messages"].seeds) < minimum_seeds(PLAN)
    check_same_comparison(plan, tmp_path)
    with pytest.raises(ConfigError, match=r"controls.differences=bounded was normal"):
        check_same_comparison(PLAN, tmp_path)
