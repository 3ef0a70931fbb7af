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
from ippo_cli.config.errors import (
    IppoError,
    PreflightError,
    ResumeError,
    StorageError,
    convert_storage_errors,
    storage_error_message,
)
from ippo_cli.config.schema import CheckpointConfig, CheckpointWeights
from ippo_cli.engine import distributed, progress
from ippo_cli.reporting.run_log import RunState
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.runs.checkpoint_files import (
    FileManifest,
    await_files,
    commit_checkpoint,
    find_damage,
    fsync_folder,
    list_files,
    read_pointer,
    warn_damaged_checkpoint,
    write_pointer,
)
from ippo_cli.runs.faults import fault_point
from ippo_cli.runs.folder import check_world_size, checkpoint_name, list_checkpoints, print_warning
from ippo_cli.runs.random_streams import restore_rng
from ippo_cli.training.opponents import PoolState
from ippo_cli.training.targets import Algorithm

SCHEMA_VERSION = 2
MAX_FAILURES_IN_A_ROW = 3
REFERENCE_FOLDER = "reference"  # below the weights of an agent: what its KL terms compare with, once that was updated
INITIAL = "initial"  # what `best.json` names while no iteration was better than none


@dataclass(kw_only=True)
class TrainingProgress:
    """The part of a run's state that is neither weights nor random streams."""

    iteration: int = 0  # updates that are done
    row: dict[str, float] | None = None  # metrics of that iteration, while its evaluation and logging are still to come
    metrics_bytes: int | None = 0  # of metrics.jsonl that belong to this state; None while rows of it are not written


@dataclass(kw_only=True)
class TrainingState:
    """Everything that a checkpoint holds."""

    team: Team
    algorithm: Algorithm
    moments: dict[str, ScoreMoments]  # of each agent's scores
    progress: TrainingProgress
    run: RunState
    rng: dict[str, Any]  # this rank's global random streams as they were when `progress` was reached
    pool: PoolState = field(default_factory=PoolState)  # of partners; empty where none are kept


