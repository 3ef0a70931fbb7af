"""Memory of all ranks of a run, and of the devices of inference servers, compared with what their machines have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ippo_cli.config.hardware import count_machines
from ippo_cli.config.placement import AGENT_COMPONENTS, REWARD, read_placement
from ippo_cli.config.schema import Config
from ippo_cli.config.vllm import device_slots
from ippo_cli.planning.agent_shapes import AgentShapes
from ippo_cli.planning.model_memory import MemoryEstimate
from ippo_cli.planning.sampler_memory import engine_bytes, ranks_per_server


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Memory in bytes that the ranks on one machine share."""

    device: str  # `cpu` or `cuda`
    host_bytes: int  # host memory
    gpu_bytes: int  # memory of the smallest GPU; 0 on a CPU
    ranks: int  # on this machine
    ranks_per_device: int

    @property
    def device_memory(self) -> tuple[str, int]:
        """Name and bytes of the memory that holds a rank's models."""
        return ("GPU", self.gpu_bytes) if self.device == "cuda" else ("machine", self.host_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A memory that is too small."""

    place: str  # `GPU` or `machine`
    needed: float
    available: float
    ranks: tuple[int, ...]  # those with the same models that need most of it


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMemory:
    """Memory of one device of inference servers."""

    devices: tuple[int, ...]  # numbers on each machine
    weight_bytes: float
    cache_bytes: float  # keys and values of the rows that are decoded together


@dataclass(frozen=True, slots=True)
class RunMemory:
    """Memory estimates of a run by the ranks that hold the same models."""

    by_ranks: Mapping[tuple[int, ...], MemoryEstimate]
    servers: ServerMemory | None = None  # of devices that launch.placement gives to servers

    @property
    def highest(self) -> MemoryEstimate:
        """The estimate of the ranks with the highest peak."""
        return max(self.by_ranks.values(), key=lambda memory: memory.peak_phase[1])

    @property
    def ranks(self) -> int:
        return sum(map(len, self.by_ranks))

    def find_shortfall(self, machine: Machine, device_bytes: Callable[[MemoryEstimate], float]) -> Shortfall | None:
        """The memory that lacks most for `device_bytes` and offloaded tensors of its ranks; None if all fits."""
        return max(
            self._shortfalls(machine, device_bytes), key=lambda found: found.needed - found.available, default=None
        )

    def missing_memory(self, machine: Machine) -> tuple[float, str]:
        """Bytes that the smallest memory lacks at the peak, servers included, and its name; 0 if all fits."""
        shortfall = self.find_shortfall(machine, lambda memory: memory.peak_phase[1])
        missing = (0.0, "GPU") if shortfall is None else (shortfall.needed - shortfall.available, shortfall.place)
        if self.servers is None or machine.device == "cpu":
            return missing
        return max(missing, (self.servers.weight_bytes + self.servers.cache_bytes - machine.gpu_bytes, "GPU"))

    def _shortfalls(self, machine: Machine, device_bytes: Callable[[MemoryEstimate], float]) -> Iterator[Shortfall]:
        for ranks, memory in self.by_ranks.items():
            needed = device_bytes(memory) * machine.ranks_per_device
            if machine.device == "cuda" and needed > machine.gpu_bytes:
                yield Shortfall(place="GPU", needed=needed, available=machine.gpu_bytes, ranks=ranks)

        def bytes_in_machine(memory: MemoryEstimate) -> float:
            return memory.host_bytes + (device_bytes(memory) if machine.device == "cpu" else 0.0)

        by_rank = {rank: bytes_in_machine(memory) for ranks, memory in self.by_ranks.items() for rank in ranks}
        for first in range(0, self.ranks, machine.ranks):
            local = range(first, min(first + machine.ranks, self.ranks))
            needed = sum(by_rank[rank] for rank in local)
            if needed > machine.host_bytes:
                ranks = max(
                    (ranks for ranks in self.by_ranks if set(ranks) & set(local)), key=lambda ranks: by_rank[ranks[0]]
                )
                yield Shortfall(place="machine", needed=needed, available=machine.host_bytes, ranks=ranks)


def ranks_with_same_models(config: Config, ranks: int) -> list[tuple[int, ...]]:
    """All ranks in groups that hold the same models, by their first rank. Raises `ConfigError`."""
    placement = read_placement(config, ranks)
    parts = [placement.of(name, part) for name in config.task.agents for part in AGENT_COMPONENTS]
    sets = [set(part) for part in (*parts, placement.ranks[REWARD])]
    groups: dict[tuple[bool, ...], list[int]] = {}
    for rank in range(ranks):
        groups.setdefault(tuple(rank in part for part in sets), []).append(rank)
    return [tuple(group) for group in groups.values()]


def estimate_server_memory(
    config: Config, shapes: Mapping[str, AgentShapes], ranks: int, total_rows: int
) -> ServerMemory | None:
    """The memory of a device that `launch.placement` gives to servers, with a server of every model on each; None
    without such devices. `total_rows`: of a rollout.
    """
    devices = read_placement(config, ranks).rollout_devices
    if not devices:
        return None
    assert config.rollout.engines is not None
    slots = device_slots(devices, config.rollout.engines) or []
    rows = -(-total_rows // (count_machines(config) * len(slots)))
    limit = config.rollout.decode_batch_size * ranks_per_server(config, ranks, devices)
    weights, caches = engine_bytes(config, shapes, min(limit, rows))
    return ServerMemory(devices=devices, weight_bytes=weights / len(slots[0]), cache_bytes=caches / len(slots[0]))
