"""Groups of ranks that share an inference server, and the devices of their servers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from ippo_cli.config.errors import EngineError
from ippo_cli.rollout.shared_tensors import boot_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerGroup:
    """The ranks that share a server of each model; the first of them starts it."""

    ranks: tuple[int, ...]
    index: int  # of the group among those of its machine
    count: int  # of groups on its machine

    @property
    def leader(self) -> int:
        return self.ranks[0]


def find_group(rank: int, machines: Sequence[Hashable], ranks_per_server: int | None, num_slots: int) -> ServerGroup:
    """The group of `rank`: consecutive ranks of its machine.

    `machines`: each rank's. `ranks_per_server` None: as many groups as the machine has slots for servers.
    """
    local = [other for other, machine in enumerate(machines) if machine == machines[rank]]
    size = ranks_per_server or -(-len(local) // min(num_slots, len(local)))
    index = local.index(rank) // size
    return ServerGroup(ranks=tuple(local[index * size :][:size]), index=index, count=-(-len(local) // size))


def this_machine() -> Hashable:
    """Equal for processes that can connect to each other's sockets in the temporary folder, which containers of one
    host may not.
    """
    folder = tempfile.gettempdir()
    found = os.stat(folder)
    return boot_id(), folder, found.st_dev, found.st_ino


def assign_slot(number: int, group: ServerGroup, slots: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The devices of a group's server number `number`, so that servers are spread over the slots."""
    return slots[(group.index + number * group.count) % len(slots)]


def visible_devices(devices: Sequence[int], environ: Mapping[str, str]) -> str:
    """CUDA_VISIBLE_DEVICES of a child process for devices as this process numbers them. Raises `EngineError`."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return ",".join(map(str, devices))
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if missing := [device for device in devices if device >= len(names)]:
        raise EngineError(
            f"CUDA_VISIBLE_DEVICES={visible} has no device number {missing[0]}, which an inference server is to use"
        )
    return ",".join(names[device] for device in devices)
