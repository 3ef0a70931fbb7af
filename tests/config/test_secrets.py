"""Secrets are rejected as typed values, saved as variable names, and removed from messages."""

from __future__ import annotations

import pytest

from ippo_cli.compose.load import compose_node, iter_leaves, resolve_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.secrets import check_secrets, is_secret_name, mask_secrets, redact_text, restore_secrets

HF = "hf_" + "aB3" * 8
ENVIRON = {"MY_API_KEY": "canary-71f3-secret", "HF_TOKEN": HF, "HOME": "/home/somebody", "SHORT_TOKEN": "on"}


def test_is_secret_name() -> None:
    assert all(map(is_secret_name, ("api_key", "WANDB_API_KEY", "HF_TOKEN", "reward.auth_token", "password", "secret")))
    innocent = ("pad_token", "max_new_tokens", "tokenizer", "micro_batch_tokens", "keyboard", "TOKENIZERS_PARALLELISM")
    assert not any(map(is_secret_name, innocent))


def test_no_run_key_has_a_secret_name() -> None:
    assert not [
        key for key, _ in iter_leaves(resolve_config(compose_node([]))) if is_secret_name(key.rpartition(".")[2])
    ]


@pytest.mark.parametrize(
    "value",
    [HF, "sk-" + "x1" * 12, "ghp_" + "a" * 30, "https://me:word@host/data", "AKIA" + "A1" * 8, f"bearer {'t0k' * 6}"],
)
def test_secret_value_is_rejected_and_not_printed(value: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_secrets({"task": {"train": [f"a {value}"]}}, {})
    assert value not in str(refused.value)
    assert refused.value.key == "task.train"
    assert "${oc.env:MY_API_KEY}" in str(refused.value)


def test_secret_name_needs_an_environment_value() -> None:
    with pytest.raises(ConfigError, match=r"reward\.api_key=\.\.\. is a secret"):
        check_secrets({"reward": {"api_key": "whatever"}}, ENVIRON)
    with pytest.raises(
        ConfigError, match=r"type reward\.token_env=MY_API_KEY$"
    ):  # this key expects the variable's name
        check_secrets({"reward": {"token_env": "sk-" + "x1" * 12}}, {})
    check_secrets({"reward": {"api_key": ENVIRON["MY_API_KEY"], "other_key": "", "url": f"https://x?{HF}"}}, ENVIRON)


def test_tokens_of_a_vocabulary_are_shown() -> None:
    assert redact_text("stop_token=eos image_token=image_placeholder my_token=eos", {}) == (
        "stop_token=eos image_token=image_placeholder my_token=eos"
    )
    assert redact_text("my_token=a1b2c3d4e5 password=short", {}) == "my_token=<secret> password=<secret>"


@pytest.mark.parametrize("text", ["meta-llama/Llama-3", "https://host/a@b", "e3f8c0a1" * 5, "sk-learn", "{letters}: "])
def test_ordinary_texts_are_not_secrets(text: str) -> None:
    check_secrets({"actor": {"model": text}}, {})
    assert redact_text(text, {}) == text


def test_mask_and_restore_secrets() -> None:
    plain = {"url": f"https://u:{HF}@host", "stop": ["canary-71f3-secret", "on"], "n": 3, "text": "${oc.env:OTHER}"}
    written = mask_secrets(plain, ENVIRON)
    assert written == {
        "url": "https://u:${oc.env:HF_TOKEN}@host",
        "stop": ["${oc.env:MY_API_KEY}", "on"],
        "n": 3,
        "text": "${oc.env:OTHER}",
    }
    assert restore_secrets(written, ENVIRON) == plain
    with pytest.raises(ConfigError, match="HF_TOKEN"):
        restore_secrets(written, {})


def test_redact_text() -> None:
    text = redact_text(f"call with {HF} and canary-71f3-secret: reward.api_key=abc password='x y' seed=3", ENVIRON)
    assert text == "call with <HF_TOKEN> and <MY_API_KEY>: reward.api_key=<secret> password=<secret> seed=3"
    assert redact_text("https://me:word@host", {}) == "https://<secret>@host"
    assert redact_text("reward.api_key=${oc.env:MY_API_KEY}", {}) == "reward.api_key=${oc.env:MY_API_KEY}"
