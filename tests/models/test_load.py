"""Loaded models have equal outputs in training and evaluation mode, for every name of dropout settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    BioGptConfig,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    Gemma2PreTrainedModel,
    GPT2Config,
    GPTNeoConfig,
    GPTNeoXConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MixtralConfig,
    MptConfig,
    OPTConfig,
    PhiConfig,
    PhimoeConfig,
    PretrainedConfig,
    Starcoder2Config,
    T5Config,
)

from ippo_cli.agents.critic_start import load_critic
from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import PreflightError
from ippo_cli.config.schema import Dtype, SeparateCriticConfig
from ippo_cli.models.actor import LogitHead, check_readable_tokens, load_causal_lm, load_tokenizer
from ippo_cli.models.critic import ValueHead, ValueHeadConfig, make_value_model
from ippo_cli.models.load import load_pretrained
from ippo_cli.models.tiny import character_tokenizer

VOCABULARY = 40
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
GROUPED = {**COMMON, "intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 64}
OLD = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 1}
P = 0.4
FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "gpt2": lambda: GPT2Config(**OLD, resid_pdrop=P, embd_pdrop=P, attn_pdrop=P),
    "starcoder2": lambda: Starcoder2Config(**GROUPED, residual_dropout=P, embedding_dropout=P, attention_dropout=P),
    "opt": lambda: OPTConfig(
        **COMMON,
        ffn_dim=64,
        word_embed_proj_dim=32,
        max_position_embeddings=64,
        dropout=P,
        attention_dropout=P,
        layerdrop=P,
    ),
    "gpt-neox": lambda: GPTNeoXConfig(**COMMON, intermediate_size=64, hidden_dropout=P, attention_dropout=P),
    "gpt-neo": lambda: GPTNeoConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=1,
        resid_dropout=P,
        embed_dropout=P,
        attention_dropout=P,
    ),
    "bloom": lambda: BloomConfig(
        vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4, hidden_dropout=P, attention_dropout=P
    ),
    "falcon": lambda: FalconConfig(**COMMON, hidden_dropout=P, attention_dropout=P),
    "phi": lambda: PhiConfig(**GROUPED, resid_pdrop=P, embd_pdrop=P, attention_dropout=P),
    "mpt": lambda: MptConfig(
        vocab_size=VOCABULARY, d_model=32, n_layers=2, n_heads=4, max_seq_len=64, resid_pdrop=P, emb_pdrop=P
    ),
    "biogpt": lambda: BioGptConfig(
        **COMMON,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout_prob=P,
        attention_probs_dropout_prob=P,
        layerdrop=P,
    ),
    "mixtral": lambda: MixtralConfig(**GROUPED, num_local_experts=2, router_jitter_noise=P, attention_dropout=P),
}
IDS = torch.arange(60).view(3, 20) % VOCABULARY


def saved(folder: Path, config: PretrainedConfig) -> str:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return str(folder)


@torch.no_grad()
def asked_and_trained(model: torch.nn.Module, forward: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Forwards in evaluation mode, and, twice, in training mode."""
    found = []
    for training in (False, True, True):
        model.train(training)
        found.append(forward())
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_actor_equal_in_training_mode(family: str, tmp_path: Path) -> None:
    lm = load_causal_lm(saved(tmp_path, FAMILIES[family]()), None, Dtype.fp32)
    asked, *trained = asked_and_trained(lm, lambda: lm(IDS, use_cache=False).logits.log_softmax(-1))
    for found in trained:
        torch.testing.assert_close(found, asked, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_critic_equal_in_training_mode(family: str, tmp_path: Path) -> None:
    config = load_config(["critic=separate"]).critic
    assert isinstance(config, SeparateCriticConfig)
    critic = load_critic(config, saved(tmp_path / "lm", FAMILIES[family]()), None)
    torch.nn.init.normal_(critic.value_head.out.weight)
    critic.save_pretrained(tmp_path / "critic")
    config.warm_start = str(tmp_path / "critic")
    for model in (critic, load_critic(config, "", None)):
        asked, *trained = asked_and_trained(model, lambda model=model: values(model))
        for found in trained:
            torch.testing.assert_close(found, asked, rtol=0, atol=1e-5)


def values(critic: Any) -> torch.Tensor:
    return critic.value_head(critic.backbone(IDS, use_cache=False).last_hidden_state)


def test_attention_scores_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Gemma2PreTrainedModel, "_supports_sdpa", True)  # as in transformers 5.19
    config = Gemma2Config(**GROUPED, head_dim=8, attn_logit_softcapping=0.01)
    lm = load_causal_lm(saved(tmp_path, config), None, Dtype.fp32)
    assert lm.config._attn_implementation == "eager"
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    torch.testing.assert_close(lm(IDS).logits, expected(IDS).logits)


