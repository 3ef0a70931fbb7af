"""Initial weights of each agent: recorded at the start of a run and verified on resume."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.tokenization_utils_base import TOKENIZER_CONFIG_FILE
from transformers.utils import CONFIG_NAME
from transformers.utils.hub import cached_file, extract_commit_hash

from ippo_cli.config.adapters import ADAPTER_CONFIG, ADAPTER_SUBFOLDER, find_adapter_folder, find_reference_folder
from ippo_cli.config.errors import ConfigError, PreflightError, ResumeError, convert_storage_errors
from ippo_cli.config.schema import (
    ActorConfig,
    Alphabet,
    Config,
    ContextMode,
    CriticKind,
    ReferenceKind,
    TinyActorConfig,
)
from ippo_cli.config.served_agents import served_model_name
from ippo_cli.config.teams import agents_by_base, agents_by_policy, base_by_policy
from ippo_cli.engine import distributed
from ippo_cli.models.actor import load_actor_tokenizer
from ippo_cli.models.tiny import make_lesson_tokenizer, make_tiny_actor
from ippo_cli.tasks.dry_run import SupportsActions
from ippo_cli.tasks.environment import closing_environment
from ippo_cli.tasks.task import Task, make_task_factory
from ippo_cli.tasks.warm_start import play_lessons, take_examples, warm_start_template
from ippo_cli.types import Lesson

WARM_START_EXAMPLES = 8192
RANDOM_EPISODES = 512  # episodes of random play, with several answers per example
WEIGHTS_SUFFIX = ".safetensors"
SERVED_MODEL = "served_model"  # in the record of an agent at a server: the model's name there
MODEL_FILES = (WEIGHTS_SUFFIX, ".json", ".jinja", ".model", ".txt")  # weights, shape, tokenizer and chat template
AgentProgress = Callable[[str, int, int, float], None]  # agent or group, step, steps, loss
WeightSources = Mapping[str, Path | str]  # by name of the weights (`members`): a folder or hub id


def initial_weights(
    config: Config, task: Task, run_folder: Path, progress: AgentProgress, say: Callable[[str], None]
) -> dict[str, Path | str]:
    """Initial weights of each actor. Models made locally are created now and copied into the run's folder.

    Resuming and the KL reference use the copy, so the cache may be deleted. A model without known answers starts from
    random weights, which is reported by `say`.
    """
    sources = {
        base: _resolve_weights(config, base, names, task, run_folder, progress, say)
        for base, names in agents_by_base(config).items()
    }
    return {holder: sources[base] for holder, base in base_by_policy(config).items()}


def warm_start_lessons(
    names: Sequence[str], config: Config, task: Task, limit: int = WARM_START_EXAMPLES
) -> list[Lesson]:
    """Characters and warm-start lessons of a model made locally, from all of its agents in turn; empty without answers.

    `limit`: the examples that are read, if all agents have answers.
    An agent with `rollout.context=last_only` gets one lesson per turn, since it never reads two turns in a row.
    """
    agents = config.task.agents
    answers = [warm_start_template(agent) for agent in agents.values()]
    environment = make_task_factory(config.task)()
    if not any(answers) and not isinstance(environment, SupportsActions):
        return []
    # A program has a process for each episode.
    scripted = all(answer is not None for answer in answers) and not config.task.is_program
    # Few examples are replayed several times: the model must not memorise random answers.
    again = cycle(take_examples(task.train, RANDOM_EPISODES))
    examples = take_examples(task.train, limit) if scripted else islice(again, RANDOM_EPISODES)
    with closing_environment(environment):
        played = play_lessons(environment, agents, examples, config.seed)
    lessons = [lesson for name in names for lesson in played[name]]
    if config.rollout.context is ContextMode.last_only:
        return [[turn] for lesson in lessons for turn in lesson]
    return lessons


def alphabet_lessons(
    names: Sequence[str], lessons: list[Lesson], config: Config, task: Task, limit: int = WARM_START_EXAMPLES
) -> list[Lesson]:
    """All lessons that define the alphabet of a model made locally, in addition to its warm-start `lessons`.

    A centralised critic reads the tokens of all agents, so all agents need one alphabet.
    """
    everyone = tuple(config.task.agents)
    if config.critic.kind is not CriticKind.centralized or set(names) == set(everyone):
        return lessons
    return warm_start_lessons(everyone, config, task, limit)


def pin_revisions(config: Config, weights: WeightSources, run_folder: Path) -> Config:
    """Return the configuration with the commit of every hub model as its revision.

    `initial/NAME.json` in the run's folder records the initial weights of agent, group or base NAME: the commit, or the
    sha256 of every file. It is written at the start of a run. On resume the folder or hub must match it, since the KL
    reference and the tokenizer are loaded again: `ResumeError` otherwise. Collective.
    """
    commits = distributed.run_on_main(lambda: _record_weights(config, weights, run_folder))
    base = {name: base for base, names in agents_by_base(config).items() for name in names}
    agents = {}
    for name, agent in config.task.agents.items():
        actor, record = agent.actor, base[name]
        revision = commits[record] or actor.revision
        of_tokenizer = commits.get(_tokenizer_record(record)) or actor.tokenizer_revision
        agents[name] = replace(agent, actor=replace(actor, revision=revision, tokenizer_revision=of_tokenizer))
    return replace(config, task=replace(config.task, agents=agents))


def record_path(run_folder: Path, holder: str) -> Path:
    """The record of the initial weights of an agent or group."""
    return run_folder / "initial" / f"{holder}.json"


def describe_source(
    model: Path | str, revision: str | None, key: str = "model", *, has_weights: bool = True
) -> dict[str, Any]:
    """Source of a model, tokenizer or chat template: commit of a hub id, or sha256 of the file or of a folder's files.

    `key` is used in errors.

    `has_weights`: False to leave out weights, of an agent at a server.
    """
    if Path(model).is_file():
        return {"model": str(model), "commit": None, "sha256": {Path(model).name: _sha256(Path(model))}}
    if Path(model).is_dir():
        suffixes = [suffix for suffix in MODEL_FILES if has_weights or suffix != WEIGHTS_SUFFIX]
        files = sorted(file for file in Path(model).iterdir() if file.suffix in suffixes)
        with ThreadPoolExecutor() as threads:  # large models have many files
            digests = dict(zip((file.name for file in files), threads.map(_sha256, files), strict=True))
        return {"model": str(model), "commit": None, "sha256": digests}
    try:
        name = CONFIG_NAME if key == "model" and has_weights else TOKENIZER_CONFIG_FILE
        commit = extract_commit_hash(cached_file(str(model), name, revision=revision), None)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PreflightError(f"actor.{key}={model}: no {key} found ({reason})") from error
    return {"model": str(model), "commit": commit, "sha256": {}}


def verify_record(model: Path | str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record if the files still match it. Raises `ResumeError` for a file that differs."""
    if Path(model).exists():
        before = record["sha256"]
        now = describe_source(model, None, has_weights=SERVED_MODEL not in record)["sha256"]
        if changed := sorted(name for name in now.keys() | before.keys() if now.get(name) != before.get(name)):
            if Path(model).is_file():
                raise ResumeError(
                    f"{model} differs from what this run started with, and its prompts depend on it; restore the file, "
                    "or start a new run"
                )
            raise ResumeError(
                f"{model}: {' '.join(changed[:3])} {'differ' if len(changed) > 1 else 'differs'} from what this run "
                "started with, and its tokenizer and KL reference are loaded from there; restore the files, or start a "
                "new run, with actor.model= set to an agent's actor/ folder in a checkpoint of this one"
            )
    return dict(record)


