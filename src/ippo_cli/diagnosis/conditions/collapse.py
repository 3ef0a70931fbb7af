"""Condition of the forecast: the held-out score is likely to fall."""

from __future__ import annotations

from ippo_cli.config.text import join_names
from ippo_cli.diagnosis.finding import Certainty, Evidence, Finding, NotChecked, Observations, Outcome, format_value
from ippo_cli.diagnosis.rates import lower_rate
from ippo_cli.diagnosis.series import trained_agents
from ippo_cli.forecast.forecast import RISK, Contribution, forecast_collapse, read_weights

MAX_CONTRIBUTIONS = 2  # a warning is one line
MIN_LOG_ODDS = 0.2  # of a contribution that is listed


def find_forecast(observations: Observations) -> Outcome:
    """A forecast is no finding about a whole run: what it forecast has happened since, or not."""
    return NotChecked("a forecast during training; the run prints it as a warning")


def warn_of_collapse(observations: Observations) -> Outcome:
    """The forecast from the last rows is above its threshold, or above `evaluation.stop_at_risk`."""
    config, rows = observations.config, observations.rows
    risk = rows[-1].get(RISK)
    if risk is None:
        return NotChecked(f"{RISK} is not logged")
    weights, limit = read_weights(), config.evaluation.stop_at_risk
    if not risk >= (weights.threshold if limit is None else min(limit, weights.threshold)):
        return None
    found = forecast_collapse(rows)
    speaking = () if found is None else found.contributions[:MAX_CONTRIBUTIONS]
    largest = [part for part in speaking if part.log_odds > MIN_LOG_ODDS]
    names = [part.owner for part in largest if part.owner in config.task.agents]
    reasons = "; ".join(map(describe_contribution, largest)) or "no single metric is far from those of other runs"
    number = int(rows[-1]["iteration"])
    return Finding(
        agents=tuple(dict.fromkeys(names)),
        text=f"the held-out score may fall (risk {risk:.2f}): {reasons}",
        advice="lower actor.learning_rate",
        evidence=(Evidence(RISK, format_value(risk), (number, number)),),
        overrides=(lower_rate(config.task.agents[trained_agents(config)[0]], 3), "evaluation.stop_at_risk=0.5"),
        certainty=Certainty.possible,
    )


def describe_contribution(part: Contribution) -> str:
    """A feature with its value, its owner, and what it adds to the log-odds."""
    return f"{part.feature} of {join_names([part.owner])} {format_value(part.value)} ({part.log_odds:+.1f})"
