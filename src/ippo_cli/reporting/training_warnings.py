"""What is likely wrong with a run, told by its own metrics: a table of rules over the last rows of the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from ippo_cli.config.batch_sizes import Arithmetic
from ippo_cli.config.config_warnings import Settings, unusual_settings
from ippo_cli.config.schema import (
    Config,
    CriticKind,
    GridConfig,
    History,
    LettersConfig,
    ValueUnit,
    WorldConfig,
)
from ippo_cli.config.teams import critics, members
from ippo_cli.config.text import listed
from ippo_cli.tasks.environments.build import newer_environment
from ippo_cli.tasks.task import Task

Row = Mapping[str, float]

WINDOW = 50  # rows that the rules look at
FIRST = 3  # iterations after which what never happened is told
LAST = 10  # iterations that are averaged
EARLY = 20  # iterations a critic may be worse than none
NO_VARIANCE, NEGATIVE_VARIANCE = 0.02, -0.1  # explained
ALL = 0.99  # a share that is as good as all
FAR = 10  # value clip ranges that a critic is off at first
FALL_LAST = 5  # iterations over which a score that fell is averaged
FALL_DEVIATIONS = 0.5  # standard deviations of a buffer's scores that it fell
SOME, MANY = 0.05, 0.5  # shares that are told of: of episodes without room, and of turns that were cut


def unusual_rows(recent: Iterable[Row], config: Config) -> dict[str, str]:
    """What each rule has to say of the last iterations, at most `WINDOW`, oldest first."""
    rows = list(recent)
    said = {name: rule(rows, config) for name, rule in RULES.items()} if rows else {}
    return {name: text for name, text in said.items() if text is not None}


def unusual_start(config: Config, plan: Arithmetic, task: Task) -> dict[str, str]:
    """What is unusual before the first iteration."""
    return unusual_settings(
        Settings(
            config=config,
            plan=plan,
            train_rows=len(task.train),
            held_out_rows=len(task.held_out),
            dry_failure=task.dry_run.failure,
            newer_environment=newer_environment(config.task) if isinstance(config.task, WorldConfig) else None,
        )
    )


def _truncated(rows: Sequence[Row], config: Config) -> str | None:
    if isinstance(config.task, (LettersConfig, GridConfig, WorldConfig)):
        return None  # whose answers are as long as the limit; whose episodes end at limits of their own

    def all_cut(name: str) -> bool:
        several_turns = f"{name}/rollout/cut_share" in rows[-1]  # whose rows are cut at other limits as well
        return not several_turns and rows[-1][f"{name}/rollout/truncated_share"] >= ALL

    cut = [name for name in config.task.agents if all_cut(name)]
    if not cut:
        return None

    def before_limit(name: str) -> bool:
        limit = config.task.agents[name].rollout.max_new_tokens
        return rows[-1].get(f"{name}/rollout/response_length", limit) < ALL * limit

    limit = f"rollout.max_new_tokens={_limits(config, cut)}"
    if all(map(before_limit, cut)):
        return (
            f"every response of {listed(cut)} was cut where the context was full, before {limit}; "
            "shorten prompts, or raise rollout.context_limit"
        )
    return (
        f"every response of {listed(cut)} was cut at {limit} before it ended; raise that, or shorten what is asked for"
    )


def _equal_scores(rows: Sequence[Row], config: Config) -> str | None:
    def never_varied(name: str) -> bool:
        if not _from_start(rows) or len(rows) < FIRST:
            return False
        silent = f"{name}/targets/zero_advantage_fraction"
        return all(row[f"{name}/score/std"] == 0 or row.get(silent, 0.0) >= ALL for row in rows)

    def collapsed(name: str) -> bool:
        """And not because everything is right: then no earlier score was higher."""
        before, last = rows[:-LAST], rows[-LAST:]
        mean = f"{name}/score/mean"
        constant = len(last) == LAST and all(row[f"{name}/score/std"] == 0 for row in last)
        return constant and any(row[mean] > last[-1][mean] + 1e-6 for row in before)

    equal = _agents(config, lambda name: never_varied(name) or collapsed(name))
    if not equal:
        return None
    last = int(rows[-1]["iteration"])
    first = last - min(len(rows), LAST) + 1
    return (
        f"all responses of {equal} that are compared have equal scores in iterations {first} to {last}: "
        "nothing to learn from; see samples/ and the reward"
    )


def _no_progress(rows: Sequence[Row], config: Config) -> str | None:
    if not _from_start(rows) or len(rows) < WINDOW:
        return None
    first, last = rows[:LAST], rows[-LAST:]

    def stuck(name: str) -> bool:
        mean, std = f"{name}/score/mean", f"{name}/score/std"
        spread = _mean(std, (*first, *last))
        noise = spread * math.sqrt(2 / (LAST * config.rollout.buffer_size))
        risen = _mean(mean, last) - _mean(mean, first)
        return spread > 0 and risen < 2 * noise

    names = [name for name in config.task.agents if stuck(name)]
    if not names:
        return None
    scores = [_mean(f"{names[0]}/score/mean", part) for part in (first, last)]
    return (
        f"the score of {listed(names)} has not risen in {len(rows)} iterations ({scores[0]:.3f} -> {scores[1]:.3f}); "
        "try another actor.learning_rate or more steps"
    )


def _fell(rows: Sequence[Row], config: Config) -> str | None:
    if len(rows) < 2 * LAST or config.team.partners.every:  # against partners that learn a score may fall
        return None

    def means(name: str) -> tuple[float, float, float]:
        """Of the first iterations, of those that scored best, of the last ones."""
        mean = f"{name}/score/mean"
        best = max(_mean(mean, rows[first : first + LAST]) for first in range(len(rows) - LAST + 1))
        return _mean(mean, rows[:FALL_LAST]), best, _mean(mean, rows[-FALL_LAST:])

    def fell(name: str) -> bool:
        first, best, last = means(name)
        spread = _mean(f"{name}/score/std", rows)
        return last < (first + best) / 2 and best - last > max(FALL_DEVIATIONS * spread, 1e-6)

    names = [name for name in config.task.agents if fell(name)]
    if not names:
        return None
    _, best, last = means(names[0])
    return (
        f"the score of {listed(names)} fell from {best:.3f} to {last:.3f}; "
        "go back to an earlier checkpoint with a lower actor.learning_rate or more algorithm.kl.reward.coef"
    )


def _far_values(rows: Sequence[Row], config: Config) -> str | None:
    reach = config.algorithm.value_clip_range
    if reach is None or not _from_start(rows) or len(rows) != FIRST:
        return None

    def error(name: str) -> float:
        """How far values are off, by their mean loss: half of the square, or beyond `huber_delta` what Huber's is."""
        loss = fmean(max(_there(row.get(f"{name}/value/loss")), 0.0) for row in rows)
        delta = config.algorithm.huber_delta
        if delta is not None and loss > delta**2 / 2:
            return loss / delta + delta / 2
        return math.sqrt(2 * loss)

    names = [name for name in config.task.agents if error(name) > FAR * reach]
    if not names:
        return None
    return (
        f"values of {listed(names)} are off by {max(map(error, names)):.2g} and move by at most "
        f"algorithm.value_clip_range={reach:g} in a buffer; scale rewards (reward.processor) or widen it"
    )


