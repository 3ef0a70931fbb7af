"""The report of a run's diagnosis: finding, evidence, what to try, and what was checked; as text or as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ippo_cli.config.text import escape_controls, format_count, truncate_text
from ippo_cli.diagnosis.diagnose import Diagnosis
from ippo_cli.diagnosis.finding import Certainty, Evidence, Finding
from ippo_cli.diagnosis.machine.report import redact_data
from ippo_cli.diagnosis.registry import BY_NAME

WIDTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The error that ended a run, the file of its traceback, and the command that trains again."""

    error: str
    command: str
    traceback: str | None = None


DOUBTS = {Certainty.likely: " (likely; other causes are possible)", Certainty.possible: " (possible, uncertain)"}
NO_FINDING = "no problem found"


def format_diagnosis(
    diagnosis: Diagnosis, warnings: Mapping[str, str], iterations: int, failure: Failure | None = None
) -> str:
    """How the run failed, the findings in the order of causes, warnings that the run printed, and what was checked."""
    lines = _failure_lines(failure, iterations) if failure is not None else []
    for number, (name, finding) in enumerate(diagnosis.findings.items(), start=1):
        lines += [*_finding_lines(number, name, finding, diagnosis.consequences.get(name, ())), ""]
    if not diagnosis.findings and iterations:
        lines += [f"{NO_FINDING} in {format_count(iterations, 'iteration')}", ""]
    elif not iterations and failure is None:
        lines += ["no training iteration to examine", ""]
    others = {name: text for name, text in warnings.items() if not _is_covered(name, diagnosis)}
    if others:
        lines.append("the run printed these warnings")
        lines += [line for text in others.values() for line in _wrap(f"- {text}", "  ")]
        lines.append("")
    lines += _wrap(f"checked: {', '.join(BY_NAME[name].title for name in diagnosis.checked) or 'nothing'}", "  ")
    if diagnosis.unchecked and iterations:
        lines.append("not checked:")
        lines += [
            line
            for name, reason in diagnosis.unchecked.items()
            for line in _wrap(f"- {BY_NAME[name].title}: {reason}", "  ")
        ]
    return "\n".join(lines)


def _failure_lines(failure: Failure, iterations: int) -> list[str]:
    when = f"after {format_count(iterations, 'iteration')}" if iterations else "before its first iteration ended"
    lines = _wrap(f"the run failed {when}: {failure.error}", "  ")
    advice = [
        "remove the cause that the message names, then use the command below",
        *([f"the traceback is in {failure.traceback}"] if failure.traceback else []),
    ]
    return [*lines, "  try", *_wrap("; ".join(advice), "    ", first="    "), f"    {failure.command}", ""]


def _is_covered(name: str, diagnosis: Diagnosis) -> bool:
    """Whether the diagnosis replaces a warning: it found the condition, or examined all iterations for it."""
    if name not in BY_NAME or not diagnosis.checked:
        return False
    listed = {*diagnosis.findings, *(other for others in diagnosis.consequences.values() for other in others)}
    return name in listed or not BY_NAME[name].reads_last_rows


def _finding_lines(number: int, name: str, finding: Finding, consequences: tuple[str, ...]) -> list[str]:
    head = f"{number}. {BY_NAME[name].title}{DOUBTS.get(finding.certainty, '')}"
    lines = [head, *_wrap(finding.text, "   ", first="   "), "   evidence"]
    lines += [f"     {_evidence_text(part)}" for part in finding.evidence]
    lines.append("   try")
    lines += _wrap(finding.advice, "     ", first="     ")
    lines += [f"     {redact_data(escape_controls(override))}" for override in finding.overrides]
    if consequences:
        lines += _wrap(
            f"follows from it: {', '.join(BY_NAME[other].title for other in consequences)}", "   ", first="   "
        )
    return lines


def _evidence_text(evidence: Evidence) -> str:
    where = f"  iterations {evidence.iterations[0]} to {evidence.iterations[1]}" if evidence.iterations else ""
    return truncate_text(escape_controls(f"{evidence.name}: {evidence.values}"), WIDTH) + where


def _wrap(text: str, indent: str, first: str = "") -> list[str]:
    return textwrap.wrap(
        escape_controls(redact_data(text)),
        WIDTH,
        initial_indent=first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def to_json_data(diagnosis: Diagnosis, warnings: Mapping[str, str], iterations: int) -> dict[str, Any]:
    """The diagnosis for `json.dumps`, without secrets."""
    return redact_data(
        {
            "iterations": iterations,
            "findings": [
                {
                    "condition": name,
                    "title": BY_NAME[name].title,
                    "certainty": finding.certainty.value,
                    "agents": list(finding.agents),
                    "finding": finding.text,
                    "advice": finding.advice,
                    "try": list(finding.overrides),
                    "evidence": [
                        {"name": part.name, "values": part.values, "iterations": part.iterations}
                        for part in finding.evidence
                    ],
                    "consequences": list(diagnosis.consequences.get(name, ())),
                }
                for name, finding in diagnosis.findings.items()
            ],
            "checked": list(diagnosis.checked),
            "not_checked": diagnosis.unchecked,
            "warnings": dict(warnings),
        }
    )
