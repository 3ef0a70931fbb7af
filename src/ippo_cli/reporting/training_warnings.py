"""Warnings about a run, derived from its metrics by rules over the last rows of the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from ippo_cli.config.batch_sizes import BatchSizes
from ippo_cli.config.config_warnings import WarningInputs, config_warnings
from ippo_cli.config.schema import (
    Config,
    ContextMode,
    CriticKind,
    EnvironmentTaskConfig,
    GridConfig,
    LettersConfig,
    ValueUnit,
)
from ippo_cli.config.teams import agents_by_critic, agents_by_policy
from ippo_cli.config.text import join_names
from ippo_cli.tasks.environments.build import newer_environment
from ippo_cli.tasks.task import Task

Row = Mapping[str, float]

WINDOW = 50  # rows that the rules use
FIRST_ROWS = 3  # iterations before rules about the start of a run apply
LAST_ROWS = 10  # iterations to average
CRITIC_WARMUP_ROWS = 20  # iterations in which a critic may have negative explained variance
NO_VARIANCE, NEGATIVE_VARIANCE = 0.02, -0.1  # thresholds of explained variance
NEARLY_ALL = 0.99  # a fraction that counts as all
FAR_CLIP_RANGES = 10  # initial value error, in value clip ranges
FALL_LAST_ROWS = 5  # iterations to average after a score drop
FALL_DEVIATIONS = 0.5  # minimum score drop, in standard deviations of a buffer's scores
SOME, MANY = 0.05, 0.5  # thresholds for the fractions of overflowed episodes and of truncated turns


def training_warnings(recent: Iterable[Row], config: Config) -> dict[str, str]:
    """Warnings by rule about the last iterations (oldest first, at most `WINDOW`)."""
    rows = list(recent)
    texts = {name: rule(rows, config) for name, rule in RULES.items()} if rows else {}
    return {name: text for name, text in texts.items() if text is not None}


def startup_warnings(config: Config, plan: BatchSizes, task: Task) -> dict[str, str]:
    """Warnings by rule about the configuration, before the first iteration."""
    return config_warnings(
        WarningInputs(
            config=config,
            batch_sizes=plan,
            train_rows=len(task.train),
            held_out_rows=len(task.held_out),
            dry_run_failure=task.dry_run.failure,
            newer_environment=newer_environment(config.task)
            if isinstance(config.task, EnvironmentTaskConfig)
            else None,
        )
    )


def _truncation_warning(rows: Sequence[Row], config: Config) -> str | None:
    if isinstance(config.task, (LettersConfig, GridConfig, EnvironmentTaskConfig)):
        return None  # responses have exactly the limit's length, or episodes end at the environment's limit

    def is_always_truncated(name: str) -> bool:
        several_turns = f"{name}/rollout/cut_fraction" in rows[-1]  # their rows are also truncated at other limits
        return not several_turns and rows[-1][f"{name}/rollout/truncated_fraction"] >= NEARLY_ALL

    cut = [name for name in config.task.agents if is_always_truncated(name)]
    if not cut:
        return None

    def is_cut_before_limit(name: str) -> bool:
        limit = config.task.agents[name].rollout.max_new_tokens
        return rows[-1].get(f"{name}/rollout/response_length", limit) < NEARLY_ALL * limit

    limit = f"rollout.max_new_tokens={_format_limits(config, cut)}"
    if all(map(is_cut_before_limit, cut)):
        return (
            f"every response of {join_names(cut)} was truncated at a full context, before {limit}; "
            "shorten prompts, or increase rollout.context_limit"
        )
    return (
        f"every response of {join_names(cut)} was truncated at {limit}; "
        "increase the limit, or ask for shorter responses"
    )


def _equal_scores_warning(rows: Sequence[Row], config: Config) -> str | None:
    def has_never_varied(name: str) -> bool:
        if not _is_from_start(rows) or len(rows) < FIRST_ROWS:
            return False
        silent = f"{name}/targets/zero_advantage_fraction"
        return all(row[f"{name}/score/std"] == 0 or row.get(silent, 0.0) >= NEARLY_ALL for row in rows)

    def has_collapsed(name: str) -> bool:
        """Constant scores below an earlier mean; constant maximum scores are not a collapse."""
        before, last = rows[:-LAST_ROWS], rows[-LAST_ROWS:]
        mean = f"{name}/score/mean"
        constant = len(last) == LAST_ROWS and all(row[f"{name}/score/std"] == 0 for row in last)
        return constant and any(row[mean] > last[-1][mean] + 1e-6 for row in before)

    equal = _list_agents(config, lambda name: has_never_varied(name) or has_collapsed(name))
    if not equal:
        return None
    last = int(rows[-1]["iteration"])
    first = last - min(len(rows), LAST_ROWS) + 1
    return (
        f"all compared responses of {equal} have equal scores in iterations {first} to {last}, so there is no learning "
        "signal; check samples/ and the reward"
    )


def _no_progress_warning(rows: Sequence[Row], config: Config) -> str | None:
    if not _is_from_start(rows) or len(rows) < WINDOW:
        return None
    first, last = rows[:LAST_ROWS], rows[-LAST_ROWS:]

    def is_stuck(name: str) -> bool:
        mean, std = f"{name}/score/mean", f"{name}/score/std"
        spread = _column_mean(std, (*first, *last))
        noise = spread * math.sqrt(2 / (LAST_ROWS * config.rollout.buffer_size))
        risen = _column_mean(mean, last) - _column_mean(mean, first)
        return spread > 0 and risen < 2 * noise

    names = [name for name in config.task.agents if is_stuck(name)]
    if not names:
        return None
    scores = [_column_mean(f"{names[0]}/score/mean", part) for part in (first, last)]
    return (
        f"the score of {join_names(names)} has not increased in {len(rows)} iterations "
        f"({scores[0]:.3f} -> {scores[1]:.3f}); try another actor.learning_rate or more steps"
    )


def _score_drop_warning(rows: Sequence[Row], config: Config) -> str | None:
    if len(rows) < 2 * LAST_ROWS or config.team.opponent_pool.every:  # a score may fall against stronger opponents
        return None

    def first_best_last_means(name: str) -> tuple[float, float, float]:
        """Mean scores of the first iterations, of the best `LAST_ROWS` in a row, and of the last ones."""
        mean = f"{name}/score/mean"
        best = max(_column_mean(mean, rows[first : first + LAST_ROWS]) for first in range(len(rows) - LAST_ROWS + 1))
        return _column_mean(mean, rows[:FALL_LAST_ROWS]), best, _column_mean(mean, rows[-FALL_LAST_ROWS:])

    def has_dropped(name: str) -> bool:
        first, best, last = first_best_last_means(name)
        spread = _column_mean(f"{name}/score/std", rows)
        return last < (first + best) / 2 and best - last > max(FALL_DEVIATIONS * spread, 1e-6)

    names = [name for name in config.task.agents if has_dropped(name)]
    if not names:
        return None
    _, best, last = first_best_last_means(names[0])
    return (
        f"the score of {join_names(names)} fell from {best:.3f} to {last:.3f}; "
        "resume an earlier checkpoint with a lower actor.learning_rate or a higher algorithm.kl.reward.coef"
    )


def _value_clip_warning(rows: Sequence[Row], config: Config) -> str | None:
    clip_range = config.algorithm.value_clip_range
    if clip_range is None or not _is_from_start(rows) or len(rows) != FIRST_ROWS:
        return None

    def value_error(name: str) -> float:
        """Typical value error, computed from the mean loss: half the square, or Huber's loss beyond `huber_delta`."""
        loss = fmean(max(_value_or_zero(row.get(f"{name}/value/loss")), 0.0) for row in rows)
        delta = config.algorithm.huber_delta
        if delta is not None and loss > delta**2 / 2:
            return loss / delta + delta / 2
        return math.sqrt(2 * loss)

    names = [name for name in config.task.agents if value_error(name) > FAR_CLIP_RANGES * clip_range]
    if not names:
        return None
    return (
        f"values of {join_names(names)} are off by {max(map(value_error, names)):.2g} but change by at "
        f"most algorithm.value_clip_range={clip_range:g} per buffer; scale rewards (reward.processor) or increase it"
    )


