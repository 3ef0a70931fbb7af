"""The documentation site builds without a warning, and renders docstrings correctly."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MISSING = [name for name in ("sphinx", "myst_parser", "furo") if find_spec(name) is None]


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {' '.join(MISSING)}; pip install '.[docs]'")
def test_site_builds_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-c", "docs"]
    command += ["-d", str(tmp_path / "doctrees"), ".", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    api = (tmp_path / "site/docs/api.html").read_text()
    assert 'id="ippo_cli.formulas.advantages.gae"' in api
    assert ">gae_lambda</span>" in api, "single backticks are rendered as code"
    assert "TypeAliasForwardRef" not in api
    assert (tmp_path / "site/docs/decisions/0001-compose-config-once.html").exists()
