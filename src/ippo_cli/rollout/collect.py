"""Batched episode collection: environments send observations, agents generate actions in batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch

from ippo_cli.config.errors import ConfigError, IppoError
from ippo_cli.config.text import join_names
from ippo_cli.engine import distributed
from ippo_cli.rollout.episode_state import EpisodeState
from ippo_cli.rollout.generator import Generator, SamplingStream, StreamingGenerator
from ippo_cli.rollout.threads import TaskThreads, map_in_threads
from ippo_cli.tasks.call_history import append_call
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.tasks.model_call import ModelCall
from ippo_cli.types import Batch, Completion, Episode

OnEpisodes = Callable[[list[int], list[Episode]], None]  # positions in the batch, and their episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaySetting:
    """What the episodes of a collection have in common."""

    environments: EnvironmentPool
    formats: Mapping[str, PromptFormat]
    limits: Mapping[str, int]  # agent -> context length
    draws: SamplingStream
    poll: Callable[[], None] | None  # called while waiting for slow environments; may raise


def collect(
    environments: EnvironmentPool,
    formats: Mapping[str, PromptFormat],
    batch: Batch,
    generator: Generator,
    draws: SamplingStream,
    *,
    poll: Callable[[], None] | None = None,
    on_episodes: OnEpisodes | None = None,
) -> list[Episode]:
    """Collect one episode for each example of this rank, in order.

    All episodes that wait for the same agent are generated in one batch, agents in the order of `formats` (or all
    agents at once where the generator groups them with `batch_groups`); then every environment with all its actions
    takes a step. With a `StreamingGenerator` episodes do not wait for each other. Collective.

    An exception of an environment fails only its episode; a configuration error is raised. An episode also fails if its
    first prompts are too long or a prompt has no token; if a later prompt is too long, the episode is truncated.

    `poll` is called while waiting for slow environments, and may raise. `on_episodes` receives finished episodes while
    others continue: after each step; for environments with one worker, which answer immediately, also during decoding,
    because each of them steps as soon as its agents have acted.
    """
    limits = {agent: generator.context_limit(agent) for agent in formats}
    setting = PlaySetting(environments=environments, formats=formats, limits=limits, draws=draws, poll=poll)
    states = start_states(batch, formats, limits)
    streaming = None if on_episodes is None else _EpisodeStream(on_episodes, environments)
    try:
        generator.start_collection()
        if isinstance(generator, StreamingGenerator):
            report = partial(generator.report_progress, join_names(list(formats)))
            with distributed.synchronize_errors():
                play_independently(states, setting, generator, report, streaming)
        else:
            for wave in _split_into_waves(states, environments.max_environments):
                _play_in_turns(wave, setting, generator, streaming)
                for state in wave:
                    state.release(environments)
    finally:
        generator.finish_collection()
        for state in states:
            state.release(environments)
    return [state.to_episode() for state in states]


def start_states(batch: Batch, formats: Mapping[str, PromptFormat], limits: Mapping[str, int]) -> list[EpisodeState]:
    """The states of a batch's episodes, before their environments are reset. `limits`: agent -> context length."""
    rows = zip(batch.examples, batch.index.tolist(), strict=True)
    return [EpisodeState(place, example, index, formats, limits) for place, (example, index) in enumerate(rows)]


def _split_into_waves(states: Sequence[EpisodeState], size: int | None) -> list[Sequence[EpisodeState]]:
    """Episodes that are played together: at most `size`, equally many waves on every rank. Collective with a size."""
    if size is None:
        return [states]
    count = int(distributed.all_max(torch.tensor(math.ceil(len(states) / size))).item())
    return [states[number * size : (number + 1) * size] for number in range(count)]


