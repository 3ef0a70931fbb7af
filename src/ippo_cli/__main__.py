"""`python -m ippo_cli [COMMAND]`: the commands without their scripts; `train` if the first word is not a command."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import NoReturn

COMMANDS = {
    "train": "ippo_cli.cli.train",
    "eval": "ippo_cli.cli.evaluate",
    "export": "ippo_cli.cli.export",
    "chat": "ippo_cli.cli.chat",
    "controls": "ippo_cli.cli.controls",
    "bench": "ippo_cli.cli.bench",
    "sweep": "ippo_cli.cli.sweep_report",
    "report": "ippo_cli.cli.report",
    "runs": "ippo_cli.cli.runs",
    "doctor": "ippo_cli.cli.doctor",
    "verify": "ippo_cli.cli.verify",
}


def main() -> NoReturn:
    """Run the command that the first argument names, with the others."""
    command = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] in COMMANDS else "train"
    arguments = sys.argv[2:] if sys.argv[1:2] == [command] else sys.argv[1:]
    sys.argv[:] = [f"ippo-{command}", *arguments]
    import_module(COMMANDS[command]).main()
    raise AssertionError("a command exits")


if __name__ == "__main__":
    main()
