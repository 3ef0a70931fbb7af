"""Memory estimates per rank and phase, computed from model shapes without loading weights.

All sizes are in bytes. Weights, gradients and optimizer states use DeepSpeed's sizes; activations, logits and caches
are those of a transformer decoder at the longest sequences that the configuration allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ippo_cli.config.adapters import has_merged_adapter
from ippo_cli.config.batch_sizes import critic_mini_batch_size, mini_batch_size
from ippo_cli.config.credit import needs_reference, needs_replays
from ippo_cli.config.schema import (
    ActorConfig,
    CheckpointWeights,
    Config,
    ContextMode,
    Dtype,
    LoraActorConfig,
    OptimizedCriticConfig,
    SeparateCriticConfig,
    ValueHeadCriticConfig,
    VllmRolloutConfig,
    Zero3Gather,
)
from ippo_cli.config.teams import agents_by_base, agents_by_critic, policy_by_agent, trained_agents_by_policy
from ippo_cli.engine.zero_config import bucket_elements, effective_stage, live_elements
from ippo_cli.engine.zero_memory import EngineMemory, engine_memory, inference_memory
from ippo_cli.models.packing import uses_fp32_attention
from ippo_cli.models.shape import ModelShape
from ippo_cli.planning.agent_shapes import AgentShapes, bytes_per_weight
from ippo_cli.planning.episode_length import EpisodeLength
from ippo_cli.planning.pass_memory import activation_bytes, forward_bytes, kv_bytes, logit_bytes
from ippo_cli.planning.sampler_memory import SamplerMemory, estimate_sampler_memory
from ippo_cli.rollout.kv_cache import COLUMNS_AHEAD
from ippo_cli.rollout.prefix_cache import MAX_BYTES as PREFIX_CACHE_BYTES

GIB = 2**30
PROMPT_TOKENS = 8192  # per prefill batch, see `rollout/decode.py`
LOGIT_CHUNK_ELEMENTS = 1 << 26  # see `agents/build.py`


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """Memory of one engine."""

    name: str
    shape: ModelShape
    bytes_per_weight: int  # bytes per weight
    memory: EngineMemory
    scoring_bytes: float  # activations and logits of a forward pass without gradients; 0 if it runs none
    training_bytes: float  # activations and logits of a micro-batch with gradients
    has_several_micro_batches: bool  # per optimizer step
    is_actor: bool
    is_stage3: bool  # stage 3 loads weights one parameter at a time

    @property
    def update_bytes(self) -> float:
        """Additional memory during an update."""
        return self.memory.update_peak(self.training_bytes, has_several=self.has_several_micro_batches)

    @property
    def loading_bytes(self) -> float:
        """Additional memory during the engine's initialisation."""
        whole = self.bytes_per_weight * max(self.shape.sizes) if self.is_stage3 else 0.0
        return max(self.memory.load_peak - self.memory.resident_at_start, 0.0) + whole


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenModel:
    """Memory of one model without an optimizer: reference, adapter base, frozen actor, snapshot or reward model."""

    name: str
    shape: ModelShape
    bytes_per_weight: int
    sharded_memory: EngineMemory | None = None  # its share if sharded at stage 3; None if every rank holds all weights

    @property
    def weight_bytes(self) -> float:
        if self.sharded_memory is not None:
            return self.sharded_memory.weights
        return self.shape.quantized_bytes or float(self.bytes_per_weight * self.shape.parameters)

    @property
    def gathered_bytes(self) -> float:
        """Gathered weights during a forward pass."""
        return 0.0 if self.sharded_memory is None else self.sharded_memory.gathered_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Memory estimate of one rank."""

    device: str  # `cpu` or `cuda`
    trained: tuple[TrainedModel, ...]
    frozen: tuple[FrozenModel, ...]
    kv_cache_bytes: float  # KV cache and sampling logits, maximum over agents
    prefix_cache_bytes: float  # cached keys and values of earlier turns, sum over agents; 0 without prefix reuse
    rollout_gathered_bytes: float  # stage 3: gathered weights during decoding
    reference_gathered_bytes: float  # stage 3: gathered reference weights during the policy's forward pass
    sampler: SamplerMemory | None = None  # of the engines of rollout=vllm

    @property
    def resident_bytes(self) -> float:
        """Permanent memory on the device, from the first update on."""
        sampler = 0.0 if self.sampler is None else self.sampler.resident
        return sum(model.memory.resident for model in self.trained) + self._frozen_bytes + sampler

    @property
    def certain_bytes(self) -> float:
        """Device memory independent of sequence lengths: weights, optimizer states, and gradients of one update."""
        return self.resident_bytes + max(model.memory.transient_gradients for model in self.trained)

    @property
    def host_bytes(self) -> float:
        """Offloaded to host memory."""
        frozen = sum(model.sharded_memory.host for model in self.frozen if model.sharded_memory is not None)
        return sum(model.memory.host for model in self.trained) + frozen

    @property
    def save_bytes(self) -> float:
        """Host memory on rank 0 while the largest model is gathered and saved."""
        return max(float(model.bytes_per_weight * model.shape.trained_parameters) for model in self.trained)

    @property
    def bytes_by_phase(self) -> dict[str, float]:
        """Peak device memory of each phase."""
        loaded = sum(model.memory.resident_at_start for model in self.trained)
        scored = max(
            model.scoring_bytes + model.memory.gathered_weights if model.scoring_bytes else 0.0
            for model in self.trained
        )
        return {
            "load": loaded + max(model.loading_bytes for model in self.trained) + self._frozen_bytes,
            "rollout": self.resident_bytes
            + self.rollout_gathered_bytes
            + (self.sampler.weights + self.sampler.caches if self.sampler is not None and self.sampler.sleeps else 0.0)
            + self.kv_cache_bytes
            + self.prefix_cache_bytes,
            "targets": self.resident_bytes + self.reference_gathered_bytes + scored,
            "update": self.resident_bytes
            + self.reference_gathered_bytes
            + max(model.update_bytes for model in self.trained),
            "save": self.resident_bytes + (self.save_bytes if self.device == "cpu" else 0.0),
        }

    @property
    def peak_phase(self) -> tuple[str, float]:
        """The phase with the highest peak, and its bytes."""
        return max(self.bytes_by_phase.items(), key=lambda phase: phase[1])

    @property
    def _frozen_bytes(self) -> float:
        return sum(model.weight_bytes for model in self.frozen)


def estimate_memory(
    config: Config,
    shapes: Mapping[str, AgentShapes],
    ranks: int,
    rows: int,
    device: str,
    rewards: Sequence[FrozenModel] = (),
    engine_devices: Sequence[int] | None = None,
) -> MemoryEstimate:
    """Estimate a run's memory per rank, with at most `rows` rows per rank in a rollout, and reward models `rewards`.

    `engine_devices`: GPUs that inference servers have for themselves.
    """
    several_turns = any(agent.length.turns != 1 for agent in shapes.values())
    keeps_prefixes = several_turns and config.rollout.context is not ContextMode.last_only
    trained = tuple(_trained_models(config, shapes, ranks, rows, device))
    frozen = (*_frozen_models(config, shapes, ranks), *rewards)
    if isinstance(config.rollout, VllmRolloutConfig):
        return MemoryEstimate(
            device=device,
            trained=trained,
            frozen=frozen,
            kv_cache_bytes=0.0,
            prefix_cache_bytes=0.0,
            rollout_gathered_bytes=0.0,
            reference_gathered_bytes=max((model.gathered_bytes for model in frozen), default=0.0)
            if _has_full_kl(config)
            else 0.0,
            sampler=estimate_sampler_memory(config, shapes, ranks, rows, device, engine_devices),
        )
    decoding = [_decode_gathered_bytes(config, model.memory) for model in trained if model.is_actor]
    if needs_replays(config) or any(agent.frozen for agent in config.task.agents.values()):
        decoding += [_decode_gathered_bytes(config, m.sharded_memory) for m in frozen if m.sharded_memory is not None]
    return MemoryEstimate(
        device=device,
        trained=trained,
        frozen=frozen,
        kv_cache_bytes=max(_decode_bytes(config, name, agent, rows) for name, agent in shapes.items()),
        prefix_cache_bytes=sum(_prefix_cache_bytes(config, name, agent, rows) for name, agent in shapes.items())
        if keeps_prefixes
        else 0.0,
        rollout_gathered_bytes=max(decoding),
        reference_gathered_bytes=max((model.gathered_bytes for model in frozen), default=0.0)
        if _has_full_kl(config)
        else 0.0,
    )


def checkpoint_bytes(config: Config, shapes: Mapping[str, AgentShapes], ranks: int) -> float:
    """Bytes of one checkpoint of all ranks: optimizer shards and model folders of every trained model."""
    total = 0.0
    for model in _trained_models(config, shapes, ranks, 1, "cuda"):
        stage = engine_stage(config, model.bytes_per_weight, ranks)
        # Adam moments and fp32 weights; below stage 3 also the weights in their own dtype.
        shards = 8 + (4 if stage else 0) + (model.bytes_per_weight if stage < 3 else 0)
        total += model.shape.trained_parameters * (
            model.bytes_per_weight + (shards if config.checkpoint.optimizer else 0)
        )
        if model.shape.adapter is not None and config.checkpoint.weights is CheckpointWeights.full:
            total += 4 * model.shape.parameters  # merged models are saved in fp32
    for names in trained_agents_by_policy(config).values():
        actor, shape = config.task.agents[names[0]].actor, shapes[names[0]].reference
        if shape is not None and actor.reference_update_every is not None and needs_reference(config):
            total += bytes_per_weight(actor.dtype) * shape.parameters
    return total


def snapshot_bytes(config: Config, shapes: Mapping[str, AgentShapes]) -> float:
    """Bytes of all snapshots of the opponent pool, including the one being written."""
    pool = config.team.opponent_pool
    if not pool.every or pool.size is None:
        return 0.0
    actors = (
        shapes[names[0]].actor.parameters * bytes_per_weight(config.task.agents[names[0]].actor.dtype)
        for names in trained_agents_by_policy(config).values()
    )
    return (pool.size + 1) * float(sum(actors))


def _trained_models(
    config: Config, shapes: Mapping[str, AgentShapes], ranks: int, rows: int, device: str
) -> Iterator[TrainedModel]:
    """Each engine once; agents of a group share a model and add their own rows."""
    own = dict(agents_by_critic(config))
    for holder, names in trained_agents_by_policy(config).items():
        settings, agent = config.task.agents[names[0]], shapes[names[0]]
        actor = settings.actor
        longest = max(shapes[name].length.row_tokens for name in names)
        carried = isinstance(settings.critic, ValueHeadCriticConfig)
        yield _trained_model(
            config,
            f"{holder} actor",
            agent.actor,
            actor.dtype,
            ranks,
            _EngineInput(
                max_row_tokens=longest,
                response_tokens=min(
                    max(_response_tokens(config, name, shapes[name].length) for name in names), longest
                ),
                rows=len(names) * rows,
                rows_per_step=len(names) * max(-(-mini_batch_size(config, settings) // count_groups(config, ranks)), 1),
                has_scoring=carried or config.rollout.recompute_logprobs or needs_reference(config),
            ),
            checkpointed=actor.gradient_checkpointing,
            decodes=True,
            device=device,
        )
        if holder in own:
            yield _critic_model(config, holder, own.pop(holder), shapes, ranks, rows, device)
    for name, names in own.items():  # critics shared by several policies
        yield _critic_model(config, name, names, shapes, ranks, rows, device)


def _critic_model(
    config: Config,
    name: str,
    names: tuple[str, ...],
    shapes: Mapping[str, AgentShapes],
    ranks: int,
    rows: int,
    device: str,
) -> TrainedModel:
    """The engine of a critic with its own optimizer."""
    settings, shape = config.task.agents[names[0]], shapes[names[0]].critic
    assert isinstance(settings.critic, OptimizedCriticConfig)
    assert shape is not None
    # An adapter critic uses the actor's base and dtype.
    model = settings.critic if isinstance(settings.critic, SeparateCriticConfig) else settings.actor
    return _trained_model(
        config,
        f"{name} critic",
        shape,
        model.dtype,
        ranks,
        _EngineInput(
            max_row_tokens=max(shapes[agent].critic_row_tokens or shapes[agent].length.row_tokens for agent in names),
            response_tokens=0,
            rows=len(names) * rows,
            rows_per_step=len(names)
            * max(-(-critic_mini_batch_size(config, settings) // count_groups(config, ranks)), 1),
            has_scoring=True,
        ),
        checkpointed=model.gradient_checkpointing,
        decodes=False,
        device=device,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngineInput:
    """The input sizes of an engine on one rank."""

    max_row_tokens: int  # maximum tokens of a row
    response_tokens: int  # of these, the ones with logits
    rows: int  # per iteration
    rows_per_step: int  # rows per optimizer step, of a model-parallel group
    has_scoring: bool  # whether it also runs forward passes without gradients

    @property
    def response_fraction(self) -> float:
        return self.response_tokens / self.max_row_tokens


def _trained_model(
    config: Config,
    name: str,
    shape: ModelShape,
    dtype: Dtype,
    ranks: int,
    read: _EngineInput,
    *,
    checkpointed: bool,
    decodes: bool,
    device: str,
) -> TrainedModel:
    deepspeed, width = config.deepspeed, bytes_per_weight(dtype)
    ranks_per_replica = deepspeed.tensor_parallel
    # Bytes of a rank's whole linear maps beside its shares, outside of training passes.
    gathered = float(width * shape.split_elements) if ranks_per_replica > 1 else 0.0
    parameters = shape.trained_parameters - shape.split_elements * (ranks_per_replica - 1) // ranks_per_replica
    memory = engine_memory(
        parameters,
        stage=engine_stage(config, width, ranks),
        width=width,
        ranks=ranks // ranks_per_replica,
        bucket=bucket_elements(deepspeed.reduce_bucket_size, parameters),
        largest=max(shape.sizes if shape.adapter is None else shape.adapter),
        persistent=shape.count_smaller_than(deepspeed.persistence_threshold),
        live=live_elements(deepspeed.max_live_parameters, shape.trained_parameters),
        offload_optimizer=deepspeed.offload_optimizer,
        offload_params=deepspeed.offload_params,
        on_host=device == "cpu",
    )
    # A row longer than the token budget is a separate micro-batch.
    micro_batch_limit = max(deepspeed.micro_batch_tokens, read.max_row_tokens)
    micro = min(micro_batch_limit, read.max_row_tokens * read.rows_per_step) / deepspeed.sequence_parallel
    scored = min(max(deepspeed.forward_batch_tokens, read.max_row_tokens), read.max_row_tokens * read.rows)
    chunk, written = (
        deepspeed.logit_chunk_tokens or max(LOGIT_CHUNK_ELEMENTS // shape.vocabulary, 1),
        read.response_fraction,
    )
    entropy = config.algorithm.entropy_coef != 0.0
    in_fp32 = uses_fp32_attention(device, width < 4, read.max_row_tokens)
    forward = scored * forward_bytes(shape, width)
    forward += min(chunk, scored * written) * shape.vocabulary * logit_bytes(width, trains=False, entropy=entropy)
    return TrainedModel(
        name=name,
        shape=shape,
        bytes_per_weight=width,
        memory=replace(memory, decode_weights=memory.decode_weights + gathered),
        scoring_bytes=forward + gathered if read.has_scoring else 0.0,
        training_bytes=micro
        * activation_bytes(
            shape,
            width,
            checkpointed=checkpointed,
            in_fp32=in_fp32,
            longest=read.max_row_tokens,
            tensor_parallel=ranks_per_replica,
        )
        + min(chunk, micro * written) * shape.vocabulary * logit_bytes(width, trains=True, entropy=entropy),
        has_several_micro_batches=read.max_row_tokens * read.rows_per_step > micro_batch_limit,
        is_actor=decodes,
        is_stage3=engine_stage(config, width, ranks) == 3,
    )


def _response_tokens(config: Config, name: str, length: EpisodeLength) -> int:
    """Maximum response tokens in one row."""
    limit = config.task.agents[name].rollout.max_new_tokens
    return length.row_tokens if length.turns is None else min(length.turns * limit, length.row_tokens)


def _decode_bytes(config: Config, name: str, agent: AgentShapes, rows: int) -> float:
    """KV cache of one decode batch, with the larger of its logits and its prefill activations."""
    shape, width = agent.actor, bytes_per_weight(config.task.agents[name].actor.dtype)
    batch_rows, longest = min(config.rollout.decode_batch_size, rows), agent.length.sequence_tokens
    cache = (
        kv_bytes(shape, width)
        * batch_rows
        * _max_cache_columns(longest, config.task.agents[name].rollout.max_new_tokens)
    )
    logits = batch_rows * shape.vocabulary * (width + 12)
    prompts = min(max(PROMPT_TOKENS, longest), batch_rows * longest) * forward_bytes(shape, width)
    return cache + max(logits, prompts)


def _max_cache_columns(longest: int, limit: int) -> int:
    """Maximum columns of a KV cache; see `rollout/kv_cache.py`."""
    ahead = min(COLUMNS_AHEAD, limit)
    columns = max(longest - limit, 1) + ahead
    while columns < longest:
        columns += max(ahead, columns // 2)
    return columns


def _prefix_cache_bytes(config: Config, name: str, agent: AgentShapes, rows: int) -> float:
    """Cached keys and values of rows whose episodes continue."""
    per_token = kv_bytes(agent.actor, bytes_per_weight(config.task.agents[name].actor.dtype))
    return min(float(PREFIX_CACHE_BYTES), per_token * rows * agent.length.sequence_tokens)


def _decode_gathered_bytes(config: Config, memory: EngineMemory) -> float:
    if config.rollout.zero3_gather is Zero3Gather.layer:
        return min(memory.decode_weights, memory.gathered_weights)
    return memory.decode_weights


def _has_full_kl(config: Config) -> bool:
    """Whether a policy's forward pass also uses its reference's head (full-vocabulary KL)."""
    terms = config.algorithm.kl.reward, config.algorithm.kl.loss
    return any(term.coef != 0.0 and term.estimator == "full" for term in terms)


def _frozen_models(config: Config, shapes: Mapping[str, AgentShapes], ranks: int) -> Iterator[FrozenModel]:
    """Adapter bases (also references), other references, frozen actors, and one snapshot per policy with opponents."""
    is_sharded = config.deepspeed.stage == 3 and ranks > 1
    if config.team.opponent_pool.every:
        for holder, names in trained_agents_by_policy(config).items():
            width = bytes_per_weight(config.task.agents[names[0]].actor.dtype)
            yield FrozenModel(name=f"{holder} partner", shape=shapes[names[0]].actor, bytes_per_weight=width)
    known: set[tuple[str, Dtype]] = set()
    holder_of = policy_by_agent(config)
    base_of_agent = {name: base for base, names in agents_by_base(config).items() for name in names}
    seen: set[str] = set()
    for name, agent in shapes.items():
        settings, base = config.task.agents[name], base_of_agent[name]
        width = bytes_per_weight(settings.actor.dtype)
        own = agent.reference if not settings.frozen and needs_reference(config) else None
        if own is not None:
            key = (_reference_key(settings.actor, holder_of[name]), settings.actor.dtype)
            if key not in known:
                known.add(key)
                kept = 4 if has_merged_adapter(settings.actor.reference) else width
                spread = _sharded_memory(config, own, kept, ranks) if is_sharded else None
                yield FrozenModel(
                    name=f"{holder_of[name]} reference", shape=own, bytes_per_weight=kept, sharded_memory=spread
                )
        if isinstance(settings.actor, LoraActorConfig):
            if base not in seen:
                seen.add(base)
                yield FrozenModel(name=f"{base} base", shape=agent.actor, bytes_per_weight=width)
            continue
        key = (agent.weights_source, settings.actor.dtype)
        if key not in known and own is None and (settings.frozen or needs_reference(config)):
            known.add(key)
            role = "actor" if settings.frozen else "reference"
            spread = _sharded_memory(config, agent.actor, width, ranks) if is_sharded else None
            yield FrozenModel(
                name=f"{holder_of[name]} {role}", shape=agent.actor, bytes_per_weight=width, sharded_memory=spread
            )


def _reference_key(actor: ActorConfig, holder: str) -> str:
    """A key that is equal for agents that share one reference."""
    if actor.reference_update_every is not None:
        return f"{actor.reference} of {holder}"
    return f"{actor.reference} {getattr(actor, 'adapter', None)}"


def _sharded_memory(config: Config, shape: ModelShape, width: int, ranks: int) -> EngineMemory:
    """Memory of frozen weights sharded over the ranks."""
    return inference_memory(
        shape.parameters,
        width=width,
        ranks=ranks,
        largest=max(shape.sizes),
        persistent=shape.count_smaller_than(config.deepspeed.persistence_threshold),
        live=live_elements(config.deepspeed.max_live_parameters, shape.parameters),
        offload_params=config.deepspeed.offload_params,
    )


def count_groups(config: Config, ranks: int) -> int:
    """Number of model-parallel groups; the rows of an update are divided among them."""
    return max(ranks // config.deepspeed.ranks_per_group, 1)


def engine_stage(config: Config, width: int, ranks: int) -> int:
    """The ZeRO stage of an engine with `width` bytes per weight."""
    deepspeed = config.deepspeed
    return effective_stage(
        deepspeed.stage,
        bf16=width < 4,
        ranks=ranks,
        offload_optimizer=deepspeed.offload_optimizer,
        tensor_parallel=deepspeed.tensor_parallel,
    )
