"""Checkpoints: one folder per saved iteration, complete or absent, verified before it is loaded.

All ranks write into `step_N.tmp` and report what they wrote, with sizes and sha256. Rank 0 makes sure that it sees all
of it, lists it in `manifest.json` and renames the folder; the pointer follows, and only then are older checkpoints
removed. A folder without a manifest is no checkpoint.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ippo_cli.agents.team import Team
from ippo_cli.config.errors import IppoError, PreflightError, ResumeError, StorageError, storage_failure, storing
from ippo_cli.config.schema import CheckpointConfig, CheckpointWeights
from ippo_cli.engine import distributed, progress
from ippo_cli.reporting.run_log import RunState
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.runs.checkpoint_files import (
    Listing,
    await_files,
    commit,
    damaged,
    listing,
    pointed,
    say_passed_over,
    sync_folder,
    write_pointer,
)
from ippo_cli.runs.faults import fault_point
from ippo_cli.runs.folder import all_checkpoints, refuse_other_world_size, step_name, warn
from ippo_cli.runs.random_streams import restore_rng
from ippo_cli.training.opponents import PoolState
from ippo_cli.training.targets import Algorithm

SCHEMA_VERSION = 2
MAX_FAILURES_IN_A_ROW = 3
REFERENCE = "reference"  # below the weights of an agent: what its KL terms compare with, once that was updated
INITIAL = "initial"  # what `best.json` names while no iteration was better than none


@dataclass(kw_only=True)
class Progress:
    """The part of a run's state that is neither weights nor random streams."""

    iteration: int = 0  # updates that are done
    row: dict[str, float] | None = None  # metrics of that iteration, while its evaluation and logging are still to come
    metrics_bytes: int | None = 0  # of metrics.jsonl that belong to this state; None while rows of it are not written


