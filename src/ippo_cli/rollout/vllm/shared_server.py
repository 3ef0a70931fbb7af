"""One vLLM server for a group of ranks: its first rank starts it and transfers weights, every rank sends requests."""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path

import torch

from ippo_cli.config.errors import EngineError, OtherRankFailed
from ippo_cli.config.schema import VllmConfig
from ippo_cli.config.vllm import device_slots, devices_per_server
from ippo_cli.engine import distributed, progress
from ippo_cli.rollout.engine import EngineModel
from ippo_cli.rollout.vllm.server import ServerEngine, ServerHandle
from ippo_cli.rollout.vllm.server_groups import ServerGroup, assign_slot, find_group, this_machine, visible_devices


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
