"""One rank of a run that `ippo-train` started: `python -m ippo_cli.cli.rank RUN_FOLDER [--resumed]`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from ippo_cli.engine.launchers import STARTED_BY
from ippo_cli.training.garbage import collect_seldom
from ippo_cli.training.output import outlive_readers

PR_SET_PDEATHSIG = 1


def main() -> NoReturn:
    """Train with the configuration that the folder holds."""
    leave_with_parent(started_by())
    outlive_readers()
    collect_seldom()
    from ippo_cli.cli.exits import guarded, leave

    folder = Path(sys.argv[1])

    def train() -> None:
        from ippo_cli.config.load import from_yaml
        from ippo_cli.config.model_hub import download_models
        from ippo_cli.training.folder import config_file
        from ippo_cli.training.process import run_training

        resumed = "--resumed" in sys.argv[2:]
        config = from_yaml(config_file(folder, resumed=resumed), with_secrets=True)
        run_training(download_models(config), folder, resumed=resumed)

    leave(guarded(train, []))


def started_by() -> int:
    """The process that started this rank."""
    return int(os.environ[STARTED_BY])


def leave_with_parent(parent: int) -> None:
    """Ask the kernel for SIGTERM when the parent is gone: then a rank saves and leaves."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was gone before: nobody would be told
            os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
