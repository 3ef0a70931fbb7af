"""`critic.freeze`: parameters of a critic that keep their initial values, selected by patterns of their names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from torch import nn

from ippo_cli.config.errors import ConfigError

KEY = "critic.freeze"


def frozen_names(names: Iterable[str], patterns: Sequence[str]) -> set[str]:
    """The names of a critic's parameters that match a pattern, such as `*attn*` (see `fnmatch`).

    Raises `ConfigError` for a pattern without a match, and for one that matches the value head.
    """
    known, found = list(names), set[str]()
    for pattern in patterns:
        matches = {name for name in known if fnmatchcase(name, pattern)}
        if not matches:
            raise ConfigError(f"{KEY}=[{pattern}]", "matches no parameter of the critic", f"names are as {known[0]}")
        if any(name.startswith("value_head.") for name in matches):
            raise ConfigError(
                f"{KEY}=[{pattern}]",
                "freezes the value head, of which the initial values are 0",
                "use a pattern of the backbone's names, such as *attn* or backbone.*",
            )
        found |= matches
    return found


def freeze_parameters(model: nn.Module, patterns: Sequence[str]) -> None:
    """Exclude the parameters that match a pattern from gradients, and so from the optimizer."""
    for name in frozen_names((name for name, _ in model.named_parameters()), patterns):
        model.get_parameter(name).requires_grad_(False)
