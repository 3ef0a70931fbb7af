"""Patterns of frozen parameters: what they select, what is rejected, and the memory that they save."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import SeparateCriticConfig
from ippo_cli.models.critic import make_value_model
from ippo_cli.models.freezing import freeze_parameters, frozen_names
from ippo_cli.models.load import backbone_of
from ippo_cli.models.shape import critic_shape, empty_model

NAMES = ["backbone.layers.0.self_attn.q_proj.weight", "backbone.layers.0.mlp.up_proj.weight", "value_head.out.weight"]
LLAMA = LlamaConfig(
    vocab_size=11,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
)


def critic(pattern: str) -> SeparateCriticConfig:
    found = load_config([f"critic.freeze=[{pattern}]"]).critic
    assert isinstance(found, SeparateCriticConfig)
    return found


def test_patterns_select_names() -> None:
    assert frozen_names(NAMES, []) == set()
    assert frozen_names(NAMES, ["*attn*"]) == {NAMES[0]}
    assert frozen_names(NAMES, ["*attn*", "*.mlp.*"]) == set(NAMES[:2])
    assert frozen_names(NAMES, ["backbone.*"]) == set(NAMES[:2])


def test_pattern_without_match_rejected() -> None:
    with pytest.raises(
        ConfigError, match=r"^critic.freeze=\[\*self_attention\*\] matches no parameter .*; names are as back"
    ):
        frozen_names(NAMES, ["*attn*", "*self_attention*"])


@pytest.mark.parametrize("pattern", ["*", "value_head.*"])
def test_frozen_value_head_rejected(pattern: str) -> None:
    with pytest.raises(ConfigError, match="freezes the value head, of which the initial values are 0; use a pattern"):
        frozen_names(NAMES, [pattern])


def test_frozen_parameters_have_no_gradient_and_no_optimizer_state() -> None:
    model = make_value_model(backbone_of(empty_model(LLAMA)), None)
    freeze_parameters(model, ["*attn*"])
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if "self_attn" in name}
    shape = critic_shape(empty_model(LLAMA), critic("*attn*"))
    assert shape.frozen_parameters == 2 * 4 * 8 * 8
    assert shape.saved_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert shape.trained_parameters == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert torch.device("meta") == next(model.backbone.parameters()).device


def test_shape_of_unknown_pattern_rejected() -> None:
    with pytest.raises(ConfigError, match=r"matches no parameter of the critic; names are as backbone\."):
        critic_shape(empty_model(LLAMA), critic("*self_attention*"))
