"""`tracker=wandb`: logs a run to Weights & Biases, in the child process. Requires the extra `wandb`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import wandb

from ippo_cli.reporting.trackers.sample_turns import TURN_COLUMNS, turn_table

INIT_TIMEOUT_S = 20.0  # for the server's reply; without one, rows are written to offline files
PREEMPTED, FAILED = 75, 1


class WandbRun:
    """A W&B run whose x-axis is `iteration`, so that a resumed run may log an iteration again."""

    def __init__(self, run: Mapping[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        def init_run(mode: str | None = None) -> wandb.Run:
            settings = wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                init_timeout=INIT_TIMEOUT_S,
                x_stats_pid=run["process"],
            )
            return wandb.init(
                project=run["project"],
                entity=run["entity"],
                group=run["group"],
                name=run["name"],
                tags=run["tags"],
                id=run["id"],
                resume="allow",
                config=run["settings"],
                dir=run["folder"],
                allow_val_change=True,  # a resumed run may have other settings
                mode=mode,  # type: ignore[arg-type]
                settings=settings,
            )

        try:
            self._run = init_run()
        except Exception as error:
            wandb.teardown()
            self._run = init_run("offline")
            reason = " ".join(f"{type(error).__name__}: {error!s:.200}".split())
            place = f"{run['folder']}/wandb"
            tell({"problem": f"cannot be reached ({reason}): rows are written to {place}, upload them with wandb sync"})
        self._run.define_metric("iteration", hidden=True)
        self._run.define_metric("*", step_metric="iteration")
        if self._run.url:
            tell({"message": self._run.url})

    def log(self, row: Mapping[str, float | None], timestamp: float) -> None:
        self._run.log({name: value for name, value in row.items() if value is not None} | {"_timestamp": timestamp})

    def log_samples(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        kind, _, iteration = name.rpartition("_")
        table = wandb.Table(columns=list(TURN_COLUMNS), data=turn_table(rows))
        self._run.log({f"samples/{kind}": table, "iteration": int(iteration)})

    def finish(self, state: str) -> None:
        if state == "preempted":
            self._run.mark_preempting()
        self._run.summary["state"] = state
        self._run.finish({"done": 0, "preempted": PREEMPTED}.get(state, FAILED))
        wandb.teardown()
