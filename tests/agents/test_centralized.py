"""Vocabulary and input format of centralised critics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, PretrainedConfig

from ippo_cli.agents.centralized import build_critic_layouts, critic_context
from ippo_cli.agents.critic_view import CriticLayout
from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import CentralizedCriticConfig, Config
from ippo_cli.models.tiny import character_tokenizer

BY_TURN = ["algorithm.credit=turn", "algorithm.turn_value=first", "algorithm.value_unit=turn"]


def layouts(low: Any, high: Any, *overrides: str) -> dict[str, CriticLayout]:
    config = load_config(["critic=centralized", *overrides])
    tokenizers, contexts = {"low": low, "high": high}, {"low": 64, "high": 64}
    return build_critic_layouts(config, tokenizers, contexts, {"low": 64, "high": 64, "team": 64})


def test_other_critics_have_no_layout() -> None:
    assert build_critic_layouts(load_config(["critic=separate"]), {}, {}, {}) == {}


def test_equal_vocabularies_read_as_tokens() -> None:
    low, high = character_tokenizer("abc"), character_tokenizer("abc")
    found = layouts(low, high)
    assert {name: (made.reads_text, made.tokenizer) for name, made in found.items()} == {
        "low": (False, low),
        "high": (False, high),
    }
    assert list(layouts(low, high, "critic.shared=true")) == ["team"]


def test_different_vocabularies_read_as_text() -> None:
    low, high = character_tokenizer("abc<"), character_tokenizer("abc>")
    with pytest.raises(
        ConfigError, match=r"^critic=centralized reads text where vocabularies differ, as those of low and"
    ):
        layouts(low, high)
    found = layouts(low, high, *BY_TURN)
    assert {name: (made.reads_text, made.tokenizer) for name, made in found.items()} == {
        "low": (True, low),
        "high": (True, high),
    }
    assert layouts(low, high, *BY_TURN, "critic.shared=true")["team"].tokenizer is low


def test_extra_special_tokens_need_embeddings() -> None:
    plain, more = character_tokenizer("abc"), character_tokenizer("abc")
    more.add_special_tokens({"additional_special_tokens": ["<turn>"]})
    assert not layouts(more, plain, "critic.shared=true")["team"].reads_text
    with pytest.raises(ConfigError, match="reads text"):
        layouts(plain, more, "critic.shared=true")


def test_critic_of_other_family_reads_text(tmp_path: Path) -> None:
    character_tokenizer("xyz").save_pretrained(tmp_path)
    agent = character_tokenizer("abc")
    with pytest.raises(ConfigError, match=r"as that of critic.model and the agents' do"):
        layouts(agent, agent, f"critic.model={tmp_path}")
    found = layouts(agent, agent, f"critic.model={tmp_path}", *BY_TURN)
    assert {made.reads_text for made in found.values()} == {True}
    assert "x" in found["low"].tokenizer.get_vocab()


def test_critic_folder_without_tokenizer(tmp_path: Path) -> None:
    low, high = character_tokenizer("abc"), character_tokenizer("abd")
    assert layouts(low, low, f"critic.warm_start={tmp_path}")["low"].tokenizer is low
    with pytest.raises(ConfigError, match=rf"^critic.warm_start={tmp_path} has no tokenizer, and needs one"):
        layouts(low, high, f"critic.warm_start={tmp_path}", *BY_TURN)
    LlamaConfig(vocab_size=5).save_pretrained(tmp_path)
    with pytest.raises(
        ConfigError, match=r"has no tokenizer, and its embedding has 5 tokens, fewer than its agent's tokenizer"
    ):
        layouts(low, low, f"critic.warm_start={tmp_path}")


def test_critic_context_length() -> None:
    config: Config = load_config(["critic=centralized", "rollout.max_new_tokens=6"])
    critic = config.critic
    assert isinstance(critic, CentralizedCriticConfig)
    assert critic_context(config, critic, PretrainedConfig(max_position_embeddings=32)) == 32
    assert critic_context(config, replace(critic, context_limit=20), PretrainedConfig(max_position_embeddings=32)) == 20
    for wanted, made_for in ((33, 32), (None, 6)):
        model = PretrainedConfig(max_position_embeddings=made_for)
        with pytest.raises(
            ConfigError, match=rf"max_new_tokens=6 do not fit the critic model's context length of {made_for} tokens"
        ):
            critic_context(config, replace(critic, context_limit=wanted), model)
