"""`ippo-report RUN...`: write one HTML page about runs, with curves, sampled episodes and critics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ippo_cli.cli.command_keys import OWN_KEYS
from ippo_cli.cli.entry import run_command
from ippo_cli.cli.help import REPORT_HELP
from ippo_cli.runs.output import ignore_closed_output, print_text

if TYPE_CHECKING:
    from ippo_cli.report.write import ReportOptions

KEYS = ("to", "title")
FLAGS = ("--png", "--csv", "--markdown", "--latex")


def main() -> NoReturn:
    """Entry point."""
    run_command(
        "ippo-report",
        REPORT_HELP,
        write_page,
        needs_arguments=True,
        command_keys=OWN_KEYS["ippo-report"],
        takes_overrides=False,
    )


def write_page(argv: Sequence[str]) -> None:
    """Write the page of the runs, and the files that flags ask for."""
    from ippo_cli.report.write import collect_runs, default_target, write_report
    from ippo_cli.runs.folder import display_path, print_warning
    from ippo_cli.runs.missing_parts import find_missing_parts

    folders, values, options = _parse_arguments(argv)
    ignore_closed_output("the report")
    runs = collect_runs(folders)
    for run in runs:
        for text in find_missing_parts(run):
            print_warning(f"{display_path(run.folder)} is incomplete: {text}")
    target = _target_file(values["to"], default_target(runs)) if "to" in values else default_target(runs)
    for file in write_report(runs, target, values.get("title"), options):
        print_text(f"{display_path(file)}  ({file.stat().st_size / 1e6:.1f} MB)")


def _parse_arguments(argv: Sequence[str]) -> tuple[list[Path], dict[str, str], ReportOptions]:
    """Folders of runs, values by key, and flags. Raises `ConfigError`."""
    from ippo_cli.config.errors import ConfigError, combine_errors
    from ippo_cli.config.text import closest_hint
    from ippo_cli.report.picture import can_draw
    from ippo_cli.report.write import ReportOptions

    folders = [text for text in argv if not text.startswith("-") and ("=" not in text or Path(text).is_dir())]
    flags = {text for text in argv if text.startswith("-")}
    values: dict[str, str] = {}
    errors: list[ConfigError] = []
    for text in argv:
        if text in folders or text in FLAGS:
            continue
        key, _, value = text.partition("=")
        if key not in KEYS or not value:
            rule = f"is not an option of ippo-report{closest_hint(key, (*KEYS, *FLAGS))}"
            errors.append(ConfigError(text, rule, f"use to=FILE, title=TEXT, {', '.join(FLAGS)}"))
        values[key] = value
    remedy = "use a run's folder, or a folder of runs or of a sweep"
    missing = [text for text in folders if not Path(text).is_dir()]
    errors += [ConfigError(text, "is not a folder", remedy) for text in missing]
    if not folders:
        errors.append(ConfigError("RUN", "is missing", remedy))
    if errors:
        raise combine_errors(errors)
    if "--png" in flags and not can_draw():
        raise ConfigError("--png", "needs matplotlib", "pip install 'ippo-cli[bench]', or leave out --png")
    return [Path(text) for text in folders], values, ReportOptions(**{flag[2:]: flag in flags for flag in FLAGS})


def _target_file(text: str, default: Path) -> Path:
    """The file of `to=`; in a folder, the default name."""
    path = Path(text).absolute()
    return path / default.name if path.is_dir() or text.endswith("/") else path


if __name__ == "__main__":
    main()
