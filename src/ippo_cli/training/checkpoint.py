"""Checkpoints: one folder per saved iteration, complete or absent, verified before it is loaded.

All ranks write into `step_N.tmp`; rank 0 lists every file with its size and sha256 in `manifest.json` and renames the
folder; the pointer follows, and only then are older checkpoints removed. A folder without a manifest is no checkpoint.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError

from ippo_cli.agents.agent import Agent
from ippo_cli.algorithms.targets import Algorithm
from ippo_cli.config.errors import ResumeError, StorageError
from ippo_cli.config.schema import CheckpointConfig
from ippo_cli.engine import distributed
from ippo_cli.models.critic import ValueModel
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.training.folder import (
    MANIFEST,
    all_checkpoints,
    refuse_other_world_size,
    step_name,
    write_atomically,
)
from ippo_cli.training.run import RunState

SCHEMA_VERSION = 2
MAX_FAILURES_IN_A_ROW = 3


@dataclass(kw_only=True)
class Progress:
    """The part of a run's state that is neither weights nor random streams."""

    iteration: int = 0  # updates that are done
    row: dict[str, float] | None = None  # metrics of that iteration, while its evaluation and logging are still to come
    metrics_bytes: int = 0  # of metrics.jsonl that belong to this state


@dataclass(kw_only=True)
class State:
    """Everything that a checkpoint holds."""

    agents: Mapping[str, Agent]
    algorithm: Algorithm
    moments: dict[str, ScoreMoments]  # of each agent's scores
    progress: Progress
    run: RunState
    rng: dict[str, Any]  # this rank's global random streams as they were when `progress` was reached


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, run_folder: Path, config: CheckpointConfig) -> None:
        self.folder = run_folder / "checkpoints"
        self.config = config
        self._failures = 0
        self._saved: int | None = None
        if distributed.is_main():
            self.folder.mkdir(exist_ok=True)
            for stale in self.folder.glob("*.tmp"):  # left by a run that died while saving
                shutil.rmtree(stale)
        distributed.barrier()

    def due(self, iteration: int, num_iterations: int, *, improved: bool = False) -> bool:
        """Whether a checkpoint is wanted after this many iterations, or because they were the best so far."""
        every = self.config.every
        planned = iteration == num_iterations or (every > 0 and iteration % every == 0)
        return planned or (improved and self.config.best)

    def save(self, state: State, *, best: bool = False) -> bool:
        """Commit a checkpoint on all ranks; False where it failed and training goes on with the previous one."""
        iteration = state.progress.iteration
        if self._saved != iteration:
            final = self.folder / step_name(iteration)
            temporary = final.with_name(final.name + ".tmp")
            failures = self._write(state, temporary)
            failures = [failure for rank in distributed.gather_objects(failures) for failure in rank]
            if not failures and distributed.is_main():
                with noting(failures):
                    commit(temporary, final)
            failures = distributed.broadcast_object(failures)
            if failures:
                self._give_up(temporary, failures[0])
                return False
            self._failures, self._saved = 0, iteration
        if distributed.is_main():
            failures = []
            with noting(failures):
                self._point(iteration, best=best)
                self._prune()
            if failures:  # the checkpoint is there: pointers are a convenience, and old ones go the next time
                print(f"warning: {self.folder} could not be tidied ({failures[0]})", flush=True)
        distributed.barrier()
        return True

    def load(self, state: State) -> Path:
        """Restore the newest intact checkpoint into freshly built agents. Raises `ResumeError` where there is none."""
        found = distributed.broadcast_object(newest_intact(self.folder) if distributed.is_main() else None)
        if found is None:
            raise ResumeError(f"{self.folder} has no intact checkpoint; start a new run instead")
        stored = json.loads((found / "state.json").read_text())
        if stored["schema_version"] != SCHEMA_VERSION:
            raise ResumeError(f"{found} was written by a version with another checkpoint format")
        refuse_other_world_size(found, distributed.world_size())
        for name, agent in state.agents.items():
            for learner in agent.learners:
                learner.engine.load(found / name / f"engine_{learner.role}")
                learner.skipped_in_a_row = stored["skipped_in_a_row"][name][learner.role]
        state.algorithm.kl_coef = dict(stored["kl_coef"])
        state.moments = {name: ScoreMoments(**numbers) for name, numbers in stored["score_moments"].items()}
        state.progress = Progress(**stored["progress"])
        for key, value in stored["run"].items():
            setattr(state.run, key, value)
        state.rng = json.loads((found / f"rng_rank_{distributed.rank()}.json").read_text())
        restore_rng(state.rng)
        self._saved = state.progress.iteration
        return found

    def _write(self, state: State, temporary: Path) -> list[str]:
        """Write this rank's part; what went wrong. Whatever fails, a rank goes on: the others wait for its part."""
        failures: list[str] = []
        if distributed.is_main():
            with noting(failures):
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)
        if any(distributed.gather_objects(failures)):
            return failures
        for name, agent in state.agents.items():
            for learner in agent.learners:
                with noting(failures):
                    learner.engine.save(temporary / name / f"engine_{learner.role}")
            save_for_loading(agent, temporary / name, failures)
        with noting(failures):
            (temporary / f"rng_rank_{distributed.rank()}.json").write_text(json.dumps(state.rng))
            if distributed.is_main():
                (temporary / "state.json").write_text(json.dumps(_stored(state), indent=1))
        return failures

    def _give_up(self, temporary: Path, reason: str) -> None:
        if distributed.is_main():
            shutil.rmtree(temporary, ignore_errors=True)
            print(f"warning: checkpoint not saved ({reason}); training goes on", flush=True)
        self._failures += 1
        if self._failures >= MAX_FAILURES_IN_A_ROW:
            raise StorageError(f"{self._failures} checkpoints in a row could not be saved ({reason})")

    def _point(self, iteration: int, *, best: bool) -> None:
        write_atomically(self.folder / "latest.json", json.dumps({"checkpoint": step_name(iteration)}) + "\n")
        if not self.config.best:  # nothing keeps the one that it named before a resume
            (self.folder / "best.json").unlink(missing_ok=True)
        elif best:
            write_atomically(self.folder / "best.json", json.dumps({"checkpoint": step_name(iteration)}) + "\n")
        sync_folder(self.folder)

    def _prune(self) -> None:
        kept = {path.name for path in all_checkpoints(self.folder)[-self.config.keep :]}
        if self.config.best and (best := pointed(self.folder, "best")) is not None:
            kept.add(best.name)
        for path in all_checkpoints(self.folder):
            if path.name not in kept:
                doomed = path.rename(path.with_name(path.name + ".tmp"))  # never a half-removed checkpoint
                shutil.rmtree(doomed)


