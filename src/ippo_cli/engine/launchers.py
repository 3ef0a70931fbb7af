"""Reads the environment variables of launchers and schedulers. Imports no torch."""

from __future__ import annotations

import os
import re
import subprocess
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ippo_cli.config.errors import ConfigError

LISTENING_SOCKET = "IPPO_LISTENING"  # file descriptor of the socket that the parent process has opened for rank 0
STARTED_BY = "IPPO_STARTED_BY"  # the process that started this rank
NODE_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
WORLD_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The position of this process: `rank` of `world_size`, and `local_rank` within its machine."""

    rank: int
    world_size: int
    local_rank: int


def external_world_size(environ: Mapping[str, str] = os.environ) -> int | None:
    """The world size given by torchrun, the deepspeed launcher or srun; None without a launcher."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _parse_number(environ, "WORLD_SIZE")
    return _srun_tasks(environ)


def unused_world_size_warning(environ: Mapping[str, str], ranks: int) -> str | None:
    """A warning about a world size in the environment that this run of `ranks` ranks does not use."""
    if "RANK" in environ or _srun_tasks(environ) is not None:
        return None
    for name in WORLD_SIZES:
        text = environ.get(name, "")
        if text.isdecimal() and int(text) not in (0, 1, ranks):
            return (
                f"{name}={text} is set in the environment, but no launcher has started this process as one of "
                f"{text} ranks: this run has {ranks}; launch.processes={text} starts {text} on this machine"
            )
    return None


def _srun_tasks(environ: Mapping[str, str]) -> int | None:
    """The number of tasks of this process's SLURM step; None outside of steps, and in steps of one task.

    SLURM_NTASKS is unsuitable: a batch script has the job's value, and so does a shell of salloc, which may be a step.
    """
    tasks = int(environ.get("SLURM_STEP_NUM_TASKS", "1")) if "SLURM_STEP_ID" in environ else 1
    return tasks if tasks > 1 else None


def detect_ranks(environ: Mapping[str, str]) -> Ranks:
    """The ranks given by torchrun's variables, or by srun's, or else a single process.

    SLURM's variables count only inside a step of several tasks: a batch script has them too, and so does a single task
    that starts its own ranks. Raises `ConfigError` for an incomplete or impossible set.
    """
    if "RANK" in environ:
        names = ("RANK", "WORLD_SIZE")
    elif _srun_tasks(environ) is not None:
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    else:
        return Ranks(rank=0, world_size=1, local_rank=0)
    if missing := [name for name in names if name not in environ]:
        settings = " ".join(f"{name}={environ[name]}" for name in names if name in environ)
        raise ConfigError(settings, f"needs {' and '.join(missing)}", f"set {' and '.join(names)}, or unset both")
    rank, world_size = (_parse_number(environ, name) for name in names)
    if rank >= world_size:
        raise ConfigError(
            f"{names[0]}={rank}", f"is not a rank of {names[1]}={world_size}", f"use 0 to {max(world_size - 1, 0)}"
        )
    return Ranks(rank=rank, world_size=world_size, local_rank=_local_rank(environ, rank, world_size))


def _local_rank(environ: Mapping[str, str], rank: int, world_size: int) -> int:
    """The rank within the machine: given by the launcher, or derived if the other variables determine it."""
    for name in LOCAL_RANKS:
        if name in environ:
            return _parse_number(environ, name)
    here = local_world_size(environ)
    if here is not None:
        return rank % here
    if world_size == 1 or environ.get("MASTER_ADDR") in ("localhost", "127.0.0.1", "::1"):  # all on one machine
        return rank
    raise ConfigError(
        f"RANK={rank} WORLD_SIZE={world_size}",
        "does not determine the device of this rank",
        "set LOCAL_RANK, or LOCAL_WORLD_SIZE to the number of ranks per machine",
    )


def _parse_number(environ: Mapping[str, str], name: str) -> int:
    if not environ[name].isdecimal():
        raise ConfigError(
            f"{name}={environ[name]}", "is set in the environment and is not a number", "use 0, 1, 2, ..."
        )
    return int(environ[name])


def node_rank(environ: Mapping[str, str], nodes: int) -> int:
    """The index of this machine among several that run the same command. Raises `ConfigError` if it is not set."""
    setting = f"launch.nodes={nodes}"
    missing = [name for name in NODE_VARIABLES if name not in environ]
    example = "MASTER_ADDR=node1 MASTER_PORT=29500 NODE_RANK=0 ippo-train ..., with another NODE_RANK on each machine"
    if missing:
        raise ConfigError(setting, f"needs {' and '.join(missing)} in the environment", f"type {example}")
    number = environ["NODE_RANK"]
    if not number.isdecimal() or int(number) >= nodes:
        raise ConfigError(f"NODE_RANK={number}", f"is not a machine of {setting}", f"use 0 to {nodes - 1}")
    return int(number)


def local_world_size(environ: Mapping[str, str]) -> int | None:
    """The number of ranks on this process's machine; None if the launcher does not give it."""
    if "RANK" in environ:
        return max(_parse_number(environ, "LOCAL_WORLD_SIZE"), 1) if "LOCAL_WORLD_SIZE" in environ else None
    if _srun_tasks(environ) is None or not {"SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"} <= environ.keys():
        return None
    node = int(environ["SLURM_NODEID"])
    for tasks, nodes in re.findall(r"(\d+)(?:\(x(\d+)\))?", environ["SLURM_STEP_TASKS_PER_NODE"]):  # 8(x3),4
        node -= int(nodes or 1)
        if node < 0:
            return int(tasks)
    return None


