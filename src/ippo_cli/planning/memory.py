"""What a run holds in memory, per rank and phase: arithmetic on shapes, nothing is loaded.

Everything is in bytes. Weights, gradients and optimizer states are DeepSpeed's own sizes; activations, logits and
caches are those of a transformer decoder at the longest sequences that the configuration lets in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ippo_cli.config.adapters import has_merged_adapter
from ippo_cli.config.batch_sizes import critic_mini_batch_size, mini_batch_size
from ippo_cli.config.credit import needs_reference, needs_replays
from ippo_cli.config.schema import (
    ActorConfig,
    CheckpointWeights,
    Config,
    Dtype,
    History,
    LoraActorConfig,
    OptimizedCriticConfig,
    SeparateCriticConfig,
    ValueHeadCriticConfig,
    Zero3Gather,
)
from ippo_cli.config.teams import agents_by_base, agents_by_critic, policy_by_agent, trained_agents_by_policy
from ippo_cli.engine.zero_config import bucket_elements, effective_stage, live_elements
from ippo_cli.engine.zero_memory import EngineMemory, engine_memory, inference_memory
from ippo_cli.models.packing import uses_fp32_attention
from ippo_cli.models.shape import ModelShape
from ippo_cli.planning.episode_length import EpisodeLength
from ippo_cli.planning.pass_memory import activation_bytes, forward_bytes, kv_bytes, logit_bytes
from ippo_cli.rollout.kv_cache import COLUMNS_AHEAD
from ippo_cli.rollout.prefix_cache import MAX_BYTES as PREFIX_CACHE_BYTES

GIB = 2**30
PROMPT_TOKENS = 8192  # read together, see `rollout/decode.py`
LOGIT_CHUNK_ELEMENTS = 1 << 26  # see `agents/build.py`


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentShapes:
    """The models of one agent, and how much of an episode they may read."""

    actor: ModelShape
    critic: ModelShape | None  # of its own; None where the actor carries it, or nothing has values
    length: EpisodeLength
    weights: str  # where the actor starts from: agents that start from the same share one reference
    reference: ModelShape | None = None  # frozen weights of its reference alone; None where these are shared ones
    critic_row_tokens: int | None = (
        None  # tokens of a centralised critic's longest row; None: the critic reads the agent's
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """One engine."""

    name: str
    shape: ModelShape
    width: int  # bytes of a weight
    memory: EngineMemory
    forward: float  # of scoring: activations and logits without gradients; 0 where it scores nothing
    backward: float  # of a micro-batch: activations and logits with them
    has_several_micro_batches: bool  # whether a step has several micro-batches
    is_actor: bool  # whether it is an actor
    is_stage3: bool  # whether its engine is at stage 3, which takes weights out of the files one parameter at a time

    @property
    def updating(self) -> float:
        """What an update of it adds to what stands."""
        return self.memory.updating(self.backward, has_several=self.has_several_micro_batches)

    @property
    def loading(self) -> float:
        """What is there while DeepSpeed takes it, beyond what it leaves there."""
        whole = self.width * max(self.shape.sizes) if self.is_stage3 else 0.0
        return max(self.memory.loading - self.memory.resident_at_start, 0.0) + whole


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenModel:
    """One reference, base of adapters, frozen agent's actor, or snapshot of one that is not."""

    name: str
    shape: ModelShape
    width: int
    spread: EngineMemory | None = None  # what an engine at stage 3 holds of it; None where it is whole on every rank

    @property
    def weights(self) -> float:
        if self.spread is not None:
            return self.spread.weights
        return self.shape.quantized_bytes or float(self.width * self.shape.parameters)

    @property
    def gathered(self) -> float:
        """What a forward holds beside these."""
        return 0.0 if self.spread is None else self.spread.gathered


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """One rank's memory."""

    device: str  # `cpu` or `cuda`
    trained: tuple[TrainedModel, ...]
    frozen: tuple[FrozenModel, ...]
    cache: float  # of keys and values, with the logits that are sampled from: the greatest of all agents
    parked: float  # keys and values of earlier turns, of all agents; 0 where nothing goes on from them
    rollout_gathered_bytes: float  # stage 3: weights beside the spread ones while decoding
    reference_gathered_bytes: (
        float  # stage 3: weights of a reference beside its spread ones, within its policy's forward
    )

    @property
    def standing(self) -> float:
        """On the device from the first update on."""
        return sum(model.memory.standing for model in self.trained) + self._frozen_bytes

    @property
    def certain_bytes(self) -> float:
        """On the device whatever is read: weights, optimizer states, and the gradients of one update."""
        return self.standing + max(model.memory.transient_gradients for model in self.trained)

    @property
    def host(self) -> float:
        """Offloaded to the machine's memory."""
        frozen = sum(model.spread.host for model in self.frozen if model.spread is not None)
        return sum(model.memory.host for model in self.trained) + frozen

    @property
    def saved(self) -> float:
        """In the machine's memory of rank 0 while the model that has the most weights is written whole."""
        return max(float(model.width * model.shape.trained_parameters) for model in self.trained)

    @property
    def bytes_by_phase(self) -> dict[str, float]:
        """On the device at the greatest moment of each phase."""
        loaded = sum(model.memory.resident_at_start for model in self.trained)
        scored = max(model.forward + model.memory.gathered if model.forward else 0.0 for model in self.trained)
        return {
            "load": loaded + max(model.loading for model in self.trained) + self._frozen_bytes,
            "rollout": self.standing + self.rollout_gathered_bytes + self.cache + self.parked,
            "targets": self.standing + self.reference_gathered_bytes + scored,
            "update": self.standing + self.reference_gathered_bytes + max(model.updating for model in self.trained),
            "save": self.standing + (self.saved if self.device == "cpu" else 0.0),
        }

    @property
    def greatest(self) -> tuple[str, float]:
        """The phase that needs the most, and how much."""
        return max(self.bytes_by_phase.items(), key=lambda phase: phase[1])

    @property
    def _frozen_bytes(self) -> float:
        return sum(model.weights for model in self.frozen)


