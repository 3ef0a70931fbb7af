"""A whole run: its own keys; `checkpoint=` and `evaluation=`: when it is saved and evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from ippo_cli.config.constraints import Name, NonNegativeInt, PositiveFloat, PositiveInt, Range, Seed
from ippo_cli.config.schema.actor import ActorConfig
from ippo_cli.config.schema.algorithm import AlgorithmConfig
from ippo_cli.config.schema.critic import CriticConfig
from ippo_cli.config.schema.deepspeed import DeepspeedConfig
from ippo_cli.config.schema.launch import LaunchConfig
from ippo_cli.config.schema.plan import PlanConfig
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
    plan = "plan"


@dataclass
class RunConfig:
    """What concerns the whole run."""

    name: str  # experiment name: runs lie below output_dir/name
    seed: Seed  # seeds data order, initial weights and sampling
    num_iterations: PositiveInt | None  # passes of generate - score - update; exactly one of this and num_epochs
    num_epochs: PositiveFloat | None  # passes over the training prompts
    stop_after: PositiveInt | None  # iterations after which the run is saved and ends early; null = after its last
    hub: Hub  # huggingface | modelscope: where names of models that are no folders here are downloaded from
    output_dir: Name  # root of all runs
    mode: Mode  # train | plan (check everything and show the arithmetic; nothing is loaded)
    resume: str  # never | auto | must | the folder of a run
    deterministic: bool  # bitwise repeatable operations where PyTorch has them; on GPUs not of attention
    debug_faults: list[str]  # for tests alone: POINT:KIND[:TIME[:RANK]] goes wrong on purpose (docs/reliability.md)


class CheckpointWeights(str, Enum):
    adapter = "adapter"
    full = "full"


@dataclass
class CheckpointConfig:
    """When runs are saved, and what is kept."""

    every: NonNegativeInt  # iterations between checkpoints; 0 = none but those by time, and the one at the end
    every_seconds: PositiveFloat | None  # seconds since the last one that make one due as well; null = no number does
    must_save_by: (
        str | None
    )  # auto (the end of the SLURM job) | null | seconds from the start | a time: saves before it
    keep: Annotated[int, Range(2)]  # checkpoints kept, at least 2
    best: bool  # save after every evaluation that is the best so far, and keep the last of these
    weights: CheckpointWeights  # adapter (of LoRA agents the adapters alone) | full (merged into their base as well)
    reshard: bool  # go on with another number of processes than saved: equal within rounding, and not to the bit
    optimizer: bool  # keep optimizer states; without them a checkpoint is smaller and a resume starts optimizers anew


@dataclass
class EvaluationConfig:
    """When held-out data is scored."""

    every: NonNegativeInt  # iterations between evaluations; 0 = at both ends only
    size: PositiveInt | None  # at most so many of the held-out rows, drawn by evaluation.seed; null = all
    seed: Seed  # seed of the sampled evaluation, and of intervals
    sampled: bool  # sample responses as in training
    num_generations: PositiveInt  # sampled responses per held-out row; above 1 with pass@k
    greedy: bool  # also decode greedily


@dataclass
class Config(RunConfig):
    """A whole run."""

    task: TaskConfig
    algorithm: AlgorithmConfig
    actor: ActorConfig
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
