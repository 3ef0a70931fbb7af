"""Settings with which a run fits into memory. Each is tried on the plan before it is recommended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ippo_cli.config.batch_sizes import compute_batch_sizes
from ippo_cli.config.errors import ConfigError, IppoError
from ippo_cli.config.hardware import world_size
from ippo_cli.config.placement import ACTOR, read_placement, read_rollout_devices
from ippo_cli.config.schema import Config
from ippo_cli.config.served_agents import local_agents
from ippo_cli.config.vllm import devices_per_server
from ippo_cli.planning.fit import SHARDINGS, enable_checkpointing, is_allowed, set_sharding, sharding_of
from ippo_cli.planning.memory import GIB
from ippo_cli.planning.model_specs import ModelSpecs, read_model_specs, update_lengths
from ippo_cli.planning.prepare import Prepared
from ippo_cli.planning.resources import (
    count_rollout_rows,
    estimate_all_memory,
    memory_error,
    memory_warning,
    planned_machine,
)
from ippo_cli.planning.run_memory import Machine, RunMemory
from ippo_cli.planning.trained_memory import LOGIT_CHUNK_ELEMENTS

MAX_DECODE_FACTOR = 4
"""The decoding batch is divided by at most this, unless nothing else fits."""
MIN_LOGIT_CHUNK = 64
SPLITS = (2, 4, 8)
"""Values of `sequence_parallel` and of a server's `tensor_parallel_size` to try."""
MAX_DEVICE_FACTOR = 64
TENSOR_PARALLEL = "tensor_parallel_size"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProblem:
    """Memory that does not fit, with the settings that fit."""

    text: str
    is_certain: bool  # weights, optimizer states and gradients alone do not fit


def find_memory_problem(prepared: Prepared, machine: Machine, *, is_resumed: bool = False) -> MemoryProblem | None:
    """Compare a run's memory with its machine; None if it fits.

    `is_resumed`: whether the run must keep its ZeRO stage.
    """
    error = memory_error(prepared.config, prepared.memory, machine)
    text = error or memory_warning(prepared.memory, machine)
    if text is None:
        return None
    remedy = describe_remedy(prepared, machine, is_resumed=is_resumed)
    return MemoryProblem(text=f"{text}; {remedy}", is_certain=error is not None)


def describe_remedy(prepared: Prepared, machine: Machine, *, is_resumed: bool = False) -> str:
    """Overrides with which the run fits; without any, the least memory that is missing, and with what."""
    config = prepared.config
    search = _Search(prepared, machine, keeps_sharding=is_resumed)
    if (found := search.find_fitting()) is not None:
        return f"use {_format_changes(config, found)}"
    closest, (missing, place) = search.find_closest()
    where = "on a GPU" if place == "GPU" else "in the memory of a machine"
    nothing = (
        f"no ZeRO stage, offloading, recomputation or batch size fits: at least {missing / GIB:.1f} GiB are missing "
        f"{where}, with {_format_changes(config, closest) or 'the present settings'}"
    )
    others = []
    if (shorter := search.find_shorter_responses()) is not None:
        others.append(f"shorter responses ({_format_changes(config, shorter)})")
    if (larger := search.find_more_devices()) is not None:
        others.append(f"more devices ({_format_changes(config, larger)})")
    return f"{nothing}; " + (f"use {', or '.join(others)}" if others else "use a smaller model")


@dataclass(frozen=True, slots=True)
class _BatchSize:
    """A number that determines how much is computed at once."""

    value: int
    lowest: int
    change: Callable[[Config, int], Config]

    def smaller_values(self) -> Iterator[int]:
        """Halved repeatedly, from large to small."""
        value = self.value // 2
        while value > self.lowest:
            yield value
            value //= 2
        if self.value > self.lowest:
            yield self.lowest


