"""`ippo-verify RUN`: compare a run's files with recorded hashes, and execute some of its iterations again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from ippo_cli.cli.command_keys import OWN_KEYS
from ippo_cli.cli.entry import run_command
from ippo_cli.cli.help import VERIFY_HELP
from ippo_cli.runs.output import ignore_closed_output, print_status, print_text

if TYPE_CHECKING:
    from pathlib import Path

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
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.verification.certificate import CERTIFICATE
    from ippo_cli.verification.verify import Selection

    folders = [text for text in argv if "=" not in text or Path(text).is_dir()]
    options: dict[str, str] = {}
    for text in argv:
        key, _, value = text.partition("=")
        if text in folders:
            continue
        if key not in KEYS or not value:
            raise ConfigError(text, "is not an option of ippo-verify", f"use {' '.join(f'{key}=' for key in KEYS)}")
        options[key] = value
    if len(folders) != 1 or folders[0].startswith("-"):
        raise ConfigError(" ".join(folders) or "RUN", "is not exactly one run", "use a folder such as outputs/NAME/ID")
    for key in ("count", "seed"):
        if "iterations" in options and key in options:
            raise ConfigError(f"{key}={options[key]}", "selects random iterations", "remove it, or iterations=")
    folder, _ = find_run(folders[0], key="")
    target = Path(options["to"]).absolute() if "to" in options else folder / CERTIFICATE
    selection = Selection(
        iterations=_parse_iterations(options.get("iterations", "")),
        count=_parse_number(options, "count", 2, least=0),
        seed=_parse_number(options, "seed", 0, least=0),
        span=_parse_number(options, "span", 20, least=1),
    )
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
