"""Memory of the inference engines of `rollout=vllm`, as one rank has it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ippo_cli.config.credit import needs_replays
from ippo_cli.config.hardware import count_machines
from ippo_cli.config.schema import Config, VllmMode
from ippo_cli.config.teams import agents_by_base, policy_by_agent
from ippo_cli.config.vllm import device_slots
from ippo_cli.planning.agent_shapes import AgentShapes, bytes_per_weight
from ippo_cli.planning.pass_memory import kv_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerMemory:
    """Bytes of a rank's engines on its device: of all ranks on a CPU, on average; of the one with a server on a GPU."""

    weights: float
    caches: float
    sleeps: bool  # whether the rank has the memory for itself while it trains

    @property
    def resident(self) -> float:
        return 0.0 if self.sleeps else self.weights + self.caches


def estimate_sampler_memory(
    config: Config,
    shapes: Mapping[str, AgentShapes],
    ranks: int,
    rows: int,
    device: str,
    engine_devices: Sequence[int] | None = None,
) -> SamplerMemory:
    """Memory of engines with at most `rows` rows per rank. `engine_devices`: GPUs that servers have for themselves."""
    settings, is_gpu = config.rollout.engines, device == "cuda"
    assert settings is not None
    is_server = settings.mode is VllmMode.server
    if is_server and (settings.url or (is_gpu and engine_devices is not None)):
        return SamplerMemory(weights=0.0, caches=0.0, sleeps=True)
    sharing = ranks_per_server(config, ranks, engine_devices) if is_server else 1
    weights, caches = engine_bytes(config, shapes, min(config.rollout.decode_batch_size, rows) * sharing)
    weights *= 1 if is_gpu else 2  # vLLM's CPU build also packs the weights, for its matrix products
    parts = 1 if is_gpu else sharing
    return SamplerMemory(weights=weights / parts, caches=caches / parts, sleeps=is_gpu and not is_server)


def engine_bytes(config: Config, shapes: Mapping[str, AgentShapes], batch_rows: int) -> tuple[float, float]:
    """Bytes of the weights of all engines, and of keys and values of `batch_rows` rows of full length in each."""
    settings = config.rollout.engines
    assert settings is not None
    weights = caches = 0.0
    for name in _find_engines(config, shapes):
        shape, width = shapes[name].actor, bytes_per_weight(config.task.agents[name].actor.dtype)
        weights += shape.quantized_bytes or float(width * shape.parameters)
        needed = float(kv_bytes(shape, width) * batch_rows * shapes[name].length.sequence_tokens)
        caches += needed if settings.kv_cache_gib is None else settings.kv_cache_gib * 2**30
    return weights, caches


def ranks_per_server(config: Config, ranks: int, engine_devices: Sequence[int] | None) -> int:
    """Ranks that share a server of each model; `engine_devices`: of servers on one machine, apart from the ranks'."""
    settings = config.rollout.engines
    assert settings is not None
    local = max(ranks // count_machines(config), 1)
    slots = device_slots(engine_devices, settings) or (0,)
    return min(settings.ranks_per_server or -(-local // len(slots)), local)


def _find_engines(config: Config, shapes: Mapping[str, AgentShapes]) -> Iterator[str]:
    """The first agent of each engine: one per policy, or per base of adapters; replays need further engines."""
    seen: set[str] = set()
    holder_of = policy_by_agent(config)
    base_of = {name: base for base, names in agents_by_base(config).items() for name in names}
    copies = 2 if needs_replays(config) else 1  # replays sample from the initial policies
    for name in shapes:
        key = base_of[name] if config.task.agents[name].actor.trains_adapter else holder_of[name]
        if key not in seen:
            seen.add(key)
            yield from [name] * copies
