"""`ippo-export`: a run's agents as Hugging Face folders."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import NoReturn

from ippo_cli import __version__
from ippo_cli.cli.configured import names, own_keys, run_config, yes_or_no
from ippo_cli.cli.help import EXPORT_HELP, asks_for_help, asks_for_version
from ippo_cli.config.secrets import kept, redacted

OWN = ("run", "checkpoint", "to", "agent", "merged", "critic")


def main() -> NoReturn:
    """Entry point; the exit codes are those of `ippo-train`."""
    argv = sys.argv[1:]
    if not argv or asks_for_help(argv):
        print(EXPORT_HELP, end="")
        sys.exit(0)
    if asks_for_version(argv):
        print(f"ippo-export {__version__}")
        sys.exit(0)
    from ippo_cli.cli.exits import guarded, leave

    leave(guarded(lambda: _export(argv), []))


def _export(argv: list[str]) -> None:
    from ippo_cli.config.errors import ConfigError

    own, rest = own_keys(argv, OWN)
    if rest:
        raise ConfigError(rest[0], "can have no effect on an export", f"those that can: {' '.join(OWN)}")
    for key, example in (("run", "run=outputs/NAME/DATE-ID"), ("to", "to=exported")):
        if not own.get(key):
            raise ConfigError(f"{key}=", "is missing", f"say {example}")
    merged, critic = yes_or_no(own, "merged", True), yes_or_no(own, "critic", False)
    folder, to = Path(own["run"]).expanduser().absolute(), Path(own["to"]).expanduser().absolute()
    config = run_config(folder, own["run"], [], data=False)
    from ippo_cli.training.export import Wanted, export

    wanted = Wanted(
        run=folder,
        checkpoint=own.get("checkpoint", "latest"),
        to=to,
        agents=names(own.get("agent", "")),
        merged=merged,
        critic=critic,
        command=redacted(shlex.join(["ippo-export", *kept(list(argv))])),
    )
    export(config, wanted, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