def test_saved_dropout_disabled(tmp_path: Path) -> None:
    backbone = AutoModel.from_pretrained(saved(tmp_path / "lm", FAMILIES["gpt2"]()))
    made = make_value_model(backbone, None)
    torch.nn.init.normal_(made.value_head.out.weight)
    made.save_pretrained(tmp_path / "critic")
    config = load_config(["critic=separate"]).critic
    assert isinstance(config, SeparateCriticConfig)
    config.warm_start = str(tmp_path / "critic")
    critic = load_critic(config, "", None)
    asked, *trained = asked_and_trained(critic, lambda: values(critic))
    assert all(torch.equal(found, asked) for found in trained)


def test_loading_keeps_global_random_state(tmp_path: Path) -> None:
    folder = saved(tmp_path, FAMILIES["opt"]())  # uses a random number per layer in training, with or without dropout
    before = torch.get_rng_state()
    load_causal_lm(folder, None, Dtype.fp32)
    assert torch.equal(torch.get_rng_state(), before)


def test_random_training_mode_rejected(tmp_path: Path) -> None:
    config = PhimoeConfig(**GROUPED, num_local_experts=4, router_jitter_noise=0.01)  # samples its experts
    with pytest.raises(PreflightError, match="PhimoeModel has other outputs in training mode"):
        load_causal_lm(saved(tmp_path, config), None, Dtype.fp32)


def test_noncausal_model_rejected(tmp_path: Path) -> None:
    config = BertConfig(**COMMON, intermediate_size=64, max_position_embeddings=64)
    folder = saved(tmp_path, config)
    AutoModel.from_pretrained(folder).save_pretrained(folder)
    with pytest.raises(ValueError, match="attends to later tokens"):
        load_pretrained(AutoModel, folder, dtype=torch.float32)


LLAMA = LlamaConfig(**GROUPED)


def broken(folder: Path, how: str) -> str:
    """A small model's folder with one error."""
    config = T5Config(vocab_size=VOCABULARY, d_model=32, d_ff=64, num_layers=1, num_heads=4, d_kv=8)
    if how == "encoder-decoder":
        config.save_pretrained(folder)
        return str(folder)
    model = saved(folder, LLAMA)
    settings = json.loads((folder / "config.json").read_text())
    changes: dict[str, dict[str, Any]] = {
        "quantized": {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        "another shape": {"vocab_size": 48},
        "another depth": {"num_hidden_layers": 3},
        "custom code": {
            "model_type": "new",
            "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
        },
    }
    (folder / "config.json").write_text(json.dumps(settings | changes.get(how, {})))
    if how == "no configuration":
        (folder / "config.json").unlink()
    if how == "half a configuration":
        (folder / "config.json").write_text('{"model_type": "llama",')
    if how == "pickled weights":
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    if how == "half of the weights":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:3000])
    if how == "NaN weights":
        lm = LlamaForCausalLM(LLAMA)
        torch.nn.init.constant_(lm.model.embed_tokens.weight, float("nan"))
        lm.save_pretrained(folder)
    if how == "an adapter":
        (folder / "config.json").rename(folder / "adapter_config.json")
    return model


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("encoder-decoder", "it is an encoder-decoder model; use a decoder-only one"),
        ("quantized", "its weights are quantized (gptq) and cannot be trained"),
        ("another shape", "its files hold lm_head.weight as [40, 32], and its config.json requires [48, 32]"),
        ("another depth", "its files lack 9 of its weights, such as "),
        ("custom code", "contains custom code"),
        ("no configuration", "its folder has no config.json"),
        ("half a configuration", "is not a valid JSON file"),
        ("pickled weights", "its folder has no .safetensors file; load it once and call save_pretrained"),
        ("half of the weights", "model.safetensors is damaged: Error while deserializing header: incomplete metadata"),
        ("NaN weights", "its outputs are not finite: some of its weights are NaN or infinite"),
        ("an adapter", "it contains an adapter without its model"),
    ],
)
def test_unusable_models_rejected(how: str, message: str, tmp_path: Path) -> None:
    model = broken(tmp_path / "model", how)
    config = load_config(["critic=separate"]).critic
    assert isinstance(config, SeparateCriticConfig)
    for load, setting in (
        (lambda: load_causal_lm(model, None, Dtype.fp32), f"actor.model={model}: no causal language model"),
        (lambda: load_critic(config, model, None), f"critic.model=null (the actor's, {model}): no critic"),
    ):
        if how == "another shape" and "critic" in setting:
            message = message.replace("lm_head", "embed_tokens")
        with pytest.raises(PreflightError) as caught:
            load()
        assert str(caught.value).startswith(setting)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_missing_tokenizer_rejected(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"no tokenizer could be loaded \(its folder has no tokenizer\.json; save"):
        load_tokenizer(saved(tmp_path, LLAMA), None)


