"""A SLURM cluster of two nodes on this machine, for tests."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # `cluster`

from cluster import SCRIPTS, Cluster, run

SBIN = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    missing = [name for name in ("sbatch", "slurmctld", "slurmd", "munged") if shutil.which(name, path=SBIN) is None]
    if missing:
        pytest.skip(f"SLURM is not installed: no {' '.join(missing)} (apt-get install slurm-wlm munge)")
    if os.geteuid() != 0:
        pytest.skip("a local SLURM cluster needs root")
    folder = tmp_path_factory.mktemp("cluster")
    folder.parent.chmod(0o755)
    run(str(SCRIPTS / "local_cluster.sh"), "start", str(folder))
    try:
        yield Cluster(folder / "slurm.conf")
    finally:
        run(str(SCRIPTS / "local_cluster.sh"), "stop", str(folder))
