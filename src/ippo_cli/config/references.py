"""Rules for `actor.reference`, the reference of KL terms."""

from __future__ import annotations

import re
from pathlib import Path

from ippo_cli.config.adapters import check_same_settings, find_reference_folder, read_adapter
from ippo_cli.config.credit import needs_replays
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import ActorConfig, AdapterMismatch, Config, LoraActorConfig, ReferenceKind

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_hub_reference(reference: str) -> bool:
    """Whether a reference is a hub id, `owner/name`, and no folder; it is downloaded after the checks."""
    return _HUB_ID.fullmatch(reference) is not None and not Path(reference).exists()


def check_references(config: Config) -> None:
    """Raise `ConfigError` or `PreflightError` for an invalid or unused reference."""
    for name, agent in config.task.agents.items():
        if agent.frozen:
            continue
        where = "actor" if agent.actor.kind is config.actor.kind else f"task.agents.{name}.actor"
        _check_effect(config, agent.actor, where)
        _check_reference(agent.actor, where)
        _check_update(config, agent.actor, where)
        _check_stage(config, agent.actor, where)


def is_default_reference(actor: ActorConfig) -> bool:
    """Whether the reference is the default of this kind of actor: its initial weights, or its adapter's base."""
    if actor.reference_update_every is not None:
        return False
    return actor.reference == (ReferenceKind.base if isinstance(actor, LoraActorConfig) else ReferenceKind.initial)


def _check_effect(config: Config, actor: ActorConfig, where: str) -> None:
    if is_default_reference(actor) or (actor.reference == ReferenceKind.initial and _starts_from_base(actor)):
        return
    key = f"{where}.reference={actor.reference}"
    if actor.reference_update_every is not None:
        key = f"{where}.reference_update_every={actor.reference_update_every}"
    kl = config.algorithm.kl
    if kl.reward.coef == 0.0 and kl.loss.coef == 0.0:
        raise ConfigError(
            key,
            "has no effect: no KL term uses the reference",
            "set algorithm.kl.reward.coef or algorithm.kl.loss.coef, or remove it",
        )
    if needs_replays(config):
        raise ConfigError(
            key,
            "changes the policies for measuring credit, which must be the initial ones",
            "use reward.credit_assignment=none with reward.measure_credit_every=0, or remove it",
        )


def _starts_from_base(actor: ActorConfig) -> bool:
    """Whether the initial weights equal the base's."""
    return actor.reference_update_every is None and getattr(actor, "adapter", None) is None


def _check_reference(actor: ActorConfig, where: str) -> None:
    key = f"{where}.reference={actor.reference}"
    if actor.reference == ReferenceKind.initial or is_hub_reference(actor.reference):
        return
    if actor.reference == ReferenceKind.base:
        if not isinstance(actor, LoraActorConfig):
            raise ConfigError(key, f"is the base of an adapter, and actor={actor.kind.value} has none", "use initial")
        return
    folder, is_adapter = find_reference_folder(actor.reference)
    if not is_adapter:
        return
    adapter = read_adapter(folder, f"{where}.reference")
    if not isinstance(actor, LoraActorConfig) and adapter.base is None:
        raise ConfigError(
            key, "is an adapter without the name of its base", "set base_model_name_or_path in adapter_config.json"
        )


def _check_update(config: Config, actor: ActorConfig, where: str) -> None:
    every = actor.reference_update_every
    if every is None:
        return
    key = f"{where}.reference_update_every={every}"
    if config.deepspeed.stage == 3:
        raise ConfigError(
            key,
            "copies the actor to its reference, and deepspeed.stage=3 shards both over the ranks",
            "use deepspeed=zero0, zero1 or zero2",
        )
    if actor.reference in (ReferenceKind.initial, ReferenceKind.base):
        return
    is_hub = is_hub_reference(actor.reference)
    folder, is_adapter = (Path(actor.reference), False) if is_hub else find_reference_folder(actor.reference)
    if is_adapter is not isinstance(actor, LoraActorConfig):
        has, needs = ("an adapter", "whole models") if is_adapter else ("a whole model", "adapters")
        raise ConfigError(
            key,
            f"copies the actor to its reference: both must be {needs}, and reference={actor.reference} is {has}",
            f"use {where}.reference=initial, or remove it",
        )
    if isinstance(actor, LoraActorConfig) and actor.adapter_mismatch is AdapterMismatch.error:
        check_same_settings(actor, read_adapter(folder, f"{where}.reference"), f"{where}.reference={actor.reference}")


def _check_stage(config: Config, actor: ActorConfig, where: str) -> None:
    if config.deepspeed.stage != 3 or actor.reference in (ReferenceKind.initial, ReferenceKind.base):
        return
    if not is_hub_reference(actor.reference) and find_reference_folder(actor.reference)[1]:
        raise ConfigError(
            f"{where}.reference={actor.reference}",
            "is an adapter with an unsharded base, and deepspeed.stage=3 shards models",
            "use deepspeed=zero0, zero1 or zero2, or a model with the adapter merged into it",
        )
