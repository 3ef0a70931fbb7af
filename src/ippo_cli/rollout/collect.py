"""Playing episodes: agents are told something, all who wait are asked together, environments answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ippo_cli.config.errors import ConfigError, IppoError
from ippo_cli.engine import distributed
from ippo_cli.rollout.episode_state import EpisodeState
from ippo_cli.rollout.generator import Generator, SamplingStream
from ippo_cli.rollout.threads import map_in_threads
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.types import Batch, Completion, Episode

OnEpisodes = Callable[[list[int], list[Episode]], None]  # places in the batch, and what was played


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
    """One episode for each example of this rank, in their order.

    All episodes that wait for the same agent are continued together, agents in the order of `formats` (and all at once
    where the generator serves them `together`); then every environment whose agents have answered takes its step.
    Collective: ranks whose episodes are over wait for others.

    What an environment raises fails its episode and no other; a mistake in the configuration is raised. An episode
    fails as well where its first prompts are too long, or any has no token; where a later one is too long, it ends as
    truncated.

    `poll` is called while slow environments are waited for, and may raise. `on_episodes` is told of episodes that are
    over while others go on: after each step; and where environments have one worker, which are those that answer at
    once, in the midst of it, since each of them then takes its step as soon as its agents have answered.
    """
    rows = zip(batch.examples, batch.index.tolist(), strict=True)
    states = [EpisodeState(place, example, index, formats.keys()) for place, (example, index) in enumerate(rows)]
    streaming = None if on_episodes is None else _EpisodeStream(on_episodes, environments)
    early = streaming if environments.workers == 1 else None  # decoding waits for whatever is done in its midst
    limits = {agent: generator.context_limit(agent) for agent in formats}
    generator.forget()
    try:
        with distributed.synchronize_errors():
            with environments.at_work():
                map_in_threads(states, lambda one: one.reset(environments, draws), environments.workers, poll)
            _update_prompts(states, formats, limits)
        while distributed.any_rank(any(one.pending_agents for one in states)):
            for agents in generator.together(formats):
                pending = [(one, agent) for agent in agents for one in states if agent in one.pending_agents]
                if not distributed.any_rank(bool(pending)):
                    continue
                requests = [one.request(agent) for one, agent in pending]
                listen = None if early is None else partial(early.take, pending)
                completions = generator.generate(agents, requests, draws, on_finished=listen)
                for (one, agent), completion in zip(pending, completions, strict=True):
                    one.take(agent, completion)
            with distributed.synchronize_errors():
                if streaming is not None and streaming.config_error is not None:
                    raise streaming.config_error
                with environments.at_work():
                    map_in_threads(
                        [one for one in states if one.answered], EpisodeState.step, environments.workers, poll
                    )
                _update_prompts(states, formats, limits)
                if streaming is not None:
                    streaming.tell(states)
    finally:
        generator.forget()
        for one in states:
            one.leave(environments)
    return [one.episode() for one in states]


class _EpisodeStream:
    """Tells of episodes that are over, of each once, while others go on. A failed one is not told of."""

    def __init__(self, on_episodes: OnEpisodes, environments: EnvironmentPool) -> None:
        self._on_episodes, self._environments = on_episodes, environments
        self._told: set[int] = set()  # places
        self.config_error: IppoError | None = (
            None  # met in the midst of decoding, where other ranks cannot be told of it
        )

    def take(
        self, pending: Sequence[tuple[EpisodeState, str]], places: Sequence[int], completions: Sequence[Completion]
    ) -> None:
        """Take answers while others are still being written; environments that have them all take their step."""
        stepped: list[EpisodeState] = []
        for place, completion in zip(places, completions, strict=True):
            one, agent = pending[place]
            one.take(agent, completion)
            if one.answered:
                try:
                    with self._environments.at_work():
                        one.step()
                except IppoError as error:
                    self.config_error = self.config_error or error
                    continue
                stepped.append(one)
        # Those that were told something at their end have not read it yet.
        self.tell([one for one in stepped if not one.told])

    def tell(self, states: Sequence[EpisodeState]) -> None:
        """Tell of those that are over."""
        over = [one for one in states if one.over and one.failure is None and one.place not in self._told]
        self._told.update(one.place for one in over)
        if over:
            self._on_episodes([one.place for one in over], [one.episode() for one in over])


def _update_prompts(
    states: Sequence[EpisodeState], formats: Mapping[str, PromptFormat], limits: Mapping[str, int]
) -> None:
    """Put what environments said into their agents' prompts, of all episodes together; end those without room."""
    updated = [one for one in states if one.told]
    for agent, prompt_format in formats.items():
        reading = [one for one in updated if agent in one.told]
        later = [one for one in reading if agent in one.conversations]
        first = [one for one in reading if agent not in one.conversations]
        if later:
            prompt_format.extend(
                [one.conversations[agent] for one in later],
                [one.last_completion(agent) for one in later],
                [one.told[agent] for one in later],
            )
        for one, conversation in zip(first, prompt_format.begin([one.told[agent] for one in first]), strict=True):
            one.conversations[agent] = conversation
    room = {agent: prompt_format.prompt_limit(limits[agent]) for agent, prompt_format in formats.items()}
    for one in updated:
        if (refusal := _prompt_error(one, formats, limits)) is not None:
            one.fail(refusal)
        one.read(room)


def _prompt_error(
    one: EpisodeState, formats: Mapping[str, PromptFormat], limits: Mapping[str, int]
) -> Exception | None:
    """Why an episode's prompts cannot be asked: told of that episode, and nothing that others need fail by."""
    for agent in () if one.over else one.told:
        conversation = one.conversations[agent]
        if one.turns and conversation.ids:  # what is too long later ends an episode, and does not fail it
            continue
        try:
            formats[agent].refuse(conversation.text, len(conversation.ids), limits[agent])
        except ConfigError as error:
            return ValueError(str(error))
    return None
