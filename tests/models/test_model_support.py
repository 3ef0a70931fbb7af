"""Checks of the models of inference engines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from architectures import FAMILIES, STATEFUL, tiny_config

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import PreflightError
from ippo_cli.models.shape import actor_shape, empty_model
from ippo_cli.rollout.vllm.model_support import check_models


def shapes(head_size: int, *, latent: bool = False, stateful: bool = False) -> Any:
    shape = SimpleNamespace(head_size=head_size, has_latent_attention=latent, is_stateful=stateful)
    return {"low": shape}


def test_unsupported_head_size_is_refused_on_a_cpu() -> None:
    config = load_config(["rollout=vllm"])
    with pytest.raises(PreflightError, match=r"heads of low have 16 dimensions.*set actor.hidden_size"):
        check_models(config, shapes(16), {}, "cpu")
    check_models(config, shapes(16), {}, "cuda")
    check_models(config, shapes(64), {}, "cpu")
    check_models(config, shapes(0), {}, "cpu")


def test_latent_attention_is_refused_on_a_cpu() -> None:
    config = load_config(["rollout=vllm"])
    with pytest.raises(PreflightError, match=r"model of low has latent attention.*use a GPU, or rollout=hf"):
        check_models(config, shapes(0, latent=True), {}, "cpu")
    check_models(config, shapes(0, latent=True), {}, "cuda")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_models_with_a_state_are_refused(device: str) -> None:
    config = load_config(["rollout=vllm"])
    with pytest.raises(PreflightError, match=r"model of low has layers that carry a state.*use rollout=hf"):
        check_models(config, shapes(0, stateful=True), {}, device)


@pytest.mark.parametrize("family", [*FAMILIES, *STATEFUL])
def test_families_with_a_state(family: str) -> None:
    assert actor_shape(empty_model(tiny_config(family))).is_stateful == (family in ("mamba", "jamba", *STATEFUL))
