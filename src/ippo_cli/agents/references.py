"""Frozen weights beside the trained ones: bases of adapters, initial policies, and KL references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ippo_cli.config.adapters import find_reference_folder, has_merged_adapter, read_adapter
from ippo_cli.config.model_args import quantization_args, unquantized_args
from ippo_cli.config.schema import (
    ActorConfig,
    Config,
    DeepspeedConfig,
    Dtype,
    LoraActorConfig,
    OptimizerConfig,
    ReferenceKind,
)
from ippo_cli.config.teams import base_by_policy
from ippo_cli.engine import distributed
from ippo_cli.engine.forward_engine import ForwardEngine
from ippo_cli.engine.rank_group import RankGroup
from ippo_cli.engine.tensor_parallel import model_plan, tensor_parallel_config
from ippo_cli.engine.zero import Engine
from ippo_cli.engine.zero_config import (
    bucket_elements,
    effective_stage,
    live_elements,
    prefetch_elements,
    zero_config,
)
from ippo_cli.models.actor import Policy, load_actor_lm
from ippo_cli.models.load import backbone_of
from ippo_cli.models.packing import enable_packing

if TYPE_CHECKING:  # only imported with adapters: peft takes seconds to import
    from ippo_cli.models.lora import FrozenBase


@dataclass
class FrozenWeights:
    """Frozen weights that several agents may share."""

    device: torch.device
    groups: Mapping[str, RankGroup] = field(default_factory=dict)  # by component, the ranks that hold it
    # By weights; with the engine that shards them, at ZeRO stage 3.
    references: dict[str, tuple[Policy, Engine[Policy] | None]] = field(default_factory=dict)
    bases: dict[str, Any] = field(default_factory=dict)  # by name, for adapters
    trains: bool = True  # whether the models of agents have optimizers


def splits_rows(config: Config) -> bool:
    """Whether groups of ranks split the rows of a training pass; not in evaluations, where ranks form no groups."""
    return config.deepspeed.sequence_parallel > 1 and distributed.group_size() > 1


def tensor_plan(config: Config, backbone: PreTrainedModel) -> Mapping[str, str] | None:
    """The plan by which groups of ranks split the linear maps of a trained model; None if they do not."""
    if config.deepspeed.tensor_parallel == 1 or distributed.group_size() == 1:
        return None
    return model_plan(backbone)


def get_shared_base(
    config: Config, holder: str, actor: LoraActorConfig, weights: str, frozen: FrozenWeights
) -> FrozenBase:
    """The frozen base of an agent's adapters, possibly shared."""
    from ippo_cli.models.lora import FrozenBase

    name = base_by_policy(config)[holder]
    if name not in frozen.bases:
        lm = load_actor_lm(actor, weights, actor.revision, is_base=True)
        packs = config.deepspeed.pack_sequences and enable_packing(backbone_of(lm), split=splits_rows(config))
        base = FrozenBase(lm, weights)
        base.packs = packs
        if actor.gradient_checkpointing:
            base.checkpoint_gradients()
        if not quantization_args(actor):  # a quantised model was loaded onto its device and cannot be moved
            lm.to(frozen.device)  # pyright: ignore[reportArgumentType]
        frozen.bases[name] = base
    return frozen.bases[name]


def make_engine(
    module: nn.Module,
    groups: list[dict[str, Any]],
    deepspeed: DeepspeedConfig,
    dtype: Dtype,
    optimizer: OptimizerConfig,
    device: torch.device,
    *,
    tensor_plan: Mapping[str, str] | None = None,
) -> Engine:
    """The engine of a module; `tensor_plan`: the plan by which a group of ranks splits it, see `tensor_parallel`."""
    ranks_per_replica = 1 if tensor_plan is None else distributed.group_size()
    size = sum(parameter.numel() for parameter in module.parameters())
    stage = effective_stage(
        deepspeed.stage,
        bf16=dtype is Dtype.bf16,
        ranks=distributed.world_size() // ranks_per_replica,
        offload_optimizer=deepspeed.offload_optimizer,
        tensor_parallel=ranks_per_replica,
    )
    live = live_elements(deepspeed.max_live_parameters, size)
    settings = zero_config(
        stage=stage,
        dtype=dtype.value,
        offload_optimizer=deepspeed.offload_optimizer,
        offload_params=deepspeed.offload_params,
        reduce_bucket_size=bucket_elements(deepspeed.reduce_bucket_size, size),
        prefetch_bucket_size=prefetch_elements(live, size),
        persistence_threshold=deepspeed.persistence_threshold,
        max_live_parameters=live,
        max_grad_norm=optimizer.max_grad_norm,
    )
    if tensor_plan is not None:
        settings["tensor_parallel"] = tensor_parallel_config(ranks_per_replica, tensor_plan)
    return Engine(module, groups, zero=settings, device=device)


def make_learner_engine(
    module: nn.Module,
    groups: list[dict[str, Any]],
    config: Config,
    dtype: Dtype,
    optimizer: OptimizerConfig,
    frozen: FrozenWeights,
    plan: Mapping[str, str] | None,
) -> Engine[Any]:
    """The engine of an agent's model: with an optimizer, or for forwards only."""
    if not frozen.trains:
        return ForwardEngine(module, frozen.device)
    return make_engine(module, groups, config.deepspeed, dtype, optimizer, frozen.device, tensor_plan=plan)


