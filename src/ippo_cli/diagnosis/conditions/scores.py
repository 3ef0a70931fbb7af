"""Conditions of scores: constant, failing, without progress, falling, memorised, or gained by length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from ippo_cli.config.critic_fitting import primary_metric
from ippo_cli.config.schema import has_seed_examples
from ippo_cli.config.text import format_count, join_names
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
from ippo_cli.diagnosis.rates import lower_rate, other_rates
from ippo_cli.diagnosis.series import (
    MIN_ROWS,
    SIGNIFICANT,
    Change,
    column,
    column_mean,
    correlation,
    last_rows,
    measure_change,
    metric_value,
    score_change,
    trained_agents,
)

WINDOW = 50  # iterations of a run without progress
FIRST_ROWS = 3  # iterations before rules about the start of a run apply
LAST_ROWS = 10  # iterations to average
NEARLY_ALL = 0.99  # a fraction that counts as all
FALL_LAST_ROWS = 5  # iterations to average after a score drop
FALL_DEVIATIONS = 0.5  # minimum score drop, in standard deviations of a buffer's scores
MIN_EPOCHS = 2.0  # passes over the training data, below which no row is memorised
MAX_TRANSFER = 0.5  # fraction of the training gain that reaches held-out data in a run that memorises
LENGTH_GROWTH = 0.2  # minimum relative growth of responses that gain score by length
MIN_CORRELATION = 0.8  # between score and length over iterations
PART_FALL = 0.1  # minimum relative fall of a part of the reward


def find_equal_scores(observations: Observations) -> Outcome:
    """All scores that are compared are equal: never a difference, or a collapse to one lower score."""
    rows, agents = observations.rows, observations.config.task.agents

    def has_never_varied(name: str) -> bool:
        if not observations.is_from_start or len(rows) < FIRST_ROWS:
            return False
        silent = f"{name}/targets/zero_advantage_fraction"
        return all(metric_value(row, f"{name}/score/std") == 0 or row.get(silent, 0.0) >= NEARLY_ALL for row in rows)

    def has_collapsed(name: str) -> bool:
        """Constant scores below an earlier mean; constant maximum scores are not a collapse."""
        before, last = rows[:-LAST_ROWS], rows[-LAST_ROWS:]
        mean = f"{name}/score/mean"
        constant = len(last) == LAST_ROWS and all(metric_value(row, f"{name}/score/std") == 0 for row in last)
        return constant and any(metric_value(row, mean) > metric_value(last[-1], mean) + 1e-6 for row in before)

    names = [name for name in agents if has_never_varied(name) or has_collapsed(name)]
    if not names:
        return None
    last = int(rows[-1]["iteration"])
    first = last - min(len(rows), LAST_ROWS) + 1
    return describe_equal_scores(observations, names, f"in iterations {first} to {last}")


def describe_equal_scores(observations: Observations, names: Sequence[str], where: str) -> Finding:
    """The finding of scores without differences among the responses in `where`."""
    rows = observations.rows
    return Finding(
        agents=tuple(names),
        text=f"all compared responses of {join_names(names)} have equal scores {where}, so there is no learning signal",
        advice="check samples/ and the reward",
        evidence=tuple(
            metric_evidence(rows, f"{name}/{key}")
            for name in names
            for key in ("score/std", "score/mean", "targets/zero_advantage_fraction")
            if any(f"{name}/{key}" in row for row in rows)
        ),
        overrides=(f"rollout.num_generations={2 * observations.config.rollout.num_generations}", "reward=..."),
        certainty=Certainty.certain,
    )


def find_no_progress(observations: Observations) -> Outcome:
    """The score has not increased since the first iteration."""
    rows, config = observations.rows, observations.config
    if not observations.is_from_start or len(rows) < WINDOW:
        return NotChecked(f"needs {WINDOW} iterations")
    first, last = rows[:LAST_ROWS], rows[-LAST_ROWS:]

    def is_stuck(name: str) -> bool:
        mean, std = f"{name}/score/mean", f"{name}/score/std"
        spread = column_mean((*first, *last), std)
        noise = spread * math.sqrt(2 / (LAST_ROWS * config.rollout.buffer_size))
        return spread > 0 and column_mean(last, mean) - column_mean(first, mean) < 2 * noise

    names = [name for name in config.task.agents if is_stuck(name)]
    if not names:
        return None
    scores = [column_mean(part, f"{names[0]}/score/mean") for part in (first, last)]
    return Finding(
        agents=tuple(names),
        text=f"the score of {join_names(names)} has not increased in {len(rows)} iterations "
        f"({scores[0]:.3f} -> {scores[1]:.3f})",
        advice="try another actor.learning_rate or more steps",
        evidence=tuple(metric_evidence(rows, f"{name}/score/mean") for name in names),
        overrides=other_rates(config.task.agents[names[0]], 3),
        certainty=Certainty.possible,
    )


def find_score_drop(observations: Observations) -> Outcome:
    """The score fell after its best iterations."""
    rows, config = observations.rows, observations.config
    if len(rows) < 2 * LAST_ROWS:
        return NotChecked(f"needs {2 * LAST_ROWS} iterations")
    if config.team.opponent_pool.every:  # a score may fall against stronger opponents
        return None

    def first_best_last_means(name: str) -> tuple[float, float, float]:
        """Mean scores of the first iterations, of the best `LAST_ROWS` in a row, and of the last ones."""
        mean = f"{name}/score/mean"
        best = max(column_mean(rows[first : first + LAST_ROWS], mean) for first in range(len(rows) - LAST_ROWS + 1))
        return column_mean(rows[:FALL_LAST_ROWS], mean), best, column_mean(rows[-FALL_LAST_ROWS:], mean)

    def has_dropped(name: str) -> bool:
        first, best, last = first_best_last_means(name)
        spread = column_mean(rows, f"{name}/score/std")
        return last < (first + best) / 2 and best - last > max(FALL_DEVIATIONS * spread, 1e-6)

    names = [name for name in config.task.agents if has_dropped(name)]
    if not names:
        return None
    _, best, last = first_best_last_means(names[0])
    return Finding(
        agents=tuple(names),
        text=f"the score of {join_names(names)} fell from {best:.3f} to {last:.3f}",
        advice="resume an earlier checkpoint with a lower actor.learning_rate or a higher algorithm.kl.reward.coef",
        evidence=tuple(metric_evidence(rows, f"{name}/score/mean", f"best {best:.3g}") for name in names),
        overrides=(lower_rate(config.task.agents[names[0]], 3), "algorithm.kl.reward.coef=0.01"),
    )


def find_failing_rewards(observations: Observations) -> Outcome:
    """Responses have no usable reward."""
    row, config = observations.rows[-1], observations.config
    shares = {name: row.get(f"{name}/score/failed_fraction", 0.0) for name in config.task.agents}
    names = [name for name, share in shares.items() if share > 0]
    if not names:
        return None
    return Finding(
        agents=tuple(names),
        text=f"{max(shares.values()):.1%} of the responses of {join_names(names)} have no usable reward and are not "
        "trained on",
        advice=f"more than reward.failure_budget={config.reward.failure_budget:g} ends the run",
        evidence=tuple(metric_evidence(observations.rows, f"{name}/score/failed_fraction") for name in names),
        certainty=Certainty.certain,
    )


def find_non_finite_scores(observations: Observations) -> Outcome:
    """Scores of the held-out data, or of all training iterations, or all metrics of an iteration, are not finite."""
    rows, config = observations.rows, observations.config
    empty = [row for row in rows if not any(math.isfinite(row[key]) for key in row if key != "iteration")]
    if empty:
        text = f"no metric is a finite number in {len(empty)} of {format_count(len(rows), 'iteration')}"
        ends = int(empty[0]["iteration"]), int(empty[-1]["iteration"])
        return _non_finite_finding((Evidence("all metrics", "no value", ends),), text)
    evaluated = [*([observations.initial] if observations.initial is not None else []), *rows]
    metric = f"eval/{primary_metric(config)}"
    evaluated = [row for row in evaluated if metric in row]
    damaged = [row for row in evaluated if not math.isfinite(row[metric])]
    if damaged:
        count = f"{len(damaged)} of {format_count(len(evaluated), 'evaluation')}"
        text = f"the held-out score {metric} is not a finite number in {count}"
        return _non_finite_finding((metric_evidence(evaluated, metric),), text)
    keys = {name: f"{name}/score/mean" for name in config.task.agents}
    found = [name for name, key in keys.items() if _is_never_finite(rows, key)]
    if not found:
        return None
    text = f"the score of {join_names(found)} is not a finite number in any iteration"
    return _non_finite_finding(tuple(metric_evidence(rows, keys[name]) for name in found), text, tuple(found))


def _non_finite_finding(evidence: tuple[Evidence, ...], text: str, agents: tuple[str, ...] = ()) -> Finding:
    return Finding(
        agents=agents,
        text=text,
        advice="check samples/ and what the reward returns; scores, best checkpoints and other findings mean nothing",
        evidence=evidence,
        certainty=Certainty.certain,
    )


def _is_never_finite(rows: Sequence[Row], key: str) -> bool:
    return any(key in row for row in rows) and not any(math.isfinite(metric_value(row, key)) for row in rows)


def find_empty_parts(observations: Observations) -> Outcome:
    """A part of the reward was never a number."""
    rows = observations.rows
    if not observations.is_from_start or len(rows) < FIRST_ROWS:
        return None
    parts = [
        key.rpartition("/")[2]
        for key in rows[-1]
        if "/score/part/" in key and not any(math.isfinite(row.get(key, math.nan)) for row in rows)
    ]
    if not parts:
        return None
    names = list(dict.fromkeys(parts))
    return Finding(
        agents=(),
        text=f"the reward's part {join_names(names)} was not a finite number for any response so far",
        advice="it is excluded from all means",
        evidence=tuple(Evidence(f"score/part/{name}", "no value") for name in names),
        certainty=Certainty.certain,
    )


def find_memorisation(observations: Observations) -> Outcome:
    """The training score rises on repeated rows, and the held-out score does not follow."""
    if has_seed_examples(observations.config.task):
        return None
    epochs = _count_epochs(observations)
    if epochs is not None and epochs < MIN_EPOCHS:
        return None
    initial, final = observations.initial, _last_evaluation(observations.rows)
    if initial is None or final is None or len(observations.rows) < MIN_ROWS:
        return NotChecked("needs held-out scores before and after training (evaluation.every), and 8 iterations")
    names = [name for name in trained_agents(observations.config) if _is_memorised(observations, name, initial, final)]
    if not names:
        return None
    held_out = f"eval/sampled/{names[0]}/score"
    passes = "an unknown number of" if epochs is None else f"{epochs:.0f}"
    scores = column(observations.rows, f"{names[0]}/score/mean")
    return Finding(
        agents=tuple(names),
        text=f"the training score of {join_names(names)} rose from {scores[0]:.3f} to {scores[-1]:.3f} and the "
        f"held-out score only from {initial[held_out]:.3f} to {final[held_out]:.3f}, after {passes} passes over the "
        "training data",
        advice="use more training rows, or stop earlier",
        evidence=(
            metric_evidence(observations.rows, f"{names[0]}/score/mean"),
            metric_evidence([initial, final], held_out),
            Evidence("training rows", "unknown" if observations.train_rows is None else str(observations.train_rows)),
        ),
        overrides=("task.train=MORE_ROWS", "num_iterations=null num_epochs=1", "algorithm.kl.reward.coef=0.01"),
        certainty=Certainty.possible if epochs is None else Certainty.likely,
    )


def _count_epochs(observations: Observations) -> float | None:
    """Passes over the training data so far; None if its size is unknown."""
    if not observations.train_rows:
        return None
    rollout = observations.config.rollout
    prompts = rollout.buffer_size / rollout.num_generations
    return int(observations.rows[-1]["iteration"]) * prompts / observations.train_rows


def _last_evaluation(rows: Sequence[Row]) -> Row | None:
    return next((row for row in reversed(rows) if any(key.startswith("eval/sampled/") for key in row)), None)


def _is_memorised(observations: Observations, name: str, initial: Row, final: Row) -> bool:
    """Whether the gap between training and held-out score grew significantly, to more than half the training gain."""
    rows, config = observations.rows, observations.config
    held_out, spread = f"eval/sampled/{name}/score", column_mean(rows, f"{name}/score/std")
    change = score_change(observations, name)
    if held_out not in initial or held_out not in final or change is None or not change.has_risen:
        return False
    eval_rows = config.evaluation.size or observations.held_out_rows or 1
    prompts = config.rollout.buffer_size / config.rollout.num_generations
    error = spread * math.sqrt(2 / eval_rows + 2 / (prompts * len(last_rows(rows))))
    gain = final[held_out] - initial[held_out]
    return gain < MAX_TRANSFER * change.gain and change.gain - gain > SIGNIFICANT * error


def find_length_hacking(observations: Observations) -> Outcome:
    """Score and length rise together while a part of the reward falls."""
    if len(observations.rows) < MIN_ROWS:
        return NotChecked(f"needs {MIN_ROWS} iterations")
    names = [name for name in trained_agents(observations.config) if _has_parts(observations.rows, name)]
    if not names:
        return NotChecked("the reward reports no parts (score/part/...)")
    falling = {name: _falling_parts(observations, name) for name in names if _gains_by_length(observations, name)}
    falling = {name: parts for name, parts in falling.items() if parts}
    if not falling:
        return None
    name, parts = next(iter(falling.items()))
    lengths = column(observations.rows, f"{name}/rollout/response_length")
    limit = max(round(fmean(lengths[:LAST_ROWS]) * 1.5), 1)
    return Finding(
        agents=tuple(falling),
        text=f"the score of {join_names(list(falling))} rises with the length of responses, while "
        f"{join_names([part.rpartition('/')[2] for part in parts])} falls",
        advice="the reward pays for length: bound it, or subtract a cost per token",
        evidence=(
            metric_evidence(observations.rows, f"{name}/score/mean"),
            metric_evidence(observations.rows, f"{name}/rollout/response_length"),
            *(metric_evidence(observations.rows, part) for part in parts),
        ),
        overrides=(f"rollout.max_new_tokens={limit}", "reward=mix", "algorithm.kl.reward.coef=0.01"),
    )


def _has_parts(rows: Sequence[Row], name: str) -> bool:
    return any(key.startswith(f"{name}/score/part/") for key in rows[-1])


def _gains_by_length(observations: Observations, name: str) -> bool:
    """Whether score and length rise significantly, and together."""
    score, length = f"{name}/score/mean", f"{name}/rollout/response_length"
    rows = [row for row in observations.rows if not math.isnan(row.get(score, math.nan) + row.get(length, math.nan))]
    lengths = measure_change(column(rows, length))
    scores = measure_change(column(rows, score))
    if lengths is None or scores is None or not (lengths.has_risen and scores.has_risen):
        return False
    is_longer = lengths.gain > LENGTH_GROWTH * lengths.first
    return is_longer and correlation(column(rows, score), column(rows, length)) > MIN_CORRELATION


def _falling_parts(observations: Observations, name: str) -> list[str]:
    """Parts of the reward that fall significantly, and by a tenth of their first value or more."""
    prefix = f"{name}/score/part/"
    parts = dict.fromkeys(key for row in observations.rows for key in row if key.startswith(prefix))

    def has_fallen(change: Change | None) -> bool:
        return change is not None and change.has_fallen and -change.gain > PART_FALL * abs(change.first)

    return [part for part in parts if has_fallen(measure_change(column(observations.rows, part)))]
