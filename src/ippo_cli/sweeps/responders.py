"""Trains a best responder to each agent of a checkpoint: an ordinary run in which all other agents are frozen."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from pathlib import Path
from typing import Any

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import build_config, compose_node, iter_leaves, resolve_config, to_yaml
from ippo_cli.compose.resume import check_resume_config, saved_overrides
from ippo_cli.config.checks import check_config
from ippo_cli.config.commands import hydra_override
from ippo_cli.config.errors import ConfigError, ResumeError
from ippo_cli.config.exploitability import ExploitabilitySettings
from ippo_cli.config.schema import ActorConfig, Config, CriticConfig
from ippo_cli.config.schema.lora import LoraConfig
from ippo_cli.engine.launchers import external_world_size
from ippo_cli.evaluation.evaluate_run import EvaluatedWeights
from ippo_cli.evaluation.exploitability import check_opposed, find_run_weights, report_name, report_responders
from ippo_cli.runs.folder import (
    START_LOCK,
    display_path,
    is_run_locked,
    list_checkpoints,
    lock_folder,
    read_run_state,
    write_start_files,
)
from ippo_cli.runs.input_files import input_files, record_inputs
from ippo_cli.runs.launch import RankFailure, run_ranks
from ippo_cli.runs.output import print_status
from ippo_cli.sweeps.job import archive_attempt

RUN_KEYS = (
    "team",
    "name",
    "output_dir",
    "num_iterations",
    "num_epochs",
    "max_iterations_this_run",
    "tracker",
    "resume",
    "mode",
)
"""Keys of the evaluated run that its responders do not take."""
TRAINING_GROUPS = ("actor", "critic", "algorithm", "frozen")
SINGLE_LEARNER = (
    "team=independent",
    "team.update_order=simultaneous",
    "team.round_robin_every=null",
    "team.opponent_pool.every=0",
    "team.opponent_pool.size=null",
    "team.opponent_pool.share=null",
    "team.opponent_pool.elo=false",
)
SAME_MODEL = ("model", "revision", "tokenizer", "tokenizer_revision", "kind", "model_args", "adapter")
NEW_CRITIC = ("kind", "warm_start", "shared")
"""Keys that a responder's critic does not take: it is new, and of one agent."""
LOG = "responder.log"


def report_trained_responders(
    config: Config, folder: Path, checkpoint: str, settings: ExploitabilitySettings, overrides: Sequence[str]
) -> Path:
    """Train the responders that are missing, and report the lower bound of NashConv. Returns the file.

    Responders are runs in `evaluations/exploitability-.../responder-AGENT/` of the run folder. A repeated command
    resumes an interrupted responder and reuses finished ones. Raises `ConfigError`, `ResumeError` or `RankFailure`.
    """
    if external_world_size() is not None:
        raise ConfigError(
            settings.setting, "starts the processes of responders itself", "run ippo-eval without a launcher"
        )
    weights = find_run_weights(config, folder, checkpoint)
    initial = find_run_weights(config, folder, settings.start.value) if settings.start.value == "initial" else weights
    root = folder / "evaluations" / f"exploitability-{report_name(config, weights, settings, overrides)}"
    jobs = {
        agent: responder_overrides(config, [*saved_overrides(folder), *overrides], agent, weights, initial, settings)
        for agent in config.task.agents
    }
    plans = {agent: _compose(texts) for agent, texts in jobs.items()}  # all errors before a responder is trained
    check_opposed(config, folder, checkpoint, settings)
    responders: dict[str, tuple[Config, Path]] = {}
    for agent, texts in jobs.items():
        where = root / f"responder-{agent}"
        print_status(f"ippo: responder of {agent}: {plans[agent].num_iterations} iterations -> {display_path(where)}")
        train_responder(where, texts)
        responders[agent] = (plans[agent], where)
    return report_responders(config, folder, checkpoint, responders, settings, overrides)


