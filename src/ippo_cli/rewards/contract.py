"""The reward contract: episodes in, named numbers out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ippo_cli.rewards.credit import num_steps
from ippo_cli.types import Episode, Example
from ippo_cli.user_code.part_names import RESERVED_PARTS, part_name

Numbers = Sequence[float]

NUM_VALIDATED_EXAMPLES = 64  # of each table, before training


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """What a reward says about B episodes. Numbers are named, never told apart by the length of a list.

    `team` and `team_by_step` are shared by all agents, `agent` and `agent_by_turn` are each agent's own; at least one
    of the four is given, and where several are they add up. `parts` are further numbers for the log. `valid` is False
    where no reward could be given; such rows are not trained on. A row that is not finite is not valid. Rows that
    failed while others were answered stand in `failures`, and are asked about again by themselves.

    For two episodes of two steps and one step, in which `low` spoke in every step and `high` in the first one:

        team           [1.0, 0.0]                       falls on each agent's last turn
        team_by_step   [[0.1, 0.9], [0.0]]              each number on the turn that the agent had last by that step
        agent          {"low": [...], "high": [...]}    as long as `team`; falls on the agent's last turn
        agent_by_turn  {"low": [[0.1, 0.9], [0.0]], "high": [[0.5], [0.5]]}
    """

    team: Numbers | None = None  # [B]
    agent: Mapping[str, Numbers] = field(default_factory=dict)  # agent -> [B]
    team_by_step: Sequence[Numbers] | None = None  # [B][steps of the episode]
    agent_by_turn: Mapping[str, Sequence[Numbers]] = field(default_factory=dict)  # agent -> [B][its turns]
    parts: Mapping[str, Numbers] = field(default_factory=dict)  # name -> [B]
    valid: Sequence[bool] | None = None  # [B]; None: all
    failures: Mapping[int, Exception] = field(default_factory=dict)  # row -> why there is no number for it
    final: bool = False  # whether rows that failed have been asked about again already
    components: Mapping[str, Reward] = field(default_factory=dict)  # of a mix: what it is made of, for all rows


class LengthError(ValueError):
    """Numbers for more or fewer rows than were asked about."""


RewardFunction = Callable[[Sequence[Episode]], Reward]


def validate_reward(reward: Reward, agents: Sequence[str], episodes: Sequence[Episode]) -> Reward:
    """The same reward as plain numbers, if it keeps the contract; `ValueError` says what does not.

    None counts as NaN: no number for this row.
    """
    rows = len(episodes)
    if reward.team is None and reward.team_by_step is None and not reward.agent and not reward.agent_by_turn:
        raise ValueError(
            "a reward must give 'team', 'agent', 'team_by_step' or 'agent_by_turn' numbers, and gave none of them"
        )
    for name, given in {"agent": reward.agent, "agent_by_turn": reward.agent_by_turn}.items():
        if given and set(given) != set(agents):
            raise ValueError(f"'{name}' numbers must be given for {sorted(agents)}, not for {sorted(given)}")
    for name in reward.parts:
        if part_name(name) != name:
            raise ValueError(
                f"parts[{name}] is used in metric names: use letters, digits, '-', '_' and '.', and none "
                "of " + " ".join(RESERVED_PARTS)
            )
    steps = [num_steps(episode) for episode in episodes]
    turns = {name: [len(episode.of(name)) for episode in episodes] for name in reward.agent_by_turn}
    by_step = reward.team_by_step
    return Reward(
        team=None if reward.team is None else _check_numbers("team", reward.team, rows),
        agent={name: _check_numbers(f"agent[{name}]", numbers, rows) for name, numbers in reward.agent.items()},
        team_by_step=None
        if by_step is None
        else _check_nested_numbers("team_by_step", by_step, steps, "the episode's steps"),
        agent_by_turn={
            name: _check_nested_numbers(
                f"agent_by_turn[{name}]", numbers, turns[name], f"the episode's turns of {name}"
            )
            for name, numbers in reward.agent_by_turn.items()
        },
        parts={name: _check_numbers(f"parts[{name}]", numbers, rows) for name, numbers in reward.parts.items()},
        valid=None if reward.valid is None else [bool(x) for x in _check_numbers("valid", reward.valid, rows)],
        failures=reward.failures,
        final=reward.final,
        components={name: validate_reward(part, agents, episodes) for name, part in reward.components.items()},
    )


def select_rows(reward: Reward, places: Sequence[int]) -> Reward:
    """What a reward says about some of its rows."""

    def select(numbers: Sequence[Any]) -> list[Any]:
        return [numbers[place] for place in places]

    return Reward(
        team=None if reward.team is None else select(reward.team),
        agent={name: select(numbers) for name, numbers in reward.agent.items()},
        team_by_step=None if reward.team_by_step is None else select(reward.team_by_step),
        agent_by_turn={name: select(numbers) for name, numbers in reward.agent_by_turn.items()},
        parts={name: select(numbers) for name, numbers in reward.parts.items()},
        valid=None if reward.valid is None else select(reward.valid),
        components={name: select_rows(part, places) for name, part in reward.components.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardContext:
    """Where rewards are asked for."""

    device: torch.device  # the rank's
    folder: Path | None  # of the run's, for what a reward keeps; None where nothing is kept


def prepare_reward(reward: RewardFunction, context: RewardContext) -> None:
    """Tell a reward where it is: one that needs a device or keeps something has a `prepare`."""
    prepare = getattr(reward, "prepare", None)
    if prepare is not None:
        prepare(context)


def validate_reward_examples(reward: RewardFunction, examples: Sequence[Example]) -> list[str]:
    """Warnings of examples that a reward cannot read; a reward that reads fields of them has a `try_on`.

    Raises `ConfigError` where it could score none.
    """
    validate = getattr(reward, "validate_examples", None)
    return [] if validate is None else list(validate(examples) or ())


def sample_examples(*tables: Sequence[Example]) -> list[Example]:
    """Examples to try a reward on: the first of each table, then more of each at equal distances."""
    first = [table[0] for table in tables]
    steps = [max(1, len(table) // NUM_VALIDATED_EXAMPLES) for table in tables]
    return first + [
        table[place] for table, step in zip(tables, steps, strict=True) for place in range(1, len(table), step)
    ]


def check_reward_connection(reward: RewardFunction) -> None:
    """Raise `PreflightError` where a server that a reward asks is not there: such a reward has a `reach`."""
    check = getattr(reward, "check_connection", None)
    if check is not None:
        check()


def close_reward(reward: RewardFunction) -> None:
    """Give back what a reward holds: one that holds anything has a `close`."""
    close = getattr(reward, "close", None)
    if close is not None:
        close()


def _check_nested_numbers(name: str, given: Sequence[Any], lengths: Sequence[int], unit: str) -> list[list[float]]:
    """A list of numbers for every row, each of its own length; None for a row is NaN throughout."""
    _check_length(name, given, len(lengths))
    found: list[list[float]] = []
    for row, (numbers, length) in enumerate(zip(given, lengths, strict=True)):
        if numbers is None:
            found.append([math.nan] * length)
            continue
        size = _length_or_none(numbers)
        if size != length:
            raise ValueError(
                f"'{name}' must have {length} at row {row}, one for each of {unit}, "
                f"not {f'{numbers!r:.60}' if size is None else size}"
            )
        found.append([_to_number(f"{name}[{row}]", place, entry) for place, entry in enumerate(numbers)])
    return found


def _check_numbers(name: str, given: Sequence[Any], rows: int) -> list[float]:
    _check_length(name, given, rows)
    return [_to_number(name, row, entry) for row, entry in enumerate(given)]


def _check_length(name: str, given: Any, rows: int) -> None:
    size = _length_or_none(given)
    if isinstance(given, str) or size != rows:
        raise LengthError(
            f"'{name}' must have one entry for each of the {rows} rows, not {repr(given) if size is None else size}"
        )


def _length_or_none(given: Any) -> int | None:
    """How many entries there are; None for what has no length, a tensor or array of a single number among them."""
    try:
        return len(given)
    except TypeError:
        return None


def _to_number(name: str, place: int, entry: Any) -> float:
    countable = hasattr(entry, "__float__") or hasattr(entry, "__index__")  # numpy's and torch's numbers too
    if entry is not None and (isinstance(entry, str | bytes) or not countable):
        raise ValueError(f"'{name}' has {entry!r:.60} at row {place}, where a number belongs")
    return math.nan if entry is None else float(entry)