def _critic(rows: Sequence[Row], config: Config) -> str | None:
    done = int(rows[-1]["iteration"])

    def explained(name: str) -> list[float]:
        """Of the last rows in which there was something to explain."""
        key = f"{name}/value/explained_variance"
        there = [row for row in rows if not math.isnan(row.get(key, math.nan)) and row[f"{name}/score/std"] > 0]
        return [row[key] for row in there[-LAST:]]

    def explains_nothing(name: str) -> bool:
        found = explained(name)
        if len(found) < LAST or done < EARLY:
            return False
        # One value for a whole turn can be right and explain nothing: where all prompts are equally hard.
        flat = done >= WINDOW and config.algorithm.value_unit is not ValueUnit.turn and fmean(found) < NO_VARIANCE
        return flat or fmean(found) < NEGATIVE_VARIANCE

    names = [name for name in config.task.agents if explains_nothing(name)]
    if not names:
        return None
    mean = fmean(explained(names[0]))
    separate = config.task.agents[names[0]].critic.kind in (
        CriticKind.separate,
        CriticKind.centralized,
        CriticKind.adapter,
    )
    remedy = (
        "smaller critic.mini_batch_size, more critic.ppo_epochs"
        if separate
        else "another algorithm.value_loss_coef or critic=separate"
    )
    return (
        f"explained_variance of {listed(names)} is {mean:.2f} after {done} iterations; "
        f"try {remedy}, or another critic.learning_rate"
    )


