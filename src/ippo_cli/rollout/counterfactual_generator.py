"""Playing episodes anew with one agent's turns written by another policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ippo_cli.engine import distributed
from ippo_cli.rollout.generator import Generator, OnFinished, Request, SamplingStream
from ippo_cli.types import Completion, Episode, Turn


class CounterfactualGenerator:
    """Continues prompts as `generator` does, and those of one agent as `substitute` does, with draws of its own.

    What an agent writes is a function of its weights, its prompt, and (seed, purpose, agent, index, turn). So a turn
    of the others that is prompted as in the `episodes` played before is taken from there, and not written again.
    """

    def __init__(self, generator: Generator, agent: str, substitute: Generator, episodes: Sequence[Episode]) -> None:
        self._generator, self._agent, self._substitute = generator, agent, substitute
        self._turns: dict[tuple[int, str], list[Turn]] = {}
        for row, episode in enumerate(episodes):
            for turn in episode.turns:
                self._turns.setdefault((row, turn.agent), []).append(turn)

    def context_limit(self, agent: str) -> int:
        return self._generator.context_limit(agent)

    def forget(self) -> None:
        self._generator.forget()
        self._substitute.forget()

    def together(self, agents: Iterable[str]) -> list[tuple[str, ...]]:
        own, others = [], []
        for agent in agents:
            (own if agent == self._agent else others).append(agent)
        return [*self._substitute.together(own), *self._generator.together(others)]

    def generate(
        self,
        agents: Sequence[str],
        requests: Sequence[Request],
        draws: SamplingStream,
        *,
        on_finished: OnFinished | None = None,
    ) -> list[Completion]:
        """One completion for each request; of those that are taken from before `on_finished` is not told."""
        if self._agent in agents:
            own = replace(draws, purpose=f"{draws.purpose}/initial")
            return self._substitute.generate(agents, requests, own, on_finished=on_finished)
        known = [self._written(request) for request in requests]
        unknown = [request for request, completion in zip(requests, known, strict=True) if completion is None]
        if not distributed.any_rank(bool(unknown)):
            return [completion for completion in known if completion is not None]
        written = iter(self._generator.generate(agents, unknown, draws))
        return [next(written) if completion is None else completion for completion in known]

    def _written(self, request: Request) -> Completion | None:
        """What was written before to the same prompt."""
        turns = self._turns.get((request.episode, request.agent), [])
        if request.turn < len(turns) and turns[request.turn].prompt == request.prompt:
            return turns[request.turn].completion
        return None
