"""Seconds of the phases of an iteration, by arithmetic from parameter counts, tokens and the speeds in `plan`.

A forward pass takes 2 operations per parameter and token, a backward pass 4; attention over earlier tokens is left
out. Decoding reads all weights once per step, and the keys and values of its rows. All responses have their maximum
length. Rewards that are no models, tokenization and data transfer of rows take no time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ippo_cli.config.batch_sizes import BatchSizes, critic_mini_batch_size, mini_batch_size
from ippo_cli.config.credit import needs_reference, needs_replays, samples_alternatives
from ippo_cli.config.hardware import count_machines
from ippo_cli.config.placement import ACTOR, CRITIC, REFERENCE, REWARD, Placement, read_placement, uses_servers
from ippo_cli.config.schema import (
    ActorConfig,
    AgentConfig,
    Config,
    Dtype,
    LoraActorConfig,
    OptimizedCriticConfig,
    PlanConfig,
    SeparateCriticConfig,
    UpdateOrder,
    ValueHeadCriticConfig,
    VllmRolloutConfig,
    Zero3Gather,
)
from ippo_cli.config.served_agents import served_agents
from ippo_cli.config.shared_rollouts import shared_authors
from ippo_cli.config.teams import agents_by_critic, trained_agents_by_policy
from ippo_cli.config.vllm import devices_per_server
from ippo_cli.models.shape import ModelShape
from ippo_cli.planning.agent_shapes import AgentShapes, bytes_per_weight
from ippo_cli.planning.episode_length import response_tokens
from ippo_cli.planning.memory import count_groups
from ippo_cli.planning.model_memory import FrozenModel
from ippo_cli.planning.pass_memory import kv_bytes
from ippo_cli.planning.sampler_memory import ranks_per_server
from ippo_cli.planning.value_states import continuation_costs

FORWARD, BACKWARD = 2, 4  # operations per parameter and token
GIGA, TERA = 1e9, 1e12


class Stage(Enum):
    """The order of phases: each begins after those of earlier stages."""

    rollout = 0
    scoring = 1
    update = 2
    transfer = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of an iteration on some devices. Servers' devices have numbers after those of all ranks."""

    name: str
    stage: Stage
    seconds: float
    devices: frozenset[int]
    policy: str = ""  # of the weights that an update changes or a transfer sends


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Speeds of one device in operations or bytes per second, with the assumed efficiency."""

    compute: float
    memory: float
    link: float
    network: float
    host: float


def read_speeds(plan: PlanConfig) -> Speeds | None:
    """The speeds that a plan assumes; None if they are unknown."""
    values = (plan.peak_tflops, plan.memory_bandwidth, plan.link_bandwidth, plan.network_bandwidth, plan.host_bandwidth)
    compute, memory, link, network, host = (0.0 if value is None else value for value in values)
    if plan.mfu is None or plan.decode_efficiency is None:
        return None
    return Speeds(
        compute=compute * TERA * plan.mfu,
        memory=memory * GIGA * plan.decode_efficiency,
        link=link * GIGA,
        network=network * GIGA,
        host=host * GIGA,
    )


def missing_time_reason(config: Config, shapes: Mapping[str, AgentShapes]) -> str | None:
    """Why no seconds can be computed; None if they can."""
    if read_speeds(config.plan) is None:
        return "the speeds of the devices are not known; use plan=h100 or plan=a100, or set them"
    for name in served_agents(config):
        return f"the speed of {name}'s server is not known"
    for name, agent in config.task.agents.items():
        critic = agent.critic if isinstance(agent.critic, SeparateCriticConfig) and not agent.frozen else agent.actor
        if Dtype.fp32 in (agent.actor.dtype, critic.dtype):
            return f"plan.peak_tflops is the speed in bf16, and {name} has a model in fp32"
    if needs_replays(config) or samples_alternatives(config):
        return "the number of replayed turns is not known"
    if None in continuation_costs(config, shapes).values():
        return "the number of states of a response is not known; set algorithm.monte_carlo.max_states"
    return None


def phase_times(
    config: Config,
    shapes: Mapping[str, AgentShapes],
    batch_sizes: BatchSizes,
    ranks: int,
    rewards: Sequence[FrozenModel] = (),
) -> list[Phase]:
    """The phases of an iteration in their order. Requires that `missing_time_reason` is None."""
    speeds = read_speeds(config.plan)
    assert speeds is not None
    return list(_PhaseTimes(config, shapes, batch_sizes, ranks, speeds, read_placement(config, ranks)).phases(rewards))


@dataclass(frozen=True, slots=True)
class _PhaseTimes:
    config: Config
    shapes: Mapping[str, AgentShapes]
    batch_sizes: BatchSizes
    ranks: int
    speeds: Speeds
    placement: Placement

    def phases(self, rewards: Sequence[FrozenModel]) -> Iterator[Phase]:
        for name in self.shapes:
            yield self._rollout(name)
        yield from self._continuations()
        yield from self._scoring(rewards)
        updates = [*self._updates()]
        actors = updates[: len(trained_agents_by_policy(self.config))]
        if (
            self.config.team.update_order is UpdateOrder.round_robin
        ):  # one actor per iteration, the slowest; all critics
            slowest = max(actors, key=lambda phase: phase.seconds)
            updates, actors = [slowest, *updates[len(actors) :]], [slowest]
        yield from updates
        if isinstance(self.config.rollout, VllmRolloutConfig):
            updated = {phase.policy for phase in actors}
            for policy, names in trained_agents_by_policy(self.config).items():
                if policy in updated:
                    yield self._transfer(policy, names[0])

    def _rollout(self, name: str) -> Phase:
        rows = self.config.rollout.buffer_size
        answer, prompt = self._tokens(name)
        seconds = self._rounds * self._sampling_seconds(name, rows, answer, prompt, prefilled=rows)
        devices = frozenset(self._sampling_devices(name))
        return Phase(name=f"{name} rollout", stage=Stage.rollout, seconds=seconds, devices=devices)

    def _continuations(self) -> Iterator[Phase]:
        """Sampling of all agents from the states of each agent; the tokens before a state are read once."""
        total = sum(self._tokens(name)[0] for name in self.shapes)
        for name, cost in continuation_costs(self.config, self.shapes).items():
            assert cost is not None
            later = cost.tokens / max(cost.episodes * total, 1)  # fraction of an episode's tokens after a state, mean
            for agent in self.shapes:
                answer, prompt = self._tokens(agent)
                before = prompt + answer * (1 - later)
                seconds = self._sampling_seconds(
                    agent, cost.episodes, answer * later, before, prefilled=cost.episodes / cost.continuations
                )
                yield Phase(
                    name=f"{agent} continuations" if agent == name else f"{agent} continuations for {name}",
                    stage=Stage.scoring,
                    seconds=seconds,
                    devices=frozenset(self._sampling_devices(agent)),
                )

    def _sampling_seconds(self, name: str, rows: int, answer: float, prompt: float, *, prefilled: float) -> float:
        """Prefill of `prefilled` prompts, and decoding of `answer` tokens in each of `rows` rows of all ranks.

        Each server or rank decodes batches of `rollout.decode_batch_size` rows of a rank.
        """
        config, agent, devices = self.config, self.shapes[name], self._sampling_devices(name)
        parts, limit = 1, config.rollout.decode_batch_size
        if (own := self.placement.rollout_devices) and isinstance(config.rollout, VllmRolloutConfig):
            parts = devices_per_server(config.rollout.vllm)
            limit *= ranks_per_server(config, self.ranks, own)
        shape, width = agent.actor, self._width(config.task.agents[name])
        share = max(len(devices) // parts, 1)
        rows = -(-rows // share)
        batches = -(-rows // min(limit, rows))
        # Step t reads the keys and values of the prompt and t tokens.
        cached = kv_bytes(shape, width) * rows * (answer * prompt + answer * (answer - 1) / 2)
        weights = shape.quantized_bytes or float(width * shape.parameters)
        read = (batches * answer * weights + cached) / (parts * self.speeds.memory)
        compute = FORWARD * shape.parameters / (parts * self.speeds.compute)
        seconds = compute * math.ceil(prefilled / share) * prompt + max(read, compute * rows * answer)
        if not isinstance(config.rollout, VllmRolloutConfig) and config.deepspeed.stage == 3:
            gathers = 1 if config.rollout.zero3_gather is Zero3Gather.all else batches * (answer + 1)
            seconds += gathers * self._gather_seconds(shape, width, self.placement.of(name, ACTOR))
        return seconds

    def _scoring(self, rewards: Sequence[FrozenModel]) -> Iterator[Phase]:
        """Forward passes without gradients."""
        config, rows = self.config, self.config.rollout.buffer_size
        for name, agent in self.shapes.items():
            settings, length = config.task.agents[name], agent.length.row_tokens
            if settings.frozen:
                continue
            passes: list[tuple[str, str, int, int]] = []  # name, component, parameters, tokens of a row
            others = sum(self.shapes[author].length.row_tokens for author in shared_authors(config, name))
            if config.rollout.recompute_logprobs:
                passes.append(("logprobs", ACTOR, agent.actor.parameters, length + others))
            if needs_reference(config):
                passes.append(("reference", REFERENCE, agent.actor.parameters, length))
            if isinstance(settings.critic, OptimizedCriticConfig) and agent.critic is not None:
                tokens = agent.critic_row_tokens or length + others
                passes.append(("values", CRITIC, agent.critic.parameters, tokens))
            elif isinstance(settings.critic, ValueHeadCriticConfig):
                passes.append(("values", ACTOR, agent.actor.parameters, length + others))
            for kind, component, parameters, tokens in passes:
                ranks = self.placement.of(name, component)
                yield self._pass(f"{name} {kind}", FORWARD * parameters * rows * tokens, ranks)
        for model in rewards:
            tokens = rows * sum(agent.length.row_tokens for agent in self.shapes.values())
            operations = FORWARD * model.shape.parameters * tokens * self._rounds
            yield self._pass(model.name, operations, self.placement.ranks[REWARD])

    @property
    def _rounds(self) -> int:
        """The most rounds of sampling in an iteration, each with at most the rows of the buffer."""
        return 1 + self.config.rollout.refill_rounds

    def _pass(self, name: str, operations: float, ranks: Sequence[int]) -> Phase:
        seconds = operations / (len(ranks) * self.speeds.compute)
        return Phase(name=name, stage=Stage.scoring, seconds=seconds, devices=frozenset(ranks))

    def _updates(self) -> Iterator[Phase]:
        config, sizes = self.config, self.batch_sizes
        for policy, names in trained_agents_by_policy(config).items():
            settings, agent = config.task.agents[names[0]], self.shapes[names[0]]
            authors = (*names, *shared_authors(config, names[0]))
            tokens = sum(self.shapes[name].length.row_tokens for name in authors)
            yield self._update(
                f"{policy} actor update",
                policy,
                agent.actor,
                settings.actor,
                self.placement.of(names[0], ACTOR),
                row_tokens=tokens,
                mini_batch=mini_batch_size(config, settings),
                epochs=settings.algorithm.ppo_epochs,
                steps=sizes.actor_steps[names[0]],
            )
        for critic, names in agents_by_critic(config).items():
            settings, agent = config.task.agents[names[0]], self.shapes[names[0]]
            assert isinstance(settings.critic, OptimizedCriticConfig)
            assert agent.critic is not None
            own = settings.critic if isinstance(settings.critic, SeparateCriticConfig) else settings.actor
            yield self._update(
                f"{critic} critic update",
                critic,
                agent.critic,
                own,
                self.placement.of(names[0], CRITIC),
                row_tokens=sum(
                    self.shapes[name].critic_row_tokens or self.shapes[name].length.row_tokens for name in names
                ),
                mini_batch=critic_mini_batch_size(config, settings),
                epochs=settings.critic.ppo_epochs or settings.algorithm.ppo_epochs,
                steps=sizes.critic_steps[critic],
            )

    def _update(
        self,
        name: str,
        policy: str,
        shape: ModelShape,
        settings: ActorConfig | SeparateCriticConfig,
        ranks: Sequence[int],
        *,
        row_tokens: int,
        mini_batch: int,
        epochs: int,
        steps: int,
    ) -> Phase:
        """Passes and communication of all optimizer steps, which overlap. `row_tokens`: of a joint sample."""
        deepspeed = self.config.deepspeed
        operations = FORWARD + (BACKWARD if shape.adapter is None else BACKWARD // 2)  # a frozen base has no gradient
        operations += FORWARD if settings.gradient_checkpointing else 0
        tokens = self.config.rollout.buffer_size * row_tokens * epochs
        compute = operations * shape.parameters * tokens / (len(ranks) * self.speeds.compute)
        replicas = count_groups(self.config, len(ranks)) if deepspeed.tensor_parallel > 1 else len(ranks)
        sent = 2 * shape.trained_parameters * (replicas - 1) / replicas / deepspeed.tensor_parallel  # bytes in bf16
        if deepspeed.stage == 3:  # weights in forward and backward passes, and gradients, of every micro-batch
            groups = count_groups(self.config, len(ranks))
            micro = -(-mini_batch * row_tokens // (groups * deepspeed.micro_batch_tokens))
            communication = 3 * sent * micro * steps / self._rate(ranks)
        else:  # a ring sums gradients and sends the sums back
            communication = 2 * sent * steps / self._rate(ranks)
        return Phase(
            name=name,
            stage=Stage.update,
            seconds=max(compute, communication),
            devices=frozenset(ranks),
            policy=policy,
        )

    def _transfer(self, policy: str, name: str) -> Phase:
        """Weights to engines: within a device, or through host memory to servers, and over the network to machines
        without the actor.
        """
        agent, ranks = self.config.task.agents[name], self.placement.of(name, ACTOR)
        shape, width = self.shapes[name].actor, self._width(agent)
        is_adapter = isinstance(agent.actor, LoraActorConfig)
        weights = float(width * (shape.trained_parameters if is_adapter else shape.parameters))
        seconds = self._gather_seconds(shape, width, ranks) if self.config.deepspeed.stage == 3 else 0.0
        seconds += 2 * weights / (self.speeds.host if uses_servers(self.config) else self.speeds.memory)
        if self._count_machines(ranks) < count_machines(self.config):
            seconds += weights / self.speeds.network
        return Phase(
            name=f"{policy} weights",
            stage=Stage.transfer,
            seconds=seconds,
            devices=frozenset(ranks) | frozenset(self._sampling_devices(name)),
            policy=policy,
        )

    def _sampling_devices(self, name: str) -> Sequence[int]:
        servers = count_machines(self.config) * len(self.placement.rollout_devices)
        if servers:
            return range(self.ranks, self.ranks + servers)
        return self.placement.of(name, ACTOR)

    def _tokens(self, name: str) -> tuple[int, int]:
        """Tokens of responses, and others, in one row."""
        length = self.shapes[name].length
        answer = response_tokens(self.config, name, length)
        return answer, max(length.row_tokens - answer, 0)

    def _gather_seconds(self, shape: ModelShape, width: int, ranks: Sequence[int]) -> float:
        """Seconds to gather sharded weights on every rank."""
        return width * shape.parameters * (len(ranks) - 1) / len(ranks) / self._rate(ranks)

    def _rate(self, ranks: Sequence[int]) -> float:
        """Bytes per second between ranks."""
        return self.speeds.link if self._count_machines(ranks) == 1 else self.speeds.network

    def _count_machines(self, ranks: Sequence[int]) -> int:
        per_machine = -(-self.ranks // count_machines(self.config))
        return len({rank // per_machine for rank in ranks})

    def _width(self, agent: AgentConfig) -> int:
        return bytes_per_weight(agent.actor.dtype)
