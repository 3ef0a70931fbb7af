"""Checks of `task.curriculum`."""

from __future__ import annotations

from collections.abc import Iterator

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config


def check_curriculum(config: Config) -> Iterator[ConfigError]:
    """The band is an interval, levels have a field, and scores are known before the next prompts are drawn."""
    settings = config.task.curriculum
    low, high = settings.band_low, settings.band_high
    if (low is None) != (high is None) or (low is not None and high is not None and low > high):
        yield ConfigError(
            f"task.curriculum.band_low={low} band_high={high}",
            "are not an interval",
            "set both, the first at most the second, or neither; 0.2 and 0.8 exclude prompts that are nearly always "
            "right or wrong",
        )
    setting = f"task.curriculum.level_field={settings.level_field} task.curriculum.levels={settings.levels}"
    if settings.level_field is None and settings.levels:
        yield ConfigError(setting, "name levels and no field of rows", "set task.curriculum.level_field, or levels=[]")
    if settings.level_field is not None and len(set(settings.levels)) < max(2, len(settings.levels)):
        yield ConfigError(
            setting,
            "need at least two levels, each once",
            "name the values of the field, the easiest first: task.curriculum.levels=[easy,hard]",
        )
