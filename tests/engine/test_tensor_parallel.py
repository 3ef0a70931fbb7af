"""Linear maps split over two ranks: weights, updates and checkpoints equal those of a plain model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rank_scripts import found_by_ranks
from transformers import AutoConfig, AutoModelForCausalLM

from ippo_cli.engine.tensor_parallel import count_split_elements, model_plan, tensor_parallel_config, unsupported_styles

CASES = ("llama 1", "llama 2", "tied 1", "biases 1", "norms of heads 1")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Results of splitting_ranks.py on each of two ranks, by model and ZeRO stage."""
    root = tmp_path_factory.mktemp("ranks")
    return found_by_ranks(Path(__file__).with_name("splitting_ranks.py"), str(root / "shards"), folder=root)


def empty_model(family: str, **settings: Any) -> Any:
    shape = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            AutoConfig.for_model(family, **{**shape, "num_attention_heads": 4, "num_key_value_heads": 2, **settings})
        ).base_model


def test_split_elements_counted() -> None:
    model = empty_model("llama", attention_bias=True)
    # Queries and outputs 16 x 16, keys and values 8 x 16, three maps 24 x 16; biases of queries, keys and values only.
    expected = 2 * (2 * 16 * 16 + 2 * 8 * 16 + 3 * 24 * 16 + 16 + 8 + 8)
    assert count_split_elements(model, model_plan(model)) == expected


def test_plan_as_patterns() -> None:
    plan = {"layers.*.mlp.up_proj": "colwise", "layers.*.self_attn.q_norm": "replicated_with_grad_allreduce"}
    specs = tensor_parallel_config(4, plan)["partition_config"]["layer_specs"]
    assert [spec["partition_type"] for spec in specs] == ["column", "skip", "skip"]
    assert specs[0]["patterns"] == [r"(.*\.)?layers\.\d+\.mlp\.up_proj\.weight$"]
    assert specs[1]["grad_allreduce"]


def test_unsupported_plans() -> None:
    assert unsupported_styles(model_plan(empty_model("llama"))) == []
    assert unsupported_styles({"layers.*.mlp.experts": "grouped_gemm", "embed_tokens": "embedding_rowwise"}) == [
        "grouped_gemm"
    ]


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("case", CASES)
def test_split_engine_equals_plain_model(found: list[dict[str, Any]], case: str) -> None:
    for rank in (ranks[case] for ranks in found):
        assert rank["layers"] == 14
        assert 2 * rank["split"][0][0] == rank["split"][1][0]
        assert rank["loaded"] == 0.0
        assert rank["norm"] < 1e-5
        assert rank["updated"] < 1e-6
        assert rank["moved"] > 1e-2


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("case", CASES)
def test_ranks_score_own_rows_with_whole_weights(found: list[dict[str, Any]], case: str) -> None:
    for rank in (ranks[case] for ranks in found):
        assert rank["scored"] < 1e-5
        assert rank["generated"] < 1e-5
        assert rank["further"] < 1e-6, "the next step updates the weights of the module"


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("case", CASES)
def test_split_engine_resumes(found: list[dict[str, Any]], case: str) -> None:
    for rank in (ranks[case] for ranks in found):
        assert rank["restored"] == 0.0
        assert rank["resumed"] == 0.0
