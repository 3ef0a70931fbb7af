"""One dataclass per configuration group: types and field documentation here, values in `conf/`.

Each group has a file of its name; `run.py` also holds two small groups. Import all dataclasses from this package.
Fields have no defaults, because YAML sets every value. Fields of an agent are the exception: no group holds them.
Constraints beyond the type are part of the field's type (`config/constraints.py`).
The comment after a field is its documentation; `scripts/docs.py` generates `docs/config.md` from these comments.
Enum members are spelled as in YAML, so that a value looks the same on the command line, in code and in errors.
"""

# ruff: noqa: F401 (re-exports)

from __future__ import annotations

from typing import Any

from ippo_cli.config.schema.actor import (
    ActorConfig,
    ActorKind,
    Alphabet,
    LoraActorConfig,
    ReferenceKind,
    TinyActorConfig,
    TinyLoraActorConfig,
)
from ippo_cli.config.schema.agent import AgentConfig, AgentPromptConfig, PromptConfig, build_unset
from ippo_cli.config.schema.algorithm import (
    Advantage,
    AlgorithmConfig,
    BehaviorCorrectionConfig,
    Credit,
    KlConfig,
    KlLossConfig,
    KlLossEstimator,
    KlRewardConfig,
    KlRewardEstimator,
    LossAggregation,
    Objective,
    Pooling,
    RatioLevel,
    Reweight,
    ReweightConfig,
    SequentialCorrectionConfig,
    StepsConfig,
    Truncation,
    TurnValue,
    ValueUnit,
    WeightLevel,
)
from ippo_cli.config.schema.critic import (
    AdapterCriticConfig,
    AnyCriticConfig,
    CentralizedCriticConfig,
    CriticConfig,
    CriticKind,
    NoCriticConfig,
    OptimizedCriticConfig,
    SeparateCriticConfig,
    TrainedCriticConfig,
    ValueHeadCriticConfig,
)
from ippo_cli.config.schema.deepspeed import DeepspeedConfig
from ippo_cli.config.schema.launch import Device, LaunchConfig
from ippo_cli.config.schema.lora import ALL_LINEAR, AdapterInit, AdapterMismatch, LoraConfig
from ippo_cli.config.schema.optimizer import Dtype, OptimizerConfig, Schedule
from ippo_cli.config.schema.plan import PlanConfig
from ippo_cli.config.schema.reward import (
    CodePairRewardConfig,
    CodeRewardConfig,
    CodeRunConfig,
    CreditAssignment,
    EnvironmentRewardConfig,
    ExactMatchConfig,
    FormatRewardConfig,
    FunctionRewardConfig,
    GridRewardConfig,
    Gsm8kRewardConfig,
    HttpRewardConfig,
    JudgeRewardConfig,
    LengthRewardConfig,
    LengthUnit,
    Match,
    MathRewardConfig,
    MixRewardConfig,
    ModelRewardConfig,
    NumberMatch,
    NumberRewardConfig,
    Overlong,
    Processor,
    RemoteRewardConfig,
    RewardConfig,
    RewardKind,
    RewardWeightsConfig,
    Sandbox,
    TestMatch,
)
from ippo_cli.config.schema.rollout import ContextMode, RolloutConfig, RolloutKind, SamplingConfig, Zero3Gather
from ippo_cli.config.schema.run import (
    CheckpointConfig,
    CheckpointWeights,
    Config,
    EvaluationConfig,
    Hub,
    Mode,
    RunConfig,
)
from ippo_cli.config.schema.sweep import (
    Composition,
    GridSweepConfig,
    OptunaSweepConfig,
    PopulationSweepConfig,
    SearchSweepConfig,
    SweepConfig,
    SweepKind,
)
from ippo_cli.config.schema.task import (
    PROTOCOLS,
    ConversationConfig,
    Data,
    GridConfig,
    JsonlConfig,
    LettersConfig,
    OverlongPrompts,
    RelayConfig,
    SignallingConfig,
    SortingConfig,
    TaskConfig,
    TaskKind,
)
from ippo_cli.config.schema.team import (
    IndependentTeamConfig,
    OpponentPoolConfig,
    SharedBaseConfig,
    SharedPolicyConfig,
    TeamConfig,
    TeamKind,
    UpdateOrder,
)
from ippo_cli.config.schema.tracker import (
    Console,
    MlflowTrackerConfig,
    RemoteTrackerConfig,
    TrackerConfig,
    TrackerKind,
    WandbMlflowTrackerConfig,
    WandbTrackerConfig,
)
from ippo_cli.config.schema.world import (
    EnvironmentTaskConfig,
    GymnasiumConfig,
    IllegalMove,
    LadderConfig,
    ObservationForm,
    Opponent,
    PettingzooConfig,
    ReasoningGymConfig,
    SteppedEnvironmentConfig,
    UserEnvironmentConfig,
)

SCHEMAS: dict[str, type[Any]] = {
    "config": Composition,
    "task_sorting": SortingConfig,
    "task_jsonl": JsonlConfig,
    "task_probe_letters": LettersConfig,
    "task_probe_grid": GridConfig,
    "task_signalling": SignallingConfig,
    "task_relay": RelayConfig,
    "task_ladder": LadderConfig,
    "task_gymnasium": GymnasiumConfig,
    "task_pettingzoo": PettingzooConfig,
    "task_reasoning_gym": ReasoningGymConfig,
    "task_environment": UserEnvironmentConfig,
    "algorithm": AlgorithmConfig,
    "actor_tiny": TinyActorConfig,
    "actor_full": ActorConfig,
    "actor_lora": LoraActorConfig,
    "actor_tiny_lora": TinyLoraActorConfig,
    "critic_separate": SeparateCriticConfig,
    "critic_centralized": CentralizedCriticConfig,
    "critic_value_head": ValueHeadCriticConfig,
    "critic_adapter": AdapterCriticConfig,
    "critic_none": NoCriticConfig,
    "rollout": RolloutConfig,
    "reward_code": CodeRewardConfig,
    "reward_code_pair": CodePairRewardConfig,
    "reward_environment": EnvironmentRewardConfig,
    "reward_exact_match": ExactMatchConfig,
    "reward_format": FormatRewardConfig,
    "reward_function": FunctionRewardConfig,
    "reward_grid": GridRewardConfig,
    "reward_gsm8k": Gsm8kRewardConfig,
    "reward_http": HttpRewardConfig,
    "reward_judge": JudgeRewardConfig,
    "reward_length": LengthRewardConfig,
    "reward_math": MathRewardConfig,
    "reward_mix": MixRewardConfig,
    "reward_model": ModelRewardConfig,
    "reward_number": NumberRewardConfig,
    "team_independent": IndependentTeamConfig,
    "team_shared_policy": SharedPolicyConfig,
    "team_shared_base": SharedBaseConfig,
    "deepspeed": DeepspeedConfig,
    "checkpoint": CheckpointConfig,
    "evaluation": EvaluationConfig,
    "tracker_tensorboard": TrackerConfig,
    "tracker_wandb": WandbTrackerConfig,
    "tracker_mlflow": MlflowTrackerConfig,
    "tracker_wandb_mlflow": WandbMlflowTrackerConfig,
    "launch": LaunchConfig,
    "plan": PlanConfig,
    "sweep_grid": GridSweepConfig,
    "sweep_optuna": OptunaSweepConfig,
    "sweep_population": PopulationSweepConfig,
}
"""Schema by name; a YAML file lists its schema first in `defaults` (`/schema/NAME@_here_`)."""