def _failing_rewards(rows: Sequence[Row], config: Config) -> str | None:
    shares = {name: rows[-1][f"{name}/score/failed_share"] for name in config.task.agents}
    names = [name for name, share in shares.items() if share > 0]
    if not names:
        return None
    return (
        f"{max(shares.values()):.1%} of the responses of {listed(names)} have no usable reward and are not trained on; "
        f"more than reward.failure_budget={config.reward.failure_budget:g} ends the run"
    )


def _empty_parts(rows: Sequence[Row], config: Config) -> str | None:
    if not _from_start(rows) or len(rows) < FIRST:
        return None
    parts = [
        key.rpartition("/")[2]
        for key in rows[-1]
        if "/score/part/" in key and not any(math.isfinite(row.get(key, math.nan)) for row in rows)
    ]
    if not parts:
        return None
    names = listed(list(dict.fromkeys(parts)))
    return f"the reward's part {names} was no finite number for any response so far; it is in no average"


def _skipped_steps(rows: Sequence[Row], config: Config) -> str | None:
    skipped = [
        holder
        for holder in dict.fromkeys((*members(config), *critics(config)))
        if any(
            key.startswith(f"{holder}/") and key.endswith("/skipped_steps") and value > 0
            for key, value in rows[-1].items()
        )
    ]
    if not skipped:
        return None
    return (
        f"optimizer steps of {listed(skipped)} were left out: their gradients were not finite; "
        "try a lower learning_rate"
    )


def _overflowing(rows: Sequence[Row], config: Config) -> str | None:
    shares = {name: rows[-1].get(f"{name}/rollout/overflow_share", 0.0) for name in config.task.agents}
    names = [name for name, share in shares.items() if share > SOME]
    if not names:
        return None
    return (
        f"{max(shares.values()):.0%} of episodes were cut: the context of {listed(names)} had no room for a turn; "
        + (
            "raise rollout.max_prompt_tokens"
            if config.rollout.history is History.latest
            else "lower rollout.max_new_tokens or the number of turns"
        )
    )


def _cut_turns(rows: Sequence[Row], config: Config) -> str | None:
    last = rows[-FIRST:]
    shares = {
        name: min(_there(row.get(f"{name}/rollout/cut_share")) for row in last) if len(last) == FIRST else 0.0
        for name in config.task.agents
    }
    names = [name for name, share in shares.items() if share > MANY]
    if not names:
        return None
    return (
        f"{max(shares[name] for name in names):.0%} of the turns of {listed(names)} are cut at rollout.max_new_tokens="
        f"{_limits(config, names)} before they end; raise that, or shorten what is asked for"
    )


def _silent(rows: Sequence[Row], config: Config) -> str | None:
    silent = _agents(config, lambda name: rows[-1].get(f"{name}/rollout/response_length") == 0)
    if not silent:
        return None
    return f"{silent} wrote nothing in a whole buffer and learns nothing; see samples/, and whom the task asks"


def _agents(config: Config, wanted: Callable[[str], bool]) -> str:
    """The agents of whom something is true, in words; empty where it is true of none."""
    names = [name for name in config.task.agents if wanted(name)]
    return listed(names) if names else ""


def _limits(config: Config, names: Sequence[str]) -> str:
    """The response limits of some agents, each limit once."""
    return "/".join(map(str, dict.fromkeys(config.task.agents[name].rollout.max_new_tokens for name in names)))


def _there(share: float | None) -> float:
    """A share, and 0 where there is none."""
    return 0.0 if share is None or math.isnan(share) else share


def _mean(key: str, rows: Sequence[Row]) -> float:
    """Over the rows that have a number there; NaN where none has."""
    numbers = [row[key] for row in rows if not math.isnan(row[key])]
    return fmean(numbers) if numbers else math.nan


def _from_start(rows: Sequence[Row]) -> bool:
    return int(rows[0]["iteration"]) == 1


RULES: dict[str, Callable[[Sequence[Row], Config], str | None]] = {
    "truncated": _truncated,
    "equal_scores": _equal_scores,
    "no_progress": _no_progress,
    "fell": _fell,
    "far_values": _far_values,
    "explained_variance": _critic,
    "failing_rewards": _failing_rewards,
    "empty_parts": _empty_parts,
    "skipped_steps": _skipped_steps,
    "overflow": _overflowing,
    "cut_turns": _cut_turns,
    "silent": _silent,
}
"""By the name under which `run.json` keeps what was said."""
