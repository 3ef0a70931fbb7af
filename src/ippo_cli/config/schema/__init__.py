"""One dataclass per configuration group: types and field documentation here, values in `conf/`.

Each group has a file of its name; `run.py` also holds two small groups. Import all dataclasses from this package.
Fields have no defaults, because YAML sets every value. Fields of an agent are the exception: no group holds them.
Constraints beyond the type are part of the field's type (`config/constraints.py`).
The comment after a field is its documentation; `scripts/docs.py` generates `docs/config.md` from these comments.
Enum members are spelled as in YAML, so that a value looks the same on the command line, in code and in errors.
"""

# ruff: noqa: F401 (re-exports)

from __future__ import annotations

from ippo_cli.config.schema.actor import (
    ActorConfig,
    ActorKind,
    Alphabet,
    AnyActorConfig,
    LoraActorConfig,
    PolicyConfig,
    ReferenceKind,
    ServerActorConfig,
    TinyActorConfig,
    TinyLoraActorConfig,
)
from ippo_cli.config.schema.agent import AgentConfig, AgentPromptConfig, PromptConfig, ToolsConfig, build_unset
from ippo_cli.config.schema.algorithm import (
    Advantage,
    AlgorithmConfig,
    BehaviorCorrectionConfig,
    ClipLevel,
    Credit,
    CrossAgentConfig,
    KlConfig,
    KlLossConfig,
    KlLossEstimator,
    KlRewardConfig,
    KlRewardEstimator,
    LossAggregation,
    NormalizationScope,
    Objective,
    Pooling,
    PositiveNllConfig,
    RatioBase,
    RatioLevel,
    Reweight,
    ReweightConfig,
    SequentialCorrectionConfig,
    StepsConfig,
    Truncation,
    TrustRegion,
    TurnValue,
    ValueUnit,
    WeightLevel,
    has_own_loss,
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
from ippo_cli.config.schema.pilot import PilotConfig
from ippo_cli.config.schema.plan import PlanConfig
from ippo_cli.config.schema.program import ProgramConfig, has_data, has_seed_examples
from ippo_cli.config.schema.registry import OPTIONS, SCHEMAS, SINGLE, find_implementation, load_implementation, option
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
    RewardWeightsConfig,
    Sandbox,
    TestMatch,
)
from ippo_cli.config.schema.rollout import (
    ContextMode,
    EngineRolloutConfig,
    EngineSamplesConfig,
    OnPolicy,
    OpenAIServerConfig,
    OpenAIServerRolloutConfig,
    RolloutConfig,
    SamplingConfig,
    SamplingMethod,
    VllmConfig,
    VllmMode,
    VllmRolloutConfig,
    WeightPath,
    Zero3Gather,
)
from ippo_cli.config.schema.run import (
    CheckpointConfig,
    CheckpointWeights,
    Config,
    EvaluationConfig,
    Hub,
    Mode,
    RunConfig,
)
from ippo_cli.config.schema.server import ServerConnectionConfig
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
    CurriculumConfig,
    Data,
    DataConfig,
    GridConfig,
    JsonlConfig,
    LettersConfig,
    OverlongPrompts,
    RelayConfig,
    SignallingConfig,
    SortingConfig,
    TaskConfig,
)
from ippo_cli.config.schema.team import (
    IndependentTeamConfig,
    OpponentPoolConfig,
    RoleBalance,
    SharedBaseConfig,
    SharedPolicyConfig,
    TeamConfig,
    TeamKind,
    UpdateOrder,
)
from ippo_cli.config.schema.tools import ToolFormat
from ippo_cli.config.schema.tracker import (
    Console,
    MlflowTrackerConfig,
    ProjectTrackerConfig,
    RemoteTrackerConfig,
    TrackerConfig,
    TrackerKind,
    TrackioTrackerConfig,
    WandbMlflowTrackerConfig,
    WandbTrackerConfig,
)
from ippo_cli.config.schema.world import (
    ConstructedEnvironmentConfig,
    EnvironmentTaskConfig,
    GymnasiumConfig,
    IllegalMove,
    LadderConfig,
    ObservationForm,
    OpenEnvConfig,
    Opponent,
    PettingzooConfig,
    ReasoningGymConfig,
    SteppedEnvironmentConfig,
    TextArenaConfig,
    UserEnvironmentConfig,
)
