"""Metrics that are computed from the rows of several iterations."""

from __future__ import annotations

from collections.abc import Sequence

from ippo_cli.config.schema import Config, Mode
from ippo_cli.forecast.features import Row
from ippo_cli.forecast.forecast import RISK, forecast_collapse


def history_metrics(rows: Sequence[Row], config: Config) -> dict[str, float]:
    """Metrics of the last row from the last rows (oldest first); a resumed run computes the same."""
    if config.mode is Mode.critic:  # policies keep their weights
        return {}
    found = forecast_collapse(rows)
    return {} if found is None else {RISK: found.probability}
