"""The last point that a run can be resumed from, kept so that a failure after it costs nothing before it."""

from __future__ import annotations

import copy
from dataclasses import replace

from ippo_cli.runs.random_streams import rng_state
from ippo_cli.training.checkpoint import TrainingState


class ResumePoint:
    """Everything of a state but its weights, as it was when the point was reached.

    What is begun after it and abandoned is done again, with the same random numbers. Weights are too large to be kept
    twice: from the first optimizer step after the point until the next point there is nothing to go back to.
    """

    def __init__(self, state: TrainingState) -> None:
        state.rng = rng_state()
        self._state = state
        self._progress = replace(state.progress)
        self._moments = copy.deepcopy(state.moments)
        self._kl_coef = dict(state.algorithm.kl_coef)
        self._run = copy.deepcopy(state.run)
        self._pool = copy.deepcopy(state.pool.state_dict())
        self.has_changed_weights = False

    @property
    def iteration(self) -> int:
        """Updates that were done."""
        return self._progress.iteration

    def restore(self) -> None:
        """Make the state what it was. The weights must not have moved since."""
        assert not self.has_changed_weights
        state = self._state
        state.progress, state.moments = replace(self._progress), copy.deepcopy(self._moments)
        state.algorithm.kl_coef = dict(self._kl_coef)
        state.pool.load_state_dict(self._pool)
        state.run.evaluation, state.run.iterations = copy.deepcopy(self._run.evaluation), self._run.iterations
