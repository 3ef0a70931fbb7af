"""`reward=grid`: where a walk ended that all agents made together, and how straight it was."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.response_adapter import Responses
from ippo_cli.types import Example

MOVES = {"l": (-1, 0), "r": (1, 0), "u": (0, 1), "d": (0, -1)}


class GridReward:
    """`max(0, 1 - after / before - step_cost * wasted)` with the distances to the goal after and before the walk.

    Agents move by turns, a letter each, until all have ended. Walls hold: who runs into one stays, as who writes a
    letter that is no move. A step is wasted unless it is one of the `before - after` that brought the walk nearer.

    From a1 to c2 with step_cost .05, `rr` and `u` score 1; `rr` alone 2/3; `rrl` and `u` 2/3 - 2 * .05.
    """

    def __init__(self, step_cost: float) -> None:
        self.step_cost = step_cost

    def __call__(self, examples: Sequence[Example], responses: Responses) -> Reward:
        scores: list[float] = []
        exact: list[float] = []
        wasted: list[float] = []
        for example, *texts in zip(examples, *responses.values(), strict=True):
            before, after, steps = simulate_walk(example, texts)
            waste = steps - (before - after)
            scores.append(max(0.0, 1.0 - after / before - self.step_cost * waste))
            exact.append(float(after == waste == 0))
            wasted.append(float(waste))
        return Reward(team=scores, parts={"exact": exact, "wasted": wasted})


def simulate_walk(example: Example, texts: Sequence[str]) -> tuple[int, int, int]:
    """Steps from start to goal, steps from where the walk ended to the goal, and steps that were made."""
    (x, y), (goal_x, goal_y), last = parse_cell(example["start"]), parse_cell(example["goal"]), example["size"] - 1
    before = abs(goal_x - x) + abs(goal_y - y)
    for letters in zip_longest(*texts, fillvalue=""):
        for letter in letters:
            right, up = MOVES.get(letter, (0, 0))
            x, y = min(max(x + right, 0), last), min(max(y + up, 0), last)
    return before, abs(goal_x - x) + abs(goal_y - y), sum(map(len, texts))


def parse_cell(name: str) -> tuple[int, int]:
    """`c2` as (2, 1)."""
    return ord(name[0]) - ord("a"), int(name[1:]) - 1
