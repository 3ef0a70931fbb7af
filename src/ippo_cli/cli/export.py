"""`ippo-export`: a run's agents as Hugging Face folders."""

from __future__ import annotations

import shlex
from typing import NoReturn

from ippo_cli.cli.entry import run_command
from ippo_cli.cli.help import EXPORT_HELP
from ippo_cli.compose.configured import names, own_keys, resolve_run, run_config, yes_or_no
from ippo_cli.config.commands import typed_path
from ippo_cli.config.secrets import kept, redacted
from ippo_cli.runs.output import announce, outlive_readers

OWN = ("run", "checkpoint", "to", "agent", "merged", "dtype", "critic")


def main() -> NoReturn:
    """Entry point."""
    run_command("ippo-export", EXPORT_HELP, _export, needs_arguments=True, own=OWN, takes_overrides=False)


def _export(argv: list[str]) -> None:
    from ippo_cli.config.errors import ConfigError, combine_errors

    own, rest = own_keys(argv, OWN)
    if rest:
        known = f"those that can: {' '.join(OWN)}"
        raise combine_errors([ConfigError(text, "can have no effect on an export", known) for text in rest])
    for key, example in (("run", "run=outputs/NAME/DATE-ID"), ("to", "to=exported")):
        if not own.get(key):
            raise ConfigError(f"{key}=", "is missing", f"say {example}")
    resolve_run(own)
    merged, critic = yes_or_no(own, "merged", True), yes_or_no(own, "critic", False)
    if (dtype := own.get("dtype")) not in (None, "fp32", "bf16"):
        raise ConfigError(f"dtype={dtype}", "is not known", "use fp32, which keeps all of an adapter, or bf16")
    folder, to = typed_path(own["run"]).absolute(), typed_path(own["to"]).absolute()
    config = run_config(folder, own["run"], [], data=False)
    outlive_readers("the export")
    announce("ippo-export: loading libraries and weights")
    from ippo_cli.config.schema import Dtype
    from ippo_cli.evaluation.export import Wanted, export

    wanted = Wanted(
        run=folder,
        checkpoint=own.get("checkpoint", "latest"),
        to=to,
        agents=names(own.get("agent", "")),
        merged=merged,
        dtype=None if dtype is None else Dtype(dtype),
        critic=critic,
        command=redacted(shlex.join(["ippo-export", *kept(list(argv))])),
    )
    export(config, wanted, lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
