"""Print the wheels of a folder with packages that are not installed, one per line."""

from __future__ import annotations

import re
import sys
from importlib.metadata import distributions
from pathlib import Path


def main() -> None:
    installed = {normalize(found.metadata["Name"]) for found in distributions()}
    for wheel in sorted(Path(sys.argv[1]).glob("*.whl")):
        if normalize(wheel.name.partition("-")[0]) not in installed:
            print(wheel)


def normalize(name: str) -> str:
    """A package's name as an index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