class CheckpointManager:
    """The checkpoints of one run."""

    def __init__(self, run_folder: Path, config: CheckpointConfig) -> None:
        self.folder = run_folder / "checkpoints"
        self.config = config
        self._failures_in_a_row = 0
        self.reason = ""  # why the last save failed
        self._saved_iteration: int | None = None
        self._damaged_names: set[str] = set()  # damaged ones: none of those that are kept
        self._last_attempt_at = time.monotonic()  # when the last checkpoint was written, or could not be
        distributed.run_on_main(self._prepare_folder)

    def _prepare_folder(self) -> None:
        with convert_storage_errors(str(self.folder)):
            self.folder.mkdir(exist_ok=True)
            for stale in self.folder.glob("*.tmp"):  # left by a run that died while saving
                shutil.rmtree(stale)

    def check_disk_space(self, size: int, num_iterations: int) -> None:
        """Raise `PreflightError` on a disk that cannot hold the checkpoints of `size` bytes that will lie there at
        once: those kept, and the one that is being written; warn where there is none for the best one beside them."""
        distributed.run_on_main(lambda: self._check_disk_space(size, num_iterations))

    def _check_disk_space(self, size: int, num_iterations: int) -> None:
        every, existing = self.config.every, len(list_checkpoints(self.folder))

        def max_checkpoints(planned: int) -> int:
            return min(existing + planned, self.config.keep + 1) - min(existing, self.config.keep)

        most = max_checkpoints(-(-num_iterations // every) if every else 1)
        free = shutil.disk_usage(self.folder).free
        message = f"{self.folder}: a checkpoint has about {_format_mib(size)}, {_format_mib(free)} are free, and"
        if free < most * size:
            raise PreflightError(
                f"{message} {most} will lie there at once; make room, use another output_dir=, or save "
                f"less often than checkpoint.every={every}"
            )
        if self.config.every_seconds is not None and free < (by_time := max_checkpoints(num_iterations)) * size:
            print_warning(
                f"{message} {by_time} will lie there at once if iterations are long "
                f"(checkpoint.every_seconds={self.config.every_seconds:g}; null saves by iterations alone)"
            )
        elif self.config.best and free < (most + 1) * size:
            print_warning(
                f"{message} there may be no room for the best one beside the newest (checkpoint.best=false keeps none)"
            )

    def due(self, iteration: int, num_iterations: int, *, improved: bool = False) -> bool:
        """Whether a checkpoint is wanted after this many iterations, because they were the best so far, or because the
        last one was so long ago. Collective: each rank has a clock of its own, and rank 0's decides."""
        every, every_seconds = self.config.every, self.config.every_seconds
        planned = iteration == num_iterations or (every > 0 and iteration % every == 0)
        if planned or (improved and self.config.best):
            return True
        if every_seconds is None:
            return False
        return distributed.any_rank(distributed.is_main() and time.monotonic() - self._last_attempt_at >= every_seconds)

    def save(self, state: TrainingState, *, best: bool = False) -> bool:
        """Commit a checkpoint on all ranks; False where it failed and training goes on with the previous one."""
        iteration = state.progress.iteration
        if writes := self._saved_iteration != iteration:
            final = self.folder / checkpoint_name(iteration)
            temporary = final.with_name(final.name + ".tmp")
            with progress.track_written_bytes():
                reports = distributed.gather_objects(self._write(state, temporary))
            failures = [failure for report in reports for failure in report[0]]
            if not failures and distributed.is_main():
                with collect_failures(failures):
                    await_files(temporary, [wrote for _, wrote in reports])
                    commit_checkpoint(
                        temporary, final, {name: entry for _, wrote in reports for name, entry in wrote.items()}
                    )
            failures = distributed.broadcast_object(failures)
            self._last_attempt_at = time.monotonic()
            if failures:
                self._handle_save_failure(temporary, failures[0])
                return False
            self._failures_in_a_row, self._saved_iteration = 0, iteration
            self._damaged_names.discard(final.name)
        if distributed.is_main():
            failures = []
            with collect_failures(failures):
                self._write_pointers(checkpoint_name(iteration), best=best)
                if writes:
                    self._remove_old()
            if failures:  # the checkpoint is there: pointers are a convenience, and old ones go the next time
                print_warning(f"{self.folder} could not be tidied ({failures[0]})")
        distributed.barrier()
        return True

    def mark_initial_best(self) -> None:
        """Let `best.json` name the weights before training, until an iteration is better."""
        if distributed.is_main() and self.config.best:
            with collect_failures([]):  # a pointer is a convenience
                write_pointer(self.folder, "best", INITIAL)

    def find_newest_intact(self) -> Path:
        """The newest intact checkpoint. Raises `ResumeError` without one. Collective: each rank reads a share."""
        for path in reversed(distributed.run_on_main(lambda: list_checkpoints(self.folder))):
            reports = distributed.gather_objects(find_damage(path, distributed.rank(), distributed.world_size()))
            damage = [(rank, report) for rank, report in enumerate(reports) if report is not None]
            if not damage:
                return path
            self._damaged_names.add(path.name)
            if distributed.is_main():
                rank, report = damage[0]
                warn_damaged_checkpoint(path, f"rank {rank}: {report}" if rank else report)
        raise ResumeError(f"{self.folder} has no intact checkpoint; start a new run instead")

    def load(self, state: TrainingState, folder: Path) -> None:
        """Restore a checkpoint into a freshly built team; one without optimizers into a team built on its weights."""
        stored = json.loads((folder / "state.json").read_text())
        if stored["schema_version"] != SCHEMA_VERSION:
            raise ResumeError(f"{folder} was written by a version with another checkpoint format")
        if not self.config.reshard:
            check_world_size(folder, distributed.world_size())
        wrote = int(stored["world_size"])
        optimizers = has_optimizers(folder)
        for learner in state.team.learners:
            if optimizers:
                load = learner.engine.load if wrote == distributed.world_size() else learner.engine.load_resharded
                load(folder / learner.name / f"engine_{learner.stage}")
            learner.consecutive_skips = stored["skipped_in_a_row"][learner.name][learner.stage]
        state.algorithm.kl_coef = dict(stored["kl_coef"])
        state.moments = {name: ScoreMoments(**numbers) for name, numbers in stored["score_moments"].items()}
        state.pool.load_state_dict(stored["partners"])
        state.progress = TrainingProgress(**stored["progress"])
        for key, value in stored["run"].items():
            setattr(state.run, key, value)
        state.rng = json.loads((folder / f"rng_rank_{distributed.rank() % wrote}.json").read_text())
        restore_rng(state.rng)
        for holder, agent in state.team.updated_references(state.progress.iteration).items():
            assert agent.reference is not None
            agent.reference.load_saved(folder / holder / REFERENCE_FOLDER)
        self._saved_iteration = state.progress.iteration

    def _write(self, state: TrainingState, temporary: Path) -> tuple[list[str], FileManifest]:
        """Write this rank's part: what went wrong, and the files. Whatever fails, a rank goes on: others wait."""
        failures: list[str] = []
        written: list[Path] = []
        if distributed.is_main():
            if state.progress.metrics_bytes is None:
                failures.append("rows of metrics.jsonl cannot be written")
            with collect_failures(failures):
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)
        if any(distributed.gather_objects(failures)):
            return failures, {}
        for learner in state.team.learners:
            learner_folder = temporary / learner.name
            if self.config.optimizer:
                with collect_failures(failures):
                    written += learner.engine.save(learner_folder / f"engine_{learner.stage}")
            weights = learner.engine.full_state_dict()
            merged = self.config.weights is CheckpointWeights.full
            with collect_failures(failures):
                written += learner.save_pretrained(
                    learner_folder, weights, state.team.tokenizer(learner), merged=merged
                )
            del weights  # those of two models need not lie in memory together
        with collect_failures(failures):
            written += _write_references(state, temporary)
        with collect_failures(failures):
            temporary.mkdir(parents=True, exist_ok=True)  # where rank 0's is not in sight, it will say so
            written.append(temporary / f"rng_rank_{distributed.rank()}.json")
            written[-1].write_text(json.dumps(state.rng))
            fault_point("save.write")
            if distributed.is_main():
                written.append(temporary / "state.json")
                written[-1].write_text(json.dumps(_state_dict(state), indent=1))
        listed: FileManifest = {}
        if not failures:
            with collect_failures(failures):
                listed = list_files(temporary, written)
        return failures, listed

    def _handle_save_failure(self, temporary: Path, reason: str) -> None:
        shutil.rmtree(temporary, ignore_errors=True)  # by every rank: they may not see each other's files
        distributed.barrier()
        self._failures_in_a_row, self.reason = self._failures_in_a_row + 1, reason
        if self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
            raise StorageError(f"{self._failures_in_a_row} checkpoints in a row could not be saved ({reason})")
        if distributed.is_main():
            print_warning(f"checkpoint not saved ({reason})")

    def _write_pointers(self, checkpoint: str, *, best: bool) -> None:
        fault_point("save.pointer")
        write_pointer(self.folder, "latest", checkpoint)
        if not self.config.best:  # nothing keeps the one that it named before a resume
            (self.folder / "best.json").unlink(missing_ok=True)
        elif best:
            write_pointer(self.folder, "best", checkpoint)
        fsync_folder(self.folder)

    def _remove_old(self) -> None:
        intact = [path.name for path in list_checkpoints(self.folder) if path.name not in self._damaged_names]
        kept = set(intact[-self.config.keep :])
        if self.config.best and (best := read_pointer(self.folder, "best")) is not None:
            kept |= {best.name} - self._damaged_names
        for path in list_checkpoints(self.folder):
            if path.name not in kept:
                doomed = path.rename(path.with_name(path.name + ".tmp"))  # never a half-removed checkpoint
                fault_point("prune")
                shutil.rmtree(doomed)


def _write_references(state: TrainingState, folder: Path) -> list[Path]:
    """References that are not those that the run began with, as models or adapters, on rank 0; the files."""
    written: list[Path] = []
    for holder, agent in state.team.updated_references(state.progress.iteration).items():
        if distributed.is_main() and agent.reference is not None:
            weights = {name: tensor.detach().cpu() for name, tensor in agent.reference.state_dict().items()}
            for part in agent.reference.save(
                folder / holder / REFERENCE_FOLDER, weights, agent.tokenizer, merged=False
            ):
                written += [file for file in part.rglob("*") if file.is_file()]
    return written


def has_optimizers(folder: Path) -> bool:
    """Whether a checkpoint holds what its optimizers need to go on."""
    return any(folder.glob("*/engine_*"))


@contextmanager
def collect_failures(failures: list[str]) -> Iterator[None]:
    """Keep what went wrong while saving, and go on: torch, safetensors and tokenizers each have errors of their own
    for a full disk, and whatever it was, the other ranks wait for this one."""
    try:
        yield
    except Exception as error:
        words = (
            str(error) if isinstance(error, IppoError) else f"{type(error).__name__}: {' '.join(str(error).split())}"
        )
        failures.append(storage_error_message(error) or words)


def _format_mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _state_dict(state: TrainingState) -> dict[str, Any]:
    skipped: dict[str, dict[str, int]] = {}
    for learner in state.team.learners:
        skipped.setdefault(learner.name, {})[learner.stage] = learner.consecutive_skips
    return {
        "schema_version": SCHEMA_VERSION,
        "world_size": distributed.world_size(),
        "progress": asdict(state.progress),
        "kl_coef": dict(state.algorithm.kl_coef),
        "score_moments": {name: asdict(moments) for name, moments in state.moments.items()},
        "skipped_in_a_row": skipped,
        "partners": state.pool.state_dict(),
        "run": {
            "evaluation": state.run.evaluation,
            "iterations": state.run.iterations,
            "wall_seconds": state.run.wall_seconds,
        },
    }
