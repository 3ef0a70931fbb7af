"""The report of a machine: problems first, then facts; as text or as JSON without secrets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ippo_cli.config.secrets import redact_text
from ippo_cli.config.text import escape_controls, format_bytes, format_table
from ippo_cli.diagnosis.machine.hardware import hardware_facts, hardware_problems
from ippo_cli.diagnosis.machine.problem import Facts, Problem
from ippo_cli.diagnosis.machine.software import software_facts, software_problems

BYTE_FACTS = {("memory", "machine"), ("memory", "limit"), ("memory", "available"), ("disk", "free"), ("disk", "total")}
WIDTH = 120


def examine_machine(output_dir: Path, *, network: bool) -> tuple[dict[str, Facts], list[Problem]]:
    """Facts by section, and problems, severe ones first."""
    facts = hardware_facts(output_dir) | software_facts(network=network)
    problems = [*hardware_problems(facts), *software_problems(facts)]
    return facts, sorted(problems, key=lambda problem: not problem.is_severe)


def to_json_data(facts: dict[str, Facts], problems: Sequence[Problem]) -> dict[str, Any]:
    """The report for `json.dumps`; the home folder and secrets are replaced."""
    data = {
        "problems": [{"problem": one.text, "remedy": one.remedy, "severe": one.is_severe} for one in problems],
        "machine": facts,
    }
    return redact_data(data)


def redact_data(value: Any) -> Any:
    """Replace secrets and the home folder in all texts of plain data."""
    if isinstance(value, dict):
        return {str(key): redact_data(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [redact_data(part) for part in value]
    if isinstance(value, str):
        home = os.path.expanduser("~")
        text = redact_text(value)
        return text.replace(home, "~") if len(home) > 1 else text
    return value


def format_machine(facts: dict[str, Facts], problems: Sequence[Problem]) -> str:
    """Problems with what to do, then one line per section."""
    data = redact_data(facts)
    lines = [
        f"{'problem' if problem.is_severe else 'note'}: {escape_controls(redact_data(problem.text))}\n"
        f"  {escape_controls(redact_data(problem.remedy))}"
        for problem in problems
    ] or ["no problem found"]
    rows = [[name, escape_controls(_section_text(name, section))] for name, section in data.items()]
    return "\n".join([*lines, "", *format_table(rows, width=WIDTH)])


def _section_text(name: str, section: Facts) -> str:
    """The facts of a section in a line."""
    if name == "packages":
        return ", ".join(f"{package} {entry['installed'] or 'missing'}" for package, entry in section.items())
    if name == "extras":
        ready = [extra for extra, missing in section.items() if not missing]
        absent = [f"{extra} ({', '.join(missing)})" for extra, missing in section.items() if missing]
        return f"installed: {', '.join(ready) or 'none'}; missing: {', '.join(absent) or 'none'}"
    if name == "deepspeed" and "ops" in section:
        by_state: dict[str, list[str]] = {}
        for op, state in section["ops"].items():
            by_state.setdefault(state, []).append(op)
        return f"{section['version']}; " + "; ".join(f"{state}: {' '.join(ops)}" for state, ops in by_state.items())
    return ", ".join(f"{key} {_value_text((name, key), value)}" for key, value in section.items())


def _value_text(place: tuple[str, str], value: Any) -> str:
    if place in BYTE_FACTS:
        return format_bytes(value)
    if isinstance(value, list):
        return " | ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return " ".join(f"{key}={part}" for key, part in value.items()) or "none"
    return {None: "none", True: "yes", False: "no"}.get(value, str(value)) if not isinstance(value, str) else value
