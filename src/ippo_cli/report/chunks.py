"""Compressed chunks of data inside the page: gzip, then base64, which contains no markup."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable
from typing import Any

from ippo_cli.runs.json_values import replace_non_finite

LEVEL = 5  # level 6 takes half as long again for 2 percent


def encode_bytes(data: bytes) -> str:
    """Compress bytes. The result is the same for the same bytes."""
    return base64.b64encode(gzip.compress(data, LEVEL, mtime=0)).decode("ascii")


def encode_json(value: Any) -> str:
    """Compress a value as JSON; numbers that are not finite become null."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(replace_non_finite(value), allow_nan=False, separators=(",", ":"))
    return encode_bytes(text.encode("ascii"))


def chunk_element(name: str, data: str) -> str:
    """The element that holds a chunk; browsers neither run nor show it."""
    return f'<script type="application/gzip" id="{name}">{data}</script>'


def total_size(chunks: Iterable[str]) -> int:
    """Bytes of encoded chunks."""
    return sum(map(len, chunks))
