"""`ippo-train --diff RUN [overrides]`: the keys that differ between a run and the given overrides."""

from __future__ import annotations

from collections.abc import Sequence

from ippo_cli.config.errors import ConfigError

FLAG = "--diff"


def find_difference(typed: Sequence[str]) -> str | None:
    """Lines `key: value of the run -> value of the overrides`, or None without the flag. Raises `IppoError`."""
    place = next((number for number, text in enumerate(typed) if text.partition("=")[0] == FLAG), None)
    if place is None:
        return None
    _, equals, run = typed[place].partition("=")
    rest = [*typed[:place], *typed[place + 1 :]]
    if not equals:
        run = typed[place + 1] if place + 1 < len(typed) else ""
        rest = [*typed[:place], *typed[place + 2 :]]
    if not run or run.startswith("-"):
        raise ConfigError(FLAG, "needs a run", f"use {FLAG} outputs/NAME/DATE-ID, then the overrides")
    from ippo_cli.compose.arguments import normalize_arguments
    from ippo_cli.compose.flags import check_flags
    from ippo_cli.compose.load import compose_node, iter_leaves, resolve_config
    from ippo_cli.compose.resume import config_changes
    from ippo_cli.compose.run_folders import find_run
    from ippo_cli.compose.typed_kinds import check_typed_kinds
    from ippo_cli.compose.user_files import check_user_files

    check_flags(rest)
    folder, _ = find_run(run, FLAG)
    argv = normalize_arguments(rest)
    check_user_files(argv)
    check_typed_kinds(argv)
    plain = resolve_config(compose_node([text for text in argv if not text.startswith("-")]))
    lines = config_changes(folder, dict(iter_leaves(plain)))
    return "".join(f"{' '.join(line.splitlines())}\n" for line in lines) or f"no key differs from {folder}\n"
