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
from ippo_cli.config.placement import ACTOR, CRITIC, REFERENCE, REWARD, Placement, read_placement
from ippo_cli.config.schema import (
    ActorConfig,
    CheckpointWeights,
    Config,
    ContextMode,
    Dtype,
    Zero3Gather,
)
from ippo_cli.config.teams import agents_by_base, agents_by_critic, policy_by_agent, trained_agents_by_policy
from ippo_cli.engine.zero_config import live_elements
from ippo_cli.engine.zero_memory import EngineMemory, inference_memory
from ippo_cli.models.shape import ModelShape
from ippo_cli.planning.agent_shapes import AgentShapes, bytes_per_weight
from ippo_cli.planning.episode_length import response_tokens
from ippo_cli.planning.method_plan import count_gradient_parts, find_authors, method_plans
from ippo_cli.planning.model_memory import FrozenModel, MemoryEstimate, TrainedModel
from ippo_cli.planning.pass_memory import forward_bytes, kv_bytes
from ippo_cli.planning.sampler_memory import estimate_sampler_memory
from ippo_cli.planning.trained_memory import EngineInput, EngineModel, engine_stage, estimate_trained_model
from ippo_cli.rollout.fixed_slots import cache_width
from ippo_cli.rollout.invariant_slots import slot_count
from ippo_cli.rollout.kv_cache import COLUMNS_AHEAD
from ippo_cli.rollout.packed_linears import MIN_FORWARDS, packed_bytes
from ippo_cli.rollout.prefix_cache import MAX_BYTES as PREFIX_CACHE_BYTES

GIB = 2**30
PROMPT_TOKENS = 8192  # per prefill batch, see `rollout/decode.py`


