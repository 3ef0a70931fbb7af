"""Rules of `actor.model_args`."""

from __future__ import annotations

import pytest

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.config import model_args
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.config.model_args import check_quantization_package
from ippo_cli.config.schema import Config


def of(*overrides: str, actor: str = "full") -> Config:
    return load_config(
        normalize_arguments(["task=sorting_solo", f"actor={actor}", "actor.model=org/model", *overrides])
    )


REFUSED = {
    "actor.model_args.torch_dtype=bf16": "use actor.dtype",
    "actor.model_args.revision=main": "use actor.revision",
    "actor.model_args.trust_remote_code=true": "code of a repository is never run",
    "actor.model_args.device_map=auto": "use launch.device and deepspeed",
    "actor.model_args.load_in_4bit=true": "use actor=lora",
    "actor.model_args.load_in_4bit=1": "must be true or false",
    "actor.model_args.bnb_4bit_quant_type=nf4": "has no effect without quantisation",
}


@pytest.mark.parametrize("override", REFUSED)
def test_rejected_model_args(override: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_config(of(override), 1)
    assert override.split("=")[0] in str(raised.value)
    assert REFUSED[override] in str(raised.value)


def test_model_args_apply_to_all_agents() -> None:
    config = of("actor.model_args.attn_implementation=eager")
    check_config(config, 1)
    assert config.task.agents["solo"].actor.model_args == {"attn_implementation": "eager"}


def test_quantization_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    config = of("actor.model_args.load_in_4bit=true", "critic=none", "algorithm=grpo", actor="lora")
    check_config(config, 1)
    monkeypatch.setattr(model_args, "find_spec", lambda name: None)
    with pytest.raises(PreflightError, match=r"needs the package bitsandbytes; pip install"):
        check_quantization_package(config)
    monkeypatch.setattr(model_args, "find_spec", lambda name: object())
    check_quantization_package(config)
    with pytest.raises(ConfigError, match=r"use checkpoint\.weights=adapter"):
        check_config(of("actor.model_args.load_in_4bit=true", "checkpoint.weights=full", actor="lora"), 1)
