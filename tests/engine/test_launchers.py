"""Ranks, machines and jobs from the variables of every launcher."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.engine.launchers import (
    Ranks,
    cores_per_rank,
    detect_ranks,
    external_world_size,
    first_host,
    job_end_time,
    job_id,
    local_world_size,
    node_rank,
    rendezvous_address,
    unused_world_size_warning,
)

SRUN = {
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "gpu[004-005]",
}
TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}


def test_node_rank() -> None:
    there = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "NODE_RANK": "1"}
    assert node_rank(there, 2) == 1
    with pytest.raises(ConfigError, match=r"^NODE_RANK=1 is not a machine of launch\.nodes=1; use 0 to 0"):
        node_rank(there, 1)
    with pytest.raises(ConfigError, match=r"^launch\.nodes=2 needs MASTER_PORT and NODE_RANK in the environment; "):
        node_rank({"MASTER_ADDR": "node1"}, 2)


def test_single_process() -> None:
    assert detect_ranks({}) == Ranks(rank=0, world_size=1, local_rank=0)


def test_torchrun_ranks_inside_slurm() -> None:
    assert detect_ranks({**SRUN, **TORCHRUN}) == Ranks(rank=2, world_size=4, local_rank=0)


def test_srun_ranks() -> None:
    assert detect_ranks(SRUN) == Ranks(rank=5, world_size=8, local_rank=1)


def test_batch_script_and_single_task_are_not_ranks() -> None:
    script = {key: value for key, value in SRUN.items() if key != "SLURM_STEP_ID"}
    assert detect_ranks(script).world_size == 1
    assert detect_ranks({**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}).world_size == 1
    assert external_world_size(script) is None
    assert external_world_size(SRUN) == 8


def test_salloc_shell_is_not_a_rank() -> None:
    shell = {**SRUN, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
    assert external_world_size(shell) is None
    assert detect_ranks(shell).world_size == 1


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 4),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),5,1", "SLURM_NODEID": "3"}, 5),
        ({"SLURM_STEP_TASKS_PER_NODE": "2(x3),5,1", "SLURM_NODEID": "2"}, 2),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "2"}, 2),
        (TORCHRUN, None),
        ({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
    ],
)
def test_local_world_size(more: dict[str, str], expected: int | None) -> None:
    assert local_world_size({**SRUN, **more}) == expected


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 16),  # of 64, shared by 4
        ({"SLURM_CPUS_PER_TASK": "6"}, 6),
        ({"SLURM_CPUS_PER_TASK": "32", **TORCHRUN, "LOCAL_WORLD_SIZE": "8"}, 4),  # torchrun within one task
        ({"SLURM_CPUS_PER_TASK": "32", "SLURM_STEP_NUM_TASKS": "1"}, 8),  # a task that starts 4 ranks
        (TORCHRUN, 16),
    ],
)
def test_cores_per_rank(more: dict[str, str], expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert cores_per_rank({**SRUN, **more}, world_size=4) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"SLURM_JOB_ID": "77"}, "slurm-77"),
        ({"SLURM_JOB_ID": "77", "SLURM_CLUSTER_NAME": "big"}, "big-77"),
        ({"SLURM_JOB_ID": "78", "SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "3"}, "slurm-77_3"),
        ({"SLURM_JOB_ID": "77", "IPPO_RUN_ID": "mine"}, "mine"),
    ],
)
def test_job_id_stable_across_restarts(environ: dict[str, str], expected: str | None) -> None:
    assert job_id(environ) == expected


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "0"}, "RANK=0 needs WORLD_SIZE; "),
        ({**TORCHRUN, "RANK": "4"}, "RANK=4 is not a rank of WORLD_SIZE=4; use 0 to 3"),
        ({**TORCHRUN, "RANK": "-1"}, "RANK=-1 is set in the environment and is not a number"),
        ({**TORCHRUN, "LOCAL_RANK": "a"}, "LOCAL_RANK=a is set in the environment and is not a number"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1"}, "set LOCAL_RANK, or LOCAL_WORLD_SIZE"),
    ],
)
def test_invalid_ranks_rejected(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        detect_ranks(environ)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"RANK": "0", "WORLD_SIZE": "1"}, 0),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, 1),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, 1),
        ({"RANK": "5", "WORLD_SIZE": "8", "SLURM_LOCALID": "2"}, 2),
        ({"RANK": "5", "WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "3"}, 3),
        ({key: value for key, value in SRUN.items() if key != "SLURM_LOCALID"}, 1),
    ],
)
def test_local_rank_derived(environ: dict[str, str], expected: int) -> None:
    assert detect_ranks(environ).local_rank == expected


@pytest.mark.parametrize(
    ("environ", "ranks", "named"),
    [
        ({"WORLD_SIZE": "2"}, 1, "WORLD_SIZE=2"),
        ({"SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}, 1, "SLURM_NTASKS=8"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, 1, "OMPI_COMM_WORLD_SIZE=4"),
        ({"WORLD_SIZE": "2"}, 2, None),
        ({"WORLD_SIZE": "1"}, 4, None),
        (TORCHRUN, 4, None),
        (SRUN, 8, None),
        ({}, 1, None),
    ],
)
def test_unused_world_size_reported(environ: dict[str, str], ranks: int, named: str | None) -> None:
    line = unused_world_size_warning(environ, ranks)
    assert (line is None) == (named is None)
    assert named is None or (line or "").startswith(f"{named} is set in the environment")


def test_past_job_end_ignored() -> None:
    assert job_end_time({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1000000000"}) is None


def test_rendezvous_address_from_launcher() -> None:
    assert rendezvous_address({**SRUN, "MASTER_ADDR": "head", "MASTER_PORT": "1234"}) == ("head", 1234)


def test_rendezvous_address_from_srun() -> None:
    address, port = rendezvous_address(SRUN)
    assert address == "gpu004"
    assert 20_000 <= port < 30_000
    assert rendezvous_address({**SRUN, "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}) == (address, port)
    assert rendezvous_address({**SRUN, "SLURM_STEP_ID": "1"})[1] != port


def test_missing_rendezvous_address_rejected() -> None:
    with pytest.raises(ConfigError, match="MASTER_ADDR and MASTER_PORT are not set"):
        rendezvous_address(TORCHRUN)


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
def test_first_host(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


def test_job_end_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert job_end_time({}) is None
    assert job_end_time({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1893456000"}) == 1893456000.0
    command = tmp_path / "scontrol"
    command.write_text(
        "#!/bin/sh\necho JobId=$3 StartTime=2029-12-31T00:00:00 EndTime=2030-01-01T00:00:00 Deadline=N/A\n"
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert job_end_time({"SLURM_JOB_ID": "7"}) == datetime(2030, 1, 1).timestamp()
    command.write_text(
        '#!/bin/sh\n[ "$3" = 7_2 ] && echo EndTime=2030-01-01T00:00:00 || echo EndTime=2031-01-01T00:00:00\n'
    )
    task = {"SLURM_JOB_ID": "7", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    assert job_end_time(task) == datetime(2030, 1, 1).timestamp(), "of another task of the array"
    command.write_text("#!/bin/sh\necho JobId=$3 EndTime=Unknown\n")
    assert job_end_time({"SLURM_JOB_ID": "7"}) is None
