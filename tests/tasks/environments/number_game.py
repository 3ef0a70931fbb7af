"""A TextArena game of one or more players that draws numbers from both global generators in every turn."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import textarena


class NumberGame(textarena.Env):
    """The players take turns; each gets two random numbers, and their sum counts. `[stop]` ends the game."""

    def __init__(self, turns: int = 100) -> None:
        self.turns = turns

    def reset(self, num_players: int, seed: int | None = None) -> None:
        self.state = textarena.FFAMultiPlayerState(num_players=num_players, seed=seed, max_turns=self.turns)
        points = dict.fromkeys(range(num_players), 0)
        self.state.reset(game_state={"points": points}, player_prompt_function=lambda **_: "Numbers:")

    def step(self, action: str) -> tuple[bool, Any]:
        player, drawn = self.state.current_player_id, [random.randrange(1000), int(np.random.randint(1000))]
        self.state.add_observation(action, textarena.ObservationType.PLAYER_ACTION, from_id=player)
        self.state.add_observation(f"{drawn}", textarena.ObservationType.GAME_MESSAGE)
        self.state.game_state["points"][player] += sum(drawn)
        if "[stop]" in action:
            self.state.set_winners([player], "stopped")
        return self.state.step()
