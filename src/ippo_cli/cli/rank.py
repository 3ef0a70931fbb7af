"""One rank of a run that `ippo-train` started: `python -m ippo_cli.cli.rank RUN_FOLDER [--resumed]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

from ippo_cli.runs.garbage_collection import collect_seldom
from ippo_cli.runs.output import outlive_readers
from ippo_cli.runs.parent import leave_with_parent, started_by


def main() -> NoReturn:
    """Train with the configuration that the folder holds."""
    leave_with_parent(started_by())
    outlive_readers()
    collect_seldom()
    from ippo_cli.compose.exits import guarded, leave

    folder = Path(sys.argv[1])

    def train() -> None:
        from ippo_cli.compose.load import from_yaml
        from ippo_cli.config.model_hub import download_models
        from ippo_cli.runs.folder import config_file
        from ippo_cli.training.process import run_training

        resumed = "--resumed" in sys.argv[2:]
        config = from_yaml(config_file(folder, resumed=resumed), with_secrets=True)
        run_training(download_models(config), folder, resumed=resumed)

    leave(guarded(train, []))


if __name__ == "__main__":
    main()
