"""The reward contract: a reward function takes episodes and returns a `Reward` of named numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ippo_cli.rewards.episodes import num_steps
from ippo_cli.types import Episode, Example
from ippo_cli.user_code.part_names import RESERVED_PARTS, part_name

Numbers = Sequence[float]

Row = Mapping[str, Any]
"""One row of a `Reward`, with the same keys: a number instead of a list, a list instead of a list of lists."""

NUM_VALIDATED_EXAMPLES = 64  # of each table, before training


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The rewards of B episodes. The field name identifies the kind of number, never the length of a list.

    `team` and `team_by_step` are shared by all agents; `agent` and `agent_by_turn` belong to one agent each. At least
    one of the four is required, and several are added. `parts` are additional numbers for the log. `valid` is False for
    rows without a reward; such rows are excluded from training. A row with a NaN or infinite number is not valid.
    `failures` holds the rows that failed although the call succeeded; these rows are retried alone.

    For two episodes of two steps and one step, in which `low` acted in every step and `high` in the first one:

        team           [1.0, 0.0]                       added to each agent's last turn
        team_by_step   [[0.1, 0.9], [0.0]]              each number is added to the agent's last turn up to that step
        agent          {"low": [...], "high": [...]}    as long as `team`; added to the agent's last turn
        agent_by_turn  {"low": [[0.1, 0.9], [0.0]], "high": [[0.5], [0.5]]}
    """

    team: Numbers | None = None  # [B]
    agent: Mapping[str, Numbers] = field(default_factory=dict)  # agent -> [B]
    team_by_step: Sequence[Numbers] | None = None  # [B][steps of the episode]
    agent_by_turn: Mapping[str, Sequence[Numbers]] = field(default_factory=dict)  # agent -> [B][its turns]
    parts: Mapping[str, Numbers] = field(default_factory=dict)  # name -> [B]
    valid: Sequence[bool] | None = None  # [B]; None: all
    failures: Mapping[int, Exception] = field(default_factory=dict)  # row -> why it has no number
    final: bool = False  # whether failed rows were already retried
    components: Mapping[str, Reward] = field(default_factory=dict)  # of a mix: the rewards it sums, for all rows


class LengthError(ValueError):
    """A reward returned numbers for more or fewer rows than it received."""


RewardFunction = Callable[[Sequence[Episode]], Reward]


def validate_reward(reward: Reward, agents: Sequence[str], episodes: Sequence[Episode]) -> Reward:
    """The reward with plain numbers; raises `ValueError` if it violates the contract.

    None becomes NaN: no number for this row.
    """
    rows = len(episodes)
    if reward.team is None and reward.team_by_step is None and not reward.agent and not reward.agent_by_turn:
        raise ValueError(
            "a reward must return 'team', 'agent', 'team_by_step' or 'agent_by_turn' numbers; it returned none of them"
        )
    for name, by_agent in {"agent": reward.agent, "agent_by_turn": reward.agent_by_turn}.items():
        if by_agent and set(by_agent) != set(agents):
            raise ValueError(f"'{name}' must have numbers for {sorted(agents)}, not for {sorted(by_agent)}")
    for name in reward.parts:
        if part_name(name) != name:
            raise ValueError(
                f"parts[{name}] is used in metric names: use letters, digits, '-', '_' and '.', and none "
                "of the reserved names " + " ".join(RESERVED_PARTS)
            )
    steps = [num_steps(episode) for episode in episodes]
    turns = {name: [len(episode.turns_of_agent(name)) for episode in episodes] for name in reward.agent_by_turn}
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
    """The reward of a subset of rows."""

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


