"""One rank of a run that `ippo-train` started: `python -m ippo_cli.cli.rank RUN_FOLDER [--resumed]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

from ippo_cli.runs.garbage_collection import relax_gc
from ippo_cli.runs.output import ignore_closed_output
from ippo_cli.runs.parent import launcher_pid, terminate_with_parent


def main() -> NoReturn:
    """Train with the configuration in the run folder."""
    terminate_with_parent(launcher_pid())
    ignore_closed_output()
    relax_gc()
    from ippo_cli.compose.exits import exit_process, run_guarded

    folder = Path(sys.argv[1])

    def train() -> None:
        from ippo_cli.compose.load import from_yaml
        from ippo_cli.config.model_hub import download_models
        from ippo_cli.config.schema import Mode
        from ippo_cli.runs.folder import config_file

        resumed = "--resumed" in sys.argv[2:]
        config = from_yaml(config_file(folder, resumed=resumed), with_secrets=True)
        config = download_models(config)
        if config.mode is Mode.pilot:
            from ippo_cli.pilot.run_pilot import run_pilot

            run_pilot(config, folder)
        else:
            from ippo_cli.training.process import run_training

            run_training(config, folder, resumed=resumed)

    exit_process(run_guarded(train, []))


if __name__ == "__main__":
    main()
