"""Critics that start from a reward model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from folders import model_folder
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from ippo_cli.agents.critic_start import load_critic, warm_start_config
from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.config.schema import SeparateCriticConfig

SMALL = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
IDS = torch.tensor([[5, 7, 9, 11], [6, 8, 10, 12]])


def reward_model(folder: Path, labels: int = 1, dtype: torch.dtype = torch.float32) -> Path:
    torch.manual_seed(3)
    config = LlamaConfig(**SMALL, num_labels=labels, pad_token_id=0)
    LlamaForSequenceClassification(config).to(dtype).save_pretrained(folder)
    return folder


def critic_config(folder: Path, *overrides: str) -> SeparateCriticConfig:
    config = load_config(["critic=separate", "critic.dtype=fp32", f"critic.warm_start={folder}", *overrides]).critic
    assert isinstance(config, SeparateCriticConfig)
    return config


@pytest.mark.parametrize("as_stored", [False, True])
def test_values_equal_reward_model_scores(as_stored: bool, tmp_path: Path) -> None:
    folder = reward_model(tmp_path / "rm")
    critic = load_critic(critic_config(folder), "", None, as_stored=as_stored)
    scores = AutoModelForSequenceClassification.from_pretrained(folder)(input_ids=IDS).logits[:, 0]
    values = critic.value_head(critic.backbone(IDS, use_cache=False).last_hidden_state)[:, -1]
    assert values.abs().max() > 1e-3
    torch.testing.assert_close(values, scores, rtol=0, atol=1e-5)
    assert not critic.value_head.out.bias.any()


def test_as_stored_keeps_dtype(tmp_path: Path) -> None:
    folder = reward_model(tmp_path / "rm", dtype=torch.bfloat16)
    critic = load_critic(critic_config(folder), "", None, as_stored=True)
    assert {parameter.dtype for parameter in critic.backbone.parameters()} == {torch.bfloat16}
    assert critic.value_head.out.weight.dtype == critic.config.dtype == torch.float32
    stored = LlamaForSequenceClassification.from_pretrained(folder, dtype=torch.float32).score.weight
    assert torch.equal(critic.value_head.out.weight, stored)


def test_saved_critic_reloads(tmp_path: Path) -> None:
    critic = load_critic(critic_config(reward_model(tmp_path / "rm")), "", None)
    critic.save_pretrained(tmp_path / "critic")
    again = load_critic(critic_config(tmp_path / "critic"), "", None)
    assert all(torch.equal(one, other) for one, other in zip(critic.parameters(), again.parameters(), strict=True))


def test_hidden_layer_rejected(tmp_path: Path) -> None:
    config = critic_config(reward_model(tmp_path / "rm"), "critic.value_head_hidden_dim=8")
    with pytest.raises(
        ConfigError, match=r"value_head_hidden_dim=8 does not fit .*use critic.value_head_hidden_dim=null"
    ):
        warm_start_config(config)


def test_several_labels_rejected(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="3 labels, and a critic needs one"):
        warm_start_config(critic_config(reward_model(tmp_path / "rm", labels=3)))


def test_language_model_rejected(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"LlamaForCausalLM, which has no value head; .*critic.model="):
        warm_start_config(critic_config(model_folder(tmp_path / "lm")))


def test_encoder_rejected(tmp_path: Path) -> None:
    torch.manual_seed(0)
    BertForSequenceClassification(BertConfig(**SMALL, num_labels=1)).save_pretrained(tmp_path / "rm")
    with pytest.raises(PreflightError, match="use a causal language model"):
        load_critic(critic_config(tmp_path / "rm"), "", None)