def check_vocabularies(config: Config, weights: WeightSources) -> None:
    """Raise `ConfigError` for a critic or a reference with another vocabulary than its actor."""
    for holder, names in agents_by_policy(config).items():
        agent = config.task.agents[names[0]]
        if not agent.frozen and (folder := _get_reference_folder(agent.actor)) is not None and not folder[1]:
            tokenizer = load_actor_tokenizer(agent.actor, str(weights[holder]), agent.actor.revision)
            remedy = "use a model of the actor's family"
            _check_vocabulary(f"actor.reference={agent.actor.reference}", str(folder[0]), None, tokenizer, remedy)
        critic = agent.critic
        if agent.frozen or critic.reads_team or not critic.has_own_backbone:
            continue  # a centralised critic with another vocabulary reads text
        key = "warm_start" if critic.warm_start is not None else "model"
        source = getattr(critic, key)
        if source is None or source == str(weights[holder]):
            continue
        tokenizer = load_actor_tokenizer(agent.actor, str(weights[holder]), agent.actor.revision)
        _check_vocabulary(f"critic.{key}={source}", source, critic.revision if key == "model" else None, tokenizer)


def _check_vocabulary(
    setting: str,
    source: str,
    revision: str | None,
    tokenizer: PreTrainedTokenizerBase,
    remedy: str = "use a model of the actor's family, or null for the actor's own weights",
) -> None:
    tokens = tokenizer.get_vocab()
    size = embedding_count(source, revision)
    if size is not None and max(tokens.values()) >= size:
        raise ConfigError(
            setting,
            f"has an embedding of {size} tokens, and its actor's tokenizer has {max(tokens.values()) + 1}",
            remedy,
        )
    try:
        other = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False).get_vocab()
    except Exception:  # a critic's folder does not need a tokenizer
        return
    named = {number: token for token, number in other.items()}
    # Names of special tokens may differ within a family.
    added = tokenizer.get_added_vocab()  # pyright: ignore[reportCallIssue, reportOptionalCall]
    odd = [token for token, number in tokens.items() if token not in added and named.get(number, token) != token]
    if odd:
        raise ConfigError(
            setting,
            f"has another vocabulary than its actor: {len(odd)} of {len(tokens)} ids "
            f"mean other tokens, such as {named[tokens[odd[0]]]!r} for {odd[0]!r}",
            remedy,
        )


