"""Finding the run that `resume=` means, and what it may change."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from ippo_cli.compose.arguments import with_one_search_path
from ippo_cli.compose.earlier_versions import completed
from ippo_cli.compose.load import KINDS, compose_node, leaves, resolve, typed, written
from ippo_cli.config.commands import last_value, typed_path
from ippo_cli.config.errors import ConfigError, ResumeError
from ippo_cli.config.schema import SamplingConfig
from ippo_cli.config.secrets import kept
from ippo_cli.engine.launchers import job_id, ranks_from
from ippo_cli.runs.folder import all_checkpoints, from_here, in_use, owner, read_state, run_folders

# Prefixes of what a run is: another value would be another run, or, from `deepspeed.` on, could not read its shards.
FROZEN = (
    "seed",
    "task.",
    "actor.model",
    "actor.kind",
    "actor.dtype",
    "actor.reference",
    "critic.kind",
    "critic.model",
    "critic.dtype",
    "critic.shared",
    "critic.context_limit",
    "rollout.buffer_size",
    "rollout.num_generations",
    "team.kind",
    "team.groups",
    "deepspeed.stage",
    "deepspeed.offload_",
)
# Below task.agents.<name>.actor, .critic, .rollout and .algorithm the same holds as for the groups themselves.
FREE_OF_AGENTS = (
    "learning_rate",
    "lr_schedule",
    "warmup_iterations",
    "min_lr_ratio",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "gradient_checkpointing",
    "mini_batch_size",
    "ppo_epochs",
    "warm_start",
    *(field.name for field in fields(SamplingConfig)),
)


def continued(argv: Sequence[str]) -> tuple[list[str], Path | None]:
    """The arguments to compose with, and the run's folder to continue; None for a new run.

    A resumed run starts from its saved overrides; those typed now come after them and win.
    """
    wanted = last_value(argv, "resume")
    if wanted in (None, "never"):
        return list(argv), None
    typed_now = [text for text in argv if not text.startswith("resume=")]
    folder = _find(wanted, typed_now)
    if folder is None:
        return typed_now, None
    saved = saved_overrides(folder)
    combined = with_one_search_path([*(text for text in saved if text not in typed_now), *typed_now])
    refuse_drift(folder, _composed(combined), typed_now)
    return combined, folder


def refuse_drift(folder: Path, now: Mapping[str, object], typed: Sequence[str] = ()) -> None:
    """Raise `ResumeError` where a configuration, given by its leaves, would make another run of this one.

    Keys that changed because an option was `typed` are reported by that option.
    """
    refused = _drift(folder, now)
    if refused:
        lines: list[str] = []
        for text in typed:
            group, equals, _ = text.partition("=")
            of_option = [entry for entry in refused if equals and group in KINDS and _is_of_group(entry[0], group)]
            refused = [entry for entry in refused if entry not in of_option]
            if of_option:
                own = [saved for saved in saved_overrides(folder) if saved.startswith(f"{group}=")]
                kind = [f"{group}={before}" for key, before, _ in of_option if key == f"{group}.kind"]
                shown = (own or kind or [f"the default {group}"])[-1]
                lines.append(f"  {text}: the run was started with {shown}")
        lines += [f"  {key}: {before} -> {now}" for key, before, now in refused]
        shown = "\n".join(lines[:8])
        raise ResumeError(
            f"resume={folder}: these cannot change within a run; start a new one, or leave them out\n{shown}"
        )


def _is_of_group(key: str, group: str) -> bool:
    return key.startswith(f"{group}.") or (key.startswith("task.agents.") and f".{group}." in key)


def _find(wanted: str, overrides: Sequence[str]) -> Path | None:
    if wanted not in ("auto", "must"):
        folder = typed_path(wanted).absolute()
        if not (folder / "config.yaml").is_file():
            raise ResumeError(f"resume={wanted}: there is no run; give a run's folder such as outputs/NAME/DATE-ID")
        if in_use(folder):
            raise ResumeError(f"resume={wanted}: the run is going on in another process")
        if not _saved(folder):
            raise ResumeError(f"resume={wanted}: the run ended before its first checkpoint; start a new one")
        return folder
    now = _composed(overrides)
    root = Path(str(now["output_dir"])) / str(now["name"])
    job = job_id(os.environ)
    for folder in run_folders(root):
        done = read_state(folder) == "done"
        if (job is None if done else in_use(folder) or not _saved(folder)) or not _wanted(folder, now, overrides, job):
            continue
        if done:
            _leave_done(folder, job)
        return folder.absolute()
    if wanted == "must":
        whose = "of this configuration" if job is None else f"that job {job} began with these overrides"
        raise ResumeError(f"resume=must: no unfinished run {whose} below {root}; use resume=auto")
    if ranks_from(os.environ).rank == 0:
        print(_why_new(root, job), flush=True)
    return None


def _why_new(root: Path, job: str | None) -> str:
    """Why `resume=auto` begins a new run."""
    whose = "of this configuration" if job is None else f"that job {job} began with these overrides"
    newest = next(iter(run_folders(root)), None)
    seen = "" if newest is None else f" (the newest run there, {newest.name}, {_why_not(newest)})"
    return f"resume=auto: no unfinished run {whose} below {from_here(root.absolute())}{seen}; a new run begins"


def _why_not(folder: Path) -> str:
    """Why a run is not the one to go on with."""
    try:
        state = read_state(folder)
    except ResumeError:
        return "cannot be read"
    if state == "done":
        return "is done"
    if in_use(folder):
        return "is in use by another process"
    return "differs" if _saved(folder) else "has no checkpoint"


def _wanted(folder: Path, now: Mapping[str, object], overrides: Sequence[str], job: str | None) -> bool:
    """Whether a run is the one to go on with: outside of jobs of this configuration, in a job the one that it began.

    The runs of other jobs are left to them, as they may be waiting to be started again.
    """
    began_by, began_with = owner(folder)
    if began_by != job:
        return False
    return _fits(folder, now) if job is None else _of_run(began_with) == _of_run(overrides)


def _leave_done(folder: Path, job: str | None) -> NoReturn:
    """A job that was started again after its run was done has nothing left to do."""
    if ranks_from(os.environ).rank == 0:
        done = f"{from_here(folder.absolute())} is done, which job {job} began with these overrides"
        print(f"{done}; resume=never begins another run", flush=True)
    raise SystemExit(0)


def _of_run(overrides: Sequence[str]) -> list[str]:
    """Those of the overrides that a run keeps."""
    return [text for text in kept(list(overrides)) if not text.startswith(("-", "hydra.", "hydra/", "resume="))]


def _saved(folder: Path) -> bool:
    """Whether there is anything to go on from. That all checkpoints are damaged is told when they are read."""
    return bool(all_checkpoints(folder / "checkpoints"))


def saved_overrides(folder: Path) -> list[str]:
    """The overrides that a run was started with, those of later resumes included."""
    try:
        return [str(text) for text in json.loads((folder / "overrides.json").read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise ResumeError(f"{folder} is no run to go on from: overrides.json cannot be read ({error})") from error


def refuse_changed(folder: Path, overrides: Sequence[str], typed_now: Sequence[str]) -> None:
    """Raise `ResumeError` where a run's own overrides ask, sample or score otherwise today than when it was trained: a
    file of the user's has changed, or this is another version. What is typed now is meant."""
    typed_keys = tuple(text.partition("=")[0].lstrip("+~") for text in typed_now)

    def is_meant(key: str) -> bool:
        of_group = key.startswith("task.agents.") and _below_agent(key)[1:].startswith(typed_keys)
        return key.startswith(typed_keys) or of_group

    changed = [
        (key, before, now)
        for key, before, now in _differences(folder, _composed(overrides))
        if key.startswith(("task.", "rollout.", "reward.")) and not is_meant(key)
    ]
    if changed:
        shown = "\n".join(f"  {key}: {before} -> {now}" for key, before, now in changed[:8])
        raise ResumeError(
            f"run={folder}: its overrides give another configuration today than the run had; restore the files that it "
            f"was started with, or type these\n{shown}"
        )


