"""`ippo-verify RUN`: compare a run's files with recorded hashes, and execute some of its iterations again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from ippo_cli.cli.command_keys import OWN_KEYS
from ippo_cli.cli.entry import run_command
from ippo_cli.cli.help import VERIFY_HELP
from ippo_cli.runs.output import ignore_closed_output, print_status, print_text

if TYPE_CHECKING:
    from pathlib import Path

    from ippo_cli.config.errors import ConfigError
    from ippo_cli.verification.verify import Selection

KEYS = OWN_KEYS["ippo-verify"]


def main() -> NoReturn:
    """Entry point."""
    run_command("ippo-verify", VERIFY_HELP, _verify, needs_arguments=True, command_keys=KEYS, takes_overrides=False)


def _verify(argv: Sequence[str]) -> None:
    from ippo_cli.config.errors import VerificationError
    from ippo_cli.config.secrets import mask_secrets

    folder, target, selection = _parse_arguments(argv)
    ignore_closed_output("the verification")
    from ippo_cli.verification.certificate import format_verification, write_certificate
    from ippo_cli.verification.verify import verify_run

    command = ["ippo-verify", *mask_secrets(list(argv))]
    found = verify_run(folder, selection, command, lambda text: print_status(f"ippo-verify: {text}"))
    write_certificate(found, target)
    print_text(format_verification(found, target))
    if not found.is_verified:
        raise SystemExit(VerificationError.exit_code)  # the lines above are the report


def _parse_arguments(argv: Sequence[str]) -> tuple[Path, Path, Selection]:
    """The run, the file of the certificate, and the iterations to execute. Raises `ConfigError`."""
    from pathlib import Path

    from ippo_cli.compose.run_folders import find_run
    from ippo_cli.config.errors import ConfigError, collect_errors, combine_errors
    from ippo_cli.config.text import closest_hint
    from ippo_cli.verification.certificate import CERTIFICATE
    from ippo_cli.verification.verify import Selection

    folders = [text for text in argv if "=" not in text or Path(text).is_dir()]
    options = {text.partition("=")[0]: text.partition("=")[2] for text in argv if text not in folders}
    found: dict[str, Any] = {}

    def check_options() -> Iterator[ConfigError]:
        for key, value in options.items():
            if key not in KEYS or not value:
                rule = f"is not an option of ippo-verify{closest_hint(key, KEYS)}"
                yield ConfigError(f"{key}={value}", rule, f"use {' '.join(f'{key}=' for key in KEYS)}")
            elif key in ("count", "seed") and "iterations" in options:
                yield ConfigError(f"{key}={value}", "selects random iterations", "remove it, or iterations=")

    def check_run() -> None:
        if len(folders) != 1 or folders[0].startswith("-"):
            typed = " ".join(folders) or "RUN"
            raise ConfigError(typed, "is not exactly one run", "use a folder such as outputs/NAME/ID")
        found["folder"], _ = find_run(folders[0], key="")

    def check_number(key: str, default: int, least: int) -> None:
        found[key] = _parse_number(options, key, default, least=least)

    def check_iterations() -> None:
        found["iterations"] = _parse_iterations(options.get("iterations", ""))

    numbers = [partial(check_number, *number) for number in (("count", 2, 0), ("seed", 0, 0), ("span", 20, 1))]
    if errors := collect_errors([check_options, check_run, check_iterations, *numbers]):
        raise combine_errors(errors)
    folder = found.pop("folder")
    target = Path(options["to"]).absolute() if "to" in options else folder / CERTIFICATE
    selection = Selection(**found)
    return folder, target, selection


def _parse_iterations(text: str) -> list[int]:
    from ippo_cli.compose.configured import split_names
    from ippo_cli.config.errors import ConfigError

    names = split_names(text)
    if not all(name.isdecimal() and int(name) > 0 for name in names):
        raise ConfigError(f"iterations={text}", "must be iterations, counted from 1", "use iterations=12,40")
    return [int(name) for name in names]


def _parse_number(options: dict[str, str], key: str, default: int, *, least: int) -> int:
    from ippo_cli.config.errors import ConfigError

    text = options.get(key, str(default))
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{key}={text}", f"must be a whole number of at least {least}", f"use {key}={default}")
    return int(text)


if __name__ == "__main__":
    main()