def load_initial_policy(
    config: Config, holder: str, actor: ActorConfig, weights: str, frozen: FrozenWeights
) -> tuple[Policy, Engine[Policy] | None]:
    """An agent's model before training, frozen; for an adapter, its base without an adapter."""
    if isinstance(actor, LoraActorConfig):
        from ippo_cli.models.adapters import AdapterPolicy

        return AdapterPolicy(get_shared_base(config, holder, actor, weights, frozen), None).eval(), None
    return _load_frozen_model(config, actor, weights, actor.revision, frozen)


def _load_frozen_model(
    config: Config,
    actor: ActorConfig,
    source: str,
    revision: str | None,
    frozen: FrozenWeights,
    *,
    dtype: Dtype | None = None,
    owner: str = "",
) -> tuple[Policy, Engine[Policy] | None]:
    """Load a whole model. Agents with the same weights share it unless the model has an `owner` that updates it.

    At ZeRO stage 3 with several ranks, a separate engine shards its weights.
    """
    dtype = dtype or actor.dtype
    ranks = distributed.current_group().ranks
    key = f"{source}@{revision}:{dtype.value}:{unquantized_args(actor)}:{owner}:{ranks}"
    if key not in frozen.references:
        spreads = config.deepspeed.stage == 3 and distributed.world_size() > 1
        lm = load_actor_lm(actor, source, revision, dtype=dtype, as_stored=spreads)
        policy = Policy(lm, in_step=spreads)
        policy.packs = config.deepspeed.pack_sequences and enable_packing(backbone_of(policy.lm))
        policy.requires_grad_(False).eval()
        if spreads:
            frozen.references[key] = policy, make_engine(policy, [], config.deepspeed, dtype, actor, frozen.device)
        else:
            frozen.references[key] = policy.to(frozen.device), None
    return frozen.references[key]


def load_reference_policy(
    config: Config, holder: str, actor: ActorConfig, weights: str, frozen: FrozenWeights
) -> tuple[Policy, Engine[Policy] | None]:
    """The KL reference of an agent: `actor.reference`. A reference that is updated is not shared."""
    folder, is_adapter = None, False
    if actor.reference not in (ReferenceKind.initial, ReferenceKind.base):
        folder, is_adapter = find_reference_folder(actor.reference)
    if isinstance(actor, LoraActorConfig) and (folder is None or is_adapter):
        return _load_reference_adapter(config, holder, actor, weights, frozen), None
    owner = "" if actor.reference_update_every is None else holder
    if folder is None:
        return _load_frozen_model(config, actor, weights, actor.revision, frozen, owner=owner)
    if is_adapter:
        return _load_adapter_with_base(config, folder, actor, frozen), None
    dtype = Dtype.fp32 if has_merged_adapter(str(folder)) else actor.dtype
    return _load_frozen_model(config, actor, str(folder), None, frozen, dtype=dtype, owner=owner)


def _load_reference_adapter(
    config: Config, holder: str, actor: LoraActorConfig, weights: str, frozen: FrozenWeights
) -> Policy:
    """The reference of an adapter: another adapter on its base, or the base alone."""
    from ippo_cli.models.adapters import AdapterPolicy
    from ippo_cli.models.lora import load_adapter

    base = get_shared_base(config, holder, actor, weights, frozen)
    earlier = None if actor.adapter is None else (Path(actor.adapter), "actor.adapter")
    if actor.reference == ReferenceKind.base:
        earlier = None
    elif actor.reference != ReferenceKind.initial:
        earlier = Path(actor.reference), "actor.reference"
    if actor.reference_update_every is not None:  # overwritten by the actor's adapter, so it has its settings
        adapter = base.add_adapter(actor, "actor", config.seed, earlier=actor.adapter, key="actor.adapter")
        if earlier is not None:
            adapter.load(*earlier)
        return AdapterPolicy(base, adapter).eval()
    if earlier is None:
        return AdapterPolicy(base, None).eval()
    key = f"{base_by_policy(config)[holder]}+{earlier[0]}"
    if key not in frozen.references:
        frozen.references[key] = AdapterPolicy(base, load_adapter(base, *earlier)).eval(), None
    return frozen.references[key][0]


def _load_adapter_with_base(config: Config, folder: Path, actor: ActorConfig, frozen: FrozenWeights) -> Policy:
    """An adapter as the reference of a fully trained actor: loads the base as well."""
    from ippo_cli.models.adapters import AdapterPolicy
    from ippo_cli.models.lora import FrozenBase, load_adapter

    key = f"{folder}:{actor.dtype.value}:{unquantized_args(actor)}"
    if key not in frozen.references:
        source = read_adapter(folder, "actor.reference").base
        assert source is not None  # checked before a model loads
        lm = load_actor_lm(actor, source, None)
        packs = config.deepspeed.pack_sequences and enable_packing(backbone_of(lm))
        base = FrozenBase(lm.to(frozen.device), source)  # pyright: ignore[reportArgumentType]
        base.packs = packs
        frozen.references[key] = AdapterPolicy(base, load_adapter(base, folder, "actor.reference")).eval(), None
    return frozen.references[key][0]
