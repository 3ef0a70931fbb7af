"""Continuations of episodes from states inside a response: replays to the state, then samples to the episode's end."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial

import torch

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
from ippo_cli.rollout.generator import Generator, OnFinished, Request, SamplingStream
from ippo_cli.types import Completion, Episode, Turn


def state_key(episode: Episode, state: State) -> Hashable:
    """Equal for equal states: all prompts and actions of earlier steps, and the turn up to the state."""
    turn = episode.turns_of_agent(state.agent)[state.turn]
    before = sorted(
        (one.step, one.agent, tuple(one.prompt), tuple(one.completion.ids.tolist()))
        for one in episode.turns
        if one.step < turn.step
    )
    return (tuple(before), tuple(turn.prompt), tuple(turn.completion.ids[: state.position].tolist()))


def collect_continuations(
    play: PlayEpisodes,
    generator: Generator,
    episodes: Sequence[Episode],
    states: Sequence[State],
    count: int,
    *,
    keeps_other_actions: bool = False,
) -> BranchEpisodes:
    """Play `count` episodes from each state: the current policies of all agents continue from there. Collective.

    Those of a state are consecutive, in the order of the states.

    The turns of earlier steps, and the tokens of the turn before the state, are those of the episode. Other agents that
    act in the same step act again, because their actions are not part of the state; with `keeps_other_actions` their
    actions are those of the episode. `play` uses the stream of `episodes`, so that environments use the same random
    numbers; tokens use other ones, a function of episode, state and number.

    The continuations of a state have one prompt, which is read once where the model can copy its cache.
    """
    return play_branches(
        play,
        partial(ContinuationGenerator, generator, keeps_other_actions=keeps_other_actions),
        episodes,
        [(state, number) for state in states for number in range(count)],
    )


class ContinuationGenerator(BranchGenerator):
    """Replays the turns before each branch's state, and generates everything after it with `generator`.

    `keeps_other_actions`: also replays the other agents' turns of the state's step.
    """

    def __init__(
        self,
        generator: Generator,
        branches: Sequence[Branch],
        origins: Sequence[Episode],
        *,
        keeps_other_actions: bool = False,
    ) -> None:
        super().__init__(generator, branches, origins)
        self._turns: list[dict[str, list[Turn]]] = []  # that are replayed, by agent, for each branch
        for (state, _), origin in zip(branches, origins, strict=True):
            step = origin.turns_of_agent(state.agent)[state.turn].step
            replayed: dict[str, list[Turn]] = {}
            for turn in origin.turns:
                is_replayed = keeps_other_actions and turn.step == step and turn.agent != state.agent
                if turn.step < step or is_replayed:
                    replayed.setdefault(turn.agent, []).append(turn)
            self._turns.append(replayed)

    def generate(
        self,
        agents: Sequence[str],
        requests: Sequence[Request],
        draws: SamplingStream,
        *,
        on_finished: OnFinished | None = None,
    ) -> list[Completion]:
        """One completion for each request; `on_finished` is not called."""
        completions = [self._replay(request) for request in requests]
        fresh = [place for place, completion in enumerate(completions) if completion is None]
        if distributed.any_rank(bool(fresh)):
            own = replace(draws, purpose=f"{draws.purpose}/continuation")
            sampled = self._generator.generate(agents, [self._continue(requests[place]) for place in fresh], own)
            for place, completion in zip(fresh, sampled, strict=True):
                completions[place] = self._finish(requests[place], completion)
        return [completion for completion in completions if completion is not None]

    def _replay(self, request: Request) -> Completion | None:
        """The completion of a turn before the state, or of one that is given as a whole; None if it is sampled."""
        turns = self._turns[request.episode].get(request.agent, [])
        if request.turn >= len(turns):
            original = self._original(request)
            is_whole = original is not None and self._branches[request.episode][0].position >= len(original.ids)
            return original if is_whole else None
        if turns[request.turn].prompt != request.prompt:
            self.diverged.add(request.episode)
        return turns[request.turn].completion

    def _original(self, request: Request) -> Completion | None:
        """The completion of which the first tokens are given; None for a turn that is sampled from its start."""
        state, _ = self._branches[request.episode]
        if (request.agent, request.turn) != (state.agent, state.turn):
            return None
        turn = self._origins[request.episode].turns_of_agent(state.agent)[state.turn]
        if turn.prompt != request.prompt:
            self.diverged.add(request.episode)
        return turn.completion

    def _continue(self, request: Request) -> Request:
        """The request with the tokens before the state, and with a separate index for the random numbers."""
        state, number = self._branches[request.episode]
        original = self._original(request)
        index = branch_index(f"{request.index}/{state.agent}/{state.turn}/{state.position}/{number}")
        response = () if original is None else tuple(original.ids[: state.position].tolist())
        return replace(request, index=index, response=response)

    def _finish(self, request: Request, completion: Completion) -> Completion:
        """The completion with the log-probabilities of its given tokens."""
        self.num_tokens += len(completion.ids)
        state, _ = self._branches[request.episode]
        original = self._original(request)
        if original is None:
            return completion
        first = state.position
        self.num_tokens -= first
        logprobs = torch.cat([original.logprobs[:first], completion.logprobs[first:]])
        behavior = logprobs
        if completion.behavior_logprobs is not completion.logprobs:
            behavior = torch.cat([original.behavior_logprobs[:first], completion.behavior_logprobs[first:]])
        return replace(completion, logprobs=logprobs, behavior_logprobs=behavior)
