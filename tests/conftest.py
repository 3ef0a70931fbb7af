"""What every test may rely on: one CPU thread, no accelerator, no network, and the shared modules of the tests."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from jaxtyping import install_import_hook

from ippo_cli.processes.sandbox import BWRAP, LOCAL, find_sandbox_problem
from ippo_cli.runs.garbage_collection import relax_gc, restore_gc

relax_gc()  # until all tests are imported
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("DS_ACCELERATOR", "cpu")
for variable in [name for name in os.environ if name.startswith("SLURM_") or name == "IPPO_RUN_ID"]:
    del os.environ[variable]  # the tests may run as a job themselves, and are no part of it
os.fsync = lambda file: None  # files of tests need not survive a power failure, and a small run syncs a hundred times
# `spoken`: episodes of given texts; `small`: the smallest real run; `rows`; `checker` of shapes; `chats`: templates;
# `survival`: runs that are stopped, killed and resumed;
# `lab_errors`: what refuses a configuration of an estimator of a package
# `reference`: rows of episodes, slowly; `rank_scripts`: a process per rank; `loaded`: modules by their files
# `host_reads`: how often the host waits for tensors; `synthetic`: folders of runs for reports
for folder in (
    "config",
    "rewards",
    "training",
    "models",
    "formulas",
    "tasks",
    "tasks/tools",
    "rollout",
    "engine",
    "faults",
    "reporting",
    "catalog",
    "diagnosis",
    "report",
    "vllm",
    "lab",
):
    sys.path.insert(0, str(Path(__file__).parent / folder))

install_import_hook("ippo_cli.formulas", "checker.checked")  # before any other import of them: every call is checked


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run quick tests first, because a general fault shows there.

    With several workers, where a file stays on one worker: quick files first, then those with most slow tests.
    """
    slow = Counter(item.path for item in items if item.get_closest_marker("slow") is not None)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: (item.path in slow, -slow[item.path]))
    else:
        items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


def pytest_collection_finish() -> None:
    restore_gc()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Each file stays on one worker; those of the engine stay together, as one launch of ranks serves them all."""
    config.option.loadscopereorder = False  # files begin in the order above, and not those of most tests first
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "tests/engine" if file.startswith("tests/engine/") else file

    return ByFile(config, log)


@pytest.fixture(scope="session")
def bwrap() -> str:
    """The bubblewrap sandbox; skips if it does not work."""
    if (reason := find_sandbox_problem(BWRAP)) is not None:
        pytest.skip(f"no sandbox here: {reason}")
    return BWRAP


@pytest.fixture(scope="session")
def kind() -> str:
    """`bwrap` if it works, else `unsafe_local`; both give the same results."""
    return LOCAL if find_sandbox_problem(BWRAP) is not None else BWRAP
