"""Generates the jobs of a comparison in rounds: seeds of the team and of those arms that are undecided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ippo_cli.config.errors import PreflightError
from ippo_cli.config.text import format_count
from ippo_cli.controls.arms import OTHER_SEEDS, SINGLE_SAMPLES, SINGLE_TOKENS, TEAM, ControlPlan
from ippo_cli.controls.assess import (
    UNDECIDED,
    ArmResult,
    assess_arms,
    cross_play_pairs,
    minimum_seeds,
    run_name,
    token_iterations,
)
from ippo_cli.controls.cross_play import evaluate_cross_play, read_cross_play
from ippo_cli.controls.report import JSON_FILE, write_report
from ippo_cli.controls.runs import Runs, read_runs, run_folder_name
from ippo_cli.runs.folder import print_warning
from ippo_cli.runs.output import print_text
from ippo_cli.sweeps.folder import STOP_FILE, JobRow
from ippo_cli.sweeps.search import FINISHED, IndependentJobs


@dataclass
class ControlSearch(IndependentJobs):
    """A search of `sweeps`: its jobs depend on the scores of earlier rounds, and on nothing that is not in the folder.

    A round has all seeds without which there can be no verdict, later as many as train in parallel.
    """

    plan: ControlPlan
    max_parallel: int
    verdicts: dict[str, str] = field(default_factory=dict)  # that were printed
    failed_pairs: set[tuple[int, int]] = field(default_factory=set)  # seeds; the same command again tries them again

    @property
    def total(self) -> int:
        return self.plan.seeds * (1 + len([arm for arm in self.plan.arms if arm != OTHER_SEEDS]))

    def new_rows(self, folder: Path, rows: Sequence[JobRow]) -> list[JobRow]:
        if any(row.state not in FINISHED for row in rows):
            if not (folder / JSON_FILE).exists():  # records the statistics before the first score
                runs = read_runs(folder, rows)
                write_report(self.plan, folder, assess_arms(self.plan, folder, runs), runs)
            return []
        runs = read_runs(folder, rows)
        self._evaluate_cross_play(folder, runs)
        results = assess_arms(self.plan, folder, runs)
        if rows:
            write_report(self.plan, folder, results, runs)
            self._print_verdicts(results)
        wanted = self._missing_runs(results, runs)
        return [self._row(len(rows) + place, *run, runs) for place, run in enumerate(wanted, start=1)]

    def _missing_runs(self, results: dict[str, ArmResult], runs: Runs) -> list[tuple[str, int]]:
        """The runs of the next round, by seed; runs that earlier seeds lack come first."""
        active = [name for name, result in results.items() if result.verdict == UNDECIDED]
        first, most = self.plan.first_seed, self.plan.seeds
        trained = sum(name == TEAM for name, _ in runs)
        if not active:
            return []
        if not trained:
            trained = min(minimum_seeds(self.plan), most)
        while trained <= most:
            found = [run for seed in range(first, first + trained) for run in self._runs_of_seed(seed, active, runs)]
            if found or trained == most:
                return found
            trained = min(trained + max(self.max_parallel // (1 + len(active)), 1), most)
        return []

    def _runs_of_seed(self, seed: int, active: Sequence[str], runs: Runs) -> Iterator[tuple[str, int]]:
        """The runs of a seed that do not exist yet."""
        names = [TEAM, *(run_name(self.plan, arm, runs) for arm in active if arm != OTHER_SEEDS)]
        if SINGLE_TOKENS in active and seed == self.plan.first_seed:
            names.append(SINGLE_SAMPLES)  # its tokens determine the iterations
        for name in dict.fromkeys(names):
            if name is not None and (name, seed) not in runs:
                yield name, seed

    def _row(self, job: int, name: str, seed: int, runs: Runs) -> JobRow:
        overrides = [*self.plan.overrides_of(name)]
        if name == SINGLE_TOKENS:
            replaced = ("num_iterations=", "num_epochs=")
            overrides = [text for text in overrides if not text.startswith(replaced)]
            overrides += [f"num_iterations={token_iterations(self.plan, runs)}", "num_epochs=null"]
        return JobRow(job=job, overrides=[*overrides, f"seed={seed}"], folder=run_folder_name(name, seed))

    def _evaluate_cross_play(self, folder: Path, runs: Runs) -> None:
        if OTHER_SEEDS not in self.plan.arms or (folder / STOP_FILE).exists():
            return
        for pair in cross_play_pairs(self.plan, runs):
            own = [runs[TEAM, seed] for seed in pair]
            is_known = read_cross_play(folder, pair) is not None or pair in self.failed_pairs
            if is_known or any(run.score is None for run in own):
                continue
            print_text(f"ippo: cross-play of seeds {pair[0]} and {pair[1]}")
            try:
                evaluate_cross_play(folder, pair, (own[0].folder, own[1].folder))
            except PreflightError as error:
                self.failed_pairs.add(pair)
                print_warning(str(error))

    def _print_verdicts(self, results: dict[str, ArmResult]) -> None:
        for name, result in results.items():
            if result.verdict != UNDECIDED and self.verdicts.get(name) != result.verdict:
                count = format_count(len(result.differences), "pair of seeds" if name == OTHER_SEEDS else "seed")
                bounds = f"[{result.lower[-1]:.3f}, {result.upper[-1]:.3f}]"
                print_text(f"ippo: {name}: {result.verdict} after {count}, mean difference in {bounds}")
                self.verdicts[name] = result.verdict