def estimate_memory(
    config: Config,
    shapes: Mapping[str, AgentShapes],
    ranks: int,
    rows: int,
    device: str,
    rewards: Sequence[FrozenModel] = (),
) -> MemoryEstimate:
    """Of a whole run on devices of a kind; a rank decodes at most `rows` rows in one rollout, and holds `rewards`."""
    several_turns = any(agent.length.turns != 1 for agent in shapes.values())
    keeps_prefixes = several_turns and config.rollout.history is not History.latest
    trained = tuple(_trained_models(config, shapes, ranks, rows, device))
    frozen = (*_frozen_models(config, shapes, ranks), *rewards)
    decoding = [_decode_gathered_bytes(config, model.memory) for model in trained if model.is_actor]
    if needs_replays(config) or any(agent.frozen for agent in config.task.agents.values()):
        decoding += [_decode_gathered_bytes(config, m.spread) for m in frozen if m.spread is not None]
    return MemoryEstimate(
        device=device,
        trained=trained,
        frozen=frozen,
        cache=max(_decode_bytes(config, name, agent, rows) for name, agent in shapes.items()),
        parked=sum(_prefix_cache_bytes(config, name, agent, rows) for name, agent in shapes.items())
        if keeps_prefixes
        else 0.0,
        rollout_gathered_bytes=max(decoding),
        reference_gathered_bytes=max((model.gathered for model in frozen), default=0.0)
        if _has_full_kl(config)
        else 0.0,
    )


def checkpoint_bytes(config: Config, shapes: Mapping[str, AgentShapes], ranks: int) -> float:
    """Of one checkpoint of all ranks: shards to resume from, and a folder to load from, of every trained model."""
    total = 0.0
    for model in _trained_models(config, shapes, ranks, 1, "cuda"):
        stage = engine_stage(config, model.width, ranks)
        # Moments and float32 weights, and at stage 3 nothing else: elsewhere weights in their own type as well.
        shards = 8 + (4 if stage else 0) + (model.width if stage < 3 else 0)
        total += model.shape.trained_parameters * (model.width + (shards if config.checkpoint.optimizer else 0))
        if model.shape.adapter is not None and config.checkpoint.weights is CheckpointWeights.full:
            total += 4 * model.shape.parameters  # merged models are float32
    for names in trained_agents_by_policy(config).values():
        actor, shape = config.task.agents[names[0]].actor, shapes[names[0]].reference
        if shape is not None and actor.reference_update_every is not None and needs_reference(config):
            total += bytes_per_weight(actor.dtype) * shape.parameters
    return total


