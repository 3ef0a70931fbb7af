"""Top-level keys of a run; `checkpoint=` and `evaluation=`: when it is saved and evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from ippo_cli.config.constraints import Name, NonNegativeInt, PositiveFloat, PositiveInt, Range, Risk, Seed
from ippo_cli.config.marks import Frozen, InEval, InModelEval
from ippo_cli.config.schema.actor import PolicyConfig
from ippo_cli.config.schema.algorithm import AlgorithmConfig
from ippo_cli.config.schema.critic import CriticConfig
from ippo_cli.config.schema.deepspeed import DeepspeedConfig
from ippo_cli.config.schema.launch import LaunchConfig
from ippo_cli.config.schema.pilot import PilotConfig
from ippo_cli.config.schema.plan import PlanConfig
from ippo_cli.config.schema.registry import option
from ippo_cli.config.schema.reward import RewardConfig
from ippo_cli.config.schema.rollout import RolloutConfig
from ippo_cli.config.schema.task import TaskConfig
from ippo_cli.config.schema.team import TeamConfig
from ippo_cli.config.schema.tracker import TrackerConfig


class Hub(str, Enum):
    huggingface = "huggingface"
    modelscope = "modelscope"


class Mode(str, Enum):
    train = "train"
    critic = "critic"
    plan = "plan"
    pilot = "pilot"


@dataclass
class RunConfig:
    """Top-level keys of a run."""

    name: str  # experiment name: runs are written to output_dir/name
    seed: InModelEval[Frozen[Seed]]  # seed of data order, initial weights and sampling
    num_iterations: PositiveInt | None  # iterations of generate, score, update; set exactly one of this and num_epochs
    num_epochs: PositiveFloat | None  # passes over the training prompts
    max_iterations_this_run: PositiveInt | None  # save and exit early after this many iterations; null = after the last
    hub: InModelEval[Hub]  # huggingface | modelscope: hub for models that are not local folders
    output_dir: InModelEval[Name]  # root of all runs
    mode: Frozen[Mode]  # train | critic (fit critics alone) | plan (print sizes) | pilot (measure whether it can learn)
    resume: str  # never | auto | must | the folder of a run
    deterministic: InEval[bool]  # bitwise deterministic operations where PyTorch has them; not attention on GPUs
    debug_faults: list[str]  # for tests only: inject faults, POINT:KIND[:TIME[:RANK]] (docs/reliability.md)


class CheckpointWeights(str, Enum):
    adapter = "adapter"
    full = "full"


@option("checkpoint")
@dataclass
class CheckpointConfig:
    """When runs are saved, and which checkpoints are kept."""

    every: NonNegativeInt  # iterations between checkpoints; 0 = only by time and at the end
    every_seconds: PositiveFloat | None  # also save this many seconds after the last checkpoint; null = off
    save_deadline: str | None  # save before: auto (the end of the SLURM job) | null | seconds from the start | a time
    keep: Annotated[int, Range(2)]  # checkpoints kept, at least 2
    best: bool  # save after every evaluation with a new best score, and keep the last such checkpoint
    weights: CheckpointWeights  # LoRA agents: adapter (adapters only) | full (also merged into their base)
    reshard: bool  # allow resuming with another number of processes: equal within rounding, not bitwise
    optimizer: bool  # save optimizer states; without them checkpoints are smaller and a resume resets the optimizers

    @property
    def max_on_disk(self) -> int:
        """The most checkpoints that exist at the same time, with the one being written."""
        return self.keep + self.best + 1


@option("evaluation")
@dataclass
class EvaluationConfig:
    """When held-out data is scored."""

    every: NonNegativeInt  # iterations between evaluations; 0 = at both ends only
    patience: PositiveInt | None  # end after this many evaluations in a row without a new best score; null = never
    stop_at_risk: Risk | None  # save and end at this forecast/collapse_risk (docs/forecast.md); null = never
    size: InEval[PositiveInt | None]  # maximum number of held-out rows, sampled by evaluation.seed; null = all
    seed: InEval[Seed]  # seed of the sampled evaluation and of confidence intervals
    sampled: InEval[bool]  # sample responses as in training
    num_generations: InEval[PositiveInt]  # sampled responses per held-out row; if above 1, pass@k is reported
    greedy: InEval[bool]  # also decode greedily


@dataclass
class Config(RunConfig):
    """The configuration of a run."""

    task: Frozen[TaskConfig]
    algorithm: AlgorithmConfig
    actor: PolicyConfig
    critic: CriticConfig
    rollout: RolloutConfig
    reward: RewardConfig
    team: TeamConfig
    deepspeed: DeepspeedConfig
    checkpoint: CheckpointConfig
    evaluation: EvaluationConfig
    tracker: TrackerConfig
    launch: LaunchConfig
    plan: PlanConfig
    pilot: PilotConfig
