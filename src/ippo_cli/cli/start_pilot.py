"""Start a pilot from a checked configuration: its folder, and the processes that measure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ippo_cli.config.schema import Config


def start_pilot(
    config: Config, config_yaml: str, overrides: Sequence[str], command: Sequence[str], external_ranks: int | None
) -> None:
    """Run a pilot in this process, in child ranks, or as one rank of an external launcher. Raises as a training does.

    `config_yaml`, `overrides` and `command` are written for child ranks, and removed with the pilot's folder.
    """
    from ippo_cli.pilot.folder import remove_work, work_folder
    from ippo_cli.pilot.size import check_pilot_tokens
    from ippo_cli.runs.folder import write_start_files
    from ippo_cli.runs.launch import run_ranks

    check_pilot_tokens(config, external_ranks or config.launch.processes)
    reserved: list[Path] = []

    def start(folder: Path) -> None:
        reserved.append(folder)
        write_start_files(folder, config_yaml, overrides, command, resumed=False)

    if external_ranks is not None:
        from ippo_cli.pilot.run_pilot import run_pilot

        try:
            run_pilot(config, None, start=start)
        finally:
            for folder in reserved:  # on rank 0
                remove_work(folder)
        return
    with work_folder(config) as folder:
        start(folder)
        if config.launch.processes > 1:
            run_ranks(folder, config.launch.processes, resumed=False)
        else:
            from ippo_cli.pilot.run_pilot import run_pilot

            run_pilot(config, folder)
