"""Tensors in files of shared memory, for another process on the same host."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

MEMORY = Path("/dev/shm")
ALIGNMENT = 64


class SharedTensors:
    """A folder with one file of data and an index; written by one process, read by others on the host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def create(cls, size: int = 0) -> SharedTensors:
        """A new folder in memory, or in the temporary folder where shared memory has fewer than `size` bytes free."""
        fits = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > size
        return cls(Path(tempfile.mkdtemp(prefix="ippo-weights-", dir=MEMORY if fits else None)))

    @property
    def folder(self) -> Path:
        return self._folder

    def write(self, tensors: dict[str, Tensor]) -> None:
        """Replace the contents. Raises `OSError` if there is no space."""
        index, size = {}, 0
        for name, tensor in tensors.items():
            index[name] = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "at": size}
            size += math.ceil(tensor.numel() * tensor.element_size() / ALIGNMENT) * ALIGNMENT
        with (self._folder / "data").open("ab") as file:
            # Without space, a write into mapped memory would end the process with SIGBUS.
            os.posix_fallocate(file.fileno(), 0, size)
        data = torch.from_file(str(self._folder / "data"), shared=True, size=size, dtype=torch.uint8)
        for name, tensor in tensors.items():
            flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            data[index[name]["at"] : index[name]["at"] + len(flat)] = flat
        (self._folder / "index.json").write_text(json.dumps(index))

    def read(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor, without a copy."""
        index = json.loads((self._folder / "index.json").read_text())
        path = self._folder / "data"
        data = torch.from_file(str(path), shared=True, size=path.stat().st_size, dtype=torch.uint8)
        for name, entry in index.items():
            dtype = getattr(torch, entry["dtype"])
            size = math.prod(entry["shape"]) * dtype.itemsize
            yield name, data[entry["at"] : entry["at"] + size].view(dtype).view(entry["shape"])

    def clear(self) -> None:
        """Free the memory; the folder stays for later tensors."""
        for name in ("index.json", "data"):
            (self._folder / name).unlink(missing_ok=True)

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def boot_id() -> str:
    """Identifies the running kernel: equal in all containers of a host, different on every other host."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # another system
        return f"{uuid.getnode():x}"
