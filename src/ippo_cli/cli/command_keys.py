"""Keys of commands that are not keys of the configuration. Imports only the standard library."""

from __future__ import annotations

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
        "format",
        "json",
    ),
    "ippo-export": ("run", "checkpoint", "to", "agent", "merged", "dtype", "critic"),
    "ippo-chat": ("run", "model", "checkpoint", "agent", "greedy", "seed", "raw", "serve", "host", "port"),
    "ippo-sweep": ("to",),
    "ippo-verify": ("iterations", "count", "seed", "span", "to"),
    "ippo-report": ("to", "title"),
    "ippo-runs": ("state", "name", "seed", "sort", "json", "metrics", "confirm", "older_than_days"),
    "ippo-doctor": ("output_dir", "network"),
}
