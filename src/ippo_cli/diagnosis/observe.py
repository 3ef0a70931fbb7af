"""Collects what is known of a run from its folder: rows, sampled episodes, sizes of the data, saved adapters."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ippo_cli.config.data import has_splits
from ippo_cli.config.schema import ActorKind, Config, has_data
from ippo_cli.config.teams import policy_by_agent
from ippo_cli.diagnosis.finding import Observations
from ippo_cli.runs.folder import list_checkpoints
from ippo_cli.runs.records import RunRecord
from ippo_cli.tasks.data_files import SUFFIXES, count_rows, file_suffix

MAX_SAMPLE_FILES = 40  # the newest files
MAX_COUNTED_BYTES = 2**28  # larger data files are not counted
MIN_SAMPLED_TOKENS = 16  # of an agent and iteration, to estimate the KL of an update
TINY_RATIO = 1e-38
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
ADAPTER_FILE = "adapter_model.safetensors"


def observe_run(record: RunRecord, config: Config) -> Observations:
    """The observations of a run, running or not."""
    initial = next((row for row in record.metrics if row["iteration"] == 0), None)
    return Observations(
        config=config,
        rows=[row for row in record.metrics if row["iteration"] > 0],
        initial=initial,
        episodes=read_episodes(record),
        train_rows=count_examples(config, "train"),
        held_out_rows=count_examples(config, "eval"),
        chat_templates=find_chat_templates(config),
        sampled_kl=measure_sampled_kl(record),
        unchanged_adapters=find_unchanged_adapters(record.folder, config),
    )


def read_episodes(record: RunRecord) -> list[dict[str, Any]]:
    """Sampled episodes of the newest sample files, oldest first."""
    return [episode for file in record.sample_files[-MAX_SAMPLE_FILES:] for episode in file.episodes()]


def measure_sampled_kl(record: RunRecord) -> dict[str, dict[int, float]]:
    """By agent and iteration, the mean of r - 1 - log r over sampled tokens, r the ratio after the update.

    It estimates the KL divergence of the sampling policy from the updated one (http://joschu.net/blog/kl-approx.html),
    also of an iteration with one step, in which `policy/approx_kl` is 0: it is measured before each step.
    """
    found: dict[str, dict[int, float]] = {}
    for file in record.sample_files[-MAX_SAMPLE_FILES:]:
        parts: dict[str, list[float]] = {}
        for turn in (turn for episode in file.episodes() for turn in episode.get("turns") or ()):
            ratios = (turn.get("tokens") or {}).get("ratio") or ()
            # A ratio of 0 is one below the range of float32.
            kl = [max(r, TINY_RATIO) - 1 - math.log(max(r, TINY_RATIO)) for r in ratios if isinstance(r, int | float)]
            parts.setdefault(str(turn.get("agent")), []).extend(kl)
        for name, values in parts.items():
            if len(values) >= MIN_SAMPLED_TOKENS:
                found.setdefault(name, {})[file.iteration] = fmean(values)
    return found


def count_examples(config: Config, part: str) -> int | None:
    """Rows of the `train` or `eval` data; None if they are not in local files."""
    task = config.task
    size = getattr(task, f"{part}_size", None)
    if not has_data(task):
        return size
    if part == "eval" and task.eval_share is not None:
        whole = _count_rows(task.train)
        count = None if whole is None else math.floor(whole * task.eval_share)
    else:
        count = _count_rows(getattr(task, part))
        if count is not None and task.eval_share is not None:
            count -= math.floor(count * task.eval_share)
    return count if size is None or count is None else min(size, count)


def _count_rows(sources: str | Sequence[str] | None) -> int | None:
    """Rows of local files; None for other sources, such as functions and hub datasets, and for unreadable files."""
    found = 0
    for source in [sources] if isinstance(sources, str) else sources or ():
        path = Path(source)
        if has_splits(source) or file_suffix(source) not in SUFFIXES or not path.is_file():
            return None
        if path.stat().st_size > MAX_COUNTED_BYTES:
            return None
        try:
            found += count_rows(source)
        except (OSError, ValueError):
            return None
    return found or None


def find_chat_templates(config: Config) -> dict[str, bool]:
    """By agent with a loaded model, whether its tokenizer has a chat template; only those in local files."""
    found: dict[str, bool] = {}
    for name, agent in config.task.agents.items():
        source = agent.actor.tokenizer or agent.actor.model
        if source is not None and (folder := _local_folder(source, agent.actor.revision)) is not None:
            found[name] = agent.actor.chat_template is not None or _has_chat_template(folder)
    return found


def _local_folder(source: str, revision: str | None) -> Path | None:
    """The folder of a model or tokenizer, in the hub's cache if it is a hub id; None if it is not on this machine."""
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        file = try_to_load_from_cache(source, "tokenizer_config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(file).parent if isinstance(file, str) else None


def _has_chat_template(folder: Path) -> bool:
    if any((folder / name).is_file() for name in TEMPLATE_FILES):
        return True
    try:
        return bool(json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template"))
    except (OSError, ValueError, AttributeError):
        return False


def find_unchanged_adapters(folder: Path, config: Config) -> tuple[str, ...]:
    """Agents with a saved adapter that adds 0 to its base in the newest checkpoint, because its matrices B are 0."""
    checkpoints = list_checkpoints(folder / "checkpoints")
    if not checkpoints:
        return ()
    holders = policy_by_agent(config)
    return tuple(
        name
        for name, agent in config.task.agents.items()
        if agent.actor.kind in (ActorKind.lora, ActorKind.tiny_lora)
        and any(_adds_nothing(file) for file in (checkpoints[-1] / holders[name]).rglob(ADAPTER_FILE))
    )


def _adds_nothing(file: Path) -> bool:
    """Whether all bytes of the matrices B of a saved adapter are 0; False if the file cannot be read."""
    import safetensors

    try:
        tensors = safetensors.deserialize(file.read_bytes())
    except (OSError, safetensors.SafetensorError):
        return False
    columns = [bytes(tensor["data"]) for name, tensor in tensors if ".lora_B." in name]
    return bool(columns) and all(data.count(0) == len(data) for data in columns)
