"""Ranks from every launcher, and collectives over one rank and two."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ippo_cli.engine import distributed
from ippo_cli.engine.distributed import Ranks, first_host, meeting_point, ranks_from

SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[004-005]",
}
TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}


def test_a_process_started_alone_is_rank_0_of_1() -> None:
    assert ranks_from({}) == Ranks(rank=0, world_size=1, local_rank=0)


def test_torchrun_names_the_ranks_also_inside_slurm() -> None:
    assert ranks_from({**SRUN, **TORCHRUN}) == Ranks(rank=2, world_size=4, local_rank=0)


def test_srun_names_the_ranks() -> None:
    assert ranks_from(SRUN) == Ranks(rank=5, world_size=8, local_rank=1)


def test_a_batch_script_and_a_single_task_are_no_ranks() -> None:
    script = {key: value for key, value in SRUN.items() if key != "SLURM_STEP_ID"}
    assert ranks_from(script).world_size == 1
    assert ranks_from({**SRUN, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}).world_size == 1


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "0"}, "WORLD_SIZE, LOCAL_RANK not set"),
        ({**TORCHRUN, "RANK": "4"}, "RANK=4 WORLD_SIZE=4 LOCAL_RANK=0 name no possible rank"),
        ({key: value for key, value in SRUN.items() if key != "SLURM_LOCALID"}, "SLURM_LOCALID not set"),
    ],
)
def test_incomplete_or_impossible_ranks_are_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        ranks_from(environ)


def test_ranks_meet_where_the_launcher_says() -> None:
    assert meeting_point({**SRUN, "MASTER_ADDR": "head", "MASTER_PORT": "1234"}) == ("head", 1234)


def test_ranks_of_srun_meet_on_the_first_machine_at_a_port_of_their_step() -> None:
    address, port = meeting_point(SRUN)
    assert address == "gpu004"
    assert 20_000 <= port < 30_000
    assert meeting_point({**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}) == (address, port)
    assert meeting_point({**SRUN, "SLURM_STEP_ID": "1"})[1] != port


def test_ranks_without_a_meeting_point_are_refused() -> None:
    with pytest.raises(RuntimeError, match="MASTER_ADDR and MASTER_PORT not set"):
        meeting_point(TORCHRUN)


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("gpu004", "gpu004"),
        ("gpu004,gpu005", "gpu004"),
        ("gpu[004-006,9],cpu1", "gpu004"),
        ("gpu[7,9]", "gpu7"),
        ("rack[2-3]-node1", "rack2-node1"),
        ("a-1.cluster.org", "a-1.cluster.org"),
    ],
)
def test_the_first_machine_of_a_node_list(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


def test_without_a_process_group_every_collective_is_an_identity() -> None:
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
    distributed.same_everywhere("a", "config")
    mean, variance = distributed.masked_moments(x, torch.tensor([True, False, True]))
    assert (mean.item(), variance.item()) == (2.5, 4.5)


def test_ranks_know_their_place(results: dict[str, Any]) -> None:
    seen = [rank["where"] for rank in results["collectives"]]
    assert seen == [(rank, len(seen), rank == 0) for rank in range(len(seen))]


def test_what_all_ranks_find_out_is_said_by_one_of_them(results: dict[str, Any]) -> None:
    said = [rank["said"] for rank in results["collectives"]]
    assert [sum(column) for column in zip(*said, strict=True)] == [1, 1, 0]
    assert distributed.first_to_say("one"), "without a process group there is nobody else"


def test_reductions_are_the_same_on_every_rank_and_leave_their_input(results: dict[str, Any]) -> None:
    ranks = len(results["collectives"])
    for index, rank in enumerate(results["collectives"]):
        total, source = rank["sum"]
        assert total.tolist() == [sum(start + r for r in range(ranks)) for start in range(3)]
        assert source.tolist() == [0.0 + index, 1.0 + index, 2.0 + index]
        assert rank["max"].tolist() == [ranks - 1, 0]
        assert rank["any"] == (True, False)


def test_gathers_keep_rank_order_and_unequal_numbers_of_rows(results: dict[str, Any]) -> None:
    ranks = len(results["collectives"])
    for rank in results["collectives"]:
        assert rank["rows"].tolist() == [[r] * 3 for r in range(ranks) for _ in range(2 * r + 1)]
        assert rank["bool_rows"].dtype == torch.bool
        assert len(rank["bool_rows"]) == sum(ranks - 1 - r for r in range(ranks))
        assert rank["no_rows"].shape == (0, 2)
        assert rank["broadcast"] == {"from": ranks - 1}
        assert rank["gather"] == [r * 10 for r in range(ranks)]


def test_moments_are_those_of_all_masked_entries(results: dict[str, Any]) -> None:
    for rank in results["collectives"]:
        torch.testing.assert_close(rank["moments"], rank["expected"], rtol=1e-12, atol=1e-9)
        assert [moment.item() for moment in rank["one"]] == [1.0, 0.0]
        assert [moment.item() for moment in rank["none"]] == [0.0, 0.0]


def test_a_disagreement_names_the_ranks_on_every_rank(results: dict[str, Any]) -> None:
    ranks = len(results["collectives"])
    message = "config differs between ranks [0, 1]; all ranks must agree (rank 0: hash0; rank 1: hash1)"
    assert [rank["disagreement"] for rank in results["collectives"]] == [message if ranks > 1 else ""] * ranks


def test_what_one_rank_raises_ends_all_at_the_same_place(results: dict[str, Any]) -> None:
    *others, last = results["leaving_together"]
    assert last["error"] == ("ValueError", "only here", None)
    assert last["of ours"] == ("RewardError", "no reward", 12)
    for rank in others:
        said = f"left because rank {len(others)} failed"
        assert rank["error"] == ("OtherRankFailed", said, 1)
        assert rank["of ours"] == ("OtherRankFailed", said, 12)
    for rank in (*others, last):
        assert rank["none"] is None
        assert rank["request"] == rank["both"] == ("PreemptionRequested", "", None)
        assert rank["others pass"] == list(range(len(others) + 1))
        assert rank["steps"]


def test_ranks_that_leave_read_each_others_last_words(results: dict[str, Any]) -> None:
    ranks = len(results["leaving_together"])
    for rank in results["leaving_together"]:
        assert rank["words"] == {number: f"words of {number}" for number in range(ranks)}


def test_a_lost_connection_is_told_from_other_errors() -> None:
    lost = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242"
    assert distributed.lost_connection(RuntimeError(lost))
    assert distributed.lost_connection(torch.distributed.DistNetworkError("Connection reset by peer"))
    assert not distributed.lost_connection(RuntimeError("CUDA out of memory"))
    assert not distributed.lost_connection(ValueError(lost))
