"""Lower bound of an iteration's duration, computed from model sizes and device speeds.

A phase takes at least the maximum of the times for matrix products, for reading weights and caches, and for sending
weights and gradients, each at the given speed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ippo_cli.config.batch_sizes import critic_mini_batch_size, mini_batch_size
from ippo_cli.config.credit import needs_reference, needs_replays
from ippo_cli.config.schema import (
    AgentConfig,
    Config,
    CriticKind,
    Dtype,
    OptimizedCriticConfig,
    PlanConfig,
    SeparateCriticConfig,
    Zero3Gather,
)
from ippo_cli.models.actor import DTYPES
from ippo_cli.models.shape import ModelShape
from ippo_cli.planning.memory import AgentShapes, bytes_per_weight, engine_stage

PHASES: tuple[str, ...] = ("rollout", "targets", "update")


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speeds of one rank."""

    flops_per_s: float
    memory: float = math.inf  # bytes per second read from device memory
    network_bytes_per_s: float = math.inf  # to other ranks; sending and receiving overlap

    def seconds(self, operations: float, *, read: float = 0.0, sent: float = 0.0) -> float:
        """Duration of FLOPs, memory reads and sends (bytes) that run in parallel."""
        return max(operations / self.flops_per_s, read / self.memory, sent / self.network_bytes_per_s)


def stated_speed(plan: PlanConfig) -> Speed:
    """The speed of one device from `plan.*`; with several machines, at the network's speed between machines."""
    assert plan.devices is not None
    assert plan.per_machine is not None
    assert plan.tflops is not None
    assert plan.memory_gb_per_s is not None
    network = plan.link_gb_per_s if plan.devices <= plan.per_machine else plan.network_gb_per_s
    assert network is not None
    return Speed(flops_per_s=plan.tflops * 1e12, memory=plan.memory_gb_per_s * 1e9, network_bytes_per_s=network * 1e9)


def measure_speed(ranks: int, dtype: Dtype) -> Speed:
    """Measure one rank's speed on this machine's processor: the fastest of the matrix products in 0.2 s."""
    size = 768
    left = torch.ones(size, size, dtype=DTYPES[dtype])

    def time_matmul() -> float:
        began = time.perf_counter()
        torch.mm(left, left)
        return time.perf_counter() - began

    time_matmul()  # the first one allocates
    until, fastest = time.perf_counter() + 0.2, time_matmul()
    while time.perf_counter() < until:
        fastest = min(fastest, time_matmul())
    return Speed(flops_per_s=2.0 * size**3 / fastest / ranks)


def iteration_seconds(config: Config, shapes: Mapping[str, AgentShapes], ranks: int, speed: Speed) -> dict[str, float]:
    """Lower bound in seconds by phase, on each rank, with all sequences at maximum length."""
    seconds = dict.fromkeys(PHASES, 0.0)
    for name, agent in shapes.items():
        settings = config.task.agents[name]
        work = _AgentWork(config, settings, agent, ranks, speed)
        seconds["rollout"] += work.rollout()
        if not settings.frozen:
            seconds["targets"] += work.targets()
            seconds["update"] += work.update()
    return seconds


