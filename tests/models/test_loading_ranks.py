"""Loading at ZeRO stage 3 on two ranks: no rank has a whole model in private memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rank_scripts import found_by_ranks
from transformers import LlamaConfig, LlamaForCausalLM

pytestmark = pytest.mark.slow

STORED = {"bf16": torch.bfloat16, "fp32": torch.float32}


def model(folder: Path, width: int, dtype: torch.dtype) -> str:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=8,
        num_attention_heads=8,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).to(dtype=dtype).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Results of loading_ranks.py on each of two ranks, by the files' dtype; models are trained in fp32."""
    root = tmp_path_factory.mktemp("ranks")
    folders = [model(root / "first", 32, torch.float32)]
    folders += [model(root / name, 576, dtype) for name, dtype in STORED.items()]
    return found_by_ranks(Path(__file__).with_name("loading_ranks.py"), *folders, folder=root)


@pytest.mark.parametrize("stored", STORED)
def test_weights_memory_mapped_until_engine(found: list[dict[str, Any]], stored: str) -> None:
    for rank in found:
        assert rank[stored]["policy"] == []
        assert rank[stored]["critic"] == ["value_head.out.weight", "value_head.out.bias"]


@pytest.mark.parametrize("stored", STORED)
def test_reference_memory_is_share(found: list[dict[str, Any]], stored: str) -> None:
    # With the whole model and its share, a rank would grow by one and a half.
    assert max(rank[stored]["share"] for rank in found) < 0.7
    assert min(rank[stored]["share"] for rank in found) > 0.25, "the share must be measurable"


@pytest.mark.parametrize("stored", STORED)
def test_layer_gather_never_has_all_weights(found: list[dict[str, Any]], stored: str) -> None:
    assert max(rank[stored]["layer growth"] for rank in found) < 0.4
    assert min(rank[stored]["all growth"] for rank in found) > 0.9, "whole weights must be measurable"


@pytest.mark.parametrize("stored", STORED)
def test_sharded_reference_matches_whole(found: list[dict[str, Any]], stored: str) -> None:
    for rank in found:
        assert rank[stored]["dtypes"] == ["torch.float32"]
        assert rank[stored]["same"]
        assert rank[stored]["all"]
        assert rank[stored]["layer"]
        assert rank[stored]["kept"] < 0.01
