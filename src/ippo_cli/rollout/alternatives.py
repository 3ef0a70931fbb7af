"""Replays of episodes with another sample of one turn, or with turns of another policy; all other numbers are equal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from ippo_cli.engine import distributed
from ippo_cli.rollout.branches import (
    Branch,
    BranchEpisodes,
    BranchGenerator,
    PlayEpisodes,
    State,
    branch_index,
    play_branches,
)
from ippo_cli.rollout.generator import Generator, OnFinished, Request, SamplingStream, WrappedGenerator
from ippo_cli.types import Completion, Episode, Turn

ORIGINAL = 0
"""The number of the alternative that has the random numbers of the turn itself: it is the turn."""


def collect_alternatives(
    play: PlayEpisodes,
    generator: Generator,
    episodes: Sequence[Episode],
    states: Sequence[State],
    numbers: Sequence[int],
) -> BranchEpisodes:
    """Play the episode of each state with alternatives to its turn from the agent's policy. Collective.

    The result has one episode for each state and number, in this order. The random numbers of an alternative are a
    function of its number; `ORIGINAL` gives the episode itself. Turns before the state, and those of agents that act in
    the same step, are those of the episode. Later turns have the random numbers that they have in the episode: they are
    reused where their prompt is unchanged. `play` uses the stream of the episodes.
    """
    branches = [(state, number) for state in states for number in numbers]
    return play_branches(play, partial(AlternativeGenerator, generator), episodes, branches)


class AlternativeGenerator(BranchGenerator):
    """Samples the turn of each branch again, and every turn with a prompt that the episode does not have."""

    def __init__(self, generator: Generator, branches: Sequence[Branch], origins: Sequence[Episode]) -> None:
        super().__init__(generator, branches, origins)
        self._turns: dict[tuple[int, str], list[Turn]] = {}
        for place, origin in enumerate(origins):
            for turn in origin.turns:
                self._turns.setdefault((place, turn.agent), []).append(turn)
        self._steps = [self._turns[place, state.agent][state.turn].step for place, (state, _) in enumerate(branches)]
        self.diverged = set(range(len(branches)))  # until the state is reached
        self._is_lost = [False] * len(branches)  # a prompt up to the state's step differs

    def generate(
        self,
        agents: Sequence[str],
        requests: Sequence[Request],
        draws: SamplingStream,
        *,
        on_finished: OnFinished | None = None,
    ) -> list[Completion]:
        """One completion for each request; `on_finished` is not called."""
        completions = [self._find_completion(request) for request in requests]
        sampled = [place for place, completion in enumerate(completions) if completion is None]
        if distributed.any_rank(bool(sampled)):
            # Branches with equal turns until now have equal requests, and so equal completions.
            distinct: dict[tuple[object, ...], Request] = {}
            keys = []
            for place in sampled:
                request = self._with_index(requests[place])
                keys.append(_sample_key(request))
                distinct.setdefault(keys[-1], request)
            generated = self._generator.generate(agents, list(distinct.values()), draws)
            self.num_tokens += sum(len(completion.ids) for completion in generated)
            by_key = dict(zip(distinct, generated, strict=True))
            for place, key in zip(sampled, keys, strict=True):
                completions[place] = by_key[key]
        return [completion for completion in completions if completion is not None]

    def _is_replaced(self, request: Request) -> bool:
        state, _ = self._branches[request.episode]
        return (request.agent, request.turn) == (state.agent, state.turn)

    def _find_completion(self, request: Request) -> Completion | None:
        """The completion of the same prompt in the episode; None for a turn that is sampled."""
        branch = request.episode
        turns = self._turns.get((branch, request.agent), [])
        turn = turns[request.turn] if request.turn < len(turns) else None
        is_same = turn is not None and turn.prompt == request.prompt
        if turn is not None and not is_same and turn.step <= self._steps[branch]:
            self._is_lost[branch] = True
            self.diverged.add(branch)
        if self._is_replaced(request):
            if is_same and not self._is_lost[branch]:
                self.diverged.discard(branch)
            return None
        return turn.completion if turn is not None and is_same else None

    def _with_index(self, request: Request) -> Request:
        """The request with the random numbers of the branch's alternative, if it is for the turn that is replaced."""
        state, number = self._branches[request.episode]
        if not self._is_replaced(request) or number == ORIGINAL:
            return request
        return replace(request, index=branch_index(f"{request.index}/alternative/{state.agent}/{state.turn}/{number}"))


def _sample_key(request: Request) -> tuple[object, ...]:
    """What determines a sample, given the weights and the stream."""
    return (
        request.agent,
        request.index,
        request.stream,
        tuple(request.prompt),
        request.max_new_tokens,
        request.stop_strings,
    )


class CounterfactualGenerator(WrappedGenerator):
    """Generates with `substitute` for one agent, on a separate sampling stream, and with `generator` for the others.

    A completion is a function of the weights, the prompt, and (seed, purpose, agent, index, turn). So turns of the
    other agents with the same prompt as in `episodes` are reused, not generated again.
    """

    def __init__(self, generator: Generator, agent: str, substitute: Generator, episodes: Sequence[Episode]) -> None:
        super().__init__(generator)
        self._agent, self._substitute = agent, substitute
        self._turns: dict[tuple[int, str], list[Turn]] = {}
        for row, episode in enumerate(episodes):
            for turn in episode.turns:
                self._turns.setdefault((row, turn.agent), []).append(turn)

    def start_collection(self) -> None:
        self._generator.start_collection()
        self._substitute.start_collection()

    def finish_collection(self) -> None:
        self._generator.finish_collection()
        self._substitute.finish_collection()

    def batch_groups(self, agents: Iterable[str]) -> list[tuple[str, ...]]:
        own, others = [], []
        for agent in agents:
            (own if agent == self._agent else others).append(agent)
        return [*self._substitute.batch_groups(own), *self._generator.batch_groups(others)]

    def generate(
        self,
        agents: Sequence[str],
        requests: Sequence[Request],
        draws: SamplingStream,
        *,
        on_finished: OnFinished | None = None,
    ) -> list[Completion]:
        """One completion for each request; `on_finished` does not receive reused ones."""
        if self._agent in agents:
            own = replace(draws, purpose=f"{draws.purpose}/initial")
            return self._substitute.generate(agents, requests, own, on_finished=on_finished)
        known = [self._find_completion(request) for request in requests]
        unknown = [request for request, completion in zip(requests, known, strict=True) if completion is None]
        if not distributed.any_rank(bool(unknown)):
            return [completion for completion in known if completion is not None]
        written = iter(self._generator.generate(agents, unknown, draws))
        return [next(written) if completion is None else completion for completion in known]

    def _find_completion(self, request: Request) -> Completion | None:
        """The earlier completion of the same prompt, if any."""
        turns = self._turns.get((request.episode, request.agent), [])
        if request.turn < len(turns) and turns[request.turn].prompt == request.prompt:
            return turns[request.turn].completion
        return None
