"""Checkpoints: one folder per saved iteration, committed atomically and verified before loading.

All ranks write into `step_N.tmp` and report their files with sizes and sha256. Rank 0 checks that it sees all files,
lists them in `manifest.json`, renames the folder, updates the pointers, and then removes older checkpoints.
A folder without a manifest is not a checkpoint.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ippo_cli.agents.grad_norms import GradNorms
from ippo_cli.agents.learner import Learner
from ippo_cli.agents.team import Team
from ippo_cli.algorithms.return_moments import ReturnMoments
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
from ippo_cli.rollout.background_collection import EpisodeCollection
from ippo_cli.rollout.episode_file import write_collection
from ippo_cli.runs.checkpoint_files import (
    METHODS_FILE,
    FileManifest,
    await_files,
    commit_checkpoint,
    find_damage,
    fsync_folder,
    list_files,
    read_method_states,
    read_pointer,
    warn_damaged_checkpoint,
    write_pointer,
)
from ippo_cli.runs.faults import fault_point
from ippo_cli.runs.folder import check_world_size, checkpoint_name, list_checkpoints, print_warning
from ippo_cli.runs.metric_names import present_metric_name
from ippo_cli.runs.random_streams import restore_rng
from ippo_cli.training.methods.method import Method
from ippo_cli.training.targets import Algorithm

SCHEMA_VERSION = 2
MAX_FAILURES_IN_A_ROW = 3
REFERENCE_FOLDER = "reference"  # in an agent's weights folder: its KL reference, if the reference was updated
INITIAL = "initial"  # value of `best.json` while no iteration is better than the initial weights


@dataclass(kw_only=True)
class TrainingProgress:
    """Progress counters of a run: its state without weights and random streams."""

    iteration: int = 0  # completed updates
    row: dict[str, float] | None = None  # metrics of that iteration until it is evaluated and logged
    metrics_bytes: int | None = 0  # length of metrics.jsonl at this state; None while rows are not yet written
    extra_prompts: int = 0  # positions of the schedule that iterations have used beyond their own number of prompts
    history: str = ""  # chain of history.jsonl at this state; empty in checkpoints of earlier versions

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any]) -> TrainingProgress:
        """The counters of a checkpoint; metrics get their present names."""
        row = saved["row"]
        present = row and {present_metric_name(name): value for name, value in row.items()}
        return cls(**{**saved, "row": present})


@dataclass(kw_only=True)
class TrainingState:
    """Everything that a checkpoint stores."""

    team: Team
    algorithm: Algorithm
    moments: dict[str, ScoreMoments]  # of each agent's scores
    progress: TrainingProgress
    run: RunState
    rng: dict[str, Any]  # this rank's global random streams at `progress`
    methods: Sequence[Method] = ()
    unused_methods: Mapping[str, Any] = field(default_factory=dict)  # of a checkpoint; a later resume may use them
    collection: EpisodeCollection | None = None  # of the next iteration's episodes; saved when it has ended

    def method_states(self) -> dict[str, Any]:
        """The states of methods and of parts of targets, by name."""
        own = {method.name: method.state_dict() for method in self.methods if method.name}
        return {**self.unused_methods, **self.algorithm.state.methods, **own}


class CheckpointManager:
    """Saves, finds, loads and removes the checkpoints of one run."""

    def __init__(self, run_folder: Path, config: CheckpointConfig) -> None:
        self.folder = run_folder / "checkpoints"
        self.config = config
        self._failures_in_a_row = 0
        self.failure_reason = ""  # why the last save failed
        self._saved_iteration: int | None = None
        self._damaged_names: set[str] = set()  # damaged checkpoints; they do not count as kept
        self._last_attempt_at = time.monotonic()  # of the last save, successful or failed
        distributed.run_on_main(self._prepare_folder)

    def _prepare_folder(self) -> None:
        with convert_storage_errors(str(self.folder)):
            self.folder.mkdir(exist_ok=True)
            for stale in self.folder.glob("*.tmp"):  # left by a process that was killed while saving
                shutil.rmtree(stale)

    def check_disk_space(self, size: int, num_iterations: int) -> None:
        """Check that the disk can hold the kept checkpoints and the one being written, each of `size` bytes.

        Raises `PreflightError` otherwise; warns if there is no room for an additional best checkpoint.
        """
        distributed.run_on_main(lambda: self._check_disk_space(size, num_iterations))

    def _check_disk_space(self, size: int, num_iterations: int) -> None:
        every, existing = self.config.every, len(list_checkpoints(self.folder))

        def max_checkpoints(planned: int) -> int:
            return min(existing + planned, self.config.keep + 1) - min(existing, self.config.keep)

        most = max_checkpoints(-(-num_iterations // every) if every else 1)
        free = shutil.disk_usage(self.folder).free
        message = f"{self.folder}: a checkpoint needs about {_format_mib(size)}, {_format_mib(free)} are free, and"
        if free < most * size:
            remedies = ["free disk space", "use another output_dir="]
            if most > 1:
                remedies.append(f"save less often than checkpoint.every={every}")
            if self.config.optimizer:
                remedies.append("save no optimizer states with checkpoint.optimizer=false")
            raise PreflightError(
                f"{message} up to {most} checkpoint{'s exist' if most > 1 else ' exists'} at once; "
                f"{', '.join(remedies[:-1])}, or {remedies[-1]}"
            )
        if self.config.every_seconds is not None and free < (by_time := max_checkpoints(num_iterations)) * size:
            print_warning(
                f"{message} up to {by_time} checkpoints exist at once if iterations are long "
                f"(checkpoint.every_seconds={self.config.every_seconds:g}; null saves by iteration count only)"
            )
        elif self.config.best and free < (most + 1) * size:
            print_warning(
                f"{message} the best checkpoint may not fit beside the newest (checkpoint.best=false does not keep it)"
            )

    def is_due(self, iteration: int, *, last: bool, improved: bool = False) -> bool:
        """Whether to save after this iteration: by iteration count, best score, or time since the last checkpoint.

        Collective: rank 0's clock decides.
        """
        every, every_seconds = self.config.every, self.config.every_seconds
        planned = last or (every > 0 and iteration % every == 0)
        if planned or (improved and self.config.best):
            return True
        if every_seconds is None:
            return False
        return distributed.any_rank(distributed.is_main() and time.monotonic() - self._last_attempt_at >= every_seconds)

    def save(self, state: TrainingState, *, best: bool = False) -> bool:
        """Commit a checkpoint on all ranks; False if it failed and training continues with the previous one."""
        iteration = state.progress.iteration
        if writes := self._saved_iteration != iteration:
            final = self.folder / checkpoint_name(iteration)
            temporary = final.with_name(final.name + ".tmp")
            with progress.track_written_bytes():
                reports = distributed.gather_objects(self._write_rank_files(state, temporary))
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
            if failures:  # the checkpoint is committed: pointers are optional, old checkpoints are removed next time
                print_warning(f"cannot update pointers or remove old checkpoints in {self.folder} ({failures[0]})")
        distributed.barrier()
        return True

    def mark_initial_best(self) -> None:
        """Set `best.json` to the initial weights, until an iteration is better."""
        if distributed.is_main() and self.config.best:
            with collect_failures([]):  # pointers are optional
                write_pointer(self.folder, "best", INITIAL)

    def find_newest_intact(self) -> Path:
        """The newest intact checkpoint. Raises `ResumeError` without one. Collective: each rank verifies a share."""
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
        """Restore a checkpoint into a new team; without optimizer states, the team must be built from its weights."""
        stored = json.loads((folder / "state.json").read_text())
        if stored["schema_version"] != SCHEMA_VERSION:
            raise ResumeError(f"{folder} was written by a version with a different checkpoint format")
        if not self.config.reshard:
            check_world_size(folder, distributed.world_size())
        wrote = int(stored["world_size"])
        optimizers = has_optimizers(folder)
        for learner in state.team.learners:
            if optimizers:
                self._load_engine(learner, stored, folder)
            learner.consecutive_skips = stored["skipped_in_a_row"][learner.name][learner.stage]
            # Earlier versions store no gradient norms.
            learner.grad_norms = GradNorms(stored.get("grad_norms", {}).get(learner.name, {}).get(learner.stage, ()))
            learner.load_loss_state(stored.get("losses", {}).get(learner.name, {}).get(learner.stage, {}))
            if learner.return_moments is not None:
                moments = stored["return_moments"][learner.name][learner.stage]
                learner.set_return_moments(ReturnMoments(**moments))
        methods = read_method_states(folder)
        state.algorithm.restore_state(stored["kl_coef"], methods)
        state.moments = {name: ScoreMoments(**numbers) for name, numbers in stored["score_moments"].items()}
        for method in state.methods:
            if method.name in methods:
                method.load_state_dict(methods[method.name])
        used = {method.name for method in (*state.methods, *state.algorithm.parts)}
        state.unused_methods = {name: stored for name, stored in methods.items() if name not in used}
        state.progress = TrainingProgress.from_saved(stored["progress"])
        for key, value in stored["run"].items():
            setattr(state.run, key, value)
        state.rng = json.loads((folder / f"rng_rank_{distributed.rank() % wrote}.json").read_text())
        restore_rng(state.rng)
        for holder, agent in state.team.updated_references(state.progress.iteration).items():
            if agent.reference is not None:
                agent.reference.load_saved(folder / holder / REFERENCE_FOLDER)
        self._saved_iteration = state.progress.iteration

    def _load_engine(self, learner: Learner, stored: Mapping[str, Any], folder: Path) -> None:
        """Load a learner's shards on the ranks that hold it. Raises `ResumeError` if their number has changed."""
        # Earlier versions store no ranks: every rank held every engine.
        wrote = stored.get("ranks", {}).get(learner.name, {}).get(learner.stage, range(stored["world_size"]))
        if len(wrote) != learner.group.size and not self.config.reshard:
            raise ResumeError(
                f"{folder}: the {learner.stage} of {learner.name} was saved by {len(wrote)} ranks, and "
                f"launch.placement has {learner.group.size} for it; use as many ranks, or checkpoint.reshard=true"
            )
        if learner.group.is_member:
            with learner.group.activate():
                load = learner.engine.load if len(wrote) == learner.group.size else learner.engine.load_resharded
                load(folder / learner.name / f"engine_{learner.stage}")

    def _write_rank_files(self, state: TrainingState, temporary: Path) -> tuple[list[str], FileManifest]:
        """Write this rank's part; returns its failures and files. Never raises: other ranks wait for this one."""
        failures: list[str] = []
        written: list[Path] = []
        if distributed.is_main():
            if state.progress.metrics_bytes is None:
                failures.append("cannot write rows of metrics.jsonl")
            with collect_failures(failures):
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)
        if any(distributed.gather_objects(failures)):
            return failures, {}
        for learner in state.team.learners:
            if learner.group.is_member:
                with learner.group.activate():
                    self._write_learner(learner, state.team, temporary, written, failures)
        with collect_failures(failures):
            written += _write_references(state, temporary)
        with collect_failures(failures):
            temporary.mkdir(parents=True, exist_ok=True)  # if ranks do not share a folder, rank 0 reports it
            written.append(temporary / f"rng_rank_{distributed.rank()}.json")
            written[-1].write_text(json.dumps(state.rng))
            if state.collection is not None:
                written.append(temporary / f"episodes_rank_{distributed.rank()}.json")
                write_collection(written[-1], state.collection)
            fault_point("save.write")
            if distributed.is_main():
                written.append(temporary / "state.json")
                written[-1].write_text(json.dumps(_state_dict(state), indent=1))
                written.append(temporary / METHODS_FILE)
                written[-1].write_text(json.dumps(state.method_states()))
        listed: FileManifest = {}
        if not failures:
            with collect_failures(failures):
                listed = list_files(temporary, written)
        return failures, listed

    def _write_learner(
        self, learner: Learner, team: Team, temporary: Path, written: list[Path], failures: list[str]
    ) -> None:
        """Write this rank's shard of a learner, and its weights on the first rank that holds it."""
        folder = temporary / learner.name
        if self.config.optimizer:
            with collect_failures(failures):
                written += learner.engine.save(folder / f"engine_{learner.stage}")
        weights = learner.engine.full_state_dict()
        merged = self.config.weights is CheckpointWeights.full
        with collect_failures(failures):
            written += learner.save_pretrained(folder, weights, team.tokenizer(learner), merged=merged)

    def _handle_save_failure(self, temporary: Path, reason: str) -> None:
        shutil.rmtree(temporary, ignore_errors=True)  # on every rank: they may not see each other's files
        distributed.barrier()
        self._failures_in_a_row, self.failure_reason = self._failures_in_a_row + 1, reason
        if self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
            raise StorageError(f"cannot save checkpoints, {self._failures_in_a_row} failures in a row ({reason})")
        if distributed.is_main():
            print_warning(f"checkpoint not saved ({reason})")

    def _write_pointers(self, checkpoint: str, *, best: bool) -> None:
        fault_point("save.pointer")
        write_pointer(self.folder, "latest", checkpoint)
        if not self.config.best:  # the checkpoint that it names from before a resume is not kept
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
                doomed = path.rename(path.with_name(path.name + ".tmp"))  # so a kill leaves no partial checkpoint
                fault_point("prune")
                shutil.rmtree(doomed)


