"""Curriculum: success rates of training prompts decide how often they are drawn (`task.curriculum`)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import CurriculumConfig
from ippo_cli.types import Example

ROUNDING = 1e-6  # of scores in float32, relative to `success_score`
NUM_CHECKED_ROWS = 64  # before training


def build_curriculum(settings: CurriculumConfig, examples: Sequence[Example], seed: int) -> Curriculum | None:
    """The curriculum of a task's training rows; None without a band and levels. Raises `ConfigError` for levels that
    rows do not have.
    """
    if not settings.is_active:
        return None
    curriculum = Curriculum(settings, examples, seed)
    curriculum.check_levels()
    return curriculum


class Curriculum:
    """Success rates of the training rows that were drawn, the same on all ranks.

    A prompt that the schedule offers is skipped with a probability that depends on its row's rate. Skipping instead of
    sampling needs no sum over all rows, and offers each row once per pass. `task.weights` are those of offered prompts:
    a source of which more prompts are skipped has a smaller part of the drawn ones.
    """

    def __init__(self, settings: CurriculumConfig, examples: Sequence[Example], seed: int) -> None:
        self._settings, self._examples, self._seed = settings, examples, seed
        self.rates: dict[int, float] = {}  # by row, in the order of first visits
        self.unlocked = 1  # number of levels that are drawn
        self._levels: dict[int, int] = {}  # by row; a cache

    def accepts(self, position: int, row: int) -> bool:
        """Whether the prompt at a position of the schedule is drawn, as a function of the seed and earlier visits."""
        if self._settings.level_field is not None and self._level(row) >= self.unlocked:
            return False
        weight = self.weight(row)
        return weight == 1.0 or _uniform(self._seed, position) < weight

    def weight(self, row: int) -> float:
        """The probability to draw a row of an unlocked level when the schedule offers it."""
        return 1.0 if self._place(self.rates.get(row)) == 0 else self._settings.outside_weight

    def success_rates(self, scores: Sequence[Sequence[float]]) -> list[float]:
        """The fraction of successes in each group of scores; NaN without a known score."""
        lowest = self._settings.success_score - ROUNDING * max(1.0, abs(self._settings.success_score))
        rates = []
        for group in scores:
            known = [score >= lowest for score in group if not math.isnan(score)]
            rates.append(sum(known) / len(known) if known else math.nan)
        return rates

    def record(self, rows: Sequence[int], rates: Sequence[float]) -> None:
        """Add visits, in the order of their prompts, and unlock levels. Unknown rates (NaN) are ignored."""
        decay = self._settings.smoothing
        for row, rate in zip(rows, rates, strict=True):
            if not math.isnan(rate):
                self.rates[row] = decay * self.rates[row] + (1 - decay) * rate if row in self.rates else rate
        while self._settings.level_field is not None and self.unlocked < len(self._settings.levels):
            own = [rate for row, rate in self.rates.items() if self._level(row) == self.unlocked - 1]
            if not own or sum(own) / len(own) < self._settings.unlock_rate:
                break
            self.unlocked += 1

    def metrics(self, num_skipped: int, num_visited: int) -> dict[str, float]:
        """Metrics of the rates; `num_skipped` and `num_visited`: prompts of this iteration."""
        places = [self._place(rate) for rate in self.rates.values()]
        seen, outside = len(places), sum(place != 0 for place in places)
        total = len(self._examples) - outside + outside * self._settings.outside_weight
        squares = len(self._examples) - outside + outside * self._settings.outside_weight**2
        return {
            "curriculum/success_rate": sum(self.rates.values()) / seen if seen else math.nan,
            "curriculum/seen_fraction": seen / len(self._examples),
            "curriculum/too_hard_fraction": places.count(-1) / seen if seen else math.nan,
            "curriculum/too_easy_fraction": places.count(1) / seen if seen else math.nan,
            "curriculum/effective_prompts": total**2 / squares if squares else 0.0,
            "curriculum/skipped_fraction": num_skipped / (num_skipped + num_visited),
        } | ({} if self._settings.level_field is None else {"curriculum/levels": float(self.unlocked)})

    def state_dict(self) -> dict[str, Any]:
        """The state as JSON values."""
        return {"rows": list(self.rates), "rates": list(self.rates.values()), "unlocked": self.unlocked}

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.rates = dict(zip(stored["rows"], stored["rates"], strict=True))
        self.unlocked = stored["unlocked"]

    def check_levels(self) -> None:
        """Raise `ConfigError` if some rows, at equal distances, have an unknown level."""
        if self._settings.level_field is not None:
            for row in range(0, len(self._examples), max(1, len(self._examples) // NUM_CHECKED_ROWS)):
                self._level(row)

    def _place(self, rate: float | None) -> int:
        """-1 below the band, 1 above it, else 0; 0 for rows that were not drawn yet."""
        low, high = self._settings.band_low, self._settings.band_high
        if rate is None or low is None or high is None:
            return 0
        return (rate > high) - (rate < low)

    def _level(self, row: int) -> int:
        if row not in self._levels:
            name = self._settings.level_field
            value = self._examples[row].get(str(name))
            if str(value) not in self._settings.levels:
                raise ConfigError(
                    f"task.curriculum.level_field={name} task.curriculum.levels={self._settings.levels}",
                    f"do not have the value {value!r:.60} of training row {row + 1}",
                    "name all values of the field in levels, the easiest first",
                )
            self._levels[row] = self._settings.levels.index(str(value))
        return self._levels[row]


def _uniform(seed: int, position: int) -> float:
    digest = hashlib.blake2b(f"curriculum/{seed}/{position}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "little") / 2**56
