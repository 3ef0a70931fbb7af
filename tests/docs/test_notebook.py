"""docs/quickstart.ipynb runs from its first cell to its last, without a network."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs nbformat, nbclient and ipykernel of the extra `test`")
nbclient = pytest.importorskip("nbclient", reason="needs nbformat, nbclient and ipykernel of the extra `test`")

NOTEBOOK = Path(__file__).parents[2] / "docs" / "quickstart.ipynb"


def test_notebook_is_stored_without_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.core
@pytest.mark.slow
def test_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipykernel", reason="needs ipykernel of the extra `test`")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    text = json.dumps(notebook)
    assert "image/png" in text
    assert (tmp_path / "report.html").stat().st_size > 100_000
