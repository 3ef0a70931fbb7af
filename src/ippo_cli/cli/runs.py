"""`ippo-runs`: list, compare, show, remove and clean up the folders of runs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ippo_cli.cli.command_keys import OWN_KEYS, find_close_name, value_errors
from ippo_cli.cli.entry import run_command
from ippo_cli.cli.help import KEYS_FILE, RUNS_HELP
from ippo_cli.config.commands import quote_for_shell
from ippo_cli.runs.output import ignore_closed_output, print_text

if TYPE_CHECKING:
    from ippo_cli.catalog.entries import RunEntry
    from ippo_cli.catalog.filters import Filter
    from ippo_cli.catalog.removal import Removal
    from ippo_cli.config.errors import Check, ConfigError

DEFAULT_FOLDER = "outputs"
DEFAULT_AGE_DAYS = 7.0
LIST_OPTIONS = ("json", "sort")


def main() -> NoReturn:
    """Entry point."""
    argv = sys.argv[1:]
    options = (*LIST_OPTIONS, "metrics", "confirm", "older_than_days")
    filter_keys = {key for key, equals, _ in (text.partition("=") for text in argv) if equals and key not in options}
    run_command(
        "ippo-runs",
        RUNS_HELP,
        run,
        command_keys=(*OWN_KEYS["ippo-runs"], *COMMANDS),
        takes_overrides=False,
        several_keys=filter_keys,  # a run must fit all values
    )


def run(argv: Sequence[str]) -> None:
    """Run the subcommand that the first argument names; without one, list runs."""
    command = COMMANDS.get(argv[0]) if argv and not Path(argv[0]).is_dir() else None
    if command is None:
        _check_subcommand(argv)
        list_command(argv)
    else:
        command(argv[1:])


def _check_subcommand(argv: Sequence[str]) -> None:
    """Raise `ConfigError` for a first argument that is no folder and close to the name of a subcommand."""
    from ippo_cli.config.errors import ConfigError

    word = argv[0] if argv else ""
    if "=" in word or word.startswith("-") or Path(word).exists():
        return
    if word and (close := find_close_name(word, COMMANDS)) is not None:
        command = " ".join(["ippo-runs", close, *map(quote_for_shell, argv[1:])])
        raise ConfigError(word, "is neither a folder nor a command", f"did you mean {command}?")


@dataclass(slots=True)
class Arguments:
    """Folders, options of the command, and all other `key=value` arguments."""

    folders: list[Path] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    filters: list[str] = field(default_factory=list)

    def flag(self, key: str) -> bool:
        """An option that is true or false. Raises `ConfigError`."""
        from ippo_cli.config.errors import ConfigError

        value = self.options.get(key, "false").lower()
        if value not in ("true", "false"):
            raise ConfigError(f"{key}={self.options[key]}", "is neither true nor false", f"use {key}=true")
        return value == "true"


def parse_arguments(
    argv: Sequence[str],
    options: Collection[str],
    *,
    filters: bool = False,
    check_folder: Callable[[str], None] | None = None,
) -> Arguments:
    """Split arguments into folders, options and filters. Raises one `ConfigError` for all mistakes.

    With `filters`, the caller checks the values, together with the filters.
    `check_folder` raises `ConfigError` for a folder that is not what the command needs.
    """
    from ippo_cli.config.commands import parse_path
    from ippo_cli.config.errors import ConfigError, collect_errors, combine_errors
    from ippo_cli.config.text import closest_hint

    parsed = Arguments()
    errors: list[ConfigError] = []
    for text in argv:
        key, equals, value = text.partition("=")
        if text.startswith("-"):
            meant = text.lstrip("-").partition("=")[0].replace("-", "_")
            remedy = f"use {meant}=VALUE" if meant in options else "options are key=value; see --help"
            errors.append(ConfigError(text, "is not an option", remedy))
        elif not equals or Path(text).is_dir():
            parsed.folders.append(parse_path(text).absolute())
        elif key in options:
            parsed.options[key] = value
        elif filters:
            parsed.filters.append(text)
        else:
            hint = closest_hint(key, list(options))
            errors.append(ConfigError(text, f"is not an option of this command{hint}", "see --help"))
    checks: list[Check] = [] if filters else [lambda: value_errors(parsed.options)]
    if check_folder is not None:
        checks += [partial(check_folder, str(folder)) for folder in parsed.folders]
    if errors := collect_errors(checks, errors):
        raise combine_errors(errors)
    return parsed


def list_command(argv: Sequence[str]) -> None:
    """List runs below folders, newest first."""
    from ippo_cli.catalog.entries import list_runs
    from ippo_cli.catalog.filters import select_runs
    from ippo_cli.catalog.format import format_runs
    from ippo_cli.config.errors import collect_errors, combine_errors

    arguments = parse_arguments(argv, LIST_OPTIONS, filters=True)
    known = json.loads(KEYS_FILE.read_text())
    filters: list[Filter] = []
    checks: list[Check] = [partial(_check_filter, text, known, filters) for text in arguments.filters]
    checks += [lambda: value_errors(arguments.options), partial(_check_folders, arguments.folders)]
    if errors := collect_errors(checks):
        raise combine_errors(errors)
    as_json, order = arguments.flag("json"), arguments.options.get("sort", "age")
    folders = arguments.folders or [_default_folder()]
    defaults = {group: next(iter(options)) for group, options in known["groups"].items()}
    entries = sort_runs(select_runs(list_runs(folders), filters, defaults), order)
    if as_json:
        print_text(json.dumps([entry.to_json_data() for entry in entries], indent=1))
    else:
        print_text(format_runs(entries) if entries else _nothing_found(folders, bool(filters)))


def _check_filter(text: str, known: Mapping[str, Any], filters: list[Filter]) -> None:
    """Append a filter. Raises `ConfigError` for one that is not valid, or with a key that is close to another one."""
    from ippo_cli.catalog.filters import parse_filter
    from ippo_cli.config.errors import ConfigError

    one = parse_filter(text)
    keys = ["state", *LIST_OPTIONS, *known["groups"], *known["keys"]]
    inside = any(one.key.startswith(f"{key}.") for key in known["keys"])  # of a mapping, such as task.columns.question
    may_exist = one.key in keys or inside or one.key.startswith("task.agents.")
    if not may_exist and (close := find_close_name(one.key, keys)) is not None:
        raise ConfigError(text, "is not a key", f"did you mean {close}={text.partition('=')[2]}?")
    filters.append(one)


def _check_folders(folders: Sequence[Path]) -> Iterator[ConfigError]:
    """Yield one error for every folder that does not exist; without folders, for the default one."""
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.runs.folder import display_path

    for folder in folders:
        if not folder.is_dir():
            yield ConfigError(display_path(folder), "is not a folder", "use a folder of runs, such as outputs")
    if not folders:
        _default_folder()


def sort_runs(entries: Sequence[RunEntry], order: str) -> list[RunEntry]:
    """Sort runs: newest, best, largest or longest first; by name in alphabetical order. Ties keep their order.

    Runs without the value are last, and so are scores that are NaN or infinite: they are results of a fault.
    """
    if order == "name":
        return sorted(entries, key=lambda entry: (entry.name, str(entry.folder)))
    column = {"age": "started", "score": "last"}.get(order, order)

    def rank(entry: RunEntry) -> tuple[bool, float]:
        value = getattr(entry, column)
        return (True, 0.0) if value is None or not math.isfinite(value) else (False, -value)

    return sorted(entries, key=rank)


def _default_folder() -> Path:
    from ippo_cli.config.errors import ConfigError

    folder = Path(DEFAULT_FOLDER).absolute()
    if not folder.is_dir():
        raise ConfigError(DEFAULT_FOLDER, "is not a folder here", "name the folder of your runs: ippo-runs FOLDER")
    return folder


def _nothing_found(folders: Sequence[Path], has_filters: bool) -> str:
    from ippo_cli.runs.folder import display_path

    fits = " that fit the filters" if has_filters else ""
    return f"no runs{fits} below {' '.join(map(display_path, folders))}"


def compare_command(argv: Sequence[str]) -> None:
    """Compare two or more runs, or all runs below folders."""
    from ippo_cli.catalog.compare import MAIN_METRICS, compare_runs, to_json_data
    from ippo_cli.catalog.entries import list_runs
    from ippo_cli.catalog.format import format_comparison
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.config.text import format_count

    arguments = parse_arguments(argv, ("json", "metrics"))
    as_json = arguments.flag("json")
    entries = [entry for folder in arguments.folders for entry in reversed(list_runs([folder]))]  # oldest first
    entries = list({entry.folder.resolve(): entry for entry in entries}.values())
    if len(entries) < 2:
        typed = " ".join(argv) or "ippo-runs compare"
        raise ConfigError(
            typed, f"names {format_count(len(entries), 'run')}", "name two runs or more, or a folder with several"
        )
    patterns = arguments.options.get("metrics", "").split(",") if "metrics" in arguments.options else MAIN_METRICS
    comparison = compare_runs(entries, patterns)
    print_text(json.dumps(to_json_data(comparison), indent=1) if as_json else format_comparison(comparison))


def show_command(argv: Sequence[str]) -> None:
    """Show the details of one run."""
    from ippo_cli.catalog.entries import describe_run
    from ippo_cli.catalog.format import format_run
    from ippo_cli.compose.run_folders import find_run
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.runs.records import RunRecord

    arguments = parse_arguments(argv, ("json",))
    as_json = arguments.flag("json")
    if len(arguments.folders) != 1:
        raise ConfigError(" ".join(argv) or "RUN", "is not exactly one run", "use ippo-runs show outputs/NAME/RUN")
    entry = describe_run(RunRecord(find_run(str(arguments.folders[0]), key="")[0]))
    if as_json:
        record = entry.record
        details = {"state_file": dict(record.state), "commands": list(record.commands), "config": dict(record.config)}
        print_text(json.dumps(entry.to_json_data() | details, indent=1, default=str))
    else:
        print_text(format_run(entry))


def remove_command(argv: Sequence[str]) -> None:
    """Remove runs, or print what would be removed."""
    from ippo_cli.catalog.removal import plan_removals
    from ippo_cli.config.errors import ConfigError

    arguments = parse_arguments(argv, ("confirm",))
    if not arguments.folders:
        raise ConfigError("RUN", "is missing", "use ippo-runs remove outputs/NAME/RUN")
    confirmed = arguments.flag("confirm")
    _remove(plan_removals(arguments.folders), (), "remove", argv, confirmed=confirmed)


def clean_command(argv: Sequence[str]) -> None:
    """Remove failed runs without a checkpoint and unfinished checkpoints, or print what would be removed."""
    from ippo_cli.catalog.removal import plan_cleaning
    from ippo_cli.config.errors import ConfigError

    arguments = parse_arguments(argv, ("confirm", "older_than_days"))
    confirmed, typed = arguments.flag("confirm"), arguments.options.get("older_than_days", str(DEFAULT_AGE_DAYS))
    try:
        days = float(typed)
    except ValueError:
        days = -1.0
    if not 0 <= days < float("inf"):
        raise ConfigError(f"older_than_days={typed}", "is not a number of days", "use 0 or more, such as 7")
    removals, retained = plan_cleaning(arguments.folders or [_default_folder()], days)
    _remove(removals, retained, "clean", argv, confirmed=confirmed)


def _remove(
    removals: Sequence[Removal], retained: Sequence[Removal], name: str, argv: Sequence[str], *, confirmed: bool
) -> None:
    from ippo_cli.catalog.format import format_removals
    from ippo_cli.catalog.removal import remove
    from ippo_cli.config.commands import shell_command

    if confirmed:
        ignore_closed_output("ippo-runs")
    for removal in removals if confirmed else ():
        remove(removal)
    others = [text for text in argv if not text.startswith("confirm=")]
    command = shell_command("ippo-runs", name, *others, "confirm=true")
    print_text(format_removals(removals, retained, confirmed=confirmed, command=command))


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "list": list_command,
    "compare": compare_command,
    "show": show_command,
    "remove": remove_command,
    "clean": clean_command,
}

if __name__ == "__main__":
    main()
