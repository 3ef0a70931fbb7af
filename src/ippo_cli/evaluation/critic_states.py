"""Chooses the states of a critic report among the tokens of sampled episodes."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Sequence

from ippo_cli.rollout.branches import State
from ippo_cli.rollout.continuations import state_key
from ippo_cli.types import Episode

STATES_PER_PROMPT = 8
"""States of one prompt, if there are enough prompts: intervals are over prompts, and ranks are within a prompt."""


def count_prompts(states: int, available: int) -> int:
    """The number of prompts for a number of states."""
    return min(available, math.ceil(states / STATES_PER_PROMPT))


def choose_states(
    episodes: Sequence[Episode],
    prompts: Sequence[int],
    agent: str,
    per_prompt: int,
    *,
    is_by_turn: bool,
    seed: int,
) -> list[State]:
    """At most `per_prompt` distinct states of an agent for each prompt, in the order of the episodes.

    `prompts`: the prompt of each episode. Places (a turn and a position in it) are drawn without replacement, and each
    is taken from all responses to the prompt that reach it, so that states in one place can be compared. `is_by_turn`:
    only states before turns, where turns are the actions. A function of the episodes and the seed.
    """
    rows: dict[int, list[int]] = {}
    for row, prompt in enumerate(prompts):
        if episodes[row].failure is None:
            rows.setdefault(prompt, []).append(row)
    chosen: list[State] = []
    for prompt, members in rows.items():
        turns = {row: episodes[row].trainable_turns(agent) for row in members}
        places = sorted(
            {
                (number, position)
                for own in turns.values()
                for number, turn in enumerate(own)
                for position in range(min(len(turn.completion.ids), 1) if is_by_turn else len(turn.completion.ids))
            }
        )
        random.Random(f"critic states {seed} {agent} {prompt}").shuffle(places)
        known: set[Hashable] = set()
        for number, position in places:
            for row in members:
                if len(known) == per_prompt:
                    break
                if number < len(turns[row]) and position < len(turns[row][number].completion.ids):
                    state = State(row, agent, number, position)
                    if (key := state_key(episodes[row], state)) not in known:
                        known.add(key)
                        chosen.append(state)
    return sorted(chosen)
