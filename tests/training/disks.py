"""Small file systems for disk-full tests."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system of this size at the folder; skips the test if mounting is not possible."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill the file system with one file."""
    file = folder / "filler"
    with file.open("ab", buffering=0) as handle:
        for _ in range(100):
            if not shutil.disk_usage(folder).free:
                break
            for size in (1 << 16, 1 << 12):
                with suppress(OSError):
                    while handle.write(bytes(size)):
                        pass
    return file
