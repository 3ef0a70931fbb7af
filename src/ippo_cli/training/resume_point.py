"""In-memory snapshot of the non-weight state, used to save a checkpoint after a failure."""

from __future__ import annotations

import copy
from dataclasses import replace

from ippo_cli.runs.random_streams import rng_state
from ippo_cli.training.checkpoint import TrainingState


class ResumePoint:
    """Snapshot of a training state without its weights.

    An abandoned iteration is repeated after a resume with the same random numbers. Weights are too large to copy, so
    `restore` is impossible from the first optimizer step after the snapshot until the next snapshot.
    """

    def __init__(self, state: TrainingState) -> None:
        state.rng = rng_state()
        self._state = state
        self._progress = replace(state.progress)
        self._moments = copy.deepcopy(state.moments)
        self._algorithm_state = state.algorithm.state
        self._run = copy.deepcopy(state.run)
        self._collection = state.collection
        self._methods = [method.state_dict() for method in state.methods]
        self.has_changed_weights = False

    @property
    def iteration(self) -> int:
        """Completed updates."""
        return self._progress.iteration

    def restore(self) -> None:
        """Restore the state. The weights must be unchanged since the snapshot."""
        assert not self.has_changed_weights
        state = self._state
        state.progress, state.moments = replace(self._progress), copy.deepcopy(self._moments)
        state.algorithm.state, state.collection = self._algorithm_state, self._collection
        for method, stored in zip(state.methods, self._methods, strict=True):
            method.load_state_dict(copy.deepcopy(stored))
        state.run.evaluation, state.run.iterations = copy.deepcopy(self._run.evaluation), self._run.iterations