def _write_references(state: TrainingState, folder: Path) -> list[Path]:
    """Write the references that were updated during the run, as models or adapters, on the first rank that holds one;
    returns the files.
    """
    written: list[Path] = []
    for holder, agent in state.team.updated_references(state.progress.iteration).items():
        if agent.reference is not None and agent.reference_group.rank == 0:
            weights = {name: tensor.detach().cpu() for name, tensor in agent.reference.state_dict().items()}
            for part in agent.reference.save(
                folder / holder / REFERENCE_FOLDER, weights, agent.tokenizer, merged=False
            ):
                written += [file for file in part.rglob("*") if file.is_file()]
    return written


def find_episode_files(folder: Path) -> list[Path]:
    """Files of episodes that were collected before a checkpoint for the iteration after it, one per rank."""
    return sorted(folder.glob("episodes_rank_*.json"))


def has_optimizers(folder: Path) -> bool:
    """Whether a checkpoint has optimizer states."""
    return any(folder.glob("*/engine_*"))


@contextmanager
def collect_failures(failures: list[str]) -> Iterator[None]:
    """Append any error to `failures` instead of raising it, because the other ranks wait for this one.

    Catches all types: torch, safetensors and tokenizers each raise a different one on a full disk.
    """
    try:
        yield
    except Exception as error:
        text = str(error) if isinstance(error, IppoError) else f"{type(error).__name__}: {' '.join(str(error).split())}"
        failures.append(storage_error_message(error) or text)