def pointed(folder: Path, name: str) -> Path | None:
    """The checkpoint that `latest.json` or `best.json` names, if it is there."""
    try:
        path = folder / json.loads((folder / f"{name}.json").read_text())["checkpoint"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a pointer is a convenience: the folders themselves say what is there
    return path if (path / MANIFEST).is_file() else None


def newest_intact(folder: Path) -> Path | None:
    """The newest checkpoint whose every file is as its manifest says; damaged ones are named and passed over."""
    for path in reversed(all_checkpoints(folder)):
        damage = damaged(path)
        if damage is None:
            return path
        print(f"warning: {path} is damaged ({damage}); falling back to an older checkpoint", flush=True)
    return None


def damaged(path: Path) -> str | None:
    """What is wrong with a checkpoint: a missing, additional or changed file; None if nothing is."""
    try:
        files = json.loads((path / MANIFEST).read_text())["files"]
        listed = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    present = {str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir()} - {MANIFEST}
    if present != set(listed):
        return "files are missing or additional: " + " ".join(sorted(present ^ set(listed))[:3])
    for name, (size, digest) in listed.items():
        try:
            changed = (path / name).stat().st_size != size or sha256_of(path / name) != digest
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if changed:
            return f"{name} has changed"
    return None


def commit(temporary: Path, final: Path) -> None:
    """List and sync every file, then give the folder its name."""
    files = sorted(file for file in temporary.rglob("*") if file.is_file())
    for file in files:
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    listed = {
        str(file.relative_to(temporary)): {"bytes": file.stat().st_size, "sha256": sha256_of(file)} for file in files
    }
    write_atomically(temporary / MANIFEST, json.dumps({"schema_version": SCHEMA_VERSION, "files": listed}, indent=1))
    for folder in {temporary, *(file.parent for file in files)}:
        sync_folder(folder)
    if final.exists():  # a damaged one of the same iteration that was passed over on resume
        shutil.rmtree(final)
    os.rename(temporary, final)
    sync_folder(final.parent)


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_for_loading(agent: Agent, folder: Path, failures: list[str]) -> None:
    """`actor/` and `critic/` as `from_pretrained` reads them, written by rank 0 from weights of all ranks."""
    weights = agent.actor.engine.full_state_dict()
    critic_weights = agent.critic.engine.full_state_dict() if agent.critic is not None else None
    if weights is None:
        return
    policy = agent.actor.engine.module
    with noting(failures):
        policy.lm.save_pretrained(folder / "actor", state_dict=below("lm.", weights))
        agent.tokenizer.save_pretrained(folder / "actor")
        if agent.critic is not None:
            model: ValueModel = agent.critic.engine.module
            model.save_pretrained(folder / "critic", state_dict=critic_weights)
            agent.tokenizer.save_pretrained(folder / "critic")
        elif policy.value_head is not None:
            policy.value_head.save_pretrained(folder / "critic", state_dict=below("value_head.", weights))


@contextmanager
def noting(failures: list[str]) -> Iterator[None]:
    """Keep what went wrong with a file, and go on."""
    try:
        yield
    except OSError as error:
        failures.append(f"{error.strerror or error}: {error.filename}" if error.filename else str(error))
    except SafetensorError as error:  # how safetensors tells of a full disk
        failures.append(str(error))


def below(prefix: str, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of a submodule under its own names."""
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def rng_state() -> dict[str, Any]:
    """The global random streams as plain data (ours are stateless; rewards of the user's may draw from these)."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = numpy.random.get_state()
    state = {
        "python": [version, list(words), gauss],
        "numpy": [str(kind), base64.b64encode(numpy.asarray(keys).tobytes()).decode(), int(position), int(has_gauss),
                  float(cached)],
        "torch": base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode(),
    }  # fmt: skip
    if torch.cuda.is_available():
        state["cuda"] = base64.b64encode(torch.cuda.get_rng_state().numpy().tobytes()).decode()
    return state


def restore_rng(state: Mapping[str, Any]) -> None:
    """Set the streams of `rng_state`."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    numpy.random.set_state((kind, numpy.frombuffer(base64.b64decode(keys), dtype=numpy.uint32), position, has_gauss,
                            cached))  # fmt: skip
    torch.set_rng_state(torch.frombuffer(bytearray(base64.b64decode(state["torch"])), dtype=torch.uint8))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.frombuffer(bytearray(base64.b64decode(state["cuda"])), dtype=torch.uint8))


def _stored(state: State) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "world_size": distributed.world_size(),
        "progress": asdict(state.progress),
        "kl_coef": dict(state.algorithm.kl_coef),
        "score_moments": {name: asdict(moments) for name, moments in state.moments.items()},
        "skipped_in_a_row": {
            name: {learner.role: learner.skipped_in_a_row for learner in agent.learners}
            for name, agent in state.agents.items()
        },
        "run": {"evaluation": state.run.evaluation, "iterations": state.run.iterations,
                "wall_seconds": state.run.wall_seconds},
    }  # fmt: skip
