"""Router losses are refused for models without them, and a model that asks for one gets a warning."""

from __future__ import annotations

from typing import Any

import pytest
from architectures import tiny_config

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.models.shape import empty_model
from ippo_cli.planning.model_checks import check_router_loss


def check(family: str, *overrides: str, **settings: Any) -> str | None:
    config = load_config(list(overrides))
    return check_router_loss(
        empty_model(tiny_config(family, **settings)), config.algorithm, config.deepspeed, "actor.model=M"
    )


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "olmoe"])
def test_mixtures_of_experts_have_a_router_loss(family: str) -> None:
    assert check(family, "algorithm.router_loss_coef=0.01") is None
    assert check(family) is None


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_models_without_router_loss_refused(family: str) -> None:
    with pytest.raises(ConfigError, match=r"router_loss_coef=0.01 needs a mixture of experts.*set it to 0"):
        check(family, "algorithm.router_loss_coef=0.01")


def test_model_that_asks_for_a_router_loss() -> None:
    warning = check("mixtral", output_router_logits=True, router_aux_loss_coef=0.02)
    assert warning is not None
    assert "set algorithm.router_loss_coef=0.02" in warning
    assert check("mixtral", "algorithm.router_loss_coef=0.1", output_router_logits=True) is None


def test_groups_of_ranks_refused() -> None:
    with pytest.raises(ConfigError, match="groups of ranks"):
        check("mixtral", "algorithm.router_loss_coef=0.1", "deepspeed.sequence_parallel=2")