def responder_overrides(
    config: Config,
    saved: Sequence[str],
    agent: str,
    weights: EvaluatedWeights,
    initial: EvaluatedWeights,
    settings: ExploitabilitySettings,
) -> list[str]:
    """The overrides of the run in which `agent` learns from its `initial` weights against all others in `weights`."""
    found = [text for text in saved if not _is_dropped(text, list(config.task.agents), agent)]
    found += [*SINGLE_LEARNER, "tracker=none", "evaluation.every=0", "evaluation.patience=null"]
    iterations = settings.iterations or config.num_iterations
    if iterations is None:
        raise ConfigError(
            settings.setting,
            "trains as many iterations as the run, which has num_epochs",
            "set exploitability_iterations=",
        )
    found += [f"num_iterations={iterations}", "num_epochs=null", f"task.agents.{agent}.frozen=false"]
    for name, own in config.task.agents.items():
        is_learner = name == agent
        found += _actor_overrides(name, own.actor, (initial if is_learner else weights).models[name], is_learner)
        if is_learner and own.actor.is_created_here:
            found += _critic_overrides(name, own.critic)
        if not is_learner:
            found.append(f"task.agents.{name}.frozen=true")
    return normalize_arguments(found)


def _is_dropped(text: str, agents: Sequence[str], learner: str) -> bool:
    """Whether an override of the run does not hold for a responder: keys of the run, and training of frozen agents."""
    key = text.lstrip("+~").partition("=")[0]
    of_agents = tuple(f"task.agents.{name}.{group}" for name in agents if name != learner for group in TRAINING_GROUPS)
    of_learner = (f"task.agents.{learner}.frozen", f"task.agents.{learner}.critic.warm_start", "critic.warm_start")
    return any(key == one or key.startswith(f"{one}.") for one in (*RUN_KEYS, *of_agents, *of_learner))


def _actor_overrides(name: str, actor: Any, record: Mapping[str, Any], is_learner: bool) -> Iterator[str]:
    """The model of an agent: saved weights in place of a model that is created or downloaded."""
    key = f"task.agents.{name}.actor"
    is_adapter = actor.trains_adapter and "adapter" in record
    if actor.is_created_here or not is_learner:
        yield f"{key}={'lora' if is_adapter else 'full'}"
        leaves = {field.name for field in fields(ActorConfig)} - {*SAME_MODEL} if is_learner else {"dtype"}
        leaves |= {field.name for field in fields(LoraConfig)} if is_adapter else set()
        for leaf in sorted(leaves):
            yield f"{key}.{leaf}={_format_value(getattr(actor, leaf))}"
    yield hydra_override(f"{key}.model", str(record["model"]))
    if record.get("commit"):
        yield f"{key}.revision={record['commit']}"
    if "tokenizer" in record and record["tokenizer"] != record["model"]:
        yield hydra_override(f"{key}.tokenizer", str(record["tokenizer"]))
    if is_adapter and record.get("adapter"):
        yield hydra_override(f"{key}.adapter", str(record["adapter"]["model"]))


def _critic_overrides(name: str, critic: CriticConfig) -> Iterator[str]:
    """The settings of a learner's critic: an actor of another kind would have the defaults of its kind."""
    for field in fields(critic):
        if field.name not in NEW_CRITIC:
            yield f"task.agents.{name}.critic.{field.name}={_format_value(getattr(critic, field.name))}"


def _format_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, list):
        return f"[{','.join(map(_format_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{_format_value(name)}:{_format_value(part)}' for name, part in value.items())}}}"
    return hydra_override("", value).removeprefix("=") if isinstance(value, str) else repr(value)


def _compose(overrides: Sequence[str]) -> Config:
    config = build_config(resolve_config(compose_node(list(overrides))))
    check_config(config, config.launch.processes)
    return config


def train_responder(folder: Path, overrides: Sequence[str]) -> None:
    """Train one responder in child processes, or resume it; a finished one is not trained again."""
    plain = resolve_config(compose_node(list(overrides)))
    config = build_config(plain)
    resumed = bool(list_checkpoints(folder / "checkpoints"))
    if folder.is_dir() and is_run_locked(folder):
        raise ResumeError(f"{folder} is in use by another process")
    if resumed:
        check_resume_config(folder, dict(iter_leaves(plain)))
        if read_run_state(folder) == "done":
            return
    else:
        archive_attempt(folder)
    command = ["ippo-train", *overrides]
    with lock_folder(folder, name=START_LOCK), (folder / LOG).open("ab") as log:
        write_start_files(folder, to_yaml(plain), list(overrides), command, resumed=resumed)
        record_inputs(folder, input_files(config), resumed=resumed)
        try:
            run_ranks(folder, config.launch.processes, resumed=resumed, output=log)
        except RankFailure as error:
            text = shlex.quote(str(folder / LOG))
            error.args = (
                f"the responder in {folder} ended early ({error}); its output is in {text}; repeat the command",
            )
            raise
