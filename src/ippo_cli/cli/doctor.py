"""`ippo-doctor`: examine this machine, or diagnose a run from its metrics, samples and configuration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ippo_cli.cli.command_keys import OWN_KEYS
from ippo_cli.cli.entry import run_command
from ippo_cli.cli.help import DOCTOR_HELP
from ippo_cli.runs.output import ignore_closed_output, print_text

if TYPE_CHECKING:
    from ippo_cli.diagnosis.report import Failure
    from ippo_cli.runs.records import RunRecord

JSON_FLAG = "--json"
OPTIONS = ("json", "network", "output_dir")
DEFAULT_OUTPUT_DIR = "outputs"


def main() -> NoReturn:
    """Entry point."""
    run_command("ippo-doctor", DOCTOR_HELP, report, command_keys=OWN_KEYS["ippo-doctor"], takes_overrides=False)


def report(argv: Sequence[str]) -> None:
    """Print the report of the machine, or of the run that an argument names."""
    from ippo_cli.cli.runs import parse_arguments
    from ippo_cli.compose.run_folders import find_run
    from ippo_cli.config.commands import parse_path
    from ippo_cli.config.errors import ConfigError

    def check_run(folder: str) -> None:
        find_run(folder, key="")

    typed = ["json=true" if text == JSON_FLAG else text for text in argv]
    arguments = parse_arguments(typed, OPTIONS, check_folder=check_run)
    as_json, network = arguments.flag("json"), arguments.flag("network")
    ignore_closed_output("the report")
    if not arguments.folders:
        output_dir = parse_path(arguments.options.get("output_dir", DEFAULT_OUTPUT_DIR))
        report_machine(output_dir, network=network, as_json=as_json)
        return
    if len(arguments.folders) > 1:
        raise ConfigError(" ".join(argv), "names several runs", "use one run: ippo-doctor outputs/NAME/RUN")
    if unused := [key for key in ("network", "output_dir") if key in arguments.options]:
        raise ConfigError(
            f"{unused[0]}={arguments.options[unused[0]]}", "has no effect on the diagnosis of a run", "remove it"
        )
    report_run(arguments.folders[0], as_json=as_json)


def report_machine(output_dir: Path, *, network: bool, as_json: bool) -> None:
    """Print facts and problems of this machine."""
    from ippo_cli.diagnosis.machine.report import examine_machine, format_machine, to_json_data

    facts, problems = examine_machine(output_dir, network=network)
    print_text(json.dumps(to_json_data(facts, problems), indent=1) if as_json else format_machine(facts, problems))


def report_run(path: Path, *, as_json: bool) -> None:
    """Print the diagnosis of a run. Raises `ConfigError` if there is none at the path."""
    from ippo_cli.compose.load import build_config
    from ippo_cli.compose.resume import saved_config
    from ippo_cli.compose.run_folders import find_run
    from ippo_cli.config.text import format_count
    from ippo_cli.diagnosis.diagnose import diagnose
    from ippo_cli.diagnosis.observe import observe_run
    from ippo_cli.diagnosis.report import format_diagnosis, to_json_data
    from ippo_cli.runs.folder import display_path, relative_path
    from ippo_cli.runs.missing_parts import find_missing_parts
    from ippo_cli.runs.records import RunRecord

    folder, _ = find_run(str(path), key="")
    record = RunRecord(folder)
    warnings = {str(name): str(text) for name, text in (record.state.get("warnings") or {}).items()}
    observations = observe_run(record, build_config(saved_config(folder)))
    diagnosis, iterations, missing = diagnose(observations), len(observations.rows), find_missing_parts(record)
    if as_json:
        data = {"run": relative_path(folder), "state": record.status, "error": record.state.get("error")}
        data["damaged_line"] = record.damaged_line  # of metrics.jsonl
        data["missing"] = missing
        print_text(json.dumps(data | to_json_data(diagnosis, warnings, iterations), indent=1))
        return
    recorded = int(record.state.get("iterations") or 0)
    examined = f", of which {iterations} can be examined" if iterations < recorded and missing else ""
    trained = format_count(recorded if examined else iterations, "iteration")
    print_text(f"{display_path(folder)}: {record.status} after {trained}{examined}")
    for text in missing:
        print_text(f"incomplete: {text}")
    print_text(format_diagnosis(diagnosis, warnings, iterations, _find_failure(record)))


def _find_failure(record: RunRecord) -> Failure | None:
    """The recorded error of a failed run; None for other runs."""
    from ippo_cli.config.secrets import redact_text
    from ippo_cli.diagnosis.report import Failure
    from ippo_cli.runs.folder import display_path, list_checkpoints, resume_command

    error = record.state.get("error")
    if record.state["state"] != "failed" or not error:
        return None
    files = sorted((record.folder / "errors").glob("*.txt"))
    is_resumable = bool(list_checkpoints(record.folder / "checkpoints"))
    again = redact_text(record.commands[0]) if record.commands else "the command of the run"
    return Failure(
        error=str(error),
        command=resume_command(record.folder) if is_resumable else again,
        traceback=display_path(files[0]) if files else None,
    )


if __name__ == "__main__":
    main()
