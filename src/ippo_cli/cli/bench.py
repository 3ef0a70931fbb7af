"""`ippo-bench`: the benchmark: list its tasks, enter it with this or another trainer, and compare results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from ippo_cli.cli.command_keys import OWN_KEYS
from ippo_cli.cli.entry import run_command
from ippo_cli.cli.help import BENCH_HELP
from ippo_cli.runs.output import ignore_closed_output

PROGRAM = "ippo-bench"


def main() -> NoReturn:
    """Entry point."""
    keys = (*OWN_KEYS[PROGRAM], *OWN_KEYS["ippo-controls"])
    run_command(PROGRAM, BENCH_HELP, run, needs_arguments=True, command_keys=keys, takes_overrides=False)


def run(argv: Sequence[str]) -> None:
    """Run the subcommand that the first argument names."""
    from ippo_cli.benchmark.commands import run_subcommand

    ignore_closed_output()
    run_subcommand(argv[0], argv[1:], OWN_KEYS[PROGRAM], OWN_KEYS["ippo-controls"])


if __name__ == "__main__":
    main()
