"""The state of engines of users (`rollout=my.py:Engine`) in checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ippo_cli.engine import distributed
from ippo_cli.reporting.stopwatch import Stopwatch
from ippo_cli.rollout.generator import SamplingStream
from ippo_cli.rollout.user_engine import find_user_engines
from ippo_cli.training.methods.method import Method, Outcome, Player, Prompts
from ippo_cli.types import Episode


class EngineState(Method):
    """Keeps the states of all ranks' engines after the last complete iteration.

    Every iteration starts from them: evaluations and abandoned iterations leave no trace.
    """

    name = "engine"

    def __init__(self) -> None:
        self._states: list[list[dict[str, Any]]] = []  # by rank and engine; empty before the first iteration

    def state_dict(self) -> dict[str, Any]:
        return {"states": self._states} if self._states else {}

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        self._states = stored.get("states", [])

    def play_before(
        self, player: Player, prompts: Prompts, play: Callable[[SamplingStream], list[Episode]], clock: Stopwatch
    ) -> None:
        engines = find_user_engines(player.generator)
        firsts = [engine.first_state for engine in engines]
        own = self._states[distributed.rank() % len(self._states)] if self._states else firsts
        for engine, state in zip(engines, own, strict=True):
            engine.load_state_dict(state)

    def commit(self, player: Player, outcome: Outcome) -> None:
        own = [engine.state_dict() for engine in find_user_engines(player.generator)]
        self._states = distributed.gather_objects(own)
