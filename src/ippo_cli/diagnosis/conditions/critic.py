"""Conditions of critics: values that explain nothing, lag behind the returns, or cannot reach them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from ippo_cli.config.schema import Config, CriticKind, Reweight, ValueUnit
from ippo_cli.config.teams import critic_by_agent, policy_by_agent
from ippo_cli.config.text import join_names
from ippo_cli.diagnosis.finding import (
    Certainty,
    Evidence,
    Finding,
    NotChecked,
    Observations,
    Outcome,
    Row,
    metric_evidence,
)
from ippo_cli.diagnosis.rates import FAR
from ippo_cli.diagnosis.series import (
    column,
    column_mean,
    has_gained,
    metric_value,
    trained_agents,
)

WINDOW = 50  # iterations after which a critic has to explain something
FIRST_ROWS = 3  # iterations before rules about the start of a run apply
LAST_ROWS = 10  # iterations to average
CRITIC_WARMUP_ROWS = 20  # iterations in which a critic may be wrong
NO_VARIANCE, NEGATIVE_VARIANCE = 0.02, -0.1  # thresholds of explained variance
FAR_CLIP_RANGES = 10  # initial value error, in value clip ranges
REMAINING_SPREAD = 0.5  # of the standard deviation of the first scores
BIASED = 0.5  # fraction of the squared value error that a constant shift of all values would remove
UNMOVED = 0.1  # fraction of the distance to the mean return that values have covered, of a critic that does not learn
UNMOVED_BIASED = 0.1  # as `BIASED`, for such a critic


def find_far_values(observations: Observations) -> Outcome:
    """The first value errors are many value clip ranges."""
    rows, config = observations.rows, observations.config
    clip_range = config.algorithm.value_clip_range
    if clip_range is None or not observations.is_from_start or len(rows) < FIRST_ROWS:
        return None
    errors = {name: _value_error(config, rows[:FIRST_ROWS], name) for name in config.task.agents}
    names = [name for name, error in errors.items() if error > FAR_CLIP_RANGES * clip_range]
    if not names:
        return None
    return Finding(
        agents=tuple(names),
        text=f"values of {join_names(names)} are off by {max(errors.values()):.2g} but change by at "
        f"most algorithm.value_clip_range={clip_range:g} per buffer",
        advice="use critic.popart_beta, or increase it",
        evidence=tuple(metric_evidence(rows, f"{name}/value/loss") for name in names),
        overrides=("critic.popart_beta=0.9", "reward.processor=[running_zscore]", "algorithm.value_clip_range=null"),
        certainty=Certainty.certain,
    )


def _value_error(config: Config, rows: Sequence[Row], name: str) -> float:
    """Typical error of normalised values, from the mean loss: half the square, or Huber's loss beyond `huber_delta`."""
    losses = [row.get(f"{name}/value/loss", 0.0) for row in rows]
    loss = fmean(0.0 if math.isnan(value) else max(value, 0.0) for value in losses)
    delta = config.algorithm.huber_delta
    if delta is not None and loss > delta**2 / 2:
        return loss / delta + delta / 2
    return math.sqrt(2 * loss)


def find_uninformative_critic(observations: Observations) -> Outcome:
    """A critic's values explain none of the returns."""
    config, rows = observations.config, observations.rows
    done = int(rows[-1]["iteration"])
    if done < CRITIC_WARMUP_ROWS:
        return NotChecked(f"needs {CRITIC_WARMUP_ROWS} iterations")
    names = [name for name in trained_agents(config) if _is_uninformative(observations, name)]
    if not names:
        return None
    mean = fmean(_explained_variances(rows, names[0]))
    return _critic_finding(
        observations, names, f"explained_variance of {join_names(names)} is {mean:.2f} after {done} iterations"
    )


def find_slow_critic(observations: Observations) -> Outcome:
    """A critic's values have not reached the mean return; or they explain nothing, and the score does not rise.

    A policy may learn well without a useful baseline, from many responses to easy prompts.
    """
    found = find_uninformative_critic(observations)
    if isinstance(found, NotChecked):
        return found
    config, rows = observations.config, observations.rows
    names = [name for name in trained_agents(config) if _is_biased(config, rows, name)]
    if names:
        value, target = (metric_value(rows[-1], f"{names[0]}/targets/{key}") for key in ("value", "return"))
        done = int(rows[-1]["iteration"])
        text = f"values of {join_names(names)} are {value:.3f} after {done} iterations and returns {target:.3f}"
        return _critic_finding(observations, names, text)
    if found is None or any(has_gained(observations, name) for name in found.agents):
        return None
    return found


