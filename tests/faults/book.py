"""What a campaign has found so far, kept in a folder: it goes on where its last piece ended."""

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
from survival import ended, fingerprint, start_job, timed

from ippo_cli.runs.folder import read_run_state

WHERE = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
ROOT = Path(__file__).parents[2]
PROGRAM = ("src", "conf")
Found = dict[str, Any]
"""What came of a case: `broken` where a promise did not hold, and numbers by their names."""


class Failed(Exception):
    """A promise that did not hold."""


def program_commit() -> str:
    """The commit that changed the program last; with a `+` where it was changed since."""

    def git(*command: str) -> str:
        return subprocess.run(
            ["git", *command, "--", *PROGRAM], cwd=ROOT, capture_output=True, text=True
        ).stdout.strip()

    return (git("log", "-1", "--format=%h") or "unknown") + ("+" if git("status", "--porcelain") else "")


class Book:
    """One part of a campaign: its cases, each of which is done once, and the runs that they are compared with."""

    def __init__(self, folder: Path, deadline: float, only: str = "") -> None:
        self.folder = folder
        self.deadline = deadline  # of this piece, on the monotonic clock
        self._only = re.compile(only)  # found in the names of the cases that are done
        self._commit = program_commit()
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "cases.jsonl"

    @property
    def cases(self) -> dict[str, Found]:
        """What came of the cases that are done, by their names."""
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return {str(entry["case"]): entry for entry in map(json.loads, lines)}

    def over(self) -> bool:
        """Whether this piece has had its time."""
        return time.monotonic() > self.deadline

    def do(self, case: str, work: Callable[[Path], Found]) -> None:
        """Do one case in a folder of its own, which is removed unless a promise did not hold; one that is done is not
        done again."""
        if case in self.cases or self.over() or not self._only.search(case):
            return
        place = self.folder / case
        shutil.rmtree(place, ignore_errors=True)  # of a piece that was cut off
        place.mkdir()
        try:
            found, seconds = timed(lambda: work(place))
        except Exception as broken:  # whatever it is, the other cases are done
            said = str(broken) if isinstance(broken, Failed) else f"{type(broken).__name__}: {broken}"
            found, seconds = {"broken": said}, 0.0
        else:
            shutil.rmtree(place)
        self.note(case, found | {"seconds": round(seconds, 1)})

    def note(self, case: str, found: Found) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps({"case": case, "where": WHERE, "commit": self._commit} | found) + "\n")

    def whole(self, *overrides: str, name: str = "whole") -> tuple[Any, float]:
        """The fingerprint of a job that nothing happens to, and its seconds; made once."""
        root = self.folder / name
        known = root / "seconds.json"
        if not known.exists():
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir()
            code, seconds = timed(lambda: ended(start_job(root, *overrides)))
            if code != 0:
                raise Failed(f"the undisturbed run ended with {code}: {(root / 'errors').read_text()[-400:]}")
            known.write_text(json.dumps(seconds))
        [folder] = runs(root)
        return fingerprint(folder), float(json.loads(known.read_text()))

    def remembered(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` gave the first time, as plain data."""
        file = self.folder / f"{name}.json"
        if not file.exists():
            file.write_text(json.dumps(make()))
        return json.loads(file.read_text())


def runs(root: Path) -> Iterator[Path]:
    """Folders of the runs below a job's root that are done."""
    return (path.parent for path in root.glob("default/*/run.json") if read_run_state(path.parent) == "done")
