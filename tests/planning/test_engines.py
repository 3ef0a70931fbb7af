"""Checks of the models of inference engines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import PreflightError
from ippo_cli.planning.engines import check_engine_models


def shapes(head_size: int, *, latent: bool = False) -> Any:
    return {"low": SimpleNamespace(actor=SimpleNamespace(head_size=head_size, has_latent_attention=latent))}


def test_unsupported_head_size_is_refused_on_a_cpu() -> None:
    config = load_config(["rollout=vllm"])
    with pytest.raises(PreflightError, match=r"heads of low have 16 dimensions.*set actor.hidden_size"):
        check_engine_models(config, shapes(16), "cpu")
    check_engine_models(config, shapes(16), "cuda")
    check_engine_models(config, shapes(64), "cpu")
    check_engine_models(config, shapes(0), "cpu")
    check_engine_models(load_config([]), shapes(16), "cpu")


def test_latent_attention_is_refused_on_a_cpu() -> None:
    config = load_config(["rollout=vllm"])
    with pytest.raises(PreflightError, match=r"model of low has latent attention.*use a GPU, or rollout=hf"):
        check_engine_models(config, shapes(0, latent=True), "cpu")
    check_engine_models(config, shapes(0, latent=True), "cuda")