def _play_in_turns(
    states: Sequence[EpisodeState], setting: PlaySetting, generator: Generator, streaming: _EpisodeStream | None
) -> None:
    """Repeat: every agent's pending requests in one batch, then one step of every environment. Collective."""
    environments, formats, draws = setting.environments, setting.formats, setting.draws
    early = streaming if environments.workers == 1 else None  # a slow environment would block decoding
    work = _EnvironmentSteps(environments, setting.poll)
    try:
        with distributed.synchronize_errors():
            work.run(states, lambda state: state.reset(environments, draws))
            update_prompts(work.idle(states), formats, setting.limits)
        while distributed.any_rank(work.is_busy or any(state.is_waiting for state in states)):
            for agents in generator.batch_groups(formats):
                pending = [(state, agent) for agent in agents for state in states if agent in state.pending_agents]
                if not distributed.any_rank(bool(pending)):
                    continue
                requests = [state.request(agent) for state, agent in pending]
                listen = None if early is None else partial(early.add_completions, pending)
                completions = generator.generate(agents, requests, draws, on_finished=listen)
                for (state, agent), completion in zip(pending, completions, strict=True):
                    state.add_completion(agent, completion)
            with distributed.synchronize_errors():
                if streaming is not None and streaming.config_error is not None:
                    raise streaming.config_error
                work.run([state for state in work.idle(states) if state.has_all_actions], EpisodeState.step)
                update_prompts(work.idle(states), formats, setting.limits)
                if streaming is not None:
                    streaming.emit_finished(work.idle(states))
    finally:
        work.close()


class _EnvironmentSteps:
    """Steps of environments between two batches.

    A batch waits for all environments, or, if the pool has a `batch_window_s`, until none has returned for this time:
    a later batch has the others. Environments that return sooner are always in one batch, on which the rounding of
    log-probabilities depends.
    """

    def __init__(self, environments: EnvironmentPool, poll: Callable[[], None] | None) -> None:
        self._environments, self._poll = environments, poll
        self._threads: TaskThreads[EpisodeState] = TaskThreads(environments.workers)
        self._busy: set[int] = set()  # positions
        self._window_s = environments.batch_window_s if environments.workers > 1 else None

    @property
    def is_busy(self) -> bool:
        """Whether environments have not returned yet."""
        return bool(self._busy)

    def idle(self, states: Sequence[EpisodeState]) -> list[EpisodeState]:
        """The states with environments that have returned."""
        return [state for state in states if state.place not in self._busy]

    def run(self, states: Sequence[EpisodeState], work: Callable[[EpisodeState], None]) -> None:
        """Call `work` for these states, and wait for them and for those that are still busy."""
        with self._environments.measure_time():
            if self._window_s is None:
                map_in_threads(states, work, self._environments.workers, self._poll)
                return
            for state in states:
                self._busy.add(state.place)
                self._threads.submit(state, partial(work, state))
            self._wait(self._window_s)

    def _wait(self, window_s: float) -> None:
        """Wait until all environments have returned, or none has for `window_s`."""
        since = time.monotonic()
        while self._busy and time.monotonic() < since + window_s:
            if returned := self._threads.take_finished(wait=True):
                since = time.monotonic()
                self._busy -= {state.place for state in returned}
            if self._poll is not None:
                self._poll()

    def close(self) -> None:
        """End the threads, busy ones after their step."""
        self._threads.close()


def play_independently(
    states: Sequence[EpisodeState],
    setting: PlaySetting,
    generator: StreamingGenerator,
    report: Callable[[int, int], None],
    streaming: _EpisodeStream | None = None,
) -> None:
    """Each episode continues as soon as its own completions and its own environment's step are there. Not collective.

    With a limited number of environments, an episode begins when another one ends.

    Environments with several workers step in threads while the generator decodes; with one worker they step here.
    `report` receives the numbers of finished and of all episodes after each step of the generator, and may raise.
    """
    environments, draws = setting.environments, setting.draws
    in_flight: dict[int, tuple[EpisodeState, str]] = {}
    work = TaskThreads(environments.workers)
    waiting, finished = iter(states), 0
    try:
        with environments.measure_time():  # with one worker, environments are reset and step in `submit`
            for state in islice(waiting, environments.max_environments):
                work.submit(state, partial(state.reset, environments, draws))
        while in_flight or work.is_busy:
            began = time.perf_counter()
            updated = work.take_finished(wait=not in_flight)
            if not in_flight:
                environments.seconds += time.perf_counter() - began
            update_prompts(updated, setting.formats, setting.limits)
            for state in updated:
                for agent in state.pending_agents:
                    in_flight[generator.submit(state.request(agent), draws)] = state, agent
            refused = [state for state in updated if state.has_all_actions]  # all requests of the step
            updated = [state for state in updated if not state.has_all_actions]
            for state in refused:
                with environments.measure_time():
                    work.submit(state, state.step)
            over = [state for state in updated if state.is_over]
            finished += len(over)
            for state, following in zip(over, waiting, strict=False):  # if the number of environments is limited
                state.release(environments)
                with environments.measure_time():
                    work.submit(following, partial(following.reset, environments, draws))
            if streaming is not None:
                streaming.emit_finished(updated)
            if in_flight:
                for key, completion in generator.step():
                    state, agent = in_flight.pop(key)
                    state.add_completion(agent, completion)
                    if state.has_all_actions:
                        with environments.measure_time():
                            work.submit(state, state.step)
                report(finished, len(states))
            elif setting.poll is not None:
                setting.poll()
    finally:
        work.close()


