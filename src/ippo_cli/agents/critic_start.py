"""Initial weights of a critic: a saved critic, a reward model, another model, or the actor's model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedConfig

from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.config.model_args import ATTENTION
from ippo_cli.config.schema import SeparateCriticConfig, TrainedCriticConfig
from ippo_cli.models.actor import DTYPES
from ippo_cli.models.critic import (
    ValueHeadConfig,
    ValueModel,
    ValueModelConfig,
    check_head_shape,
    configured_head_keys,
    hidden_width,
    make_value_model,
)
from ippo_cli.models.load import (
    UnusableModel,
    backbone_of,
    load_error,
    load_pretrained,
    missing_files_reason,
)

CLASSIFIER = "ForSequenceClassification"
REWARD_MODEL = "a critic/ folder of a run, or a reward model: a decoder with one label"


def load_critic(
    critic: SeparateCriticConfig,
    weights: str,
    revision: str | None,
    *,
    as_stored: bool = False,
    args: dict[str, Any] | None = None,
) -> ValueModel:
    """A separate critic's initial weights. `weights` and `revision` are its actor's.

    `as_stored`: for an engine at ZeRO stage 3 to cast, see `load_pretrained`. `args`: what its actor is loaded with.
    """
    source, source_revision = (weights, revision) if critic.model is None else (critic.model, critic.revision)
    options: dict[str, Any] = {"dtype": DTYPES[critic.dtype], "as_stored": as_stored}
    args = args or {}
    try:
        if critic.warm_start is None:
            backbone = load_pretrained(AutoModel, source, revision=source_revision, **options, **args)
            return make_value_model(backbone, **configured_head_keys(critic))
        kind, _ = _read_warm_start(critic, critic.warm_start)
        if kind == "classifier":
            model = _load_from_classifier(critic.warm_start, **options)
        else:
            model = load_pretrained(ValueModel, critic.warm_start, **options)
            model.value_head.config.bin_sigma = configured_head_keys(critic).get("bin_sigma")
        if args.get(ATTENTION) is not None:  # the only argument that config.json does not store
            model.backbone.set_attn_implementation(args[ATTENTION])
        return model
    except ConfigError:
        raise
    except Exception as error:
        place = critic.warm_start or source
        raise load_error(_format_setting(critic, source), "critic", error, missing_files_reason(Path(place))) from error


def check_value_head_start(critic: TrainedCriticConfig, width: int) -> None:
    """Raise `PreflightError` if `critic.warm_start` is not a value head for states of this width. Reads no weights."""
    setting = f"critic.warm_start={critic.warm_start}"
    stored = _read_config(Path(str(critic.warm_start)))
    if stored.get("model_type") != ValueHeadConfig.model_type:
        raise PreflightError(
            f"{setting}: it has no value head without a backbone; use a run with critic=value_head, or its critic/ "
            "folder in a checkpoint"
        )
    try:
        check_head_shape(stored, critic)
    except UnusableModel as error:
        raise PreflightError(f"{setting}: {error}; use the same keys of critic") from error
    if (stored_width := stored.get("hidden_size")) != width:
        raise PreflightError(
            f"{setting}: its value head reads states of width {stored_width}, and the actor's have {width}; use the "
            "critic of a run with this actor"
        )


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}


def warm_start_config(critic: SeparateCriticConfig) -> PreTrainedConfig:
    """The backbone configuration stored in `critic.warm_start`. Reads no weights.

    Raises `ConfigError` or `PreflightError` if no critic can start from it.
    """
    assert critic.warm_start is not None
    try:
        return _read_warm_start(critic, critic.warm_start)[1]
    except ConfigError:
        raise
    except Exception as error:
        reason = missing_files_reason(Path(critic.warm_start))
        raise load_error(_format_setting(critic, critic.warm_start), "critic", error, reason) from error


def _format_setting(critic: SeparateCriticConfig, source: str) -> str:
    if critic.warm_start is not None:
        return f"critic.warm_start={critic.warm_start}"
    return f"critic.model=null (the actor's, {source})" if critic.model is None else f"critic.model={source}"


def _read_warm_start(
    critic: SeparateCriticConfig, source: str
) -> tuple[Literal["critic", "classifier"], PreTrainedConfig]:
    """Kind of `critic.warm_start`, from its config.json, and the configuration of the backbone."""
    stored, _ = PreTrainedConfig.get_config_dict(source)
    kind = stored.get("model_type")
    if kind == ValueModelConfig.model_type:
        own = dict(stored["backbone"])
        check_head_shape(stored, critic)
        return "critic", AutoConfig.for_model(own.pop("model_type"), **own)
    if kind == ValueHeadConfig.model_type:
        raise UnusableModel(f"it has a value head without a backbone; use {REWARD_MODEL}")
    names = stored.get("architectures") or ["no architecture"]
    if not any(CLASSIFIER in name for name in names):
        raise UnusableModel(
            f"its config.json names {' '.join(names)}, which has no value head; use {REWARD_MODEL}, or critic.model= "
            "for a backbone alone"
        )
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    if config.num_labels != 1:
        raise UnusableModel(f"it has {config.num_labels} labels, and a critic needs one; use {REWARD_MODEL}")
    for key in ("value_head_hidden_dim", "value_bins"):
        if getattr(critic, key) is not None:
            raise ConfigError(
                f"critic.{key}={getattr(critic, key)}",
                f"does not fit critic.warm_start={source}: a reward model computes its score with a single linear map",
                f"use critic.{key}=null",
            )
    return "classifier", config


@torch.no_grad()
def _load_from_classifier(source: str, **options: Any) -> ValueModel:
    """A critic from the backbone of a reward model, with its linear map as the value head."""
    classifier = load_pretrained(AutoModelForSequenceClassification, source, **options)
    backbone = backbone_of(classifier)
    inside = {id(part) for part in backbone.modules()}
    maps = [part for part in classifier.modules() if isinstance(part, nn.Linear) and id(part) not in inside]
    if backbone is classifier or len(maps) != 1 or maps[0].in_features != hidden_width(backbone.config):
        raise UnusableModel(
            f"{type(classifier).__name__} has more than one linear map between its backbone and its score; use "
            + REWARD_MODEL
        )
    model = make_value_model(backbone, None)
    out = model.value_head.out
    out.weight.copy_(maps[0].weight)
    if maps[0].bias is None:
        out.bias.zero_()
    else:
        out.bias.copy_(maps[0].bias)
    return model
