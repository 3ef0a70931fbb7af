"""`ippo-eval`: score a run's checkpoint on held-out data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

from ippo_cli import __version__
from ippo_cli.cli.help import EVAL_HELP, asks_for_help, asks_for_version

OWN = {"run": "", "checkpoint": "latest"}  # keys of this command, with their defaults; all others are a run's


def main() -> NoReturn:
    """Entry point; the exit codes are those of `ippo-train`."""
    argv = sys.argv[1:]
    if not argv or asks_for_help(argv):
        print(EVAL_HELP, end="")
        sys.exit(0)
    if asks_for_version(argv):
        print(f"ippo-eval {__version__}")
        sys.exit(0)
    from ippo_cli.cli.exits import guarded, leave

    overrides = [text for text in argv if text.partition("=")[0] not in OWN]
    leave(guarded(lambda: _evaluate(argv), overrides))


def _evaluate(argv: list[str]) -> None:
    from ippo_cli.cli.arguments import arguments, with_one_search_path
    from ippo_cli.cli.flags import refuse_unknown
    from ippo_cli.cli.hub import settle_hub
    from ippo_cli.cli.resume import saved_overrides
    from ippo_cli.config.checks import check
    from ippo_cli.config.errors import ConfigError, ResumeError
    from ippo_cli.config.files import check_own_files
    from ippo_cli.config.load import compose_node, resolve, typed

    refuse_unknown(argv, OWN)
    own = dict(OWN)
    overrides: list[str] = []
    for text in arguments(argv):
        key, found, value = text.partition("=")
        if key in own and found:
            own[key] = value
        else:
            overrides.append(text)
    if not own["run"]:
        raise ConfigError("run=", "is missing", "give a run's folder: ippo-eval run=outputs/NAME/DATE-ID")
    folder = Path(own["run"]).absolute()
    if not (folder / "config.yaml").is_file():
        raise ResumeError(f"run={own['run']}: there is no run; give a run's folder such as outputs/NAME/DATE-ID")
    combined = with_one_search_path([*saved_overrides(folder), *overrides])
    check_own_files(combined)
    config = typed(resolve(compose_node(combined)))
    check(config, 1)
    settle_hub(config, models=False)  # those come from the checkpoint
    from ippo_cli.training.evaluate_run import evaluate_run

    evaluate_run(config, folder, own["checkpoint"], overrides)


if __name__ == "__main__":
    main()