def embedding_count(source: str, revision: str | None) -> int | None:
    """Number of embeddings of a model; None if its configuration does not give it, or cannot be read yet."""
    try:
        settings, _ = PreTrainedConfig.get_config_dict(source, revision=revision)
    except Exception:  # reported when the critic is loaded
        return None
    settings = settings.get("backbone", settings)  # of a critic of this project
    return settings.get("text_config", settings).get("vocab_size")


def _record_weights(config: Config, weights: WeightSources, run_folder: Path) -> dict[str, str | None]:
    """Write or verify the records of all bases; return the commits of hub models. Equal models are read once.

    An adapter of a frozen agent has a separate record, since every resume reads it again.
    """
    known: dict[tuple[str, str | None, str | None], dict[str, Any]] = {}
    by_base = {base: weights[holder] for holder, base in base_by_policy(config).items()}
    commits: dict[str, str | None] = {}
    for base, names in agents_by_base(config).items():
        actor = config.task.agents[names[0]].actor
        served_model = served_model_name(actor) if actor.is_served else None
        record = _record_or_verify(
            record_path(run_folder, base), by_base[base], actor.revision, known, served_model=served_model
        )
        commits[base] = record["commit"]
        if actor.tokenizer is not None:
            file = record_path(run_folder, _tokenizer_record(base))
            record = _record_or_verify(file, actor.tokenizer, actor.tokenizer_revision, known, "tokenizer")
            commits[_tokenizer_record(base)] = record["commit"]
        if actor.chat_template is not None:
            _record_or_verify(record_path(run_folder, f"{base}.chat_template"), actor.chat_template, None, known)
        if config.task.agents[names[0]].frozen and actor.first_adapter is not None:
            places = [Path(actor.first_adapter), Path(actor.first_adapter) / ADAPTER_SUBFOLDER]
            for adapter in (place for place in places if (place / ADAPTER_CONFIG).is_file()):
                _record_or_verify(record_path(run_folder, f"{base}.adapter"), adapter, None, known)
    for holder, names in agents_by_policy(config).items():
        actor = config.task.agents[names[0]].actor
        if not config.task.agents[names[0]].frozen and (folder := _get_reference_folder(actor)) is not None:
            _record_or_verify(record_path(run_folder, f"{holder}.reference"), folder[0], None, known)
    return commits


def _tokenizer_record(base: str) -> str:
    """The record name of a base's tokenizer, if it differs from the model's."""
    return f"{base}.tokenizer"


