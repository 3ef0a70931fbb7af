"""Sessions of reports on critics and credit: a run's agents, its task, and episodes of held-out rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ippo_cli.agents.build import build_team
from ippo_cli.agents.initial import read_record, record_path
from ippo_cli.agents.team import Team
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config
from ippo_cli.config.teams import agents_by_base, base_by_policy
from ippo_cli.engine import distributed
from ippo_cli.evaluation.evaluate_run import EvaluatedWeights, EvaluationTask, open_evaluation_task
from ippo_cli.reporting.console import Console
from ippo_cli.rewards.contract import RewardFunction
from ippo_cli.rollout.branches import BranchEpisodes, State
from ippo_cli.rollout.collect import collect
from ippo_cli.rollout.combined_generator import build_with_served_agents
from ippo_cli.rollout.continuations import collect_continuations
from ippo_cli.rollout.generator import Generator, SamplingStream, build_generator, sampling_settings
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.runs.checkpoint_files import read_method_states
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.tasks.task import can_reuse_prefix
from ippo_cli.training.checkpoint import INITIAL, REFERENCE_FOLDER
from ippo_cli.training.methods.continued_returns import ReturnSource
from ippo_cli.training.process import prepare_process
from ippo_cli.training.targets import Algorithm
from ippo_cli.types import Batch, Episode


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


@dataclass(frozen=True, kw_only=True)
class ReportSession:
    """The models, environments and reward of a report, and its sampled episodes."""

    config: Config
    team: Team
    algorithm: Algorithm
    environments: EnvironmentPool
    formats: Mapping[str, PromptFormat]
    generator: Generator
    reward: RewardFunction
    draws: SamplingStream
    device: torch.device
    batch: Batch
    prompts: Sequence[int]  # the held-out row of each episode
    episodes: Sequence[Episode]

    def play(self, batch: Batch, generator: Generator) -> list[Episode]:
        """Play one episode per example, with the random numbers of the session's episodes."""
        return collect(self.environments, self.formats, batch, generator, self.draws)

    def sample_continuations(self, states: Sequence[State], count: int) -> BranchEpisodes:
        """`count` episodes from each state of the session's episodes."""
        return collect_continuations(self.play, self.generator, self.episodes, states, count)

    def return_source(self, agent: str, *, is_by_turn: bool) -> ReturnSource:
        """The computation of an agent's returns; `is_by_turn`: whether a turn is one action."""
        return ReturnSource(
            config=self.config,
            algorithm=self.algorithm,
            agent=self.team[agent],
            reward=self.reward,
            is_by_turn=is_by_turn,
            device=self.device,
        )


@contextmanager
def open_report_session(
    config: Config,
    folder: Path,
    weights: EvaluatedWeights,
    select: Callable[[EvaluationTask], tuple[Batch, list[int]]],
    *,
    setting: str,
    purpose: str,
) -> Iterator[tuple[ReportSession, Console]]:
    """Load the agents of a checkpoint, and play episodes on the rows that `select` returns, each with its held-out row.

    Raises `ConfigError` with several processes.
    """
    device = prepare_process(config)
    try:
        if distributed.world_size() > 1:
            raise ConfigError(setting, f"runs in one process, and {distributed.world_size()} were started", "start one")
        with (
            open_evaluation_task(config, device) as exam,
            Console(config.tracker.console, list(config.task.agents)) as console,
        ):
            team, algorithm = load_critic_team(config, folder, weights, device)
            policies = team.generation_policies
            formats = exam.build_formats(policies)
            exam = exam.drop_too_long_rows([(policies, formats)])
            batch, prompts = select(exam)
            generator = build_report_generator(config, policies, console)
            try:
                draws = SamplingStream(seed=config.evaluation.seed, purpose=purpose)
                yield (
                    ReportSession(
                        config=config,
                        team=team,
                        algorithm=algorithm,
                        environments=exam.environments,
                        formats=formats,
                        generator=generator,
                        reward=exam.reward,
                        draws=draws,
                        device=device,
                        batch=batch,
                        prompts=prompts,
                        episodes=collect(exam.environments, formats, batch, generator, draws),
                    ),
                    console,
                )
            finally:
                generator.close()
    finally:
        distributed.shutdown()


def build_report_generator(config: Config, policies: Mapping[str, GenerationPolicy], console: Console) -> Generator:
    """A generator of the agents' responses that reports its progress."""
    sampling = sampling_settings(config.task)

    def report_progress(agent: str, done: int, rows: int) -> None:
        console.show_progress(f"generating responses of {agent}", done, rows)

    def build_local(own: Mapping[str, GenerationPolicy]) -> Generator:
        return build_generator(own, config.rollout, sampling, report_progress, continues=can_reuse_prefix(config))

    return build_with_served_agents(policies, config.rollout, sampling, build_local, report_progress)
