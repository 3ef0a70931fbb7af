"""Diagnoses of recorded runs: each failing run has the right one, no healthy run has any."""

from __future__ import annotations

import pytest
from recorded_runs import read_runs, run_names

from ippo_cli.config.text import text_width
from ippo_cli.diagnosis.diagnose import diagnose
from ippo_cli.diagnosis.finding import Finding
from ippo_cli.diagnosis.registry import BY_NAME, CONDITIONS
from ippo_cli.diagnosis.report import format_diagnosis


@pytest.mark.parametrize("name", run_names("failing"))
def test_failing_run_has_the_right_diagnosis_alone(name: str) -> None:
    run = read_runs("failing")[name]
    diagnosis = diagnose(run.observations)
    assert tuple(diagnosis.findings) == run.expected, format_diagnosis(diagnosis, {}, len(run.observations.rows))
    (finding,) = diagnosis.findings.values()
    assert finding.evidence
    assert finding.overrides
    assert all("=" in override for override in finding.overrides)


@pytest.mark.parametrize("name", run_names("healthy"))
def test_healthy_run_has_no_diagnosis(name: str) -> None:
    diagnosis = diagnose(read_runs("healthy")[name].observations)
    assert diagnosis.findings == {}
    assert len(diagnosis.checked) > len(CONDITIONS) / 2


def test_failing_runs_show_twelve_conditions() -> None:
    runs = [*read_runs("failing").values()]
    assert len({condition for run in runs for condition in run.expected}) == 12
    assert len(run_names("healthy")) == 40


@pytest.mark.parametrize("name", run_names("failing"))
def test_report_fits_the_terminal_and_names_evidence(name: str) -> None:
    run = read_runs("failing")[name]
    diagnosis = diagnose(run.observations)
    text = format_diagnosis(diagnosis, {}, len(run.observations.rows))
    assert max(map(text_width, text.splitlines())) <= 130
    assert BY_NAME[run.expected[0]].title in text.splitlines()[0]
    assert "   evidence\n" in text
    assert "   try\n" in text


def test_causes_come_before_their_consequences() -> None:
    names = [condition.name for condition in CONDITIONS]
    for place, condition in enumerate(CONDITIONS):
        assert set(condition.explains) <= set(names[place + 1 :]), condition.name


def test_a_run_without_iterations_has_no_finding() -> None:
    run = next(iter(read_runs("healthy").values()))
    empty = type(run.observations)(config=run.observations.config, rows=[])
    diagnosis = diagnose(empty)
    assert (diagnosis.findings, diagnosis.checked) == ({}, ())
    assert "no training iteration to examine" in format_diagnosis(diagnosis, {}, 0)


def test_conditions_accept_the_first_iterations() -> None:
    """Every condition works on the first row of every run, in which metrics may be missing."""
    for run in (*read_runs("failing").values(), *read_runs("healthy").values()):
        first = type(run.observations)(config=run.observations.config, rows=run.observations.rows[:1])
        for condition in CONDITIONS:
            outcome = condition.find(first)
            is_allowed = condition.warn or condition.name in run.expected  # one iteration shows some conditions
            assert not isinstance(outcome, Finding) or is_allowed, (run.name, condition.name)