def stack_rows(rows: Sequence[Row | Exception]) -> Reward:
    """Combine rows. Failed rows have no numbers and are listed in `failures`; missing numbers are NaN."""
    answers = [row if isinstance(row, Mapping) else {} for row in rows]

    def stack_by_name(key: str, missing: Any) -> dict[str, list[Any]]:
        names = list(dict.fromkeys(name for answer in answers for name in answer.get(key) or {}))
        return {name: [(answer.get(key) or {}).get(name, missing) for answer in answers] for name in names}

    def stack_list(key: str, missing: Any) -> list[Any] | None:
        return [answer.get(key, missing) for answer in answers] if any(key in answer for answer in answers) else None

    team = stack_list("team", math.nan)
    agent, by_step, by_turn = (
        stack_by_name("agent", math.nan),
        stack_list("team_by_step", None),
        stack_by_name("agent_by_turn", None),
    )
    is_empty = team is None and by_step is None and not agent and not by_turn
    return Reward(
        team=[math.nan] * len(rows) if is_empty else team,
        agent=agent,
        team_by_step=by_step,
        agent_by_turn=by_turn,
        parts=stack_by_name("parts", math.nan),
        valid=stack_list("valid", True),
        failures={place: row for place, row in enumerate(rows) if isinstance(row, Exception)},
    )


def mean_over_agents(numbers: Collection[Sequence[float]]) -> list[float]:
    """The mean over agents, row by row."""
    return [sum(row) / len(row) for row in zip(*numbers, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardContext:
    """Device and folder that a reward may use."""

    device: torch.device  # of the rank
    folder: Path | None  # in the run's folder, for files of the reward; None: write no files


def prepare_reward(reward: RewardFunction, context: RewardContext) -> None:
    """Call the reward's optional method `prepare`, for rewards that need a device or write files."""
    prepare = getattr(reward, "prepare", None)
    if prepare is not None:
        prepare(context)


def validate_reward_examples(reward: RewardFunction, examples: Sequence[Example]) -> list[str]:
    """Warnings about examples that the reward cannot read, from its optional method `validate_examples`.

    Raises `ConfigError` if the reward can score none of them.
    """
    validate = getattr(reward, "validate_examples", None)
    return [] if validate is None else list(validate(examples) or ())


def sample_examples(*tables: Sequence[Example]) -> list[Example]:
    """Examples for `validate_reward_examples`: the first of each table, then more of each at equal distances."""
    first = [table[0] for table in tables]
    steps = [max(1, len(table) // NUM_VALIDATED_EXAMPLES) for table in tables]
    return first + [
        table[place] for table, step in zip(tables, steps, strict=True) for place in range(1, len(table), step)
    ]


def check_reward_connection(reward: RewardFunction) -> None:
    """Call the reward's optional `check_connection`; raises `PreflightError` if its server cannot be reached."""
    check = getattr(reward, "check_connection", None)
    if check is not None:
        check()


def close_reward(reward: RewardFunction) -> None:
    """Release the reward's resources with its optional method `close`."""
    close = getattr(reward, "close", None)
    if close is not None:
        close()


def _check_nested_numbers(name: str, given: Sequence[Any], lengths: Sequence[int], unit: str) -> list[list[float]]:
    """One list of numbers per row, `lengths[row]` numbers each; None for a row becomes a list of NaN."""
    _check_length(name, given, len(lengths))
    found: list[list[float]] = []
    for row, (numbers, length) in enumerate(zip(given, lengths, strict=True)):
        if numbers is None:
            found.append([math.nan] * length)
            continue
        size = _length_or_none(numbers)
        if size != length:
            raise ValueError(
                f"'{name}' must have length {length} at row {row}, one number for each of {unit}, "
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
    """The number of entries; None for values without a length, which includes 0-dimensional tensors and arrays."""
    try:
        return len(given)
    except TypeError:
        return None


def _to_number(name: str, place: int, entry: Any) -> float:
    countable = hasattr(entry, "__float__") or hasattr(entry, "__index__")  # includes numpy and torch scalars
    if entry is not None and (isinstance(entry, str | bytes) or not countable):
        raise ValueError(f"'{name}' has {entry!r:.60} at row {place}; a number is required")
    return math.nan if entry is None else float(entry)
