"""Early checks of model and dataset names that are not local files: hub access, offline mode, cache."""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from glob import has_magic
from pathlib import Path
from typing import NamedTuple

from ippo_cli.config.errors import PreflightError
from ippo_cli.config.model_hub import check_hub, find_model_keys
from ippo_cli.config.python_names import is_code_reference
from ippo_cli.config.schema import Config, Hub, Mode, ServerActorConfig, has_data
from ippo_cli.runs.output import print_text

ENDPOINT = "https://huggingface.co"
PROBE_TIMEOUT_S = 5.0  # timeout of the request that tests hub access
TRUE_VALUES = ("1", "ON", "YES", "TRUE")
UNREACHABLE = "IPPO_HUB_UNREACHABLE"  # why this program set HF_HUB_OFFLINE (not the user); read by child processes
DATA_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".gz", ".txt")


class HubName(NamedTuple):
    """A name that may need the hub."""

    setting: str
    name: str
    revision: str | None
    file: str | None  # file that is in the cache if the model is cached; None for datasets


def check_hub_access(config: Config, *, models: bool = True, training: bool = True, data: bool = True) -> None:
    """Raise `PreflightError` for a missing path, model or dataset; set offline mode if the hub does not answer.

    Hub libraries retry for a minute without a connection; in offline mode they use their cache at once. Call this
    before importing them. `models=False` checks data and reward models only; `training=False` skips training data;
    `data=False` skips all data.
    """
    if config.mode is not Mode.plan:  # a plan needs the package for downloads only
        check_hub(config)
    named = [*_model_hub_names(config)] if models else []
    if config.hub is Hub.modelscope:
        for setting, name, _, _ in named:
            _check_path(setting, name)
        named = []
    _check_access([*named, *(_dataset_hub_names(config, training=training) if data else ())])


def path_names(
    config: Config, *, models: bool = True, training: bool = True, data: bool = True
) -> Iterator[tuple[str, str]]:
    """Settings and values that name models and data, each once; the arguments are those of `check_hub_access`."""
    named = [
        *(_model_hub_names(config) if models else ()),
        *(_dataset_hub_names(config, training=training) if data else ()),
    ]
    yield from dict.fromkeys((setting, name) for setting, name, _, _ in named)


def check_model_access(models: Iterable[tuple[str, str]]) -> None:
    """Check hub access for models in a command's own keys: pairs of setting and name."""
    _check_access([HubName(setting, name, None, "config.json") for setting, name in models])


def _check_access(named: Iterable[HubName]) -> None:
    wanted = [name for name in dict.fromkeys(named) if not Path(name.name).exists()]
    for setting, name, _, _ in wanted:
        _check_path(setting, name)
    if not wanted:
        return
    if is_offline():
        reason = os.environ.get(UNREACHABLE) or "HF_HUB_OFFLINE is set"
    elif is_hub_reachable():
        return
    else:
        reason = f"{_endpoint()} does not answer"
        os.environ.update({"HF_HUB_OFFLINE": "1", UNREACHABLE: reason})
    if missing := [name for name in wanted if not _is_cached(name)]:
        raise PreflightError("\n".join(_missing_messages(missing, reason)))
    print_text(
        f"ippo: {reason}: {' '.join(f'{setting}={name}' for setting, name, _, _ in wanted)} from this machine's cache",
        to_stderr=True,
    )


def _check_path(setting: str, name: str) -> None:
    """Raise `PreflightError` for a path that does not exist."""
    if not Path(name).exists() and is_path_like(name):
        raise PreflightError(f"{setting}={name}: there is no such file or folder")


def is_path_like(name: str) -> bool:
    """Whether a name can only be a path: hub ids are `name` or `owner/name`."""
    return (
        name.startswith(("/", "./", "../", "~"))
        or name in (".", "..")
        or name.count("/") > 1
        or name.endswith(("/", *DATA_SUFFIXES))
        or any(c in name for c in "*?[ \\")
    )


def is_offline() -> bool:
    """Whether offline mode is set."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in TRUE_VALUES


def is_hub_reachable() -> bool:
    """Whether the hub answers within a few seconds; uses a thread, because name resolution has no timeout."""
    answers: list[bool] = []

    def send_request() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(_endpoint(), method="HEAD"), timeout=PROBE_TIMEOUT_S).close()
        except urllib.error.HTTPError:
            answers.append(True)  # an HTTP error is an answer
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


def _missing_messages(missing: Sequence[HubName], reason: str) -> Iterator[str]:
    """Yield one line per model, and one for all datasets."""
    for setting, name, _, file in missing:
        if file is not None:
            yield (
                f"{setting}={name} is neither a local folder nor in this machine's cache, and {reason}; "
                "use a folder, or download it first"
            )
    if datasets := [name for name in missing if name.file is None]:
        files = " ".join(dict.fromkeys(f"{name.setting}=FILE" for name in datasets))
        yield (
            f"{' '.join(f'{setting}={name}' for setting, name, _, _ in datasets)}: neither a local file nor in the "
            f"cache of datasets {_datasets_cache()}, and {reason}; use JSONL files, {files}, or set HF_HOME to the "
            "cache of a machine that has loaded the data"
        )


def _is_cached(wanted: HubName) -> bool:
    if wanted.file is None:
        return _is_dataset_cached(wanted.name)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(wanted.name, wanted.file, revision=wanted.revision), str)
    except HFValidationError:
        return False


def _datasets_cache() -> Path:
    """The folder in which `datasets` keeps prepared datasets, without its import of two seconds."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return Path(os.environ.get("HF_DATASETS_CACHE") or Path(home) / "datasets").expanduser()


def _is_dataset_cached(name: str) -> bool:
    """Whether the cache has a folder OWNER___NAME/CONFIG/VERSION/HASH, with NAME in snake case, for a dataset."""
    place = _datasets_cache()
    wanted = _remove_case(name.replace("/", "___"))
    return place.is_dir() and any(
        _remove_case(folder.name) == wanted and any(part.is_dir() for part in folder.glob("*/*/*"))
        for folder in place.iterdir()
    )


def _remove_case(name: str) -> str:
    return name.replace("_", "").lower()


def _model_hub_names(config: Config) -> Iterator[HubName]:
    for setting, holder, key, revision in find_model_keys(config):
        if (name := getattr(holder, key)) is not None:
            only_tokenizer = key == "tokenizer" or isinstance(holder, ServerActorConfig)
            file = "tokenizer_config.json" if only_tokenizer else "config.json"
            yield HubName(setting, name, revision and getattr(holder, revision), file)


def _dataset_hub_names(config: Config, *, training: bool) -> Iterator[HubName]:
    """Yield names of datasets, except file patterns and functions."""
    task = config.task
    if not has_data(task):
        return
    named = {"task.train": task.train} if training or task.eval_share is not None else {}
    named |= {} if task.eval is None else {"task.eval": task.eval}
    for setting, value in named.items():
        for name in value if isinstance(value, list) else [value]:
            if not has_magic(name) and not is_code_reference(name):
                yield HubName(setting, name, None, None)
