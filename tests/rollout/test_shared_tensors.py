"""Tensors in shared memory arrive in another process unchanged."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ippo_cli.rollout import shared_tensors
from ippo_cli.rollout.shared_tensors import SharedTensors
from ippo_cli.rollout.tensor_hash import tensor_hash

READER = """
import sys
from pathlib import Path
from ippo_cli.rollout.tensor_hash import tensor_hash
from ippo_cli.rollout.shared_tensors import SharedTensors
for name, tensor in SharedTensors(Path(sys.argv[1])).read():
    print(name, tuple(tensor.shape), tensor.dtype, tensor_hash(tensor))
"""


@pytest.fixture
def shared() -> Iterator[SharedTensors]:
    made = SharedTensors.create()
    yield made
    made.remove()


def make_tensors() -> dict[str, torch.Tensor]:
    return {
        "weight": torch.randn(5, 7),
        "bias": torch.randn(3).to(torch.bfloat16),
        "scale": torch.tensor(2.5),
        "transposed": torch.randn(4, 6).t(),
        "ids": torch.arange(9),
    }


def test_another_process_reads_the_same(shared: SharedTensors) -> None:
    tensors = make_tensors()
    shared.write(tensors)
    command = [sys.executable, "-c", READER, str(shared.folder)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines == [f"{name} {tuple(t.shape)} {t.dtype} {tensor_hash(t)}" for name, t in tensors.items()]


@pytest.mark.parametrize("later", [3, 3000])
def test_writing_again_replaces_the_contents(shared: SharedTensors, later: int) -> None:
    shared.write(make_tensors())
    new = torch.randn(later)
    shared.write({"new": new})
    [(name, tensor)] = shared.read()
    assert name == "new"
    assert torch.equal(tensor, new)


def test_cleared_memory_is_written_again(shared: SharedTensors) -> None:
    shared.write(make_tensors())
    shared.clear()
    assert list(shared.folder.iterdir()) == []
    shared.write({"new": torch.ones(3)})
    assert [name for name, _ in shared.read()] == ["new"]


def test_removed_folder_is_gone(shared: SharedTensors) -> None:
    shared.write(make_tensors())
    shared.remove()
    assert not shared.folder.exists()


def test_small_shared_memory_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shared_tensors.shutil, "disk_usage", lambda path: usage(100, 0, 100))
    monkeypatch.setattr(shared_tensors.tempfile, "tempdir", str(tmp_path))
    made = SharedTensors.create(size=1000)
    assert made.folder.parent == tmp_path
