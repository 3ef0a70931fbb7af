"""Names of models and datasets that are no files here: told at once where no hub can answer for them."""

from __future__ import annotations

import os
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from glob import has_magic
from pathlib import Path
from typing import NamedTuple

from ippo_cli.config.errors import PreflightError
from ippo_cli.config.model_hub import check_hub, find_model_keys
from ippo_cli.config.python_names import is_code_reference
from ippo_cli.config.schema import Config, Hub, JsonlConfig

ENDPOINT = "https://huggingface.co"
PROBE_TIMEOUT_S = 5.0  # how long the hub may take to answer
TRUE_VALUES = ("1", "ON", "YES", "TRUE")
UNREACHABLE = "IPPO_HUB_UNREACHABLE"  # why this program, and no user, has set HF_HUB_OFFLINE; child processes read it
DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".gz", ".txt")


class HubName(NamedTuple):
    """What may have to be looked up on the hub."""

    setting: str
    name: str
    revision: str | None
    file: str | None  # one that is in the cache if anything is; None where the cache has no such file


def check_hub_access(config: Config, *, models: bool = True, training: bool = True, data: bool = True) -> None:
    """Raise `PreflightError` for a path that is not there, or a model that cannot be had; go offline where a hub is
    needed and none answers.

    Libraries that look a name up try again and again for a minute before they say so; offline they look into their
    cache and answer at once. To be called before any of them is imported. Without `models` the data and reward models
    alone count, and of the data without `training` the held-out ones; without `data` none.
    """
    check_hub(config)
    named = [*_model_hub_names(config)] if models else []
    if config.hub is Hub.modelscope:
        for setting, name, _, _ in named:
            _check_path(setting, name)
        named = []
    _check_access([*named, *(_dataset_hub_names(config, training=training) if data else ())])


def check_model_access(models: Iterable[tuple[str, str]]) -> None:
    """The same of models that a command's own keys name."""
    _check_access([HubName(setting, name, None, "config.json") for setting, name in models])


def _check_access(named: Iterable[HubName]) -> None:
    wanted = [name for name in dict.fromkeys(named) if not Path(name.name).exists()]
    for setting, name, _, _ in wanted:
        _check_path(setting, name)
    if not wanted:
        return
    if is_offline():
        why = os.environ.get(UNREACHABLE) or "HF_HUB_OFFLINE is set"
    elif is_hub_reachable():
        return
    else:
        why = f"{_endpoint()} does not answer"
        os.environ.update({"HF_HUB_OFFLINE": "1", UNREACHABLE: why})
    for setting, name, revision, file in wanted:
        if file is not None and not _is_cached(name, revision, file):
            raise PreflightError(
                f"{setting}={name} is no folder here and not in this machine's cache, and {why}; "
                "give a folder, or download it first"
            )
    print(
        f"ippo: {why}: {' '.join(f'{setting}={name}' for setting, name, _, _ in wanted)} from this machine's cache",
        file=sys.stderr,
        flush=True,
    )


def _check_path(setting: str, name: str) -> None:
    """Raise `PreflightError` for a path that is not there."""
    if not Path(name).exists() and is_path_like(name):
        raise PreflightError(f"{setting}={name}: there is no such file or folder")


def is_path_like(name: str) -> bool:
    """Whether a name can only be one of a file or folder: hub ids are `name` or `owner/name`."""
    return (
        name.startswith(("/", "./", "../", "~"))
        or name in (".", "..")
        or name.count("/") > 1
        or name.endswith(("/", *DATA_SUFFIXES))
        or any(c in name for c in "*?[ \\")
    )


def is_offline() -> bool:
    """Whether the user wants no hub to be asked."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in TRUE_VALUES


def is_hub_reachable() -> bool:
    """Whether the hub sends anything within a few seconds. In a thread, since looking up its address has no limit."""
    answers: list[bool] = []

    def send_request() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(_endpoint(), method="HEAD"), timeout=PROBE_TIMEOUT_S).close()
        except urllib.error.HTTPError:
            answers.append(True)  # it answers
        except (OSError, ValueError):
            return
        else:
            answers.append(True)

    thread = threading.Thread(target=send_request, daemon=True)
    thread.start()
    thread.join(PROBE_TIMEOUT_S + 1.0)
    return bool(answers)


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", ENDPOINT).rstrip("/")


def _is_cached(name: str, revision: str | None, file: str) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, file, revision=revision), str)
    except HFValidationError:
        return False


def _model_hub_names(config: Config) -> Iterator[HubName]:
    for setting, holder, key, revision in find_model_keys(config):
        if (name := getattr(holder, key)) is not None:
            file = "tokenizer_config.json" if key == "tokenizer" else "config.json"
            yield HubName(setting, name, revision and getattr(holder, revision), file)


def _dataset_hub_names(config: Config, *, training: bool) -> Iterator[HubName]:
    """Names of datasets, patterns of files and functions apart."""
    task = config.task
    if not isinstance(task, JsonlConfig):
        return
    named = {"task.train": task.train} if training or task.eval_share is not None else {}
    named |= {} if task.eval is None else {"task.eval": task.eval}
    for setting, value in named.items():
        for name in value if isinstance(value, list) else [value]:
            if not has_magic(name) and not is_code_reference(name):
                yield HubName(setting, name, None, None)