def _critic_warning(rows: Sequence[Row], config: Config) -> str | None:
    done = int(rows[-1]["iteration"])

    def explained_variances(name: str) -> list[float]:
        """Values of the last rows with score variance."""
        key = f"{name}/value/explained_variance"
        defined = [row for row in rows if not math.isnan(row.get(key, math.nan)) and row[f"{name}/score/std"] > 0]
        return [row[key] for row in defined[-LAST_ROWS:]]

    def is_uninformative(name: str) -> bool:
        found = explained_variances(name)
        if len(found) < LAST_ROWS or done < CRITIC_WARMUP_ROWS:
            return False
        # One value per turn can be correct and explain nothing, if all prompts are equally hard.
        flat = done >= WINDOW and config.algorithm.value_unit is not ValueUnit.turn and fmean(found) < NO_VARIANCE
        return flat or fmean(found) < NEGATIVE_VARIANCE

    names = [name for name in config.task.agents if is_uninformative(name)]
    if not names:
        return None
    mean = fmean(explained_variances(names[0]))
    separate = config.task.agents[names[0]].critic.kind in (
        CriticKind.separate,
        CriticKind.centralized,
        CriticKind.adapter,
    )
    remedy = (
        "a smaller critic.mini_batch_size, more critic.ppo_epochs"
        if separate
        else "another algorithm.value_loss_coef or critic=separate"
    )
    return (
        f"explained_variance of {join_names(names)} is {mean:.2f} after {done} iterations; "
        f"try {remedy}, or another critic.learning_rate"
    )