def estimate_memory(
    config: Config,
    shapes: Mapping[str, AgentShapes],
    ranks: int,
    rows: int,
    device: str,
    rewards: Sequence[FrozenModel] = (),
    rank: int = 0,
) -> MemoryEstimate:
    """Estimate the memory of `rank` in a run of `ranks`, with `rows` rows per rank in a rollout, and reward models
    `rewards`. Raises `ConfigError` for a placement that cannot be read.
    """
    place = _Place(read_placement(config, ranks), rank, rows * ranks)
    several_turns = any(agent.length.turns != 1 for agent in shapes.values())
    keeps_prefixes = several_turns and config.rollout.context is not ContextMode.last_only
    trained = tuple(_trained_models(config, shapes, place, device))
    frozen = tuple(_frozen_models(config, shapes, place))
    estimate = MemoryEstimate(
        device=device,
        trained=trained,
        frozen=(*frozen, *(rewards if rank in place.placement.ranks[REWARD] else ())),
        kv_cache_bytes=0.0,
        prefix_cache_bytes=0.0,
        rollout_gathered_bytes=0.0,
        reference_gathered_bytes=max((model.gathered_bytes for model in frozen), default=0.0)
        if _has_full_kl(config)
        else 0.0,
        frozen_scoring_bytes=_frozen_scoring_bytes(config, shapes, place, frozen, device),
    )
    count = max(plan.rows_per_sample for plan in method_plans(config))
    if config.rollout.engines is not None:
        sampling = {name: shapes[name] for name in shapes if place.holds(name, ACTOR)}
        own_rows = count * max((place.rows(name, ACTOR) for name in sampling), default=0)
        devices = place.placement.rollout_devices or None
        sampler = estimate_sampler_memory(config, sampling, ranks, own_rows, device, devices)
        estimate = replace(estimate, sampler=sampler)
        if not config.rollout.verifies_drafts:  # else the models read whole rows, and decode their remaining tokens
            return estimate
        keeps_prefixes = False
    decoding = [_decode_gathered_bytes(config, model.memory) for model in trained if model.is_actor]
    if needs_replays(config) or any(agent.frozen for agent in config.task.agents.values()):
        decoding += [_decode_gathered_bytes(config, m.sharded_memory) for m in frozen if m.sharded_memory is not None]
    local = {name: agent for name, agent in shapes.items() if place.holds(name, ACTOR)}
    held = {name: (agent, count * place.rows(name, ACTOR)) for name, agent in local.items()}
    return replace(
        estimate,
        kv_cache_bytes=max((_decode_bytes(config, name, *agent, device) for name, agent in held.items()), default=0.0),
        prefix_cache_bytes=sum(_prefix_cache_bytes(config, name, *agent) for name, agent in held.items())
        if keeps_prefixes
        else 0.0,
        rollout_gathered_bytes=max(decoding, default=0.0),
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """A rank among those of a placement."""

    placement: Placement
    rank: int | None  # None: any, to list the models of all ranks
    total_rows: int  # most rows in a rollout, of all ranks

    def holds(self, agent: str, component: str) -> bool:
        return self.rank is None or self.rank in self.placement.of(agent, component)

    def ranks(self, agent: str, component: str) -> int:
        return len(self.placement.of(agent, component))

    def rows(self, agent: str, component: str) -> int:
        """Most rows of the component on one rank."""
        return -(-self.total_rows // self.ranks(agent, component))


def checkpoint_bytes(config: Config, shapes: Mapping[str, AgentShapes], ranks: int) -> float:
    """Bytes of one checkpoint of all ranks: optimizer shards and model folders of every trained model."""
    total = 0.0
    for model in _trained_models(config, shapes, _Place(read_placement(config, ranks), None, ranks), "cuda"):
        stage = engine_stage(config, model.bytes_per_weight, ranks)
        # Adam moments and fp32 weights; below stage 3 also the weights in their own dtype.
        shards = 8 + (4 if stage else 0) + (model.bytes_per_weight if stage < 3 else 0)
        total += model.shape.saved_parameters * model.bytes_per_weight
        total += model.shape.trained_parameters * (shards if config.checkpoint.optimizer else 0)
        if model.shape.adapter is not None and config.checkpoint.weights is CheckpointWeights.full:
            total += 4 * model.shape.parameters  # merged models are saved in fp32
    for names in trained_agents_by_policy(config).values():
        actor, shape = config.task.agents[names[0]].actor, shapes[names[0]].reference
        if shape is not None and actor.reference_update_every is not None and needs_reference(config):
            total += bytes_per_weight(actor.dtype) * shape.parameters
    return total


def stored_policy_bytes(config: Config, shapes: Mapping[str, AgentShapes]) -> float:
    """Bytes of the policies that methods store beside checkpoints, including those being written."""
    actors = (
        shapes[names[0]].actor.parameters * bytes_per_weight(config.task.agents[names[0]].actor.dtype)
        for names in trained_agents_by_policy(config).values()
    )
    return sum(plan.num_stored_policies for plan in method_plans(config)) * float(sum(actors))


def _trained_models(
    config: Config, shapes: Mapping[str, AgentShapes], place: _Place, device: str
) -> Iterator[TrainedModel]:
    """Each engine of a rank once; agents of a group share a model and add their own rows."""
    own = {name: names for name, names in agents_by_critic(config).items() if place.holds(names[0], CRITIC)}
    for holder, names in trained_agents_by_policy(config).items():
        if place.holds(names[0], ACTOR):
            yield _actor_model(config, holder, names, shapes, place, ACTOR, device)
        if holder in own:
            yield _critic_model(config, holder, own.pop(holder), shapes, place, device)
    for name, names in own.items():  # critics shared by several policies
        yield _critic_model(config, name, names, shapes, place, device)


def _actor_model(
    config: Config,
    holder: str,
    names: tuple[str, ...],
    shapes: Mapping[str, AgentShapes],
    place: _Place,
    component: str,
    device: str,
) -> TrainedModel:
    """The engine of a policy on the ranks of a component."""
    settings, agent = config.task.agents[names[0]], shapes[names[0]]
    actor, ranks = settings.actor, place.ranks(names[0], component)
    names = (*names, *find_authors(config, names[0]))  # the agents that sample its rows
    longest = max(shapes[name].length.row_tokens for name in names)
    has_value_head = settings.critic.shares_actor_loss
    return estimate_trained_model(
        config,
        EngineModel(
            name=f"{holder} actor",
            shape=agent.actor,
            dtype=actor.dtype,
            has_checkpoints=actor.gradient_checkpointing,
            is_actor=True,
            trained_agents=len(trained_agents_by_policy(config)[holder]),
        ),
        EngineInput(
            max_row_tokens=longest,
            response_tokens=min(max(response_tokens(config, name, shapes[name].length) for name in names), longest),
            rows=len(names) * place.rows(names[0], component),
            rows_per_step=len(names) * max(-(-mini_batch_size(config, settings) // count_groups(config, ranks)), 1),
            value_bins=settings.critic.num_bins if has_value_head else 0,
            gradient_parts=count_gradient_parts(config, holder),
            has_scoring=has_value_head or config.rollout.recompute_logprobs or needs_reference(config),
        ),
        ranks,
        device,
    )


def _critic_model(
    config: Config,
    name: str,
    names: tuple[str, ...],
    shapes: Mapping[str, AgentShapes],
    place: _Place,
    device: str,
) -> TrainedModel:
    """The engine of a critic with its own optimizer."""
    settings, shape = config.task.agents[names[0]], shapes[names[0]].critic
    ranks = place.ranks(names[0], CRITIC)
    assert shape is not None
    model = settings.critic_weights
    return estimate_trained_model(
        config,
        EngineModel(
            name=f"{name} critic",
            shape=shape,
            dtype=model.dtype,
            has_checkpoints=model.gradient_checkpointing,
            is_actor=False,
            trained_agents=len(names),
        ),
        EngineInput(
            max_row_tokens=max(shapes[agent].critic_row_tokens or shapes[agent].length.row_tokens for agent in names),
            response_tokens=0,
            rows=len(names) * place.rows(names[0], CRITIC),
            rows_per_step=len(names)
            * max(-(-critic_mini_batch_size(config, settings) // count_groups(config, ranks)), 1),
            has_scoring=True,
            value_bins=settings.critic.num_bins,
            gradient_parts=count_gradient_parts(config, name),
        ),
        ranks,
        device,
    )


def _frozen_scoring_bytes(
    config: Config, shapes: Mapping[str, AgentShapes], place: _Place, frozen: Sequence[FrozenModel], device: str
) -> float:
    """A reference's forward pass on a rank without its actor; beside the actor the actor's pass needs as much."""
    if not needs_reference(config):
        return 0.0
    passes = (
        _actor_model(config, holder, names, shapes, place, REFERENCE, device).scoring_bytes
        for holder, names in trained_agents_by_policy(config).items()
        if place.holds(names[0], REFERENCE) and not place.holds(names[0], ACTOR)
    )
    gathered = max((model.gathered_bytes for model in frozen), default=0.0)
    return max((bytes_ + gathered for bytes_ in passes), default=0.0)


def _decode_bytes(config: Config, name: str, agent: AgentShapes, rows: int, device: str) -> float:
    """KV cache of one decode batch, with the larger of its logits and its prefill activations; and packed weights."""
    shape, width = agent.actor, bytes_per_weight(config.task.agents[name].actor.dtype)
    batch_rows, longest = min(config.rollout.decode_batch_size, rows), agent.length.sequence_tokens
    limit, is_invariant = config.task.agents[name].rollout.max_new_tokens, config.rollout.batch_invariant
    columns = _max_cache_columns(longest, limit)
    if is_invariant:
        batch_rows, columns, limit = slot_count(batch_rows), cache_width(longest), max(limit, MIN_FORWARDS)
    elif device == "cuda":  # restored contexts of later turns are copied to their slots
        columns = cache_width(longest) + (longest if agent.length.turns != 1 else 0)
    cache = kv_bytes(shape, width) * batch_rows * columns
    logits = batch_rows * shape.vocabulary * (width + 12)
    prompts = min(max(PROMPT_TOKENS, longest), batch_rows * longest) * forward_bytes(shape, width)
    is_sharded = config.deepspeed.stage == 3 and config.rollout.zero3_gather is Zero3Gather.layer
    packed = packed_bytes(shape.sizes, width, limit) if device == "cpu" and not is_sharded else 0.0
    return cache + max(logits, prompts) + packed


def _max_cache_columns(longest: int, limit: int) -> int:
    """Maximum columns of the KV cache of a CPU; see `rollout/kv_cache.py`."""
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


def _frozen_models(config: Config, shapes: Mapping[str, AgentShapes], place: _Place) -> Iterator[FrozenModel]:
    """Adapter bases (also references), other references, frozen actors, and the copies of policies that methods use."""
    for label in (label for plan in method_plans(config) for label in plan.copies):
        for holder, names in trained_agents_by_policy(config).items():
            width = bytes_per_weight(config.task.agents[names[0]].actor.dtype)
            if place.holds(names[0], ACTOR):
                yield FrozenModel(name=f"{holder} {label}", shape=shapes[names[0]].actor, bytes_per_weight=width)
    known: set[tuple[str, Dtype]] = set()
    holder_of = policy_by_agent(config)
    base_of_agent = {name: base for base, names in agents_by_base(config).items() for name in names}
    seen: set[str] = set()
    for name, agent in shapes.items():
        settings, base = config.task.agents[name], base_of_agent[name]
        width, ranks = bytes_per_weight(settings.actor.dtype), place.ranks(name, REFERENCE)
        has_reference = not settings.frozen and needs_reference(config) and place.holds(name, REFERENCE)
        own = agent.reference if has_reference else None
        if own is not None:
            key = (_reference_key(settings.actor, holder_of[name]), settings.actor.dtype)
            if key not in known:
                known.add(key)
                kept = 4 if has_merged_adapter(settings.actor.reference) else width
                spread = _sharded_memory(config, own, kept, ranks)
                yield FrozenModel(
                    name=f"{holder_of[name]} reference", shape=own, bytes_per_weight=kept, sharded_memory=spread
                )
        if settings.actor.trains_adapter:
            if base not in seen and place.holds(name, ACTOR):
                seen.add(base)
                yield FrozenModel(name=f"{base} base", shape=agent.actor, bytes_per_weight=width)
            continue
        key = (agent.weights_source, settings.actor.dtype)
        has_frozen_actor = settings.frozen and place.holds(name, ACTOR)
        if key not in known and (has_frozen_actor or (has_reference and agent.reference is None)):
            known.add(key)
            role = "actor" if settings.frozen else "reference"
            spread = _sharded_memory(
                config, agent.actor, width, place.ranks(name, ACTOR if settings.frozen else REFERENCE)
            )
            yield FrozenModel(
                name=f"{holder_of[name]} {role}", shape=agent.actor, bytes_per_weight=width, sharded_memory=spread
            )


def _reference_key(actor: ActorConfig, holder: str) -> str:
    """A key that is equal for agents that share one reference."""
    if actor.reference_update_every is not None:
        return f"{actor.reference} of {holder}"
    return f"{actor.reference} {actor.first_adapter}"


def _sharded_memory(config: Config, shape: ModelShape, width: int, ranks: int) -> EngineMemory | None:
    """Memory of frozen weights sharded over their ranks; None if each holds all weights."""
    if config.deepspeed.stage < 3 or ranks == 1:
        return None
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
