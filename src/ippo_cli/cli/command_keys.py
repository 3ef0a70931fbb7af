"""Keys of commands that are not keys of the configuration, and their values. Imports only the standard library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ippo_cli.config.errors import ConfigError

OWN_KEYS: dict[str, tuple[str, ...]] = {
    "ippo-eval": (
        "run",
        "model",
        "checkpoint",
        "crossplay",
        "checkpoints",
        "compare",
        "compare_checkpoint",
        "attribution",
        "attribution_baseline",
        "exploitability",
        "exploitability_iterations",
        "exploitability_start",
        "critic",
        "critic_reference",
        "critic_states",
        "critic_responses",
        "critic_continuations",
        "credit",
        "credit_reference",
        "credit_prompts",
        "credit_responses",
        "credit_continuations",
        "credit_alternatives",
        "format",
        "json",
    ),
    "ippo-export": ("run", "checkpoint", "to", "agent", "merged", "dtype", "critic"),
    "ippo-chat": ("run", "model", "checkpoint", "agent", "greedy", "seed", "raw", "serve", "host", "port"),
    "ippo-controls": tuple(
        f"controls.{key}" for key in ("arms", "single", "no_messages", "seeds", "alpha", "differences", "range", "to")
    ),
    "ippo-bench": ("entry", "seeds", "to", "arm", "trainer", "split", "page"),
    "ippo-sweep": ("to",),
    "ippo-verify": ("iterations", "count", "seed", "span", "to"),
    "ippo-report": ("to", "title"),
    "ippo-runs": ("state", "name", "seed", "sort", "json", "metrics", "confirm", "older_than_days"),
    "ippo-doctor": ("output_dir", "network", "json"),
}
CHECKPOINT_KEYS = ("checkpoint", "compare_checkpoint", "attribution_baseline")
OWN_VALUES = {
    "format": ("table", "json", "csv", "markdown", "latex"),
    "dtype": ("fp32", "bf16"),
    **dict.fromkeys(("critic_reference", "credit_reference"), ("monte_carlo", "exact")),
    "exploitability": ("true", "false", "exact"),
    "exploitability_start": ("checkpoint", "initial"),
    "controls.differences": ("bounded", "normal"),
    "split": ("held_out", "train"),
    "state": ("running", "done", "preempted", "failed", "interrupted"),
    "sort": ("age", "score", "best", "size", "name", "iterations"),
    **dict.fromkeys(
        (
            "crossplay",
            "attribution",
            "credit",
            "merged",
            "critic",
            "greedy",
            "raw",
            "serve",
            "json",
            "confirm",
            "network",
        ),
        ("true", "false"),
    ),
}
CHECKPOINTS = ("latest", "best", "initial")
MIN_LIKENESS = 0.7  # of a name that is suggested for another one


def find_close_name(name: str, known: Iterable[str]) -> str | None:
    """The known name with the same letters in another order, such as `run` for `rnu`, or a similar one."""
    names = list(known)
    reordered = [one for one in names if sorted(one) == sorted(name) and one != name]
    return next(iter(reordered or get_close_matches(name, names, n=1, cutoff=MIN_LIKENESS)), None)


def value_errors(own: Mapping[str, str]) -> Iterator[ConfigError]:
    """Yield one error for every value of a command's own keys that is wrong without looking at any file."""
    from ippo_cli.config.errors import ConfigError

    for key, value in own.items():
        known = OWN_VALUES.get(key, CHECKPOINTS if key in (*CHECKPOINT_KEYS, "compare") else ())
        close = find_close_name(value, known)
        meant = f"did you mean {key}={close}?" if close else f"use one of {' '.join(known)}"
        if key == "compare":  # any other value is a run or a model
            if close is not None and close != value:
                yield ConfigError(f"compare={value}", "is no checkpoint", f"{meant} (a folder: compare=./{value})")
        elif key in CHECKPOINT_KEYS:
            if value not in known and not value.isdigit():
                meant = meant if close else "use latest, best, initial or an iteration's number"
                yield ConfigError(f"{key}={value}", "is not a checkpoint", meant)
        elif known and value not in known:
            is_switch = known == ("true", "false")
            meant = meant if close else f"use {key}=true or {key}=false" if is_switch else meant
            yield ConfigError(f"{key}={value}", "is neither true nor false" if is_switch else "is not known", meant)