class _Search:
    """Tries sharding, recomputation and batch sizes, in the order of their cost, until a run fits."""

    def __init__(self, prepared: Prepared, machine: Machine, *, keeps_sharding: bool) -> None:
        self._prepared, self._machine = prepared, machine
        self._keeps_sharding = keeps_sharding

    def find_fitting(self) -> Config | None:
        """A configuration that fits and changes only speed and rounding, with the largest batch sizes; None if none
        does.
        """
        trial = _Trial(self._prepared, self._machine, self._prepared.specs, self._prepared.ranks)
        base = self._prepared.config
        return self._search(trial, base) or self._search_sequence_parallel(trial, base)

    def find_closest(self) -> tuple[Config, tuple[float, str]]:
        """The configuration with the least missing memory; its bytes and `GPU` or `machine`."""
        trial = _Trial(self._prepared, self._machine, self._prepared.specs, self._prepared.ranks)
        missing, start = math.inf, self._prepared.config
        for config in [start, *self._starts(trial, start)]:
            least, _ = trial.missing_memory(_lower(config, _batch_sizes(trial, config)))
            if least < missing:
                missing, start = least, config
        closest = _restore(start, _batch_sizes(trial, start), lambda config: trial.missing_memory(config)[0] <= missing)
        return closest, trial.missing_memory(closest)

    def find_shorter_responses(self) -> Config | None:
        """A configuration with the longest responses that fit; None if none does."""
        prepared = self._prepared
        base, specs = prepared.config, prepared.specs
        if update_lengths(base, prepared.task, specs).lengths != specs.lengths:  # rows were excluded, which it counts
            return None
        longest = max(agent.rollout.max_new_tokens for agent in base.task.agents.values())
        while (longest := longest // 2) > 0:
            config = _limit_responses(base, longest)
            trial = _Trial(prepared, self._machine, update_lengths(config, prepared.task, specs), prepared.ranks)
            if (found := self._search(trial, config)) is not None:
                return found
        return None

    def find_more_devices(self) -> Config | None:
        """A planned run on more devices that fits; None if none does, or it runs on this machine."""
        base = self._prepared.config
        factor = 1
        while base.plan.devices is not None and (factor := 2 * factor) <= MAX_DEVICE_FACTOR:
            config = replace(base, plan=replace(base.plan, devices=factor * base.plan.devices))
            machine = planned_machine(config)
            assert machine is not None
            trial = _Trial(self._prepared, machine, self._prepared.specs, world_size(config, None))
            if (found := self._search(trial, config)) is not None:
                return found
        return None

    def _search(self, trial: _Trial, base: Config) -> Config | None:
        for factor in (MAX_DECODE_FACTOR, None):
            for start in self._starts(trial, base):
                sizes = _batch_sizes(trial, start, factor)
                if trial.fits(_lower(start, sizes)):
                    return _restore(start, sizes, trial.fits)
        return None

    def _starts(self, trial: _Trial, base: Config) -> Iterator[Config]:
        """Shardings without and with recomputation, the configured one first and lower stages last."""
        configured = sharding_of(base)
        others = [] if self._keeps_sharding else [kind for kind in SHARDINGS.values() if kind != configured]
        higher = [kind for kind in others if kind[0] >= configured[0]]
        lower = [kind for kind in others if kind not in higher]
        for kind in (configured, *higher, *lower):
            for servers in _server_settings(base):
                config = set_sharding(servers, kind)
                if trial.is_allowed(config):
                    yield from (config, enable_checkpointing(config))

    def _search_sequence_parallel(self, trial: _Trial, base: Config) -> Config | None:
        for parts in SPLITS:
            if parts <= base.deepspeed.ranks_per_group or trial.ranks % parts:
                continue
            config = replace(base, deepspeed=replace(base.deepspeed, sequence_parallel=parts, tensor_parallel=1))
            if trial.is_allowed(config) and (found := self._search(trial, config)) is not None:
                try:
                    read_model_specs(config, self._prepared.task)
                except IppoError:  # a model that cannot be split
                    return None
                return found
        return None


@dataclass(frozen=True, slots=True)
class _Trial:
    """Estimates of changed configurations of a run."""

    prepared: Prepared
    machine: Machine
    specs: ModelSpecs
    ranks: int

    def fits(self, config: Config) -> bool:
        memory = self._memory(config)
        return memory_error(config, memory, self.machine) is None and memory_warning(memory, self.machine) is None

    def missing_memory(self, config: Config) -> tuple[float, str]:
        return self._memory(config).missing_memory(self.machine)

    def is_allowed(self, config: Config) -> bool:
        """Whether all rules without a model allow the configuration."""
        if not is_allowed(config, self.ranks):
            return False
        try:
            compute_batch_sizes(config, self.ranks, len(self.prepared.task.train))
        except ConfigError:
            return False
        return True

    def max_rows(self, config: Config) -> int:
        """Most rows of an agent that a rank samples."""
        task, placement = self.prepared.task, read_placement(config, self.ranks)
        sizes = compute_batch_sizes(config, self.ranks, len(task.train))
        fewest = min((len(placement.of(name, ACTOR)) for name in local_agents(config)), default=self.ranks)
        return -(-count_rollout_rows(config, sizes, task, self.ranks) // fewest)

    def _memory(self, config: Config) -> RunMemory:
        task = self.prepared.task
        sizes = compute_batch_sizes(config, self.ranks, len(task.train))
        return estimate_all_memory(config, sizes, task, self.specs, self.ranks, self.machine.device)


def _batch_sizes(trial: _Trial, config: Config, max_decode_factor: int | None = None) -> tuple[_BatchSize, ...]:
    """The numbers that a run may lower, the most costly ones in time first."""
    deepspeed = config.deepspeed
    decoded = min(config.rollout.decode_batch_size, trial.max_rows(config))
    vocabulary = min((shapes.actor.vocabulary for shapes in trial.specs.shapes.values()), default=1)
    chunk = deepspeed.logit_chunk_tokens or max(LOGIT_CHUNK_ELEMENTS // vocabulary, 1)
    return (
        _BatchSize(decoded, -(-decoded // max_decode_factor) if max_decode_factor else 1, _set_decode_batch),
        _BatchSize(deepspeed.micro_batch_tokens, 1, _deepspeed_setter("micro_batch_tokens")),
        _BatchSize(deepspeed.forward_batch_tokens, 1, _deepspeed_setter("forward_batch_tokens")),
        _BatchSize(chunk, min(chunk, MIN_LOGIT_CHUNK), _deepspeed_setter("logit_chunk_tokens")),
    )


def _set_decode_batch(config: Config, value: int) -> Config:
    return replace(config, rollout=replace(config.rollout, decode_batch_size=value))


def _deepspeed_setter(key: str) -> Callable[[Config, int], Config]:
    def change(config: Config, value: int) -> Config:
        return replace(config, deepspeed=replace(config.deepspeed, **{key: value}))

    return change


def _lower(config: Config, sizes: Sequence[_BatchSize]) -> Config:
    """All batch sizes at their lowest values; unchanged where they are not above them."""
    for size in sizes:
        if size.value > size.lowest:
            config = size.change(config, size.lowest)
    return config


def _restore(start: Config, sizes: Sequence[_BatchSize], is_enough: Callable[[Config], bool]) -> Config:
    """As few and as small changes of batch sizes as are enough; all of them at their lowest values are."""
    needed = list(sizes)
    for size in sizes:
        others = [other for other in needed if other is not size]
        if is_enough(_lower(start, others)):
            needed = others
    found = start
    for number, size in enumerate(needed):
        for value in size.smaller_values():
            changed = size.change(found, value)
            if is_enough(_lower(changed, needed[number + 1 :])):
                found = changed
                break
    return found


def _server_settings(config: Config) -> Iterator[Config]:
    """The configuration, and those with servers of more of the devices that the placement gives to servers."""
    yield config
    rollout, engines = config.rollout, config.rollout.engines
    if engines is None:
        return
    devices = len(read_rollout_devices(config))
    size = int(engines.engine_args.get(TENSOR_PARALLEL) or 1)
    for parts in SPLITS:
        if parts > size and devices % (devices_per_server(engines) // size * parts) == 0 < devices:
            arguments = {**engines.engine_args, TENSOR_PARALLEL: parts}
            yield replace(config, rollout=replace(rollout, vllm=replace(engines, engine_args=arguments)))


def _limit_responses(config: Config, longest: int) -> Config:
    def limit(value: int) -> int:
        return min(value, longest)

    agents = {
        name: replace(agent, rollout=replace(agent.rollout, max_new_tokens=limit(agent.rollout.max_new_tokens)))
        for name, agent in config.task.agents.items()
    }
    rollout = replace(config.rollout, max_new_tokens=limit(config.rollout.max_new_tokens))
    return replace(config, task=replace(config.task, agents=agents), rollout=rollout)


def _format_changes(old: Config, new: Config) -> str:
    """The overrides that make `new` of `old`."""
    return " ".join(dict.fromkeys(_list_changes(old, new)))


def _list_changes(old: Config, new: Config) -> Iterator[str]:
    if new.plan.devices != old.plan.devices:
        yield f"plan.devices={new.plan.devices}"
    for key in ("stage", "offload_optimizer", "offload_params", "sequence_parallel", "tensor_parallel"):
        yield from _format_change(f"deepspeed.{key}", getattr(old.deepspeed, key), getattr(new.deepspeed, key))
    yield from _format_change("rollout.zero3_gather", old.rollout.zero3_gather.value, new.rollout.zero3_gather.value)
    for name, agent in local_agents(old).items():
        actor, critic = new.task.agents[name].actor, new.task.agents[name].critic
        if not agent.frozen and actor.gradient_checkpointing != agent.actor.gradient_checkpointing:
            is_group = agent.actor.gradient_checkpointing == getattr(old.actor, "gradient_checkpointing", None)
            yield f"{'' if is_group else f'task.agents.{name}.'}actor.gradient_checkpointing=true"
        before = getattr(agent.critic, "gradient_checkpointing", False)
        if not agent.frozen and getattr(critic, "gradient_checkpointing", False) != before:
            is_group = before == getattr(old.critic, "gradient_checkpointing", None)
            yield f"{'' if is_group else f'task.agents.{name}.'}critic.gradient_checkpointing=true"
    for key in ("micro_batch_tokens", "forward_batch_tokens", "logit_chunk_tokens"):
        yield from _format_change(f"deepspeed.{key}", getattr(old.deepspeed, key), getattr(new.deepspeed, key))
    yield from _format_change("rollout.decode_batch_size", old.rollout.decode_batch_size, new.rollout.decode_batch_size)
    yield from _format_change("rollout.max_new_tokens", old.rollout.max_new_tokens, new.rollout.max_new_tokens)
    for name, agent in old.task.agents.items():
        limit = new.task.agents[name].rollout.max_new_tokens
        if agent.rollout.max_new_tokens not in (limit, old.rollout.max_new_tokens):
            yield f"task.agents.{name}.rollout.max_new_tokens={limit}"
    if (engines := old.rollout.engines) is not None and (changed := new.rollout.engines) is not None:
        before, after = (settings.engine_args.get(TENSOR_PARALLEL) for settings in (engines, changed))
        yield from _format_change(f"++rollout.vllm.engine_args.{TENSOR_PARALLEL}", before, after)


def _format_change(key: str, old: object, new: object) -> Iterator[str]:
    if old != new:
        yield f"{key}={str(new).lower() if isinstance(new, bool) else new}"