def snapshot_bytes(config: Config, shapes: Mapping[str, AgentShapes]) -> float:
    """Of all snapshots that lie in a run's folder as partners, one more while the next is written."""
    partners = config.team.partners
    if not partners.every or partners.size is None:
        return 0.0
    actors = (
        shapes[names[0]].actor.parameters * bytes_per_weight(config.task.agents[names[0]].actor.dtype)
        for names in trained_agents_by_policy(config).values()
    )
    return (partners.size + 1) * float(sum(actors))


def _trained_models(
    config: Config, shapes: Mapping[str, AgentShapes], ranks: int, rows: int, device: str
) -> Iterator[TrainedModel]:
    """Every engine once, whoever shares it; agents of a group have equal models and rows of their own."""
    own = dict(agents_by_critic(config))
    for holder, names in trained_agents_by_policy(config).items():
        settings, agent = config.task.agents[names[0]], shapes[names[0]]
        actor = settings.actor
        longest = max(shapes[name].length.row for name in names)
        carried = isinstance(settings.critic, ValueHeadCriticConfig)
        yield _trained_model(
            config,
            f"{holder} actor",
            agent.actor,
            actor.dtype,
            ranks,
            _EngineInput(
                max_row_tokens=longest,
                written=min(max(_response_tokens(config, name, shapes[name].length) for name in names), longest),
                rows=len(names) * rows,
                step=len(names) * max(-(-mini_batch_size(config, settings) // ranks), 1),
                scores=carried or config.rollout.recompute_logprobs or needs_reference(config),
            ),
            checkpointed=actor.gradient_checkpointing,
            decodes=True,
            device=device,
        )
        if holder in own:
            yield _critic_model(config, holder, own.pop(holder), shapes, ranks, rows, device)
    for name, names in own.items():  # of all agents
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
    """The engine of a critic with an optimizer of its own."""
    settings, shape = config.task.agents[names[0]], shapes[names[0]].critic
    assert isinstance(settings.critic, OptimizedCriticConfig)
    assert shape is not None
    # An adapter lies on the actor's base, and is of its numbers.
    model = settings.critic if isinstance(settings.critic, SeparateCriticConfig) else settings.actor
    return _trained_model(
        config,
        f"{name} critic",
        shape,
        model.dtype,
        ranks,
        _EngineInput(
            max_row_tokens=max(shapes[agent].critic_row_tokens or shapes[agent].length.row for agent in names),
            written=0,
            rows=len(names) * rows,
            step=len(names) * max(-(-critic_mini_batch_size(config, settings) // ranks), 1),
            scores=True,
        ),
        checkpointed=model.gradient_checkpointing,
        decodes=False,
        device=device,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngineInput:
    """What an engine reads on one rank."""

    max_row_tokens: int  # tokens of a row, at most
    written: int  # of these, the ones whose logits are computed
    rows: int  # of an iteration
    step: int  # rows of an optimizer step
    scores: bool  # whether it also reads without gradients

    @property
    def response_fraction(self) -> float:
        return self.written / self.max_row_tokens


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
    memory = engine_memory(
        shape.trained_parameters,
        stage=engine_stage(config, width, ranks),
        width=width,
        ranks=ranks,
        bucket=bucket_elements(deepspeed.reduce_bucket_size, shape.trained_parameters),
        largest=max(shape.sizes if shape.adapter is None else shape.adapter),
        persistent=shape.count_smaller_than(deepspeed.persistence_threshold),
        live=live_elements(deepspeed.max_live_parameters, shape.trained_parameters),
        offload_optimizer=deepspeed.offload_optimizer,
        offload_params=deepspeed.offload_params,
        on_host=device == "cpu",
    )
    # A row that is longer than the budget is a batch of its own.
    micro_batch_limit = max(deepspeed.micro_batch_tokens, read.max_row_tokens)
    micro = min(micro_batch_limit, read.max_row_tokens * read.step)
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
        width=width,
        memory=memory,
        forward=forward if read.scores else 0.0,
        backward=micro
        * activation_bytes(shape, width, checkpointed=checkpointed, in_fp32=in_fp32, longest=read.max_row_tokens)
        + min(chunk, micro * written) * shape.vocabulary * logit_bytes(width, trains=True, entropy=entropy),
        has_several_micro_batches=read.max_row_tokens * read.step > micro_batch_limit,
        is_actor=decodes,
        is_stage3=engine_stage(config, width, ranks) == 3,
    )


def _response_tokens(config: Config, name: str, length: EpisodeLength) -> int:
    """Tokens of one row that an agent may have written."""
    limit = config.task.agents[name].rollout.max_new_tokens
    return length.row if length.turns is None else min(length.turns * limit, length.row)


def _decode_bytes(config: Config, name: str, agent: AgentShapes, rows: int) -> float:
    """Keys and values of the rows that are decoded together, their logits, and the prompts being read."""
    shape, width = agent.actor, bytes_per_weight(config.task.agents[name].actor.dtype)
    batch_rows, longest = min(config.rollout.decode_batch_size, rows), agent.length.sequence
    cache = (
        kv_bytes(shape, width)
        * batch_rows
        * _max_cache_columns(longest, config.task.agents[name].rollout.max_new_tokens)
    )
    logits = batch_rows * shape.vocabulary * (width + 12)
    prompts = min(max(PROMPT_TOKENS, longest), batch_rows * longest) * forward_bytes(shape, width)
    return cache + max(logits, prompts)


def _max_cache_columns(longest: int, limit: int) -> int:
    """Columns of a cache at its widest; see `rollout/kv_cache.py`."""
    ahead = min(COLUMNS_AHEAD, limit)
    columns = max(longest - limit, 1) + ahead
    while columns < longest:
        columns += max(ahead, columns // 2)
    return columns


def _prefix_cache_bytes(config: Config, name: str, agent: AgentShapes, rows: int) -> float:
    """Keys and values that are kept of rows whose episodes go on."""
    per_token = kv_bytes(agent.actor, bytes_per_weight(config.task.agents[name].actor.dtype))
    return min(float(PREFIX_CACHE_BYTES), per_token * rows * agent.length.sequence)


def _decode_gathered_bytes(config: Config, memory: EngineMemory) -> float:
    if config.rollout.zero3_gather is Zero3Gather.layer:
        return min(memory.decode_weights, memory.gathered)
    return memory.decode_weights


def _has_full_kl(config: Config) -> bool:
    """Whether some forward of a policy has its reference's head in it."""
    terms = config.algorithm.kl.reward, config.algorithm.kl.loss
    return any(term.coef != 0.0 and term.estimator == "full" for term in terms)


def _frozen_models(config: Config, shapes: Mapping[str, AgentShapes], ranks: int) -> Iterator[FrozenModel]:
    """Bases, which are their agents' references as well; what those who have none need; and snapshots."""
    is_sharded = config.deepspeed.stage == 3 and ranks > 1
    if config.team.partners.every:
        for holder, names in trained_agents_by_policy(config).items():
            width = bytes_per_weight(config.task.agents[names[0]].actor.dtype)
            yield FrozenModel(name=f"{holder} partner", shape=shapes[names[0]].actor, width=width)
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
                yield FrozenModel(name=f"{holder_of[name]} reference", shape=own, width=kept, spread=spread)
        if isinstance(settings.actor, LoraActorConfig):
            if base not in seen:
                seen.add(base)
                yield FrozenModel(name=f"{base} base", shape=agent.actor, width=width)
            continue
        key = (agent.weights, settings.actor.dtype)
        if key not in known and own is None and (settings.frozen or needs_reference(config)):
            known.add(key)
            what = "actor" if settings.frozen else "reference"
            spread = _sharded_memory(config, agent.actor, width, ranks) if is_sharded else None
            yield FrozenModel(name=f"{holder_of[name]} {what}", shape=agent.actor, width=width, spread=spread)


def _reference_key(actor: ActorConfig, holder: str) -> str:
    """Equal where references are one."""
    if actor.reference_update_every is not None:
        return f"{actor.reference} of {holder}"
    return f"{actor.reference} {getattr(actor, 'adapter', None)}"


def _sharded_memory(config: Config, shape: ModelShape, width: int, ranks: int) -> EngineMemory:
    """Of frozen weights that an engine spreads over the ranks."""
    return inference_memory(
        shape.parameters,
        width=width,
        ranks=ranks,
        largest=max(shape.sizes),
        persistent=shape.count_smaller_than(config.deepspeed.persistence_threshold),
        live=live_elements(config.deepspeed.max_live_parameters, shape.parameters),
        offload_params=config.deepspeed.offload_params,
    )


def engine_stage(config: Config, width: int, ranks: int) -> int:
    """At which an engine of such weights runs."""
    return effective_stage(
        config.deepspeed.stage, bf16=width < 4, ranks=ranks, offload_optimizer=config.deepspeed.offload_optimizer
    )


def bytes_per_weight(dtype: Dtype) -> int:
    """Bytes of a weight."""
    return 4 if dtype is Dtype.fp32 else 2
