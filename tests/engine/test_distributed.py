"""Ranks from every launcher, and collectives on one rank and two."""

from __future__ import annotations

from typing import Any

import torch

from ippo_cli.engine import distributed


def test_collectives_without_process_group() -> None:
    x = torch.tensor([1.0, 2.0, 4.0])
    assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (0, 1, True)
    distributed.barrier()
    distributed.shutdown()
    for function in (distributed.all_sum, distributed.all_max, distributed.all_gather_rows):
        result = function(x)
        assert torch.equal(result, x)
        assert result is not x
    assert distributed.any_rank(True)
    assert not distributed.any_rank(False)
    assert distributed.broadcast_object("a") == "a"
    assert distributed.gather_objects("a") == ["a"]
    distributed.check_same_on_ranks("a", "config")
    mean, variance = distributed.masked_moments(x, torch.tensor([True, False, True]))
    assert (mean.item(), variance.item()) == (2.5, 4.5)


def test_rank_numbers(results: dict[str, Any]) -> None:
    seen = [rank["where"] for rank in results["collectives"]]
    assert seen == [(rank, len(seen), rank == 0) for rank in range(len(seen))]


def test_claim_log_once(results: dict[str, Any]) -> None:
    result = [rank["logged"] for rank in results["collectives"]]
    assert [sum(column) for column in zip(*result, strict=True)] == [1, 1, 0]
    assert distributed.claim_log_once("one"), "without a process group there is only one rank"


def test_reductions(results: dict[str, Any]) -> None:
    ranks = len(results["collectives"])
    for index, rank in enumerate(results["collectives"]):
        total, source = rank["sum"]
        assert total.tolist() == [sum(start + r for r in range(ranks)) for start in range(3)]
        assert source.tolist() == [0.0 + index, 1.0 + index, 2.0 + index]
        assert rank["max"].tolist() == [ranks - 1, 0]
        assert rank["any"] == (True, False)


def test_gathers(results: dict[str, Any]) -> None:
    ranks = len(results["collectives"])
    for rank in results["collectives"]:
        assert rank["rows"].tolist() == [[r] * 3 for r in range(ranks) for _ in range(2 * r + 1)]
        assert rank["bool_rows"].dtype == torch.bool
        assert len(rank["bool_rows"]) == sum(ranks - 1 - r for r in range(ranks))
        assert rank["no_rows"].shape == (0, 2)
        assert rank["broadcast"] == {"from": ranks - 1}
        assert rank["gather"] == [r * 10 for r in range(ranks)]


def test_masked_moments(results: dict[str, Any]) -> None:
    for rank in results["collectives"]:
        torch.testing.assert_close(rank["moments"], rank["expected"], rtol=1e-12, atol=1e-9)
        assert [moment.item() for moment in rank["one"]] == [1.0, 0.0]
        assert [moment.item() for moment in rank["none"]] == [0.0, 0.0]


def test_check_same_on_ranks(results: dict[str, Any]) -> None:
    ranks = len(results["collectives"])
    message = "config differs between ranks [0, 1]; all ranks must agree (rank 0: hash0; rank 1: hash1)"
    assert [rank["disagreement"] for rank in results["collectives"]] == [message if ranks > 1 else ""] * ranks


def test_synchronize_errors(results: dict[str, Any]) -> None:
    *others, last = results["leaving_together"]
    assert last["error"] == ("ValueError", "only here", None)
    assert last["of ours"] == ("RewardError", "no reward", 12)
    for rank in others:
        text = f"exiting because rank {len(others)} failed"
        assert rank["error"] == ("OtherRankFailed", text, 1)
        assert rank["of ours"] == ("OtherRankFailed", text, 12)
    for rank in (*others, last):
        assert rank["none"] is None
        assert rank["request"] == rank["both"] == ("PreemptionRequested", "", None)
        assert rank["others pass"] == list(range(len(others) + 1))
        assert rank["steps"]


def test_exchange_exit_reports(results: dict[str, Any]) -> None:
    ranks = len(results["leaving_together"])
    for rank in results["leaving_together"]:
        assert rank["words"] == {number: f"words of {number}" for number in range(ranks)}


def test_lost_connection() -> None:
    lost = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242"
    assert distributed.lost_connection(RuntimeError(lost))
    assert distributed.lost_connection(torch.distributed.DistNetworkError("Connection reset by peer"))
    assert not distributed.lost_connection(RuntimeError("CUDA out of memory"))
    assert not distributed.lost_connection(ValueError(lost))
