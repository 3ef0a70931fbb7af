"""Names of the parts of a score that user code returns, as parts of metric names."""

from __future__ import annotations

import re

RESERVED_PARTS = ("score", "failed_share")  # names of metrics that are there for every reward


def part_name(name: object) -> str:
    """The metric name of a part: characters other than letters, digits, `_`, `.` and `-` become `_`.

    A reserved name gets the prefix `info_`: `score` is logged as `info_score`.
    """
    written = re.sub(r"[^\w.-]", "_", str(name)) or "_"
    return f"info_{written}" if written in RESERVED_PARTS else written
