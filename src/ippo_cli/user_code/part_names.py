"""Convert the names of score parts that user code returns to metric names."""

from __future__ import annotations

import re

RESERVED_PARTS = ("score", "failed_fraction", "failed_share")  # metrics that every reward has, a former name included
MAX_CHARACTERS = 100


def part_name(name: object) -> str:
    """Return the metric name of a part: characters other than letters, digits, `_`, `.` and `-` become `_`, and long
    names are cut.

    A reserved name gets the prefix `info_`: `score` is logged as `info_score`.
    """
    cleaned = re.sub(r"[^\w.-]", "_", str(name)[:MAX_CHARACTERS]) or "_"
    return f"info_{cleaned}" if cleaned in RESERVED_PARTS else cleaned
