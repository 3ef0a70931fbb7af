"""Assembles the page: shell, styles, compressed data, libraries and program in one HTML file."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from string import Template

from ippo_cli.report.bundle import ASSETS, application_script, style_sheet, vendor_scripts
from ippo_cli.report.chunks import chunk_element
from ippo_cli.report.payload import MAX_BYTES, build_payload
from ippo_cli.runs.records import RunRecord


def build_page(runs: Sequence[RunRecord], title: str, max_bytes: int = MAX_BYTES) -> str:
    """The page of these runs. It requests nothing: its content security policy allows its own scripts alone."""
    payload = build_payload(runs, title, max_bytes)
    scripts = [*vendor_scripts(), application_script()]
    shell = Template((ASSETS / "page.html").read_text(encoding="utf-8"))
    return shell.substitute(
        title=html.escape(title),
        policy=_content_policy(scripts),
        style=style_sheet(),
        data="\n".join(chunk_element(name, data) for name, data in payload.chunks.items()),
        libraries="\n".join(f"<script>{text}</script>" for text in scripts[:-1]),
        program=f'<script type="module">{scripts[-1]}</script>',
    )


def _content_policy(scripts: Sequence[str]) -> str:
    """Allow these inline scripts, inline styles, and images that the page makes itself."""
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
