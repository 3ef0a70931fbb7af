"""`ippo-export`: export the agents of a run as Hugging Face folders."""

from __future__ import annotations

import shlex
from typing import NoReturn

from ippo_cli.cli.command_keys import OWN_KEYS, find_close_name, value_errors
from ippo_cli.cli.entry import run_command
from ippo_cli.cli.help import EXPORT_HELP
from ippo_cli.compose.configured import load_run_config, parse_bool_key, resolve_run, split_command_keys, split_names
from ippo_cli.config.commands import parse_path
from ippo_cli.config.secrets import mask_secrets, redact_text
from ippo_cli.runs.output import ignore_closed_output, print_status, print_text

COMMAND_KEYS = OWN_KEYS["ippo-export"]


def main() -> NoReturn:
    """Entry point."""
    run_command(
        "ippo-export", EXPORT_HELP, _export, needs_arguments=True, command_keys=COMMAND_KEYS, takes_overrides=False
    )


def _export(argv: list[str]) -> None:
    from ippo_cli.config.errors import ConfigError, collect_errors, combine_errors

    own, rest = split_command_keys(argv, COMMAND_KEYS)
    known = f"keys with an effect: {' '.join(COMMAND_KEYS)}"
    meant = {text: find_close_name(text.partition("=")[0], COMMAND_KEYS) for text in rest}
    errors = [
        ConfigError(text, f"has no effect on an export{'' if key is None else f' (closest: {key})'}", known)
        for text, key in meant.items()
    ]
    errors += [
        ConfigError(f"{key}=", "is missing", f"use {example}")
        for key, example in (("run", "run=outputs/NAME/DATE-ID"), ("to", "to=exported"))
        if not own.get(key) and key not in meant.values()
    ]
    if errors := collect_errors([lambda: value_errors(own), lambda: resolve_run(own)], errors):
        raise combine_errors(errors)
    merged, critic = parse_bool_key(own, "merged", True), parse_bool_key(own, "critic", False)
    dtype = own.get("dtype")
    folder, to = parse_path(own["run"]).absolute(), parse_path(own["to"]).absolute()
    config = load_run_config(folder, own["run"], [], data=False)
    ignore_closed_output("the export")
    print_status("ippo-export: loading libraries and weights")
    from ippo_cli.config.schema import Dtype
    from ippo_cli.evaluation.export import ExportRequest, export_agents

    wanted = ExportRequest(
        run_folder=folder,
        checkpoint=own.get("checkpoint", "latest"),
        target=to,
        agents=split_names(own.get("agent", "")),
        is_merged=merged,
        dtype=None if dtype is None else Dtype(dtype),
        needs_critic=critic,
        command=redact_text(shlex.join(["ippo-export", *mask_secrets(list(argv))])),
    )
    export_agents(config, wanted, lambda line: print_text(line))


if __name__ == "__main__":
    main()
