"""What a run holds in memory, per rank and phase: arithmetic on shapes, nothing is loaded.

Everything is in bytes. Weights, gradients and optimizer states are DeepSpeed's own sizes; activations, logits and
caches are those of a transformer decoder at the longest sequences that the configuration lets in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ippo_cli.config.adapters import has_merged_adapter
from ippo_cli.config.batch_sizes import critic_mini_batch_size, mini_batch_size
from ippo_cli.config.credit import needs_reference, replays
from ippo_cli.config.schema import (
    ActorConfig,
    CheckpointWeights,
    Config,
    Dtype,
    History,
    LoraActorConfig,
    OwnCriticConfig,
    SeparateCriticConfig,
    ValueHeadCriticConfig,
    Zero3Gather,
)
from ippo_cli.config.teams import bases, critics, holders, learning_members
from ippo_cli.engine.zero_config import bucket_elements, effective_stage, live_elements
from ippo_cli.engine.zero_memory import EngineMemory, engine_memory, read_memory
from ippo_cli.models.packing import attends_in_fp32
from ippo_cli.models.shape import ModelShape
from ippo_cli.planning.episode_length import EpisodeLength
from ippo_cli.planning.pass_memory import cached_bytes, forward_bytes, kept_bytes, logit_bytes
from ippo_cli.rollout.kv_cache import COLUMNS_AHEAD
from ippo_cli.rollout.prefix_cache import MAX_BYTES as PREFIX_CACHE_BYTES

GIB = 2**30
PROMPT_TOKENS = 8192  # read together, see `rollout/decode.py`
LOGITS_AT_ONCE = 1 << 26  # see `agents/build.py`


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentShapes:
    """The models of one agent, and how much of an episode they may read."""

    actor: ModelShape
    critic: ModelShape | None  # of its own; None where the actor carries it, or nothing has values
    length: EpisodeLength
    weights: str  # where the actor starts from: agents that start from the same share one reference
    reference: ModelShape | None = None  # frozen weights of its reference alone; None where these are shared ones
    critic_row: int | None = None  # tokens of a centralised critic's longest row; None: the critic reads the agent's


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One engine."""

    name: str
    shape: ModelShape
    width: int  # bytes of a weight
    memory: EngineMemory
    forward: float  # of scoring: activations and logits without gradients; 0 where it scores nothing
    backward: float  # of a micro-batch: activations and logits with them
    several: bool  # whether a step has several micro-batches
    decodes: bool  # whether it is an actor
    splits: bool  # whether its engine is at stage 3, which takes weights out of the files one parameter at a time

    @property
    def updating(self) -> float:
        """What an update of it adds to what stands."""
        return self.memory.updating(self.backward, several=self.several)

    @property
    def loading(self) -> float:
        """What is there while DeepSpeed takes it, beyond what it leaves there."""
        whole = self.width * max(self.shape.sizes) if self.splits else 0.0
        return max(self.memory.loading - self.memory.loaded, 0.0) + whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
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
class Memory:
    """One rank's memory."""

    device: str  # `cpu` or `cuda`
    trained: tuple[Trained, ...]
    frozen: tuple[Frozen, ...]
    cache: float  # of keys and values, with the logits that are sampled from: the greatest of all agents
    parked: float  # keys and values of earlier turns, of all agents; 0 where nothing goes on from them
    rollout_gathered: float  # stage 3: weights beside the spread ones while decoding
    compared: float  # stage 3: weights of a reference beside its spread ones, within its policy's forward

    @property
    def standing(self) -> float:
        """On the device from the first update on."""
        return sum(model.memory.standing for model in self.trained) + self._frozen

    @property
    def certain(self) -> float:
        """On the device whatever is read: weights, optimizer states, and the gradients of one update."""
        return self.standing + max(model.memory.fleeting for model in self.trained)

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
    def phases(self) -> dict[str, float]:
        """On the device at the greatest moment of each phase."""
        loaded = sum(model.memory.loaded for model in self.trained)
        scored = max(model.forward + model.memory.gathered if model.forward else 0.0 for model in self.trained)
        return {
            "load": loaded + max(model.loading for model in self.trained) + self._frozen,
            "rollout": self.standing + self.rollout_gathered + self.cache + self.parked,
            "targets": self.standing + self.compared + scored,
            "update": self.standing + self.compared + max(model.updating for model in self.trained),
            "save": self.standing + (self.saved if self.device == "cpu" else 0.0),
        }

    @property
    def greatest(self) -> tuple[str, float]:
        """The phase that needs the most, and how much."""
        return max(self.phases.items(), key=lambda phase: phase[1])

    @property
    def _frozen(self) -> float:
        return sum(model.weights for model in self.frozen)


