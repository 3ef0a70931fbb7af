"""Loads the agents of a run with their critics and KL references, without optimizers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch

from ippo_cli.agents.build import build_team
from ippo_cli.agents.initial import read_record, record_path
from ippo_cli.agents.team import Team
from ippo_cli.config.schema import Config
from ippo_cli.config.teams import agents_by_base, base_by_policy
from ippo_cli.evaluation.evaluate_run import EvaluatedWeights
from ippo_cli.runs.checkpoint_files import read_method_states
from ippo_cli.training.checkpoint import INITIAL, REFERENCE_FOLDER
from ippo_cli.training.targets import Algorithm


def load_critic_team(
    config: Config, folder: Path, weights: EvaluatedWeights, device: torch.device
) -> tuple[Team, Algorithm]:
    """The team of a checkpoint, and its algorithm with the adapted KL coefficients."""
    config = pin_initial_revisions(whole_models(config), folder)
    saved = None if weights.name == INITIAL else folder / "checkpoints" / weights.name
    initial = {policy: _initial_model(folder, base) for policy, base in base_by_policy(config).items()}
    team = build_team(config, initial, device, saved, trains=False)
    algorithm = Algorithm.from_config(config, config.evaluation.seed)
    if saved is not None:
        stored = json.loads((saved / "state.json").read_text())
        algorithm.restore_state(stored["kl_coef"], read_method_states(saved))
        for holder, agent in team.updated_references(int(weights.metadata["iteration"])).items():
            if agent.reference is not None:
                agent.reference.load_saved(saved / holder / REFERENCE_FOLDER)
    return team, algorithm


def whole_models(config: Config) -> Config:
    """The configuration with every model whole on every rank of the evaluation."""
    deepspeed = replace(config.deepspeed, stage=0, sequence_parallel=1, tensor_parallel=1)
    return replace(config, deepspeed=deepspeed, launch=replace(config.launch, placement={}))


def pin_initial_revisions(config: Config, folder: Path) -> Config:
    """The configuration with the commits of hub models that the run started with."""
    base = {name: base for base, names in agents_by_base(config).items() for name in names}
    agents = {}
    for name, agent in config.task.agents.items():
        path = record_path(folder, base[name])
        commit = read_record(path)["commit"] if path.is_file() else None
        agents[name] = replace(agent, actor=replace(agent.actor, revision=commit or agent.actor.revision))
    return replace(config, task=replace(config.task, agents=agents))


def _initial_model(folder: Path, base: str) -> str:
    """The folder or hub id of initial weights: the copy in the run's folder, or the original model."""
    own = folder / INITIAL / base
    return str(own) if own.is_dir() else str(read_record(record_path(folder, base))["model"])