class _EpisodeStream:
    """Streams finished episodes to `on_episodes`, each once. Failed episodes are excluded."""

    def __init__(self, on_episodes: OnEpisodes, environments: EnvironmentPool) -> None:
        self._on_episodes, self._environments = on_episodes, environments
        self._emitted: set[int] = set()  # positions
        self.config_error: IppoError | None = (
            None  # raised during decoding, where it cannot be synchronised with other ranks
        )

    def add_completions(
        self, pending: Sequence[tuple[EpisodeState, str]], places: Sequence[int], completions: Sequence[Completion]
    ) -> None:
        """Accept completions during decoding; environments with all their actions take a step."""
        stepped: list[EpisodeState] = []
        for place, completion in zip(places, completions, strict=True):
            state, agent = pending[place]
            state.add_completion(agent, completion)
            if state.has_all_actions:
                try:
                    with self._environments.measure_time():
                        state.step()
                except IppoError as error:
                    self.config_error = self.config_error or error
                    continue
                stepped.append(state)
        # Final observations are not yet in the prompts of the others.
        self.emit_finished([state for state in stepped if not state.observations])

    def emit_finished(self, states: Sequence[EpisodeState]) -> None:
        """Report finished episodes."""
        over = [
            state for state in states if state.is_over and state.failure is None and state.place not in self._emitted
        ]
        self._emitted.update(state.place for state in over)
        if over:
            self._on_episodes([state.place for state in over], [state.to_episode() for state in over])


def update_prompts(
    states: Sequence[EpisodeState], formats: Mapping[str, PromptFormat], limits: Mapping[str, int]
) -> None:
    """Append observations to their agents' prompts, over all episodes; end episodes without room."""
    updated = [state for state in states if state.observations]
    for agent, prompt_format in formats.items():
        reading = [state for state in updated if agent in state.observations]
        calls = [state for state in reading if isinstance(state.observations[agent], ModelCall)]
        for state in calls:
            _append_call(state, agent, prompt_format, limits[agent])
        reading = [state for state in reading if state not in calls] if calls else reading
        later = [state for state in reading if agent in state.conversations]
        first = [state for state in reading if agent not in state.conversations]
        if later:
            prompt_format.extend(
                [state.conversations[agent] for state in later],
                [state.last_completion(agent) for state in later],
                [state.observations[agent] for state in later],
            )
        for state, conversation in zip(
            first, prompt_format.start_conversations([state.observations[agent] for state in first]), strict=True
        ):
            state.conversations[agent] = conversation
    room = {agent: prompt_format.prompt_limit(limits[agent]) for agent, prompt_format in formats.items()}
    for state in updated:
        if (refusal := _prompt_error(state, formats, limits)) is not None:
            state.fail(refusal)
        state.await_actions(room)


def _append_call(state: EpisodeState, agent: str, prompt_format: PromptFormat, limit: int) -> None:
    call, known = state.observations[agent], state.conversations.get(agent)
    assert isinstance(call, ModelCall)
    has_acted = any(turn.agent == agent for turn in state.turns)
    completion = state.last_completion(agent) if has_acted else None
    state.conversations[agent] = append_call(prompt_format, known, completion, call, limit)


def _prompt_error(
    one: EpisodeState, formats: Mapping[str, PromptFormat], limits: Mapping[str, int]
) -> Exception | None:
    """Return an error if an episode's first prompts are unusable; it fails only that episode."""
    for agent in () if one.is_over else one.observations:
        conversation = one.conversations[agent]
        if isinstance(one.observations[agent], ModelCall):  # refused, and the program continues
            continue
        if one.turns and conversation.ids:  # a later prompt that is too long truncates the episode
            continue
        try:
            formats[agent].check_length(conversation.text, len(conversation.ids), limits[agent])
        except ConfigError as error:
            return ValueError(str(error))
    return None