def run_memory(
    config: Config,
    shapes: Mapping[str, AgentShapes],
    ranks: int,
    rows: int,
    device: str,
    rewards: Sequence[Frozen] = (),
) -> Memory:
    """Of a whole run on devices of a kind; a rank decodes at most `rows` rows in one rollout, and holds `rewards`."""
    several_turns = any(agent.length.turns != 1 for agent in shapes.values())
    parks = several_turns and config.rollout.history is not History.latest
    trained = tuple(_trained(config, shapes, ranks, rows, device))
    frozen = (*_frozen(config, shapes, ranks), *rewards)
    decoding = [_gathered_to_decode(config, model.memory) for model in trained if model.decodes]
    if replays(config) or any(agent.frozen for agent in config.task.agents.values()):
        decoding += [_gathered_to_decode(config, m.spread) for m in frozen if m.spread is not None]
    return Memory(
        device=device,
        trained=trained,
        frozen=frozen,
        cache=max(_decoding(config, name, agent, rows) for name, agent in shapes.items()),
        parked=sum(_parked(config, name, agent, rows) for name, agent in shapes.items()) if parks else 0.0,
        rollout_gathered=max(decoding),
        compared=max((model.gathered for model in frozen), default=0.0) if _compares_wholly(config) else 0.0,
    )


def checkpoint_bytes(config: Config, shapes: Mapping[str, AgentShapes], ranks: int) -> float:
    """Of one checkpoint of all ranks: shards to resume from, and a folder to load from, of every trained model."""
    total = 0.0
    for model in _trained(config, shapes, ranks, 1, "cuda"):
        stage = engine_stage(config, model.width, ranks)
        # Moments and float32 weights, and at stage 3 nothing else: elsewhere weights in their own type as well.
        shards = 8 + (4 if stage else 0) + (model.width if stage < 3 else 0)
        total += model.shape.trained_parameters * (model.width + (shards if config.checkpoint.optimizer else 0))
        if model.shape.adapter is not None and config.checkpoint.weights is CheckpointWeights.full:
            total += 4 * model.shape.parameters  # merged models are float32
    for names in learning_members(config).values():
        actor, shape = config.task.agents[names[0]].actor, shapes[names[0]].reference
        if shape is not None and actor.reference_update_every is not None and needs_reference(config):
            total += width_of(actor.dtype) * shape.parameters
    return total


def snapshot_bytes(config: Config, shapes: Mapping[str, AgentShapes]) -> float:
    """Of all snapshots that lie in a run's folder as partners, one more while the next is written."""
    partners = config.team.partners
    if not partners.every or partners.size is None:
        return 0.0
    actors = (
        shapes[names[0]].actor.parameters * width_of(config.task.agents[names[0]].actor.dtype)
        for names in learning_members(config).values()
    )
    return (partners.size + 1) * float(sum(actors))