def _composed(overrides: Sequence[str]) -> dict[str, object]:
    """Every leaf that these arguments give."""
    return dict(leaves(_plain(overrides)))


def _plain(overrides: Sequence[str]) -> dict[str, Any]:
    return resolve(compose_node([text for text in overrides if not text.startswith("-")]))


def _fits(folder: Path, now: Mapping[str, object]) -> bool:
    """Whether the run is one of this configuration; another version's is none of ours."""
    try:
        return not _drift(folder, now)
    except ResumeError:
        return False


def changes(folder: Path, now: Mapping[str, object]) -> list[str]:
    """What another configuration, given by its leaves, changes of a run: `key: before -> now`.

    Agents follow their groups; those are told of only where they differ from them.
    """
    differing = _differences(folder, now)
    of_groups = {f".{key}": values for key, *values in differing if not key.startswith("task.agents.")}
    return [
        f"{key}: {before} -> {after}"
        for key, before, after in differing
        if not key.startswith("task.agents.") or of_groups.get(_below_agent(key)) != [before, after]
    ]


def _below_agent(key: str) -> str:
    """`.actor.dtype` of `task.agents.low.actor.dtype`."""
    return key[key.index(".", len("task.agents.")) :]


def _drift(folder: Path, now: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """Frozen leaves of the run that would change."""
    return [difference for difference in _differences(folder, now) if is_frozen(difference[0])]


def _differences(folder: Path, now: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """Leaves that are not what the run's folder says: their names, what it says, and what they are now."""
    before = dict(leaves(saved_values(folder)))
    now = kept(dict(now))
    return [
        (key, before.get(key), now.get(key))
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]


def saved_values(folder: Path) -> dict[str, Any]:
    """The values that a run was started with; those of keys that are younger than the run are its overrides' today."""
    try:
        plain = written(folder / "config.yaml")
        try:
            typed(plain)
        except ConfigError:
            plain = completed(plain, kept(_plain(saved_overrides(folder))))
            typed(plain)  # refuses what is no configuration of ours
    except ConfigError as error:
        raise ResumeError(f"{folder} is no run that can be resumed: {error}") from error
    return plain


def is_frozen(key: str) -> bool:
    """Whether a run that goes on must have the value of this key that it began with."""
    return key.startswith(FROZEN) and key.rsplit(".", 1)[-1] not in FREE_OF_AGENTS
