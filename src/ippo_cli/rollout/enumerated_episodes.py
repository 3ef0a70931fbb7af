"""Enumerates the continuations of an episode with their probabilities, where responses are few."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ippo_cli.rollout.branches import Branch, BranchGenerator, PlayEpisodes, State, play_branches
from ippo_cli.rollout.enumerate import WeightedResponses
from ippo_cli.rollout.generator import Generator, OnFinished, Request, SamplingStream
from ippo_cli.types import Completion, Episode

EnumerateTurn = Callable[[str, Sequence[int]], WeightedResponses | None]
"""All responses of an agent to a prompt; None if there are too many."""
Decision = tuple[str, int]
"""An agent and its turn."""


class TooManyResponses(Exception):
    """A prompt has more responses than can be enumerated."""


@dataclass
class _Leaf:
    """An episode to play: its first turns are those of `decisions`, later ones take the first response."""

    state: State
    decisions: Mapping[Decision, Completion]
    probability: float
    siblings: list[_Leaf] = field(default_factory=list)  # with another response in one later turn


def enumerate_episodes(
    play: PlayEpisodes,
    generator: Generator,
    enumerate_turn: EnumerateTurn,
    episodes: Sequence[Episode],
    state: State,
    max_episodes: int,
) -> list[tuple[Episode, float]] | None:
    """All episodes that continue from a state before a turn, with their probabilities; None for more than the limit.

    Turns of earlier steps are those of the episode; all agents that act in the same step act again. Environments use
    the random numbers of the episode. One episode is played for each leaf of the tree.
    """
    origin = episodes[state.episode]
    step = state.turn_of(episodes).step
    decisions: dict[Decision, Completion] = {}
    for agent in dict.fromkeys(turn.agent for turn in origin.turns):
        before = [turn for turn in origin.turns_of_agent(agent) if turn.step < step]
        decisions |= {(agent, number): turn.completion for number, turn in enumerate(before)}
    waiting = [_Leaf(state, decisions, 1.0)]
    found: list[tuple[Episode, float]] = []
    while waiting:
        if len(found) + len(waiting) > max_episodes:
            return None
        leaves = waiting

        def build(
            branches: Sequence[Branch], origins: Sequence[Episode], leaves: Sequence[_Leaf] = leaves
        ) -> EnumeratingGenerator:
            chosen = [leaves[number] for _, number in branches]
            return EnumeratingGenerator(generator, branches, origins, chosen, enumerate_turn)

        try:
            played = play_branches(play, build, episodes, [(state, number) for number in range(len(leaves))])
        except TooManyResponses:
            return None
        found += [(episode, leaf.probability) for episode, leaf in zip(played.episodes, leaves, strict=True)]
        waiting = [sibling for leaf in leaves for sibling in leaf.siblings]
    return found


class EnumeratingGenerator(BranchGenerator):
    """Answers with the decisions of a leaf, then with the first response to each prompt; collects the other ones."""

    def __init__(
        self,
        generator: Generator,
        branches: Sequence[Branch],
        origins: Sequence[Episode],
        leaves: Sequence[_Leaf],
        enumerate_turn: EnumerateTurn,
    ) -> None:
        super().__init__(generator, branches, origins)
        self._leaves, self._enumerate_turn = leaves, enumerate_turn

    def generate(
        self,
        agents: Sequence[str],
        requests: Sequence[Request],
        draws: SamplingStream,
        *,
        on_finished: OnFinished | None = None,
    ) -> list[Completion]:
        """One completion for each request; `on_finished` is not called."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Completion:
        leaf, decision = self._leaves[request.episode], (request.agent, request.turn)
        if decision not in leaf.decisions:
            responses = self._enumerate_turn(request.agent, request.prompt)
            if responses is None:
                raise TooManyResponses
            before, chance = leaf.decisions, leaf.probability
            pairs = zip(responses.completions, responses.probabilities.tolist(), strict=True)
            options = [_Leaf(leaf.state, {**before, decision: one}, chance * part) for one, part in pairs]
            leaf.decisions, leaf.probability = options[0].decisions, options[0].probability
            leaf.siblings += options[1:]
        return leaf.decisions[decision]