@dataclass(kw_only=True)
class State:
    """Everything that a checkpoint holds."""

    team: Team
    algorithm: Algorithm
    moments: dict[str, ScoreMoments]  # of each agent's scores
    progress: Progress
    run: RunState
    rng: dict[str, Any]  # this rank's global random streams as they were when `progress` was reached
    pool: PoolState = field(default_factory=PoolState)  # of partners; empty where none are kept


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run_folder: Path, config: CheckpointConfig) -> None:
        self.folder = run_folder / "checkpoints"
        self.config = config
        self._failures = 0
        self.reason = ""  # why the last save failed
        self._saved: int | None = None
        self._passed_over: set[str] = set()  # damaged ones: none of those that are kept
        self._attempted_at = time.monotonic()  # when the last checkpoint was written, or could not be
        distributed.on_main(self._prepare)

    def _prepare(self) -> None:
        with storing(str(self.folder)):
            self.folder.mkdir(exist_ok=True)
            for stale in self.folder.glob("*.tmp"):  # left by a run that died while saving
                shutil.rmtree(stale)

    def refuse_too_little_room(self, size: int, num_iterations: int) -> None:
        """Raise `PreflightError` on a disk that cannot hold the checkpoints of `size` bytes that will lie there at
        once: those kept, and the one that is being written; warn where there is none for the best one beside them."""
        distributed.on_main(lambda: self._refuse_too_little_room(size, num_iterations))

    def _refuse_too_little_room(self, size: int, num_iterations: int) -> None:
        every, there = self.config.every, len(all_checkpoints(self.folder))

        def at_once(planned: int) -> int:
            return min(there + planned, self.config.keep + 1) - min(there, self.config.keep)

        most = at_once(-(-num_iterations // every) if every else 1)
        free = shutil.disk_usage(self.folder).free
        told = f"{self.folder}: a checkpoint has about {_mib(size)}, {_mib(free)} are free, and"
        if free < most * size:
            raise PreflightError(
                f"{told} {most} will lie there at once; make room, use another output_dir=, or save "
                f"less often than checkpoint.every={every}"
            )
        if self.config.every_seconds is not None and free < (by_time := at_once(num_iterations)) * size:
            warn(
                f"{told} {by_time} will lie there at once if iterations are long "
                f"(checkpoint.every_seconds={self.config.every_seconds:g}; null saves by iterations alone)"
            )
        elif self.config.best and free < (most + 1) * size:
            warn(f"{told} there may be no room for the best one beside the newest (checkpoint.best=false keeps none)")

    def due(self, iteration: int, num_iterations: int, *, improved: bool = False) -> bool:
        """Whether a checkpoint is wanted after this many iterations, because they were the best so far, or because the
        last one was so long ago. Collective: each rank has a clock of its own, and rank 0's decides."""
        every, every_seconds = self.config.every, self.config.every_seconds
        planned = iteration == num_iterations or (every > 0 and iteration % every == 0)
        if planned or (improved and self.config.best):
            return True
        if every_seconds is None:
            return False
        return distributed.any_rank(distributed.is_main() and time.monotonic() - self._attempted_at >= every_seconds)

    def save(self, state: State, *, best: bool = False) -> bool:
        """Commit a checkpoint on all ranks; False where it failed and training goes on with the previous one."""
        iteration = state.progress.iteration
        if writes := self._saved != iteration:
            final = self.folder / step_name(iteration)
            temporary = final.with_name(final.name + ".tmp")
            with progress.writing():
                reports = distributed.gather_objects(self._write(state, temporary))
            failures = [failure for report in reports for failure in report[0]]
            if not failures and distributed.is_main():
                with noting(failures):
                    await_files(temporary, [wrote for _, wrote in reports])
                    commit(temporary, final, {name: entry for _, wrote in reports for name, entry in wrote.items()})
            failures = distributed.broadcast_object(failures)
            self._attempted_at = time.monotonic()
            if failures:
                self._give_up(temporary, failures[0])
                return False
            self._failures, self._saved = 0, iteration
            self._passed_over.discard(final.name)
        if distributed.is_main():
            failures = []
            with noting(failures):
                self._point(step_name(iteration), best=best)
                if writes:
                    self._prune()
            if failures:  # the checkpoint is there: pointers are a convenience, and old ones go the next time
                warn(f"{self.folder} could not be tidied ({failures[0]})")
        distributed.barrier()
        return True

    def initial_is_best(self) -> None:
        """Let `best.json` name the weights before training, until an iteration is better."""
        if distributed.is_main() and self.config.best:
            with noting([]):  # a pointer is a convenience
                write_pointer(self.folder, "best", INITIAL)

    def newest(self) -> Path:
        """The newest intact checkpoint. Raises `ResumeError` without one. Collective: each rank reads a share."""
        for path in reversed(distributed.on_main(lambda: all_checkpoints(self.folder))):
            reports = distributed.gather_objects(damaged(path, distributed.rank(), distributed.world_size()))
            damage = [(rank, report) for rank, report in enumerate(reports) if report is not None]
            if not damage:
                return path
            self._passed_over.add(path.name)
            if distributed.is_main():
                rank, report = damage[0]
                say_passed_over(path, f"rank {rank}: {report}" if rank else report)
        raise ResumeError(f"{self.folder} has no intact checkpoint; start a new run instead")

    def load(self, state: State, folder: Path) -> None:
        """Restore a checkpoint into a freshly built team; one without optimizers into a team built on its weights."""
        stored = json.loads((folder / "state.json").read_text())
        if stored["schema_version"] != SCHEMA_VERSION:
            raise ResumeError(f"{folder} was written by a version with another checkpoint format")
        if not self.config.reshard:
            refuse_other_world_size(folder, distributed.world_size())
        wrote = int(stored["world_size"])
        optimizers = has_optimizers(folder)
        for learner in state.team.learners:
            if optimizers:
                load = learner.engine.load if wrote == distributed.world_size() else learner.engine.load_resharded
                load(folder / learner.name / f"engine_{learner.stage}")
            learner.skipped_in_a_row = stored["skipped_in_a_row"][learner.name][learner.stage]
        state.algorithm.kl_coef = dict(stored["kl_coef"])
        state.moments = {name: ScoreMoments(**numbers) for name, numbers in stored["score_moments"].items()}
        state.pool.restore(stored["partners"])
        state.progress = Progress(**stored["progress"])
        for key, value in stored["run"].items():
            setattr(state.run, key, value)
        state.rng = json.loads((folder / f"rng_rank_{distributed.rank() % wrote}.json").read_text())
        restore_rng(state.rng)
        for holder, agent in state.team.updated_references(state.progress.iteration).items():
            assert agent.reference is not None
            agent.reference.load_saved(folder / holder / REFERENCE)
        self._saved = state.progress.iteration

    def _write(self, state: State, temporary: Path) -> tuple[list[str], Listing]:
        """Write this rank's part: what went wrong, and the files. Whatever fails, a rank goes on: others wait."""
        failures: list[str] = []
        written: list[Path] = []
        if distributed.is_main():
            if state.progress.metrics_bytes is None:
                failures.append("rows of metrics.jsonl cannot be written")
            with noting(failures):
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)
        if any(distributed.gather_objects(failures)):
            return failures, {}
        for learner in state.team.learners:
            own = temporary / learner.name
            if self.config.optimizer:
                with noting(failures):
                    written += learner.engine.save(own / f"engine_{learner.stage}")
            weights = learner.engine.full_state_dict()
            merged = self.config.weights is CheckpointWeights.full
            with noting(failures):
                written += learner.save_pretrained(own, weights, state.team.tokenizer(learner), merged=merged)
            del weights  # those of two models need not lie in memory together
        with noting(failures):
            written += _write_references(state, temporary)
        with noting(failures):
            temporary.mkdir(parents=True, exist_ok=True)  # where rank 0's is not in sight, it will say so
            written.append(temporary / f"rng_rank_{distributed.rank()}.json")
            written[-1].write_text(json.dumps(state.rng))
            fault_point("save.write")
            if distributed.is_main():
                written.append(temporary / "state.json")
                written[-1].write_text(json.dumps(_stored(state), indent=1))
        listed: Listing = {}
        if not failures:
            with noting(failures):
                listed = listing(temporary, written)
        return failures, listed

    def _give_up(self, temporary: Path, reason: str) -> None:
        shutil.rmtree(temporary, ignore_errors=True)  # by every rank: they may not see each other's files
        distributed.barrier()
        self._failures, self.reason = self._failures + 1, reason
        if self._failures >= MAX_FAILURES_IN_A_ROW:
            raise StorageError(f"{self._failures} checkpoints in a row could not be saved ({reason})")
        if distributed.is_main():
            warn(f"checkpoint not saved ({reason})")

    def _point(self, checkpoint: str, *, best: bool) -> None:
        fault_point("save.pointer")
        write_pointer(self.folder, "latest", checkpoint)
        if not self.config.best:  # nothing keeps the one that it named before a resume
            (self.folder / "best.json").unlink(missing_ok=True)
        elif best:
            write_pointer(self.folder, "best", checkpoint)
        sync_folder(self.folder)

    def _prune(self) -> None:
        intact = [path.name for path in all_checkpoints(self.folder) if path.name not in self._passed_over]
        kept = set(intact[-self.config.keep :])
        if self.config.best and (best := pointed(self.folder, "best")) is not None:
            kept |= {best.name} - self._passed_over
        for path in all_checkpoints(self.folder):
            if path.name not in kept:
                doomed = path.rename(path.with_name(path.name + ".tmp"))  # never a half-removed checkpoint
                fault_point("prune")
                shutil.rmtree(doomed)


def _write_references(state: State, folder: Path) -> list[Path]:
    """References that are not those that the run began with, as models or adapters, on rank 0; the files."""
    written: list[Path] = []
    for holder, agent in state.team.updated_references(state.progress.iteration).items():
        if distributed.is_main() and agent.reference is not None:
            weights = {name: tensor.detach().cpu() for name, tensor in agent.reference.state_dict().items()}
            for part in agent.reference.save(folder / holder / REFERENCE, weights, agent.tokenizer, merged=False):
                written += [file for file in part.rglob("*") if file.is_file()]
    return written


def has_optimizers(folder: Path) -> bool:
    """Whether a checkpoint holds what its optimizers need to go on."""
    return any(folder.glob("*/engine_*"))


@contextmanager
def noting(failures: list[str]) -> Iterator[None]:
    """Keep what went wrong while saving, and go on: torch, safetensors and tokenizers each have errors of their own
    for a full disk, and whatever it was, the other ranks wait for this one."""
    try:
        yield
    except Exception as error:
        words = (
            str(error) if isinstance(error, IppoError) else f"{type(error).__name__}: {' '.join(str(error).split())}"
        )
        failures.append(storage_failure(error) or words)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _stored(state: State) -> dict[str, Any]:
    skipped: dict[str, dict[str, int]] = {}
    for learner in state.team.learners:
        skipped.setdefault(learner.name, {})[learner.stage] = learner.skipped_in_a_row
    return {
        "schema_version": SCHEMA_VERSION,
        "world_size": distributed.world_size(),
        "progress": asdict(state.progress),
        "kl_coef": dict(state.algorithm.kl_coef),
        "score_moments": {name: asdict(moments) for name, moments in state.moments.items()},
        "skipped_in_a_row": skipped,
        "partners": state.pool.stored(),
        "run": {
            "evaluation": state.run.evaluation,
            "iterations": state.run.iterations,
            "wall_seconds": state.run.wall_seconds,
        },
    }
