"""Results of a campaign, kept in a folder so that a later call continues it."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from survival import fingerprint, start_job, time_call, wait_for_exit

from ippo_cli.runs.folder import read_run_state

WHERE = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
ROOT = Path(__file__).parents[2]
PROGRAM = ("src", "conf")
Found = dict[str, Any]
"""Result of a case: numbers by name, or `broken` with a message if a guarantee does not hold."""


class Failed(Exception):
    """A guarantee that does not hold."""


def program_commit() -> str:
    """Return the last commit that changed the program; with `+` if there are uncommitted changes."""

    def git(*command: str) -> str:
        return subprocess.run(
            ["git", *command, "--", *PROGRAM], cwd=ROOT, capture_output=True, text=True
        ).stdout.strip()

    return (git("log", "-1", "--format=%h") or "unknown") + ("+" if git("status", "--porcelain") else "")


class Book:
    """One part of a campaign: its cases, each run once, and their reference runs."""

    def __init__(self, folder: Path, deadline: float, only: str = "") -> None:
        self.folder = folder
        self.deadline = deadline  # on the monotonic clock
        self._only = re.compile(only)  # selects cases by name
        self._commit = program_commit()
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "cases.jsonl"

    @property
    def cases(self) -> dict[str, Found]:
        """Results of the finished cases by name."""
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return {str(entry["case"]): entry for entry in map(json.loads, lines)}

    def is_over(self) -> bool:
        """Return whether the deadline has passed."""
        return time.monotonic() > self.deadline

    def run_case(self, case: str, work: Callable[[Path], Found]) -> None:
        """Run one case in its own folder, which is removed on success; skip finished cases."""
        if case in self.cases or self.is_over() or not self._only.search(case):
            return
        place = self.folder / case
        shutil.rmtree(place, ignore_errors=True)  # of an interrupted call
        place.mkdir()
        try:
            found, seconds = time_call(lambda: work(place))
        except Exception as broken:  # the other cases still run
            message = str(broken) if isinstance(broken, Failed) else f"{type(broken).__name__}: {broken}"
            found, seconds = {"broken": message}, 0.0
        else:
            shutil.rmtree(place)
        self.note(case, found | {"seconds": round(seconds, 1)})

    def note(self, case: str, found: Found) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps({"case": case, "where": WHERE, "commit": self._commit} | found) + "\n")

    def reference(self, *overrides: str, name: str = "whole") -> tuple[Any, float]:
        """Return the fingerprint of an undisturbed job and its seconds; it runs once."""
        root = self.folder / name
        known = root / "seconds.json"
        if not known.exists():
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir()
            code, seconds = time_call(lambda: wait_for_exit(start_job(root, *overrides)))
            if code != 0:
                raise Failed(f"the undisturbed run ended with {code}: {(root / 'errors').read_text()[-400:]}")
            known.write_text(json.dumps(seconds))
        [folder] = runs(root)
        return fingerprint(folder), float(json.loads(known.read_text()))

    def cached(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the first result of `make`, stored as JSON."""
        file = self.folder / f"{name}.json"
        if not file.exists():
            file.write_text(json.dumps(make()))
        return json.loads(file.read_text())


def runs(root: Path) -> Iterator[Path]:
    """Yield folders of the finished runs below a job's root."""
    return (path.parent for path in root.glob("default/*/run.json") if read_run_state(path.parent) == "done")