def _format_mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _state_dict(state: TrainingState) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "world_size": distributed.world_size(),
        "ranks": _by_stage(state.team, lambda learner: list(learner.group.ranks)),
        "progress": asdict(state.progress),
        "kl_coef": dict(state.algorithm.state.kl_coef),
        "score_moments": {name: asdict(moments) for name, moments in state.moments.items()},
        "return_moments": _by_stage(
            state.team, lambda learner: None if learner.return_moments is None else asdict(learner.return_moments)
        ),
        "skipped_in_a_row": _by_stage(state.team, lambda learner: learner.consecutive_skips),
        "losses": _by_stage(state.team, lambda learner: learner.loss_state()),
        "grad_norms": _by_stage(state.team, lambda learner: learner.grad_norms.recent),
        "run": {
            "evaluation": state.run.evaluation,
            "iterations": state.run.iterations,
            "wall_seconds": state.run.wall_seconds,
        },
    }


def _by_stage(team: Team, read: Callable[[Learner], Any]) -> dict[str, dict[str, Any]]:
    """A value of each learner by its name and stage, without those that are None."""
    result: dict[str, dict[str, Any]] = {}
    for learner in team.learners:
        if (value := read(learner)) is not None:
            result.setdefault(learner.name, {})[learner.stage] = value
    return result