def _trained(
    config: Config, shapes: Mapping[str, AgentShapes], ranks: int, rows: int, device: str
) -> Iterator[Trained]:
    """Every engine once, whoever shares it; agents of a group have equal models and rows of their own."""
    own = dict(critics(config))
    for holder, names in learning_members(config).items():
        settings, agent = config.task.agents[names[0]], shapes[names[0]]
        actor = settings.actor
        longest = max(shapes[name].length.row for name in names)
        carried = isinstance(settings.critic, ValueHeadCriticConfig)
        yield _engine(
            config,
            f"{holder} actor",
            agent.actor,
            actor.dtype,
            ranks,
            _Read(
                longest=longest,
                written=min(max(_written(config, name, shapes[name].length) for name in names), longest),
                rows=len(names) * rows,
                step=len(names) * max(-(-mini_batch_size(config, settings) // ranks), 1),
                scores=carried or config.rollout.recompute_logprobs or needs_reference(config),
            ),
            checkpointed=actor.gradient_checkpointing,
            decodes=True,
            device=device,
        )
        if holder in own:
            yield _critic(config, holder, own.pop(holder), shapes, ranks, rows, device)
    for name, names in own.items():  # of all agents
        yield _critic(config, name, names, shapes, ranks, rows, device)


def _critic(
    config: Config,
    name: str,
    names: tuple[str, ...],
    shapes: Mapping[str, AgentShapes],
    ranks: int,
    rows: int,
    device: str,
) -> Trained:
    """The engine of a critic with an optimizer of its own."""
    settings, shape = config.task.agents[names[0]], shapes[names[0]].critic
    assert isinstance(settings.critic, OwnCriticConfig)
    assert shape is not None
    # An adapter lies on the actor's base, and is of its numbers.
    model = settings.critic if isinstance(settings.critic, SeparateCriticConfig) else settings.actor
    return _engine(
        config,
        f"{name} critic",
        shape,
        model.dtype,
        ranks,
        _Read(
            longest=max(shapes[agent].critic_row or shapes[agent].length.row for agent in names),
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
class _Read:
    """What an engine reads on one rank."""

    longest: int  # tokens of a row, at most
    written: int  # of these, the ones whose logits are computed
    rows: int  # of an iteration
    step: int  # rows of an optimizer step
    scores: bool  # whether it also reads without gradients

    @property
    def written_share(self) -> float:
        return self.written / self.longest


def _engine(
    config: Config,
    name: str,
    shape: ModelShape,
    dtype: Dtype,
    ranks: int,
    read: _Read,
    *,
    checkpointed: bool,
    decodes: bool,
    device: str,
) -> Trained:
    deepspeed, width = config.deepspeed, width_of(dtype)
    memory = engine_memory(
        shape.trained_parameters,
        stage=engine_stage(config, width, ranks),
        width=width,
        ranks=ranks,
        bucket=bucket_elements(deepspeed.reduce_bucket_size, shape.trained_parameters),
        largest=max(shape.sizes if shape.adapter is None else shape.adapter),
        persistent=shape.smaller_than(deepspeed.persistence_threshold),
        live=live_elements(deepspeed.max_live_parameters, shape.trained_parameters),
        offload_optimizer=deepspeed.offload_optimizer,
        offload_params=deepspeed.offload_params,
        on_host=device == "cpu",
    )
    # A row that is longer than the budget is a batch of its own.
    together = max(deepspeed.micro_batch_tokens, read.longest)
    micro = min(together, read.longest * read.step)
    scored = min(max(deepspeed.forward_batch_tokens, read.longest), read.longest * read.rows)
    chunk, written = deepspeed.logit_chunk_tokens or max(LOGITS_AT_ONCE // shape.vocabulary, 1), read.written_share
    entropy = config.algorithm.entropy_coef != 0.0
    in_fp32 = attends_in_fp32(device, width < 4, read.longest)
    forward = scored * forward_bytes(shape, width)
    forward += min(chunk, scored * written) * shape.vocabulary * logit_bytes(width, trains=False, entropy=entropy)
    return Trained(
        name=name,
        shape=shape,
        width=width,
        memory=memory,
        forward=forward if read.scores else 0.0,
        backward=micro * kept_bytes(shape, width, checkpointed=checkpointed, in_fp32=in_fp32, longest=read.longest)
        + min(chunk, micro * written) * shape.vocabulary * logit_bytes(width, trains=True, entropy=entropy),
        several=read.longest * read.step > together,
        decodes=decodes,
        splits=engine_stage(config, width, ranks) == 3,
    )


def _written(config: Config, name: str, length: EpisodeLength) -> int:
    """Tokens of one row that an agent may have written."""
    limit = config.task.agents[name].rollout.max_new_tokens
    return length.row if length.turns is None else min(length.turns * limit, length.row)


def _decoding(config: Config, name: str, agent: AgentShapes, rows: int) -> float:
    """Keys and values of the rows that are decoded together, their logits, and the prompts being read."""
    shape, width = agent.actor, width_of(config.task.agents[name].actor.dtype)
    together, longest = min(config.rollout.decode_batch_size, rows), agent.length.sequence
    cache = cached_bytes(shape, width) * together * _columns(longest, config.task.agents[name].rollout.max_new_tokens)
    logits = together * shape.vocabulary * (width + 12)
    prompts = min(max(PROMPT_TOKENS, longest), together * longest) * forward_bytes(shape, width)
    return cache + max(logits, prompts)


def _columns(longest: int, limit: int) -> int:
    """Columns of a cache at its widest; see `rollout/kv_cache.py`."""
    ahead = min(COLUMNS_AHEAD, limit)
    columns = max(longest - limit, 1) + ahead
    while columns < longest:
        columns += max(ahead, columns // 2)
    return columns


def _parked(config: Config, name: str, agent: AgentShapes, rows: int) -> float:
    """Keys and values that are kept of rows whose episodes go on."""
    per_token = cached_bytes(agent.actor, width_of(config.task.agents[name].actor.dtype))
    return min(float(PREFIX_CACHE_BYTES), per_token * rows * agent.length.sequence)


def _gathered_to_decode(config: Config, memory: EngineMemory) -> float:
    if config.rollout.zero3_gather is Zero3Gather.layer:
        return min(memory.decoding, memory.gathered)
    return memory.decoding


def _compares_wholly(config: Config) -> bool:
    """Whether some forward of a policy has its reference's head in it."""
    terms = config.algorithm.kl.reward, config.algorithm.kl.loss
    return any(term.coef != 0.0 and term.estimator == "full" for term in terms)


def _frozen(config: Config, shapes: Mapping[str, AgentShapes], ranks: int) -> Iterator[Frozen]:
    """Bases, which are their agents' references as well; what those who have none need; and snapshots."""
    spreads = config.deepspeed.stage == 3 and ranks > 1
    if config.team.partners.every:
        for holder, names in learning_members(config).items():
            width = width_of(config.task.agents[names[0]].actor.dtype)
            yield Frozen(name=f"{holder} partner", shape=shapes[names[0]].actor, width=width)
    known: set[tuple[str, Dtype]] = set()
    holder_of = holders(config)
    base_of_agent = {name: base for base, names in bases(config).items() for name in names}
    seen: set[str] = set()
    for name, agent in shapes.items():
        settings, base = config.task.agents[name], base_of_agent[name]
        width = width_of(settings.actor.dtype)
        own = agent.reference if not settings.frozen and needs_reference(config) else None
        if own is not None:
            key = (_reference_key(settings.actor, holder_of[name]), settings.actor.dtype)
            if key not in known:
                known.add(key)
                kept = 4 if has_merged_adapter(settings.actor.reference) else width
                spread = _spread(config, own, kept, ranks) if spreads else None
                yield Frozen(name=f"{holder_of[name]} reference", shape=own, width=kept, spread=spread)
        if isinstance(settings.actor, LoraActorConfig):
            if base not in seen:
                seen.add(base)
                yield Frozen(name=f"{base} base", shape=agent.actor, width=width)
            continue
        key = (agent.weights, settings.actor.dtype)
        if key not in known and own is None and (settings.frozen or needs_reference(config)):
            known.add(key)
            what = "actor" if settings.frozen else "reference"
            spread = _spread(config, agent.actor, width, ranks) if spreads else None
            yield Frozen(name=f"{holder_of[name]} {what}", shape=agent.actor, width=width, spread=spread)


def _reference_key(actor: ActorConfig, holder: str) -> str:
    """Equal where references are one."""
    if actor.reference_update_every is not None:
        return f"{actor.reference} of {holder}"
    return f"{actor.reference} {getattr(actor, 'adapter', None)}"


def _spread(config: Config, shape: ModelShape, width: int, ranks: int) -> EngineMemory:
    """Of frozen weights that an engine spreads over the ranks."""
    return read_memory(
        shape.parameters,
        width=width,
        ranks=ranks,
        largest=max(shape.sizes),
        persistent=shape.smaller_than(config.deepspeed.persistence_threshold),
        live=live_elements(config.deepspeed.max_live_parameters, shape.parameters),
        offload_params=config.deepspeed.offload_params,
    )


def engine_stage(config: Config, width: int, ranks: int) -> int:
    """At which an engine of such weights runs."""
    return effective_stage(
        config.deepspeed.stage, bf16=width < 4, ranks=ranks, offload_optimizer=config.deepspeed.offload_optimizer
    )


def width_of(dtype: Dtype) -> int:
    """Bytes of a weight."""
    return 4 if dtype is Dtype.fp32 else 2