def _get_reference_folder(actor: ActorConfig) -> tuple[Path, bool] | None:
    """The folder of an agent's reference if it is not its initial model, and whether it contains an adapter."""
    if actor.reference == ReferenceKind.base:
        return None
    if actor.reference != ReferenceKind.initial:
        return find_reference_folder(actor.reference)
    if actor.first_adapter is not None:
        return find_adapter_folder(Path(actor.first_adapter), "actor.adapter"), True
    return None


def _record_or_verify(
    file: Path,
    model: Path | str,
    revision: str | None,
    known: dict[tuple[str, str | None, str | None], dict[str, Any]],
    key: str = "model",
    *,
    served_model: str | None = None,
) -> dict[str, Any]:
    """Write the record of initial weights, or verify an existing one; `known` caches records by source.

    `served_model`: the name at its server of a model without weights here.
    """
    place = (str(model), revision, served_model)
    if file.exists():
        known[place] = known.get(place) or verify_record(model, read_record(file))
        return known[place]
    if place not in known:
        known[place] = describe_source(model, revision, key, has_weights=served_model is None)
        known[place] |= {} if served_model is None else {SERVED_MODEL: served_model}
    with convert_storage_errors(str(file)):
        file.parent.mkdir(exist_ok=True)
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(known[place], indent=1) + "\n")
        partial.rename(file)
    return known[place]


def read_record(file: Path) -> dict[str, Any]:
    """The content of `initial/NAME.json`. Raises `ResumeError` if it is unreadable."""
    try:
        record = json.loads(file.read_text())
        found = {"model": str(record["model"]), "commit": record["commit"], "sha256": dict(record["sha256"])}
        return found | ({SERVED_MODEL: record[SERVED_MODEL]} if SERVED_MODEL in record else {})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResumeError(f"{file} cannot be read ({error}): the initial weights of the run are unknown") from error


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _resolve_weights(
    config: Config,
    holder: str,
    names: Sequence[str],
    task: Task,
    run_folder: Path,
    progress: AgentProgress,
    say: Callable[[str], None],
) -> Path | str:
    actor = config.task.agents[names[0]].actor
    if not actor.is_created_here:
        assert actor.model is not None  # checked before anything is loaded
        return actor.model
    folder = run_folder / "initial" / holder
    distributed.run_on_main(lambda: _make_tiny_model(config, names, task, folder, progress, say))
    return folder


def _make_tiny_model(
    config: Config,
    names: Sequence[str],
    task: Task,
    folder: Path,
    progress: AgentProgress,
    say: Callable[[str], None],
) -> None:
    """Create a model locally in the folder, which has the name of its policy; an existing one is kept."""
    if folder.is_dir():
        return
    actor, holder = config.task.agents[names[0]].actor, folder.name
    assert actor.is_created_here
    partial = folder.with_name(f".{holder}.partial")
    cache, lessons = Path(config.output_dir) / ".cache", warm_start_lessons(names, config, task)
    check_has_lessons(names[0], actor, lessons)
    if actor.warm_start_steps and not lessons:
        say(
            f"{holder} starts from random weights: task.agents.{names[0]} has no answer, and the task offers no random "
            "play"
        )
    alphabet = alphabet_lessons(names, lessons, config, task)
    with convert_storage_errors(str(cache)):
        cached = make_tiny_actor(
            actor,
            lessons,
            config.seed,
            cache,
            lambda step, steps, loss: progress(holder, step, steps, loss),
            tokenizer=make_lesson_tokenizer(actor.alphabet, alphabet),
        )
    with convert_storage_errors(str(folder)):
        shutil.rmtree(partial, ignore_errors=True)
        try:
            shutil.copytree(cached, partial)
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def check_has_lessons(name: str, actor: TinyActorConfig, lessons: Sequence[Lesson]) -> None:
    """Raise `ConfigError` if characters must come from lessons and there are none."""
    if actor.alphabet is Alphabet.auto and not lessons:
        raise ConfigError(
            f"task.agents.{name}.answer=null",
            "leaves actor=tiny no reference answers to build its vocabulary from",
            "use actor.alphabet=printable, or give the reference answer as a template such as '{answer}'",
        )
