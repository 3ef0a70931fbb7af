"""Episode collection in a thread, while the caller trains: `rollout.ahead`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from ippo_cli.config.errors import EngineError, IppoError
from ippo_cli.engine import distributed
from ippo_cli.rollout.collect import PlaySetting, play_independently, start_states
from ippo_cli.rollout.episode_file import StoredCollection
from ippo_cli.rollout.generator import SamplingStream, StreamingGenerator
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.types import Batch, Episode

POLL_S = 0.2
ABANDON_WAIT_S = 10.0
"""How long `abandon` waits for the thread; a busy environment may take longer, and does not keep the process alive."""


class BackgroundCollection:
    """One episode for each example of a batch, collected in a thread from an engine that runs beside training.

    Creating it transfers the current weights and is collective, as are `wait` and `transfer_weights`. Until `wait`
    returns, generator and environments serve this collection only. Episodes do not depend on what the caller does
    meanwhile, unless it calls `transfer_weights` or environments use the global random streams.
    """

    def __init__(
        self,
        environments: EnvironmentPool,
        formats: Mapping[str, PromptFormat],
        batch: Batch,
        generator: StreamingGenerator,
        draws: SamplingStream,
        *,
        iteration: int,
    ) -> None:
        """`iteration`: number of updates before the current weights."""
        self._environments, self._generator, self._agents = environments, generator, list(formats)
        limits = {agent: generator.context_limit(agent) for agent in formats}
        self._states = start_states(batch, formats, limits)
        self._is_abandoned = threading.Event()
        self._num_finished = 0
        self._error: BaseException | None = None
        self._episodes: list[Episode] | None = None
        self._environment_seconds_before, self._began = environments.seconds, time.perf_counter()
        self._seconds = self._environment_seconds = 0.0
        self._iterations: dict[str, dict[int, int]] = {agent: {} for agent in formats}
        generator.start_collection()
        self._label_weights(iteration)
        setting = PlaySetting(environments=environments, formats=formats, limits=limits, draws=draws, poll=self._poll)
        work = partial(play_independently, self._states, setting, generator, self._report)
        self._thread = threading.Thread(target=self._run, args=(work,), name="episodes", daemon=True)
        self._thread.start()

    @property
    def seconds(self) -> float:
        """Duration of the collection."""
        return self._seconds

    @property
    def environment_seconds(self) -> float:
        """Seconds spent in resetting and stepping environments, until now or the end of the collection."""
        if self._seconds:
            return self._environment_seconds
        return self._environments.seconds - self._environment_seconds_before

    @property
    def iterations(self) -> Mapping[str, Mapping[int, int]]:
        """By agent and version of its weights: the number of updates before them."""
        return self._iterations

    def transfer_weights(self, iteration: int) -> None:
        """Continue with the current weights, which follow `iteration` updates. Collective; raises the errors of any
        rank's collection so far.
        """
        with distributed.synchronize_errors():
            self._raise_error()
        self._generator.transfer_weights()
        self._label_weights(iteration)

    def wait(self, report: Callable[[int, int], None] | None = None) -> list[Episode]:
        """The episodes, in order of the batch. Collective; raises the errors of any rank.

        `report` receives the numbers of finished and of all episodes while others continue.
        """
        if self._episodes is not None:
            return self._episodes
        try:
            with distributed.synchronize_errors():
                while self._thread.is_alive():
                    self._thread.join(POLL_S)
                    if report is not None:
                        report(self._num_finished, len(self._states))
                self._raise_error()
                if self._is_abandoned.is_set():
                    raise EngineError("the collection of episodes was stopped")
        except BaseException:
            self.abandon()
            raise
        self._release()
        self._episodes = [state.to_episode() for state in self._states]
        return self._episodes

    def abandon(self) -> None:
        """Stop the collection; its episodes are lost. Not collective."""
        if self._episodes is None:
            self._is_abandoned.set()
            self._thread.join(ABANDON_WAIT_S)
            self._release()

    def _raise_error(self) -> None:
        if isinstance(self._error, IppoError) or not isinstance(self._error, Exception | None):
            raise self._error
        if self._error is not None:
            raise EngineError(f"collecting episodes failed: {self._error!r}") from self._error

    def _run(self, play: Callable[[], None]) -> None:
        try:
            play()
        except _Abandoned:
            pass
        except BaseException as error:
            self._error = error
        self._environment_seconds = self._environments.seconds - self._environment_seconds_before
        self._seconds = time.perf_counter() - self._began

    def _report(self, finished: int, _: int) -> None:
        self._num_finished = finished
        self._poll()

    def _poll(self) -> None:
        if self._is_abandoned.is_set():
            raise _Abandoned

    def _release(self) -> None:
        self._generator.finish_collection()
        for state in self._states:
            state.release(self._environments)

    def _label_weights(self, iteration: int) -> None:
        for agent in self._agents:
            self._iterations[agent][self._generator.weights_version(agent)] = iteration


class _Abandoned(Exception):
    """The collection was abandoned."""


EpisodeCollection = BackgroundCollection | StoredCollection
"""Episodes of an iteration that are, or were, collected before it begins."""