@dataclass(frozen=True, slots=True)
class _AgentWork:
    """Durations of one agent's phases on one rank."""

    config: Config
    settings: AgentConfig
    agent: AgentShapes
    ranks: int
    speed: Speed

    @property
    def rows(self) -> float:
        return self.config.rollout.buffer_size / self.ranks

    @property
    def written(self) -> int:
        """Maximum response tokens of a row, in all its turns."""
        return min(self.settings.rollout.max_new_tokens * (self.agent.length.turns or 1), self.agent.length.row_tokens)

    def rollout(self) -> float:
        """Prefill of every prompt, then decoding in batches."""
        shape, row, written = self.agent.actor, self.agent.length.row_tokens, self.written
        width = bytes_per_weight(self.settings.actor.dtype)
        prompts = self.speed.seconds(self.rows * (row - written) * _forward_flops_per_token(shape, row))
        batch_rows = min(self.config.rollout.decode_batch_size, math.ceil(self.rows))
        cached = 2.0 * width * shape.layers * shape.kv_width * (row - written / 2)
        by_layer = self._is_sharded and self.config.rollout.zero3_gather is Zero3Gather.layer
        sent = self._received_bytes(width * shape.parameters)
        step = self.speed.seconds(
            batch_rows * _forward_flops_per_token(shape, row),
            read=width * shape.parameters + batch_rows * cached,
            sent=sent if by_layer else 0.0,
        )
        seconds = prompts + step * written * math.ceil(self.rows / batch_rows)
        if self._is_sharded and not by_layer:
            seconds += self.speed.seconds(0.0, sent=sent)
        # Replays: this agent's own turns; turns of other agents that change depend on the task and are not counted.
        every = self.config.reward.measure_credit_every or 1
        return seconds * (1 + (1 / every if needs_replays(self.config) else 0))

    def targets(self) -> float:
        """Forward passes for values, reference log-probabilities, and recomputed log-probabilities."""
        kind, shapes = self.settings.critic.kind, self.agent
        read = [] if kind is CriticKind.none else [shapes.critic or shapes.actor]
        read += [shapes.actor] * (needs_reference(self.config) + self.config.rollout.recompute_logprobs)
        return sum(self._forward_seconds(shape) for shape in read)

    def update(self) -> float:
        """All epochs of the actor and of a separate critic."""
        config, settings, critic = self.config, self.settings, self.settings.critic
        seconds = self._training_seconds(
            self.agent.actor,
            settings.actor.dtype,
            settings.algorithm.ppo_epochs,
            mini_batch_size(config, settings),
            settings.actor.gradient_checkpointing,
        )
        if self.agent.critic is not None and isinstance(critic, OptimizedCriticConfig):
            model = critic if isinstance(critic, SeparateCriticConfig) else settings.actor
            seconds += self._training_seconds(
                self.agent.critic,
                model.dtype,
                critic.ppo_epochs or settings.algorithm.ppo_epochs,
                critic_mini_batch_size(config, settings),
                model.gradient_checkpointing,
            )
        return seconds

    def _training_seconds(self, shape: ModelShape, dtype: Dtype, epochs: int, mini: int, checkpointed: bool) -> float:
        row, width = self.agent.length.row_tokens, bytes_per_weight(dtype)
        forward = _forward_flops_per_token(shape, row)
        # A frozen base needs no weight gradients.
        backward = 2.0 * forward if shape.adapter is None else forward + 4.0 * shape.trained_parameters
        operations = self.rows * row * (forward + backward + (forward if checkpointed else 0.0))
        steps = math.ceil(self.config.rollout.buffer_size / mini)
        passes = steps * max(1, math.ceil(mini / self.ranks * row / self.config.deepspeed.micro_batch_tokens))
        trained = float(shape.trained_parameters)
        stage = engine_stage(self.config, width, self.ranks)
        # Gradients are sent in fp32: an all-reduce below stage 3 (twice the size), a reduce-scatter at stage 3.
        if stage == 3:
            sent = passes * (2 * width * trained + 4 * trained)
        else:
            sent = (passes if stage == 2 else steps) * 2 * 4 * trained + (steps * width * trained if stage else 0.0)
        return epochs * self.speed.seconds(operations, sent=self._received_bytes(sent))

    def _forward_seconds(self, shape: ModelShape) -> float:
        """Forward pass over all rows without gradients."""
        row, width = self.agent.length.row_tokens, bytes_per_weight(self.settings.actor.dtype)
        batches = max(1, math.ceil(self.rows * row / self.config.deepspeed.forward_batch_tokens))
        sent = self._received_bytes(batches * width * shape.parameters) if self._is_sharded else 0.0
        return self.speed.seconds(self.rows * row * _forward_flops_per_token(shape, row), sent=sent)

    @property
    def _is_sharded(self) -> bool:
        return self.config.deepspeed.stage == 3 and self.ranks > 1

    def _received_bytes(self, size: float) -> float:
        """The bytes of a sharded tensor that one rank receives from the others."""
        return size * (1.0 - 1.0 / self.ranks)


def _forward_flops_per_token(shape: ModelShape, context: int) -> float:
    """FLOPs per token: two per weight, and attention over half of the context on average."""
    return 2.0 * shape.parameters + 2.0 * shape.layers * shape.hidden * context
