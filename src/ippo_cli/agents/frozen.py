"""Frozen policies for generation: whole models, or adapters on a shared base."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ippo_cli.agents.agent import FrozenAgent
from ippo_cli.config.adapters import has_merged_adapter
from ippo_cli.config.model_args import quantization_args
from ippo_cli.config.schema import ActorConfig, Dtype, LoraActorConfig
from ippo_cli.models.actor import Policy, load_actor_lm, load_actor_tokenizer, load_tokenizer

Record = dict[str, Any]
"""Source of a model: `model` (folder or hub id), `commit` of a hub id, or `sha256` of a folder's files. For an adapter
these describe its base, and `adapter` describes its own folder the same way; None for an untrained adapter.
"""


def load_frozen_agent(
    name: str, record: Mapping[str, Any], actor: ActorConfig, device: torch.device, bases: dict[Any, Any]
) -> FrozenAgent:
    """Load a model, or an adapter and its base; `bases` caches bases by model."""
    model, commit = record["model"], record["commit"]
    saved = record.get("tokenizer")  # a checkpoint's own copy, which remains available when the original does not
    tokenizer = load_tokenizer(saved, None) if saved else load_actor_tokenizer(actor, model, commit)
    if "adapter" not in record:
        # Rounding a merged model would lose most of the change of a short training.
        dtype = Dtype.fp32 if has_merged_adapter(model) else actor.dtype
        policy = Policy(load_actor_lm(actor, model, commit, dtype=dtype)).to(device).eval()
        return FrozenAgent(name=name, tokenizer=tokenizer, held_policy=policy)
    from ippo_cli.models.adapters import AdapterPolicy
    from ippo_cli.models.lora import FrozenBase, load_adapter

    assert isinstance(actor, LoraActorConfig)
    key = "base", model, commit, actor.dtype, str(actor.model_args)
    if key not in bases:
        lm = load_actor_lm(actor, model, commit, is_base=True)
        bases[key] = FrozenBase(lm if quantization_args(actor) else lm.to(device), model)  # pyright: ignore
    if record["adapter"] is None:
        adapter = bases[key].add_adapter(actor, "actor", seed=0)
    else:
        adapter = load_adapter(bases[key], Path(record["adapter"]["model"]), "checkpoint")
    return FrozenAgent(name=name, tokenizer=tokenizer, held_policy=AdapterPolicy(bases[key], adapter).to(device).eval())