def _critic_finding(observations: Observations, names: Sequence[str], text: str) -> Finding:
    config, rows = observations.config, observations.rows
    return Finding(
        agents=tuple(names),
        text=text,
        advice=f"try {_remedy(config, names[0])}, or another critic.learning_rate",
        evidence=(
            *(
                metric_evidence(rows, f"{name}/{key}")
                for name in names
                for key in ("value/explained_variance", "targets/value", "targets/return", "value/loss")
                if any(f"{name}/{key}" in row for row in rows)
            ),
            Evidence("critic.learning_rate", _critic_rate(config, names[0])),
        ),
        overrides=_overrides(config, names[0]),
    )


def _explained_variances(rows: Sequence[Row], name: str) -> list[float]:
    """Values of the last rows with score variance."""
    key = f"{name}/value/explained_variance"
    known = [row for row in rows if metric_value(row, f"{name}/score/std") > 0]
    return column(known, key)[-LAST_ROWS:]


def _is_uninformative(observations: Observations, name: str) -> bool:
    found = _explained_variances(observations.rows, name)
    if len(found) < LAST_ROWS or not _has_spread(observations.rows, name):
        return False
    # One value per turn can be correct and explain nothing, if all prompts are equally hard.
    per_token = observations.config.algorithm.value_unit is not ValueUnit.turn
    flat = int(observations.rows[-1]["iteration"]) >= WINDOW and per_token and fmean(found) < NO_VARIANCE
    return flat or fmean(found) < NEGATIVE_VARIANCE


def _has_spread(rows: Sequence[Row], name: str) -> bool:
    """Whether scores still differ as at first: nearly equal scores leave a critic only noise to explain."""
    spread = f"{name}/score/std"
    return column_mean(rows[-LAST_ROWS:], spread) > REMAINING_SPREAD * column_mean(rows[:LAST_ROWS], spread)


def _is_biased(config: Config, rows: Sequence[Row], name: str) -> bool:
    """Whether a constant shift would remove half of the squared error, in each of the last iterations.

    A tenth is enough if the values have not moved since the first iteration. Values that are trained on resampled rows
    have the mean return of these rows, not of all.
    """
    critic = config.task.agents[name].critic
    if config.algorithm.reweight.method is not Reweight.none or getattr(critic, "value_bins", None) is not None:
        return False  # the loss of bins is no squared error
    last, first_value = rows[-LAST_ROWS:], metric_value(rows[0], f"{name}/targets/value")
    values, returns = ([metric_value(row, f"{name}/targets/{key}") for row in last] for key in ("value", "return"))
    pairs = list(zip(values, returns, strict=True))
    has_moved = not all(abs(value - first_value) < UNMOVED * abs(target - first_value) for value, target in pairs)
    learner = critic_by_agent(config).get(name, policy_by_agent(config)[name])
    stds = [row.get(f"{learner}/value/return_std", 1.0) for row in last]
    squares = [(std * _value_error(config, [row], name)) ** 2 for std, row in zip(stds, last, strict=True)]
    limit = BIASED if has_moved else UNMOVED_BIASED
    return len(last) == LAST_ROWS and all(
        (target - value) ** 2 > limit * square > 0 for (value, target), square in zip(pairs, squares, strict=True)
    )


def _has_own_optimizer(config: Config, name: str) -> bool:
    kinds = (CriticKind.separate, CriticKind.centralized, CriticKind.adapter)
    return config.task.agents[name].critic.kind in kinds


def _remedy(config: Config, name: str) -> str:
    if _has_own_optimizer(config, name):
        return "a smaller critic.mini_batch_size, more critic.ppo_epochs"
    return "another algorithm.value_loss_coef or critic=separate"


def _critic_rate(config: Config, name: str) -> str:
    return (
        f"{getattr(config.task.agents[name].critic, 'learning_rate', config.task.agents[name].actor.learning_rate):g}"
    )


def _overrides(config: Config, name: str) -> tuple[str, ...]:
    if not _has_own_optimizer(config, name):
        return ("critic=separate", f"algorithm.value_loss_coef={2 * (config.algorithm.value_loss_coef or 0.5):g}")
    agent = config.task.agents[name]
    rate, epochs = float(_critic_rate(config, name)), getattr(agent.critic, "ppo_epochs", None)
    usual = 1e-3 if agent.actor.kind.value.startswith("tiny") else 1e-5
    is_far = not usual / FAR < rate < FAR * usual
    return (
        f"critic.learning_rate={usual if is_far else 10 * rate:g}",
        f"critic.ppo_epochs={2 * (epochs or agent.algorithm.ppo_epochs)}",
        "algorithm.critic_warmup=10",
    )
