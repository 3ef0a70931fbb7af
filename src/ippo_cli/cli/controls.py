"""`ippo-controls`: train a team beside its control arms, and say which of them it beats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ippo_cli.cli.command_keys import OWN_KEYS
from ippo_cli.cli.entry import run_command
from ippo_cli.cli.help import CONTROLS_HELP
from ippo_cli.runs.output import ignore_closed_output

PROGRAM = "ippo-controls"


def main() -> NoReturn:
    """Entry point."""
    run_command(PROGRAM, CONTROLS_HELP, compare_with_controls, needs_arguments=True, command_keys=OWN_KEYS[PROGRAM])


def compare_with_controls(argv: Sequence[str]) -> None:
    """Train the missing runs and print the table; with the folder of a comparison alone, only print it."""
    from ippo_cli.controls.compare_arms import named_comparison, print_comparison, run_comparison

    ignore_closed_output()
    if (folder := named_comparison(argv)) is not None:
        print_comparison(folder, OWN_KEYS[PROGRAM])
    else:
        run_comparison(argv, OWN_KEYS[PROGRAM])


if __name__ == "__main__":
    main()
