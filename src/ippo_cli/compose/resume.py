"""`resume=`: finds the run to resume, and checks which keys may change."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from yaml import YAMLError

from ippo_cli.compose.arguments import merge_search_paths, quote_override
from ippo_cli.compose.earlier_versions import fill_agent_defaults, fill_missing_keys
from ippo_cli.compose.file_interpolations import check_saved_prompts
from ippo_cli.compose.former_keys import convert_overrides, earlier_defaults
from ippo_cli.compose.load import KINDS, build_config, compose_node, iter_leaves, read_run_config, resolve_config
from ippo_cli.compose.path_keys import load_yaml
from ippo_cli.compose.run_weights import REFERENCE, WARM_START
from ippo_cli.config.commands import last_value, parse_path
from ippo_cli.config.errors import ConfigError, ResumeError, split_errors
from ippo_cli.config.marked_keys import is_frozen_key
from ippo_cli.config.schema import ActorKind
from ippo_cli.config.secrets import mask_secrets
from ippo_cli.config.text import closest_hint
from ippo_cli.engine.launchers import detect_ranks, job_id
from ippo_cli.engine.number_formats import default_dtype
from ippo_cli.runs.folder import (
    display_path,
    is_run_locked,
    list_checkpoints,
    read_owner_job,
    read_run_state,
    run_folders,
)
from ippo_cli.runs.history import HISTORY, hash_file, last_config_hash
from ippo_cli.runs.output import print_text

DTYPE = "actor.dtype"
RESUME_WORDS = ("auto", "must", "never")


def resolve_resume(argv: Sequence[str]) -> tuple[list[str], Path | None]:
    """Return the arguments to compose with, and the folder of the run to resume; None for a new run.

    A resumed run starts from its saved overrides; overrides typed now follow and take precedence.
    """
    wanted = last_value(argv, "resume")
    if wanted in (None, "never"):
        return list(argv), None
    typed_now = [text for text in argv if not text.startswith("resume=")]
    folder = _find_resumable_run(wanted, typed_now)
    if folder is None:
        return typed_now, None
    saved = overrides_with_weights(folder, typed_now)
    combined = merge_search_paths([*(text for text in saved if text not in typed_now), *typed_now])
    check_resume_config(folder, _compose_leaves(combined), typed_now)
    return combined, folder


def overrides_with_weights(folder: Path, typed_now: Sequence[str]) -> list[str]:
    """The saved overrides of a run, the number format that its machine chose, and the folders that runs as
    `critic.warm_start` and `actor.reference` meant.

    The best checkpoint of such a run may be another one by now. Removed folders are left out, and all of them if
    `typed_now` has such a key.
    """
    saved = saved_overrides(folder, typed_now)
    check_saved_prompts(folder, saved, typed_now)
    saved += _number_format(folder, [*saved, *typed_now])
    if any(text.partition("=")[0].endswith((WARM_START, REFERENCE)) for text in typed_now):
        return saved
    before = {
        key: Path(str(value))
        for key, value in iter_leaves(saved_config(folder))
        if key.startswith("task.agents.") and key.endswith((WARM_START, REFERENCE)) and _run_of_weights(value)
    }
    now = _compose_leaves(saved) if before else {}
    moved = [
        quote_override(f"{key}={weights}")
        for key, weights in before.items()
        if now[key] != str(weights) and _run_of_weights(now[key]) == _run_of_weights(weights) and weights.is_dir()
    ]
    return [*saved, *moved]


def _number_format(folder: Path, overrides: Sequence[str]) -> list[str]:
    """The override for the number format of a run on a machine with another default than this one."""
    if any(DTYPE in text.partition("=")[0] for text in overrides):
        return []
    saved = dict(iter_leaves(saved_config(folder)))
    depends_on_machine = saved.get("actor.kind") in (ActorKind.full.value, ActorKind.lora.value)
    return [f"{DTYPE}={saved[DTYPE]}"] if depends_on_machine and saved[DTYPE] != default_dtype() else []


def _run_of_weights(folder: object) -> Path | None:
    """The run of a folder `RUN/checkpoints/step_N/AGENT/actor` or `.../critic`."""
    parents = Path(folder).parents if isinstance(folder, str | Path) else ()
    return parents[3] if len(parents) > 3 and parents[2].name == "checkpoints" else None


def check_resume_config(folder: Path, now: Mapping[str, object], typed: Sequence[str] = ()) -> None:
    """Raise `ResumeError` if a configuration (leaves by key) changes frozen keys of the run.

    Keys that change because of an option in `typed` are reported as that option.
    """
    refused = _frozen_changes(folder, now)
    if refused:
        lines: list[str] = []
        for text in typed:
            group, equals, _ = text.partition("=")
            of_option = [entry for entry in refused if equals and group in KINDS and _belongs_to_group(entry[0], group)]
            refused = [entry for entry in refused if entry not in of_option]
            if of_option:
                own = [saved for saved in saved_overrides(folder) if saved.startswith(f"{group}=")]
                kind = [f"{group}={before}" for key, before, _ in of_option if key == f"{group}.kind"]
                details = (own or kind or [f"the default {group}"])[-1]
                lines.append(f"  {text}: the run was started with {details}")
        lines += [f"  {key}: {before} -> {now}" for key, before, now in refused]
        details = "\n".join(lines[:8])
        raise ResumeError(
            f"resume={folder}: these cannot change within a run; start a new one, or remove them\n{details}"
        )


def _belongs_to_group(key: str, group: str) -> bool:
    return key.startswith(f"{group}.") or (key.startswith("task.agents.") and f".{group}." in key)


def _find_resumable_run(wanted: str, overrides: Sequence[str]) -> Path | None:
    if wanted not in ("auto", "must"):
        folder = parse_path(wanted).absolute()
        if not (folder / "config.yaml").is_file():
            raise missing_run_error(wanted)
        if is_run_locked(folder):
            raise ResumeError(f"resume={wanted}: the run is active in another process")
        if not _has_checkpoint(folder):
            raise ResumeError(f"resume={wanted}: the run ended before its first checkpoint; start a new one")
        return folder
    now = _compose_leaves(overrides)
    root = Path(str(now["output_dir"])) / str(now["name"])
    job = job_id(os.environ)
    for folder in run_folders(root):
        done = read_run_state(folder) == "done"
        if (job is None if done else is_run_locked(folder) or not _has_checkpoint(folder)) or not _matches_resume(
            folder, now, overrides, job
        ):
            continue
        if done:
            _exit_finished_job(folder, job)
        return folder.absolute()
    if wanted == "must":
        description = "of this configuration" if job is None else f"that job {job} began with these overrides"
        raise ResumeError(f"resume=must: no unfinished run {description} below {root}; use resume=auto")
    if detect_ranks(os.environ).rank == 0:
        print_text(_new_run_reason(root, job))
    return None


def missing_run_error(wanted: str) -> ConfigError:
    """The error of `resume=` with neither a word nor the folder of a run."""
    rule = f"is not a run{closest_hint(wanted, RESUME_WORDS)}"
    return ConfigError(f"resume={wanted}", rule, "use auto, or a run's folder such as outputs/NAME/DATE-ID")


def _new_run_reason(root: Path, job: str | None) -> str:
    """The message why `resume=auto` starts a new run."""
    description = "of this configuration" if job is None else f"that job {job} began with these overrides"
    newest = next(iter(run_folders(root)), None)
    seen = "" if newest is None else f" (the newest run there, {newest.name}, {_mismatch_reason(newest)})"
    place = display_path(root.absolute())
    return f"resume=auto: no unfinished run {description} below {place}{seen}; starting a new run"


def _mismatch_reason(folder: Path) -> str:
    """The reason why a run cannot be resumed."""
    try:
        state = read_run_state(folder)
    except ResumeError:
        return "cannot be read"
    if state == "done":
        return "is done"
    if is_run_locked(folder):
        return "is in use by another process"
    return "differs" if _has_checkpoint(folder) else "has no checkpoint"


def _matches_resume(folder: Path, now: Mapping[str, object], overrides: Sequence[str], job: str | None) -> bool:
    """Whether to resume a run: in a scheduler's job a run that it began, otherwise a run of this configuration.

    Runs of other jobs are skipped, because these jobs may be requeued.
    """
    began_by, began_with = read_owner_job(folder)
    if began_by != job:
        return False
    return (
        _matches_config(folder, now, overrides)
        if job is None
        else _run_overrides(convert_overrides(began_with)) == _run_overrides(overrides)
    )


def _exit_finished_job(folder: Path, job: str | None) -> NoReturn:
    """Exit with code 0: the job was restarted after its run was done."""
    if detect_ranks(os.environ).rank == 0:
        done = f"{display_path(folder.absolute())} is done, which job {job} began with these overrides"
        print_text(f"{done}; resume=never starts a new run")
    raise SystemExit(0)


def _run_overrides(overrides: Sequence[str]) -> list[str]:
    """The overrides that a run saves."""
    return [text for text in mask_secrets(list(overrides)) if not text.startswith(("-", "hydra.", "hydra/", "resume="))]


def _has_checkpoint(folder: Path) -> bool:
    """Whether a run has a checkpoint, possibly damaged: checkpoints are verified when they are read."""
    return bool(list_checkpoints(folder / "checkpoints"))


def saved_overrides(folder: Path, typed_now: Sequence[str] = ()) -> list[str]:
    """The overrides of a run, including those of later resumes, with the present names of keys.

    They begin with the values of keys that had another default when the run was started, unless `typed_now` replaces
    the group.
    """
    try:
        saved = convert_overrides(json.loads((folder / "overrides.json").read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ResumeError(f"{folder} cannot be resumed: overrides.json cannot be read ({error})") from error
    earlier = find_earlier_defaults(folder, [*saved, *typed_now])
    return [*(f"{key}={value}" for key, value in earlier.items()), *saved]


def find_earlier_defaults(folder: Path, overrides: Sequence[str]) -> dict[str, str]:
    """Values of keys that had another default when a run was started, by key, where no override sets them or chooses
    another option of their group.
    """
    try:
        plain = load_yaml((folder / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, YAMLError):  # reported where the configuration is built
        return {}
    if not isinstance(plain, dict) or last_value(overrides, "rollout") not in (None, "hf"):
        return {}
    return {key: value for key, value in earlier_defaults(plain).items() if last_value(overrides, key) is None}


def check_unchanged_config(folder: Path, overrides: Sequence[str], typed_now: Sequence[str]) -> None:
    """Raise `ResumeError` if a run's saved overrides now give other prompts, sampling or rewards than in training.

    The reason is a changed user file or another version of this program. Keys in `typed_now` are excluded.
    """
    typed_keys = tuple(text.partition("=")[0].lstrip("+~") for text in typed_now)

    def is_typed(key: str) -> bool:
        of_group = key.startswith("task.agents.") and _agent_key_suffix(key)[1:].startswith(typed_keys)
        return key.startswith(typed_keys) or of_group

    changed = [
        (key, before, now)
        for key, before, now in _differences(folder, _compose_leaves(overrides))
        if key.startswith(("task.", "rollout.", "reward.")) and not is_typed(key)
    ]
    if changed:
        changed_lines = "\n".join(f"  {key}: {before} -> {now}" for key, before, now in changed[:8])
        raise ResumeError(
            f"run={folder}: its overrides now give another configuration than the run had; restore the files that it "
            f"was started with, or set these keys\n{changed_lines}"
        )


def _compose_leaves(overrides: Sequence[str]) -> dict[str, object]:
    """Compose arguments and return all leaves by key."""
    return dict(iter_leaves(_compose_plain(overrides)))


def _compose_plain(overrides: Sequence[str]) -> dict[str, Any]:
    return resolve_config(compose_node([text for text in overrides if not text.startswith("-")]))


def _matches_config(folder: Path, now: Mapping[str, object], overrides: Sequence[str]) -> bool:
    """Whether a run has this configuration; False if it cannot be read, such as from another version."""
    try:
        if number_format := _number_format(folder, [*saved_overrides(folder), *overrides]):
            now = _compose_leaves([*overrides, *number_format])
        return not _frozen_changes(folder, now)
    except ResumeError:
        return False


def config_changes(folder: Path, now: Mapping[str, object]) -> list[str]:
    """Lines `key: before -> now` for the keys of a run that a configuration (leaves by key) changes.

    Keys of agents are listed only if they change differently from their group; an agent that only one of both has is
    one line.
    """
    differing = _merge_missing_agents(
        _differences(folder, now), _agents_of(key for key, _ in iter_leaves(saved_config(folder))), _agents_of(now)
    )
    of_groups = {f".{key}": values for key, *values in differing if not key.startswith("task.agents.")}
    return [
        f"{key}: {before} -> {after}"
        for key, before, after in differing
        if key.count(".") < 3
        or not key.startswith("task.agents.")
        or of_groups.get(_agent_key_suffix(key)) != [before, after]
    ]


def _agents_of(keys: Iterable[str]) -> set[str]:
    """Prefixes of agents, such as `task.agents.low`."""
    return {".".join(key.split(".")[:3]) for key in keys if key.startswith("task.agents.")}


def _merge_missing_agents(
    differing: Sequence[tuple[str, object, object]], before: set[str], now: set[str]
) -> list[tuple[str, object, object]]:
    """Replace the keys of each added or removed agent by one row."""
    missing = before ^ now
    merged = [row for row in differing if ".".join(row[0].split(".")[:3]) not in missing]
    return sorted([*merged, *((agent, *_presence(agent in before)) for agent in missing)], key=lambda row: row[0])


def _presence(is_removed: bool) -> tuple[str, str]:
    return ("an agent", "no agent") if is_removed else ("no agent", "an agent")


def _agent_key_suffix(key: str) -> str:
    """`.actor.dtype` of `task.agents.low.actor.dtype`."""
    return key[key.index(".", len("task.agents.")) :]


def _frozen_changes(folder: Path, now: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """Frozen keys of the run that would change: key, saved value, new value. `mode=plan` is allowed for every run."""
    return [
        (key, before, after)
        for key, before, after in _differences(folder, now)
        if (is_frozen_key(key) or _holds_frozen_weights(key, now)) and (key, after) != ("mode", "plan")
    ]


def _holds_frozen_weights(key: str, now: Mapping[str, object]) -> bool:
    """Whether a key is a `critic.warm_start` with frozen parameters, which the checkpoint's engine does not have."""
    return key.endswith(WARM_START) and bool(now.get(f"{key.removesuffix('warm_start')}freeze"))


def _differences(folder: Path, now: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """Leaves that differ from the run's saved configuration: key, saved value, new value."""
    before = dict(iter_leaves(saved_config(folder)))
    now = mask_secrets(dict(now))
    return [
        (key, before.get(key), now.get(key))
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    ]


def saved_config(folder: Path) -> dict[str, Any]:
    """The saved values of a run; keys added by later versions have the values that its overrides give now."""
    try:
        plain = read_run_config(folder / "config.yaml")
        try:
            build_config(plain)
        except ConfigError:
            plain = fill_missing_keys(plain, mask_secrets(_compose_plain(saved_overrides(folder))))
            build_config(plain)  # raises ConfigError for an invalid configuration
        fill_agent_defaults(plain)
    except ConfigError as error:
        file, recorded = folder / "config.yaml", last_config_hash(folder)
        is_changed = recorded and file.is_file() and hash_file(file) != recorded
        if is_changed:  # its mistakes would hide the cause
            reason = f"config.yaml is not the file that {HISTORY} recorded; restore it ({split_errors(error)[0]})"
            raise ResumeError(f"{folder} is not a run that can be resumed: {reason}") from error
        raise ResumeError(f"{folder} is not a run that can be resumed: {error}") from error
    return plain
