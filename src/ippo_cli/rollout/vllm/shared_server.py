"""One vLLM server for a group of ranks: its first rank starts it, every rank sends requests; and their devices."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ippo_cli.config.errors import EngineError, OtherRankFailed
from ippo_cli.config.schema import VllmConfig
from ippo_cli.config.vllm import device_slots, devices_per_server
from ippo_cli.engine import distributed, progress
from ippo_cli.rollout.engine import EngineModel
from ippo_cli.rollout.shared_tensors import boot_id
from ippo_cli.rollout.vllm.server import ServerEngine, ServerHandle


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


class SharedServerEngine(ServerEngine):
    """A rank's engine in the server of its group.

    Ranks of a group wait for their first rank at the end of `start` and, in `EngineGenerator`, of every transfer.
    """

    def __init__(
        self,
        model: EngineModel,
        settings: VllmConfig,
        device: torch.device,
        *,
        number: int,
        log_folder: Path,
        devices: tuple[int, ...] | None = None,
    ) -> None:
        """`number`: of the engine among those of this rank. `devices`: of servers; None: that of their first rank."""
        log_path = log_folder / f"vllm-{distributed.global_rank()}-{number}.log"
        super().__init__(model, settings, device, log_path=log_path)
        self._number, self._devices = number, devices

    def start(self) -> None:
        """Start the group's server, or wait until its first rank has. Collective."""
        if not distributed.any_rank(self._client is None):
            return
        self.close()  # where another rank's engine has ended
        rank, slots = distributed.rank(), device_slots(self._devices, self._settings)
        # Everyone can reach servers at addresses.
        machine: Hashable = "any" if self._settings.url else this_machine()
        machines = distributed.gather_objects(machine)
        group = find_group(rank, machines, self._settings.ranks_per_server, len(slots or (0,)))
        handle, error = None, None
        if rank == group.leader:
            try:
                handle = self._start_server_of(group, slots)
            except Exception as raised:  # after the others know
                error = raised
        with progress.grant_time(self._settings.start_timeout_s + self._settings.request_timeout_s):
            handles: list[ServerHandle | None] = distributed.gather_objects(handle)
        if error is not None:
            raise error
        if rank != group.leader:
            found = handles[group.leader]
            if found is None:
                raise OtherRankFailed(distributed.current_group().ranks[group.leader], EngineError.exit_code)
            self.attach(found)

    def _start_server_of(self, group: ServerGroup, slots: list[tuple[int, ...]] | None) -> ServerHandle:
        self._num_ranks = len(group.ranks)
        if urls := self._settings.url:
            per_group = len(urls) // group.count
            if self._number >= per_group:
                raise EngineError(
                    f"rollout.vllm.url={urls} has no address for the model of {self._model.name} and ranks "
                    f"{' '.join(map(str, group.ranks))}; list one address for each model that agents sample from, in "
                    "the order of the agents, for the first group of rollout.vllm.ranks_per_server ranks first"
                )
            self._url = urls[group.index * per_group + self._number]
        elif self._device.type == "cuda" and (slots or devices_per_server(self._settings) == 1):
            devices = assign_slot(self._number, group, slots) if slots else (torch.cuda.current_device(),)
            self._device = torch.device("cuda", devices[0])
            self._environment["CUDA_VISIBLE_DEVICES"] = visible_devices(devices, os.environ)
        super().start()
        return self.handle
