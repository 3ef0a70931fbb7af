"""Rows split over two ranks: outputs and gradients equal those of one rank that reads whole rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rank_scripts import found_by_ranks

from ippo_cli.models.packing import pack
from ippo_cli.models.sequence_parallel import TokenShard

SCRIPT = Path(__file__).with_name("sequence_ranks.py")
MODELS = ("grouped heads", "eager", "learned positions", "sliding window", "latent attention", "checkpointed")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Results of sequence_ranks.py on each of two ranks, by model and batch."""
    return found_by_ranks(SCRIPT, folder=tmp_path_factory.mktemp("ranks"))


def test_shares_cover_row() -> None:
    row = torch.arange(1, 8)[None]
    shares = [TokenShard(start=3 * rank, size=3, total=7, ranks=3) for rank in range(3)]
    assert [share.cut(row)[0].tolist() for share in shares] == [[1, 2, 3], [4, 5, 6], [7, 0, 0]]
    index = torch.tensor([[0, 2, 3, 6]])
    assert [share.holds(index)[0].tolist() for share in shares] == [
        [True, True, False, False],
        [False, False, True, False],
        [False, False, False, True],
    ]


def test_single_rank_holds_whole_row() -> None:
    packing = pack([4, 3], torch.device("cpu")).split_over_group()
    assert packing.shard == TokenShard(start=0, size=7, total=7, ranks=1)


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("model", MODELS)
def test_outputs_and_gradients_match_whole_rows(found: list[dict[str, Any]], model: str) -> None:
    for rank in found:
        for batch in rank[model].values():
            assert batch["gradients"] < 1e-4
            assert batch["outputs"] < 1e-4
            assert batch["tokens"] < batch["of"]


@pytest.mark.slow
@pytest.mark.core
def test_heads_that_cannot_be_split_are_refused(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert "deepspeed.sequence_parallel=2: LlamaModel computes other outputs" in rank["refusal"]
