"""Statistics of metrics over iterations: means without missing values, and changes with their standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from ippo_cli.config.schema import Config
from ippo_cli.config.teams import policy_by_agent
from ippo_cli.diagnosis.finding import Observations, Row

SIGNIFICANT = 5.0  # standard errors; the error is an estimate from few iterations, and runs have many metrics
NORMAL_MAD = 1.4826  # standard deviation of a normal variable, in median absolute deviations
FIRST_VALUES = 2  # iterations that a change starts from
MIN_ROWS = 8  # iterations that a change needs: two at each end, and others between them


@dataclass(frozen=True, slots=True)
class Change:
    """Means over the first two and the last quarter of the iterations, and the standard error of their difference."""

    first: float
    last: float
    error: float

    @property
    def gain(self) -> float:
        return self.last - self.first

    @property
    def has_risen(self) -> bool:
        return self.gain > SIGNIFICANT * self.error

    @property
    def has_fallen(self) -> bool:
        return -self.gain > SIGNIFICANT * self.error


def metric_value(row: Row, key: str) -> float:
    """The value of a metric; NaN for a row without it."""
    return row.get(key, math.nan)


def column(rows: Sequence[Row], key: str) -> list[float]:
    """The numbers of a metric, without missing ones."""
    return [row[key] for row in rows if not math.isnan(metric_value(row, key))]


def column_mean(rows: Sequence[Row], key: str) -> float:
    """Mean over the rows with a number; NaN without any."""
    numbers = column(rows, key)
    return fmean(numbers) if numbers else math.nan


def measure_change(values: Sequence[float]) -> Change | None:
    """The change from the first two values to the last quarter; None for fewer than `MIN_ROWS`.

    The noise of a value is estimated from the median absolute difference of successive values, which neither a trend
    nor a few jumps affect much. The error is at least a rounding error of the values.
    """
    if len(values) < MIN_ROWS:
        return None
    size = max(len(values) // 4, 2)
    noise = NORMAL_MAD * median(abs(after - before) for before, after in pairwise(values)) / math.sqrt(2)
    rounding = 1e-6 * max(map(abs, values))
    error = noise * math.sqrt(1 / FIRST_VALUES + 1 / size)
    return Change(fmean(values[:FIRST_VALUES]), fmean(values[-size:]), max(error, rounding))


def score_change(observations: Observations, agent: str) -> Change | None:
    """The change of an agent's mean training score."""
    return measure_change(column(observations.rows, f"{agent}/score/mean"))


def has_gained(observations: Observations, agent: str) -> bool:
    """Whether the mean score of the last iterations is significantly above that of the first iteration.

    The error is that of sampling; responses to one prompt count as one sample.
    """
    rows, rollout = observations.rows, observations.config.rollout
    first, last = rows[0].get(f"{agent}/score/mean", math.nan), last_rows(rows)
    prompts = rollout.buffer_size / rollout.num_generations
    error = column_mean(rows, f"{agent}/score/std") * math.sqrt((1 + 1 / len(last)) / prompts)
    return column_mean(last, f"{agent}/score/mean") - first > SIGNIFICANT * error


def last_rows(rows: Sequence[Row]) -> Sequence[Row]:
    """The last quarter of the rows, at least two."""
    return rows[-max(len(rows) // 4, 2) :]


def policy_key(config: Config, rows: Sequence[Row], agent: str, name: str) -> str:
    """The metric `policy/...` of an agent: its own if it shares weights, else its policy's."""
    own = f"{agent}/{name}"
    return own if any(own in row for row in rows) else f"{policy_by_agent(config)[agent]}/{name}"


def trained_agents(config: Config) -> list[str]:
    """Agents that are trained."""
    return [name for name, agent in config.task.agents.items() if not agent.frozen]


def correlation(one: Sequence[float], two: Sequence[float]) -> float:
    """Pearson's correlation; 0 if one of them is constant."""
    mean_one, mean_two = fmean(one), fmean(two)
    covariance = sum((a - mean_one) * (b - mean_two) for a, b in zip(one, two, strict=True))
    scale = math.sqrt(sum((a - mean_one) ** 2 for a in one) * sum((b - mean_two) ** 2 for b in two))
    return covariance / scale if scale else 0.0
