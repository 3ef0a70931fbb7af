"""The extras of the package can be installed together, also with other projects that the documents name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
INSTALLATION = re.compile(r"pip install ([^`#\n]+)")
ENVIRONMENT_BYTES = 15 * 2**30


def _installations() -> list[str]:
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [match for file in files for match in INSTALLATION.findall(file.read_text())]


def test_extras_in_documents_exist() -> None:
    named = {
        extra
        for line in _installations()
        for group in re.findall(r"(?:ippo-cli|\.)\[([^\]]+)\]", line)
        for extra in group.split(",")
    }
    assert named
    assert named <= EXTRAS.keys()


@pytest.mark.slow
def test_all_extras_and_packages_of_documents_resolve_together(tmp_path: Path) -> None:
    pytest.importorskip("uv", reason="needs the package uv")
    packages = {name for line in _installations() for name in re.findall(r"'([a-z-]+[<>=][^']*)'", line)}
    assert any(name.startswith("verifiers") for name in packages)
    (tmp_path / "packages.in").write_text("\n".join(sorted(packages)))
    extras = [argument for extra in EXTRAS for argument in ("--extra", extra)]
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "pyproject.toml", str(tmp_path / "packages.in")]
    ended = subprocess.run([*command, *extras], cwd=ROOT, capture_output=True, text=True, timeout=600)
    if "error sending request" in ended.stderr or "Failed to fetch" in ended.stderr:
        pytest.skip("no package index can be reached")
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"^vllm==", ended.stdout, re.MULTILINE)


@pytest.mark.slow
def test_vllm_environment_is_made_from_nothing(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < ENVIRONMENT_BYTES:
        pytest.skip("needs 15 GiB of free disk space")
    venv = tmp_path / "venv"
    try:
        subprocess.run(
            [ROOT / "scripts" / "vllm_environment.sh"],
            env={**os.environ, "IPPO_VLLM_VENV": str(venv)},
            check=True,
            timeout=1800,
        )
        code = "import vllm, ippo_cli.cli.train; print(vllm.__version__)"
        subprocess.run([venv / "bin" / "python", "-c", code], check=True, timeout=300)
    finally:
        shutil.rmtree(venv, ignore_errors=True)