def _failing_rewards_warning(rows: Sequence[Row], config: Config) -> str | None:
    shares = {name: rows[-1][f"{name}/score/failed_fraction"] for name in config.task.agents}
    names = [name for name, share in shares.items() if share > 0]
    if not names:
        return None
    return (
        f"{max(shares.values()):.1%} of the responses of {join_names(names)} have no usable reward and are not "
        f"trained on; more than reward.failure_budget={config.reward.failure_budget:g} ends the run"
    )


def _empty_parts_warning(rows: Sequence[Row], config: Config) -> str | None:
    if not _is_from_start(rows) or len(rows) < FIRST_ROWS:
        return None
    parts = [
        key.rpartition("/")[2]
        for key in rows[-1]
        if "/score/part/" in key and not any(math.isfinite(row.get(key, math.nan)) for row in rows)
    ]
    if not parts:
        return None
    names = join_names(list(dict.fromkeys(parts)))
    return f"the reward's part {names} was not a finite number for any response so far; it is excluded from all means"


def _skipped_steps_warning(rows: Sequence[Row], config: Config) -> str | None:
    skipped = [
        holder
        for holder in dict.fromkeys((*agents_by_policy(config), *agents_by_critic(config)))
        if any(
            key.startswith(f"{holder}/") and key.endswith("/skipped_steps") and value > 0
            for key, value in rows[-1].items()
        )
    ]
    if not skipped:
        return None
    return (
        f"optimizer steps of {join_names(skipped)} were skipped because gradients were not finite; "
        "try a lower learning_rate"
    )


def _context_overflow_warning(rows: Sequence[Row], config: Config) -> str | None:
    shares = {name: rows[-1].get(f"{name}/rollout/overflow_fraction", 0.0) for name in config.task.agents}
    names = [name for name, share in shares.items() if share > SOME]
    if not names:
        return None
    return (
        f"{max(shares.values()):.0%} of episodes were truncated: a turn did not fit into the context of "
        f"{join_names(names)}; "
        + (
            "increase rollout.max_prompt_tokens"
            if config.rollout.context is ContextMode.last_only
            else "lower rollout.max_new_tokens or the number of turns"
        )
    )


def _cut_turns_warning(rows: Sequence[Row], config: Config) -> str | None:
    last = rows[-FIRST_ROWS:]
    shares = {
        name: min(_value_or_zero(row.get(f"{name}/rollout/cut_fraction")) for row in last)
        if len(last) == FIRST_ROWS
        else 0.0
        for name in config.task.agents
    }
    names = [name for name, share in shares.items() if share > MANY]
    if not names:
        return None
    return (
        f"{max(shares[name] for name in names):.0%} of the turns of {join_names(names)} are truncated at "
        f"rollout.max_new_tokens={_format_limits(config, names)}; increase the limit, or ask for shorter responses"
    )


def _empty_responses_warning(rows: Sequence[Row], config: Config) -> str | None:
    silent = _list_agents(config, lambda name: rows[-1].get(f"{name}/rollout/response_length") == 0)
    if not silent:
        return None
    return (
        f"{silent} generated no tokens in a whole buffer and does not learn; check samples/, and when the task calls it"
    )


def _list_agents(config: Config, wanted: Callable[[str], bool]) -> str:
    """The names of the agents for which `wanted` is true, joined; empty if none."""
    names = [name for name in config.task.agents if wanted(name)]
    return join_names(names) if names else ""


def _format_limits(config: Config, names: Sequence[str]) -> str:
    """The distinct response limits of some agents."""
    return "/".join(map(str, dict.fromkeys(config.task.agents[name].rollout.max_new_tokens for name in names)))


def _value_or_zero(share: float | None) -> float:
    """The value, or 0 for None and NaN."""
    return 0.0 if share is None or math.isnan(share) else share


def _column_mean(key: str, rows: Sequence[Row]) -> float:
    """Mean over the rows with a number; NaN without any."""
    numbers = [row[key] for row in rows if not math.isnan(row[key])]
    return fmean(numbers) if numbers else math.nan


def _is_from_start(rows: Sequence[Row]) -> bool:
    return int(rows[0]["iteration"]) == 1


RULES: dict[str, Callable[[Sequence[Row], Config], str | None]] = {
    "truncated": _truncation_warning,
    "equal_scores": _equal_scores_warning,
    "no_progress": _no_progress_warning,
    "fell": _score_drop_warning,
    "far_values": _value_clip_warning,
    "explained_variance": _critic_warning,
    "failing_rewards": _failing_rewards_warning,
    "empty_parts": _empty_parts_warning,
    "skipped_steps": _skipped_steps_warning,
    "overflow": _context_overflow_warning,
    "cut_turns": _cut_turns_warning,
    "silent": _empty_responses_warning,
}
"""Rules by their names in `run.json`."""
