"""One rank of a run on several machines: `python -m ippo_cli.cli.node OVERRIDES`, rank number in the environment."""

from __future__ import annotations

from ippo_cli.cli.train import main
from ippo_cli.runs.parent import launcher_pid, terminate_with_parent

if __name__ == "__main__":
    terminate_with_parent(launcher_pid())
    main()
