"""What launchers and schedulers say, in environment variables, to the processes that they start. Imports no torch."""

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

LISTENING_SOCKET = "IPPO_LISTENING"  # the socket, by its number, that whoever started rank 0 has opened for it
STARTED_BY = "IPPO_STARTED_BY"  # the process that started a rank of its own
NODE_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
WORLD_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Where this process stands: `rank` of `world_size`, and `local_rank` within its machine."""

    rank: int
    world_size: int
    local_rank: int


def external_world_size(environ: Mapping[str, str] = os.environ) -> int | None:
    """How many ranks torchrun, the deepspeed launcher or srun started this process among; None if none of them did."""
    if "RANK" in environ and "WORLD_SIZE" in environ:
        return _parse_number(environ, "WORLD_SIZE")
    return _srun_tasks(environ)


def unused_world_size_warning(environ: Mapping[str, str], ranks: int) -> str | None:
    """A line about a number of processes that the environment names, and that this run of `ranks` does not use."""
    if "RANK" in environ or _srun_tasks(environ) is not None:
        return None
    for name in WORLD_SIZES:
        text = environ.get(name, "")
        if text.isdecimal() and int(text) not in (0, 1, ranks):
            return (
                f"{name}={text} is set in the environment, and no launcher has started this process as one of "
                f"{text} ranks: this run has {ranks}; launch.processes={text} starts {text} on this machine"
            )
    return None


def _srun_tasks(environ: Mapping[str, str]) -> int | None:
    """The tasks of the step that this process is one of; None outside of steps, and in those of one task.

    SLURM_NTASKS is no answer: a batch script sees the job's, and so does the shell that salloc opens, which may be a
    step of its own.
    """
    tasks = int(environ.get("SLURM_STEP_NUM_TASKS", "1")) if "SLURM_STEP_ID" in environ else 1
    return tasks if tasks > 1 else None


def detect_ranks(environ: Mapping[str, str]) -> Ranks:
    """The ranks that torchrun's variables name, else those of srun, else one process alone.

    SLURM's variables count only inside a step of several tasks: a batch script sees them too, and so does a
    single task that starts its own ranks. Raises `ConfigError` for an incomplete or impossible set.
    """
    if "RANK" in environ:
        names = ("RANK", "WORLD_SIZE")
    elif _srun_tasks(environ) is not None:
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
    else:
        return Ranks(rank=0, world_size=1, local_rank=0)
    if missing := [name for name in names if name not in environ]:
        given = " ".join(f"{name}={environ[name]}" for name in names if name in environ)
        raise ConfigError(given, f"needs {' and '.join(missing)}", f"set {' and '.join(names)}, or unset both")
    rank, world_size = (_parse_number(environ, name) for name in names)
    if rank >= world_size:
        raise ConfigError(
            f"{names[0]}={rank}", f"is no rank of {names[1]}={world_size}", f"use 0 to {max(world_size - 1, 0)}"
        )
    return Ranks(rank=rank, world_size=world_size, local_rank=_local_rank(environ, rank, world_size))


def _local_rank(environ: Mapping[str, str], rank: int, world_size: int) -> int:
    """The rank within the machine: as the launcher says, or where its other variables leave one possibility."""
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
        "leaves open which device of this machine is meant",
        "set LOCAL_RANK, or LOCAL_WORLD_SIZE to the number of ranks per machine",
    )


def _parse_number(environ: Mapping[str, str], name: str) -> int:
    if not environ[name].isdecimal():
        raise ConfigError(f"{name}={environ[name]}", "is set in the environment and is no number", "use 0, 1, 2, ...")
    return int(environ[name])


def node_rank(environ: Mapping[str, str], nodes: int) -> int:
    """Which of several machines this is, where the same line is typed on each. Raises `ConfigError` where none says."""
    setting = f"launch.nodes={nodes}"
    missing = [name for name in NODE_VARIABLES if name not in environ]
    example = "MASTER_ADDR=node1 MASTER_PORT=29500 NODE_RANK=0 ippo-train ..., with another NODE_RANK on each machine"
    if missing:
        raise ConfigError(setting, f"needs {' and '.join(missing)} in the environment", f"type {example}")
    number = environ["NODE_RANK"]
    if not number.isdecimal() or int(number) >= nodes:
        raise ConfigError(f"NODE_RANK={number}", f"is no machine of {setting}", f"use 0 to {nodes - 1}")
    return int(number)


def local_world_size(environ: Mapping[str, str]) -> int | None:
    """How many of the ranks share this process's machine; None where the launcher does not say."""
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
    """Processor cores for each rank: those that srun gave its task, or the machine's, divided by the ranks there."""
    given = environ.get("SLURM_CPUS_PER_TASK") if "SLURM_STEP_ID" in environ else None
    if given is not None and "RANK" not in environ and _srun_tasks(environ) is not None:
        return int(given)  # one rank a task
    cores = (os.cpu_count() or 1) if given is None else int(given)
    return max(cores // (local_world_size(environ) or world_size), 1)


def rendezvous_address(environ: Mapping[str, str]) -> tuple[str, int]:
    """Address and port where the ranks meet: MASTER_ADDR and MASTER_PORT, else the first machine of the SLURM step.

    The port that srun's ranks agree on without a word is made from the job and step id.
    """
    if "MASTER_ADDR" in environ and "MASTER_PORT" in environ:
        return environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    if "SLURM_STEP_NODELIST" not in environ:
        raise ConfigError(
            "MASTER_ADDR and MASTER_PORT", "are not set", "the launcher must name where several ranks meet"
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
    """What stays the same when a job is started again: $IPPO_RUN_ID, or the job that SLURM runs; None outside of both.

    Of an array each task is a job of its own.
    """
    if environ.get("IPPO_RUN_ID"):
        return environ["IPPO_RUN_ID"]
    job = slurm_job(environ)
    return None if job is None else f"{environ.get('SLURM_CLUSTER_NAME', 'slurm')}-{job}"


def slurm_job(environ: Mapping[str, str]) -> str | None:
    """The job that SLURM runs, as its commands take it: of an array `ARRAY_TASK`; None outside of jobs.

    The tasks of an array have numbers of their own, but that of one of them is the array's, and a command that is
    given it does something to all.
    """
    if "SLURM_ARRAY_JOB_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ.get("SLURM_JOB_ID")


def submitted_job(environ: Mapping[str, str]) -> str | None:
    """The SLURM job that submitit runs this process as, whose function it calls anew when the job is started again."""
    return slurm_job(environ) if environ.get("SUBMITIT_EXECUTOR") == "slurm" else None


def restart_count(environ: Mapping[str, str]) -> int:
    """How often SLURM has started this job again."""
    return int(environ.get("SLURM_RESTART_COUNT", "0"))


def should_requeue(environ: Mapping[str, str]) -> bool:
    """Whether this job is to be put back into SLURM's queue when it has saved. Batch scripts do it themselves."""
    return submitted_job(environ) is not None and restart_count(environ) < int(environ.get("IPPO_MAX_REQUEUES", "100"))


def requeue(environ: Mapping[str, str]) -> bool:
    """Put this job back into SLURM's queue, which ends it; False where SLURM refuses."""
    job = slurm_job(environ)
    return job is not None and _run_slurm("scontrol", "requeue", job) is not None


def terminate_job(job: str) -> None:
    """Send SIGTERM to what a SLURM job runs, on whichever machine that is."""
    _run_slurm("scancel", "--signal=TERM", job)


def queue_states(jobs: Sequence[str]) -> dict[str, str] | None:
    """The states of those of these SLURM jobs that run or wait to; None where SLURM cannot be asked."""
    if not jobs:
        return {}
    # Asked for one job alone, which it no longer knows, squeue fails as if it could not be asked: never for one alone.
    said = _run_slurm("squeue", "--noheader", "--format=%i %T", f"--jobs={','.join([*jobs, jobs[0]])}")
    if said is None:
        return None
    states = (line.split() for line in said.splitlines())
    return {words[0]: words[1] for words in states if len(words) == 2}


def job_end_time(environ: Mapping[str, str] = os.environ) -> float | None:
    """When SLURM ends this job, in seconds since 1970; None outside of jobs, and for one without a limit.

    A moment that has passed is another job's: its variables stay in shells that outlive it, such as tmux's.
    """
    job = slurm_job(environ)
    if job is None:
        return None
    if environ.get("SLURM_JOB_END_TIME", "").isdecimal():
        end = float(environ["SLURM_JOB_END_TIME"])
        return end if end > time.time() else None
    said = _run_slurm("scontrol", "show", "job", job, "--oneliner") or ""
    match = re.search(r"\bEndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", said)  # Unknown without a limit
    end = None if match is None else datetime.fromisoformat(match[1]).timestamp()
    return end if end is not None and end > time.time() else None


def _run_slurm(*command: str) -> str | None:
    """What one of SLURM's commands says; None where it fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
