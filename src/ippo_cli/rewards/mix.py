"""`reward=mix`: a weighted sum of other rewards, each called, retried and logged separately."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ippo_cli.config.schema import MixRewardConfig
from ippo_cli.engine import distributed
from ippo_cli.rewards.contract import (
    Numbers,
    Reward,
    RewardContext,
    RewardFunction,
    check_reward_connection,
    close_reward,
    prepare_reward,
    validate_reward,
    validate_reward_examples,
)
from ippo_cli.rewards.retry import RewardRetry
from ippo_cli.types import Episode, Example


@dataclass(frozen=True, kw_only=True)
class MixPart:
    """One reward of a mix."""

    reward: RewardFunction
    weight: float
    splittable: bool  # whether it may be called for a subset of the batch's rows


class MixReward:
    """The weighted sum over parts, separately for the team's and each agent's numbers.

    A kind of number that a part does not return counts as 0. A row has a number if every part has one; failed parts are
    retried separately. The log has each part's unweighted number under its name, and the part's own parts below it:
    `right` and `right.strict`.
    """

    def __init__(self, parts: Mapping[str, MixPart], agents: Sequence[str], failure_budget: float) -> None:
        self.parts, self.agents, self.failure_budget = dict(parts), list(agents), failure_budget

    def __call__(self, episodes: Sequence[Episode]) -> Reward:
        components: dict[str, Reward] = {}
        failures: dict[int, Exception] = {}
        for name, part in self.parts.items():
            components[name], failure = self._call_part(part, episodes)
            if failure is not None:
                valid = components[name].valid or ()
                for row in (row for row, usable in enumerate(valid) if not usable and row not in failures):
                    failures[row] = RuntimeError(f"{name}: {failure}").with_traceback(failure.__traceback__)
        weights = {name: part.weight for name, part in self.parts.items()}
        logged = {name: _logged_numbers(component, len(episodes)) for name, component in components.items()}
        for name, component in components.items():
            logged |= {f"{name}.{part}": list(numbers) for part, numbers in component.parts.items()}
        return replace(
            weighted_sum(components, weights), parts=logged, failures=failures, final=True, components=components
        )

    def prepare(self, context: RewardContext) -> None:
        for name, part in self.parts.items():
            own = None if context.folder is None else context.folder / name
            prepare_reward(part.reward, replace(context, folder=own))

    def validate_examples(self, examples: Sequence[Example]) -> list[str]:
        return [warning for part in self.parts.values() for warning in validate_reward_examples(part.reward, examples)]

    def check_connection(self) -> None:
        for part in self.parts.values():
            check_reward_connection(part.reward)

    def close(self) -> None:
        for part in self.parts.values():
            close_reward(part.reward)

    def _call_part(self, part: MixPart, episodes: Sequence[Episode]) -> tuple[Reward, Exception | None]:
        def ask(rows: list[int]) -> Reward:
            selected = [episodes[row] for row in rows]
            return validate_reward(part.reward(selected), self.agents, selected)

        max_rows = (len(episodes) + 1) * distributed.world_size()
        answers = RewardRetry(call=ask, splittable=part.splittable, failure_limit=self.failure_budget * max_rows)
        answers.score_rows(list(range(len(episodes))))
        return answers.merge(self.agents, episodes), answers.failure


def weighted_sum(components: Mapping[str, Reward], weights: Mapping[str, float]) -> Reward:
    """The weighted sum of the components for every kind of number; a row is valid if it is valid in all components."""
    pairs = [(component, weights[name]) for name, component in components.items() if weights[name]]
    kinds = {name: [(pick(part), weight) for part, weight in pairs] for name, pick in _TEAM_GETTERS.items()}
    agents = list(dict.fromkeys(name for part, _ in pairs for name in (*part.agent, *part.agent_by_turn)))
    return Reward(
        team=_sum_weighted(kinds["team"]),
        team_by_step=_sum_weighted(kinds["team_by_step"], _add_weighted_lists),
        agent=_collect_by_agent(
            agents, lambda name: _sum_weighted([(part.agent.get(name), weight) for part, weight in pairs])
        ),
        agent_by_turn=_collect_by_agent(
            agents,
            lambda name: _sum_weighted(
                [(part.agent_by_turn.get(name), weight) for part, weight in pairs], _add_weighted_lists
            ),
        ),
        valid=_combine_valid(list(components.values())),
    )


def normalize_mix(
    rewards: Reward, config: MixRewardConfig, episodes: Sequence[Episode], agents: Sequence[str], turn_weight: float
) -> Reward:
    """The mix with the parts in `normalize` standardized over the rows of all ranks that are valid in the mix.

    Collective. Rows in which another part failed are excluded from training, and from mean and deviation. The team's
    and each agent's numbers are standardized separately, an agent's over rows in which it has turns; row totals weight
    numbers by turn with `turn_weight`, as scores do. If the deviation is at most `norm_eps`, only the mean is
    subtracted. `parts` stay unchanged.
    """
    components = dict(rewards.components)
    scale = _Normalization(turn_weight=turn_weight, norm_eps=config.norm_eps)
    valid = torch.tensor([True] * len(episodes) if rewards.valid is None else list(rewards.valid), dtype=torch.bool)
    for name in config.normalize:
        components[name] = _normalize_part(components.get(name, Reward()), episodes, agents, valid, scale)
    if not rewards.components:  # the reward returned no number on this rank
        return rewards
    combined = weighted_sum(components, {name: config.weights.get(name, 1.0) for name in components})
    own = {"team": combined.team, "agent": combined.agent, "team_by_step": combined.team_by_step}
    return replace(rewards, **own, agent_by_turn=combined.agent_by_turn)


@dataclass(frozen=True, kw_only=True)
class _Normalization:
    """Constants for standardizing row totals."""

    turn_weight: float
    norm_eps: float


def _normalize_part(
    part: Reward, episodes: Sequence[Episode], agents: Sequence[str], valid: torch.Tensor, scale: _Normalization
) -> Reward:
    team, by_step = _standardize(part.team, part.team_by_step, valid, scale)
    own = {
        name: _standardize(
            part.agent.get(name),
            part.agent_by_turn.get(name),
            valid & torch.tensor([bool(episode.trainable_turns(name)) for episode in episodes], dtype=torch.bool),
            scale,
        )
        for name in agents
    }
    return replace(
        part,
        team=team,
        team_by_step=by_step,
        agent={name: numbers for name, (numbers, _) in own.items() if numbers is not None},
        agent_by_turn={name: numbers for name, (_, numbers) in own.items() if numbers is not None},
    )


def _standardize(
    whole: Numbers | None, by_turn: Sequence[Numbers] | None, valid: torch.Tensor, scale: _Normalization
) -> tuple[list[float] | None, list[list[float]] | None]:
    """Divide the numbers of rows and turns by the deviation of row totals; subtract the mean from the rows' numbers."""
    has_numbers = whole is not None or by_turn is not None
    numbers = torch.tensor([0.0] * len(valid) if whole is None else list(whole), dtype=torch.float64)
    totals = numbers
    if by_turn is not None and scale.turn_weight:
        totals = numbers + scale.turn_weight * torch.tensor([sum(row) for row in by_turn], dtype=torch.float64)
    mean, variance = distributed.masked_moments(totals, valid & torch.isfinite(totals) & has_numbers)
    if not has_numbers:
        return None, None
    deviation = float(variance.sqrt())
    factor = 1.0 / deviation if deviation > scale.norm_eps else 1.0
    scaled = None if by_turn is None else [[number * factor for number in row] for row in by_turn]
    return ((numbers - mean) * factor).tolist(), scaled