def test_tokenizer_larger_than_embedding_rejected(tmp_path: Path) -> None:
    tokenizer = character_tokenizer("abc")
    lm = AutoModelForCausalLM.from_config(LlamaConfig(**{**GROUPED, "vocab_size": len(tokenizer)}))
    check_readable_tokens(tokenizer, lm, "actor.model=M")
    tokenizer.add_special_tokens({"pad_token": "<padding>"})
    check_readable_tokens(tokenizer, lm, "actor.model=M")
    tokenizer.add_tokens(["<tool>"])
    with pytest.raises(PreflightError, match=r"actor\.model=M: .* has 1 tokens .* such as '<tool>' = 7, with 6 rows"):
        check_readable_tokens(tokenizer, lm, "actor.model=M")


def test_float32_residual_stream_in_bf16_model(tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8)
    lm = load_causal_lm(saved(tmp_path, config), None, Dtype.bf16)
    hidden = lm.base_model(IDS, use_cache=False).last_hidden_state
    assert hidden.dtype == torch.float32
    torch.testing.assert_close(LogitHead(lm)(hidden), lm(IDS, use_cache=False).logits.to(torch.bfloat16))
    assert torch.equal(ValueHead(ValueHeadConfig(32)).bfloat16()(hidden), torch.zeros(IDS.shape))


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
def test_as_stored_keeps_file_dtype(tmp_path: Path, stored: torch.dtype) -> None:
    folder = saved(tmp_path / "lm", LlamaConfig(**GROUPED))
    AutoModelForCausalLM.from_pretrained(folder, dtype=stored).save_pretrained(folder)
    kept = torch.float32 if stored == torch.float16 else stored  # activations in float16 may overflow
    lm = load_causal_lm(folder, None, Dtype.fp32, as_stored=True)
    assert {parameter.dtype for parameter in lm.parameters()} == {kept}
    assert lm.config.dtype == torch.float32
    config = load_config(["critic=separate", "critic.dtype=fp32", "critic.value_head_hidden_dim=8"]).critic
    assert isinstance(config, SeparateCriticConfig)
    critic = load_critic(config, folder, None, as_stored=True)
    assert {parameter.dtype for parameter in critic.backbone.parameters()} == {kept}
    assert {parameter.dtype for parameter in critic.value_head.parameters()} == {torch.float32}
    critic.float().save_pretrained(tmp_path / "critic")
    again = load_pretrained(type(critic), str(tmp_path / "critic"), dtype=torch.float32, as_stored=True)
    assert {parameter.dtype for parameter in again.parameters()} == {torch.float32}


def test_bf16_critic_keeps_float32_rotary_frequencies(tmp_path: Path) -> None:
    config = load_config(["critic=separate", "critic.dtype=bf16"]).critic
    assert isinstance(config, SeparateCriticConfig)
    folder = saved(tmp_path, LlamaConfig(**GROUPED))
    critic, whole = load_critic(config, folder, None), AutoModelForCausalLM.from_pretrained(folder)
    assert {parameter.dtype for parameter in critic.parameters()} == {torch.bfloat16}
    assert torch.equal(critic.backbone.rotary_emb.inv_freq, whole.model.rotary_emb.inv_freq)
