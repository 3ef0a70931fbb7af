"""`hub=`: downloads of models that are not local folders."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.config.references import is_hub_reference
from ippo_cli.config.rewards import rewards_with_prefixes
from ippo_cli.config.schema import ActorConfig, Config, Hub, ModelRewardConfig, SeparateCriticConfig, ServerActorConfig
from ippo_cli.config.served_agents import served_model_name

WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")


def find_model_keys(config: Config, *, agents: bool = True) -> Iterator[tuple[str, Any, str, str | None]]:
    """Yield every key that may name a model: setting, owner dataclass, field, and field of the revision.

    `agents=False` yields reward models only.
    """
    for agent in config.task.agents.values() if agents else ():
        yield "actor.model", agent.actor, "model", "revision"
        yield "actor.tokenizer", agent.actor, "tokenizer", "tokenizer_revision"
        if isinstance(agent.actor, ActorConfig) and is_hub_reference(agent.actor.reference):
            yield "actor.reference", agent.actor, "reference", None
        if isinstance(agent.critic, SeparateCriticConfig):
            yield "critic.model", agent.critic, "model", "revision"
            yield "critic.warm_start", agent.critic, "warm_start", None
    for where, own in rewards_with_prefixes(config):
        if isinstance(own.reward, ModelRewardConfig):
            yield f"{where}.model", own.reward, "model", "revision"


def check_hub(config: Config) -> None:
    """Raise `ConfigError` for hub=modelscope if its package is not installed."""
    if config.hub is Hub.modelscope and find_spec("modelscope") is None:
        raise ConfigError(
            "hub=modelscope",
            "needs the package modelscope",
            "pip install 'ippo-cli[modelscope]', or use hub=huggingface or folders",
        )


def download_models(config: Config, *, agents: bool = True) -> Config:
    """Return the configuration with names at the hub replaced by local folders, with a cache for earlier downloads.

    Of Hugging Face, only references: transformers downloads all other models when they are loaded.
    """
    if config.hub is Hub.huggingface:
        return _download_references(config) if agents else config
    config = copy.deepcopy(config)
    for setting, holder, key, revision in find_model_keys(config, agents=agents):
        name = getattr(holder, key)
        if name is not None and not Path(name).exists():
            check_hub(config)
            if isinstance(holder, ServerActorConfig) and key == "model":
                holder.served_model = served_model_name(holder)
            at, has_weights = revision and getattr(holder, revision), not isinstance(holder, ServerActorConfig)
            setattr(holder, key, _download(setting, name, at, has_weights=has_weights))
            if revision is not None:
                setattr(holder, revision, None)
    return config


def _download_references(config: Config) -> Config:
    """Return the configuration with references at Hugging Face replaced by folders of its cache."""
    named = [key for key in find_model_keys(config) if key[0] == "actor.reference"]
    if not named:
        return config
    from huggingface_hub import snapshot_download

    config = copy.deepcopy(config)
    for setting, actor, _, _ in find_model_keys(config):
        if setting == "actor.reference":
            name = actor.reference
            try:
                actor.reference = snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.model"])
            except Exception as error:
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise PreflightError(f"actor.reference={name}: the model cannot be downloaded ({reason})") from error
    return config


def _download(setting: str, name: str, revision: str | None, *, has_weights: bool) -> str:
    from modelscope import snapshot_download  # pyright: ignore[reportMissingImports]

    try:
        skipped = {} if has_weights else {"ignore_patterns": list(WEIGHT_FILES)}
        return str(snapshot_download(name, revision=revision, **skipped))
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        at = f" at revision {revision}" if revision else ""
        raise PreflightError(f"{setting}={name}: ModelScope cannot provide this model{at} ({reason})") from error