def cores_per_rank(environ: Mapping[str, str], world_size: int) -> int:
    """Processor cores per rank: those of its srun task, or the machine's cores divided by its ranks."""
    cores_of_task = environ.get("SLURM_CPUS_PER_TASK") if "SLURM_STEP_ID" in environ else None
    if cores_of_task is not None and "RANK" not in environ and _srun_tasks(environ) is not None:
        return int(cores_of_task)  # one rank per task
    cores = (os.cpu_count() or 1) if cores_of_task is None else int(cores_of_task)
    return max(cores // (local_world_size(environ) or world_size), 1)


def rendezvous_address(environ: Mapping[str, str]) -> tuple[str, int]:
    """The rendezvous address and port: MASTER_ADDR and MASTER_PORT, else the first machine of the SLURM step.

    Without MASTER_PORT the port is a function of the job and step id, equal on all ranks.
    """
    if "MASTER_ADDR" in environ and "MASTER_PORT" in environ:
        return environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    if "SLURM_STEP_NODELIST" not in environ:
        raise ConfigError(
            "MASTER_ADDR and MASTER_PORT",
            "are not set",
            "the launcher must set the rendezvous address of several ranks",
        )
    step = f"{environ['SLURM_JOB_ID']}.{environ['SLURM_STEP_ID']}"
    address = environ.get("MASTER_ADDR", first_host(environ["SLURM_STEP_NODELIST"]))
    return address, int(environ.get("MASTER_PORT", 20_000 + zlib.crc32(step.encode()) % 10_000))


def first_host(nodelist: str) -> str:
    """The first machine of a SLURM node list: `gpu[004-006,9],cpu1` -> `gpu004`."""
    match = re.match(r"([^\[,]+)(?:\[([^\]\-,]+)[^\]]*\])?([^\[,]*)", nodelist)
    if match is None:
        raise ConfigError(f"SLURM_STEP_NODELIST={nodelist}", "names no machine", "set MASTER_ADDR and MASTER_PORT")
    prefix, number, suffix = match.groups()
    return prefix + (number or "") + suffix


def job_id(environ: Mapping[str, str]) -> str | None:
    """An id that is stable across restarts of a job: $IPPO_RUN_ID, or the SLURM job id; None without both.

    Each task of an array is a separate job.
    """
    if environ.get("IPPO_RUN_ID"):
        return environ["IPPO_RUN_ID"]
    job = slurm_job(environ)
    return None if job is None else f"{environ.get('SLURM_CLUSTER_NAME', 'slurm')}-{job}"


def slurm_job(environ: Mapping[str, str]) -> str | None:
    """The current SLURM job in the form that SLURM's commands take: of an array `ARRAY_TASK`; None outside of jobs.

    A task's own job id can equal that of the array, in which case a command would apply to all its tasks.
    """
    if "SLURM_ARRAY_JOB_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ.get("SLURM_JOB_ID")


def submitted_job(environ: Mapping[str, str]) -> str | None:
    """The SLURM job of submitit that runs this process; submitit calls its function again when the job restarts."""
    return slurm_job(environ) if environ.get("SUBMITIT_EXECUTOR") == "slurm" else None


def restart_count(environ: Mapping[str, str]) -> int:
    """The number of times SLURM has restarted this job."""
    return int(environ.get("SLURM_RESTART_COUNT", "0"))


def should_requeue(environ: Mapping[str, str]) -> bool:
    """Whether this job should be requeued after saving. Batch scripts requeue themselves."""
    return submitted_job(environ) is not None and restart_count(environ) < int(environ.get("IPPO_MAX_REQUEUES", "100"))


def requeue(environ: Mapping[str, str]) -> bool:
    """Requeue this job, which ends it; False if SLURM refuses."""
    job = slurm_job(environ)
    return job is not None and _run_slurm("scontrol", "requeue", job) is not None


def terminate_job(job: str) -> None:
    """Send SIGTERM to the processes of a SLURM job, on all machines."""
    _run_slurm("scancel", "--signal=TERM", job)


def queue_states(jobs: Sequence[str]) -> dict[str, str] | None:
    """The states of those of these SLURM jobs that are running or pending; None if SLURM does not respond."""
    if not jobs:
        return {}
    # squeue fails for a single job that it no longer knows, as if SLURM did not respond: never query only one.
    output = _run_slurm("squeue", "--noheader", "--format=%i %T", f"--jobs={','.join([*jobs, jobs[0]])}")
    if output is None:
        return None
    states = (line.split() for line in output.splitlines())
    return {words[0]: words[1] for words in states if len(words) == 2}


def job_end_time(environ: Mapping[str, str] = os.environ) -> float | None:
    """The end time of this job in seconds since 1970; None outside of jobs, and for one without a limit.

    A time in the past belongs to another job: its variables remain in shells that outlive it, such as tmux's.
    """
    job = slurm_job(environ)
    if job is None:
        return None
    if environ.get("SLURM_JOB_END_TIME", "").isdecimal():
        end = float(environ["SLURM_JOB_END_TIME"])
        return end if end > time.time() else None
    output = _run_slurm("scontrol", "show", "job", job, "--oneliner") or ""
    match = re.search(r"\bEndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", output)  # Unknown without a limit
    end = None if match is None else datetime.fromisoformat(match[1]).timestamp()
    return end if end is not None and end > time.time() else None


def _run_slurm(*command: str) -> str | None:
    """The output of one of SLURM's commands; None if it fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
