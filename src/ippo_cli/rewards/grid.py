"""`reward=grid`: distance to the goal after the agents' joint walk, with a cost for wasted steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from ippo_cli.config.schema import GridRewardConfig
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.response_adapter import Agents, ResponseRewardAdapter, Responses, adapt_response_reward
from ippo_cli.types import Example

MOVES = {"l": (-1, 0), "r": (1, 0), "u": (0, 1), "d": (0, -1)}


class GridReward:
    """`max(0, 1 - after / before - step_cost * wasted)`; `before`, `after`: distance to the goal before and after.

    Agents alternate, one letter per move, until all texts end. A move into a wall, and a letter that is not a move,
    leave the position unchanged. `wasted` is the number of letters minus `before - after`.

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
    """Distance from start to goal, distance from the end of the walk to the goal, and the number of steps."""
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


def build_grid_reward(config: GridRewardConfig, agents: Agents) -> ResponseRewardAdapter:
    """Build the reward of the configuration."""
    return adapt_response_reward(GridReward(config.step_cost), agents)