def _logged_numbers(component: Reward, rows: int) -> list[float]:
    """The logged numbers of a component: the team's, or the mean over agents' own numbers."""
    totals = [
        [whole[row] if whole is not None else 0.0 for row in range(rows)]
        if by_turn is None
        else [(whole[row] if whole is not None else 0.0) + sum(by_turn[row]) for row in range(rows)]
        for whole, by_turn in _number_pairs(component)
    ]
    return [sum(row) / len(row) for row in zip(*totals, strict=True)] if totals else [math.nan] * rows


def _number_pairs(component: Reward) -> list[tuple[Numbers | None, Sequence[Numbers] | None]]:
    if component.team is not None or component.team_by_step is not None:
        return [(component.team, component.team_by_step)]
    names = dict.fromkeys((*component.agent, *component.agent_by_turn))
    return [(component.agent.get(name), component.agent_by_turn.get(name)) for name in names]


def _add_weighted(left: float, right: float, weight: float) -> float:
    return left + weight * right


def _add_weighted_lists(left: list[float] | float, right: Sequence[float], weight: float) -> list[float]:
    before = left if isinstance(left, list) else [0.0] * len(right)
    return [old + weight * new for old, new in zip(before, right, strict=True)]


def _sum_weighted(
    pairs: Sequence[tuple[Any, float]], add: Callable[[Any, Any, float], Any] = _add_weighted
) -> list[Any] | None:
    """The weighted sum of each row, without numbers that are None; None if all are."""
    total: list[Any] | None = None
    for numbers, weight in pairs:
        if numbers is not None:
            total = [add(old, new, weight) for old, new in zip(total or [0.0] * len(numbers), numbers, strict=True)]
    return total


def _collect_by_agent(agents: Sequence[str], numbers_of: Callable[[str], list[Any] | None]) -> dict[str, list[Any]]:
    return {name: numbers for name in agents if (numbers := numbers_of(name)) is not None}


def _combine_valid(components: Sequence[Reward]) -> list[bool] | None:
    flags = [component.valid for component in components if component.valid is not None]
    return [all(row) for row in zip(*flags, strict=True)] if flags else None


_TEAM_GETTERS: Mapping[str, Callable[[Reward], Any]] = {
    "team": lambda reward: reward.team,
    "team_by_step": lambda reward: reward.team_by_step,
}
