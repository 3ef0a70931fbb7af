"""`reward=`: how responses are scored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from ippo_cli.config.constraints import Name, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, UnitFloat
from ippo_cli.config.marks import EvalCompute, InEval
from ippo_cli.config.schema.optimizer import Dtype
from ippo_cli.config.schema.registry import option


class CreditAssignment(str, Enum):
    none = "none"
    difference = "difference"
    counterfactual = "counterfactual"
    leave_out = "leave_out"


class Processor(str, Enum):
    scale = "scale"
    shift = "shift"
    clip = "clip"
    zscore = "zscore"
    running_zscore = "running_zscore"


class Match(str, Enum):
    characters = "characters"
    exact = "exact"


class NumberMatch(str, Enum):
    strict = "strict"
    flexible = "flexible"


class LengthUnit(str, Enum):
    characters = "characters"
    words = "words"
    tokens = "tokens"


class TestMatch(str, Enum):
    all = "all"
    share = "share"


class Sandbox(str, Enum):
    none = "none"
    bwrap = "bwrap"
    unsafe_local = "unsafe_local"


class Overlong(str, Enum):
    cut = "cut"
    fail = "fail"


@dataclass
class RewardWeightsConfig:
    """Weights of an agent's score: the keys of `reward` that an agent may override."""

    team_weight: InEval[float]  # weight of the joint reward in each agent's score
    agent_weight: InEval[float]  # weight of the agent's own reward
    turn_weight: InEval[float]  # weight of turn rewards relative to episode rewards, in both


@dataclass
class RewardConfig(RewardWeightsConfig):
    """Keys of all rewards."""

    kind: InEval[str]  # how responses are scored; one of the options of this group
    credit_assignment: CreditAssignment  # none | difference (to the initial policy) | counterfactual | leave_out
    credit_alternatives: PositiveInt | None
    # counterfactual: sampled alternatives to each turn; null = other answers to the prompt (one parallel turn)
    credit_turns: PositiveInt | None  # turns of an agent per episode with sampled alternatives; null = all
    measure_credit_every: NonNegativeInt  # iterations between difference rewards that are only logged; 0 = never
    processor: list[str]  # steps on the combined score: scale shift clip zscore running_zscore, or file.py:function
    scale: float  # factor of processor `scale`
    shift: float  # summand of processor `shift`
    clip_low: float  # lower bound of processor `clip`
    clip_high: float  # upper bound of processor `clip`
    norm_eps: NonNegativeFloat  # `zscore` (buffer) and `running_zscore` (run) do not divide by a smaller deviation
    failure_budget: InEval[UnitFloat]  # fraction of a buffer's rows that may fail before the run stops
    reward_batch_rows: NonNegativeInt  # reward this many finished rows during generation; 0 = all rows at once

    @property
    def user_function(self) -> str | None:
        """The user's function that scores, such as `path.py:function`; None if it is not one."""
        return None

    @property
    def compares_rows(self) -> bool:
        """Whether scores compare rows, so that a rank's rows are never split over several calls."""
        return False

    @property
    def model_of_ranks(self) -> ModelRewardConfig | None:
        """The reward model that ranks have on their devices; None without one."""
        return None


@dataclass
class CodeRunConfig(RewardConfig):
    """Keys of rewards that run generated programs in a sandbox; {field} is replaced by that field of the example."""

    sandbox: InEval[Sandbox]
    # where programs run: none (error) | bwrap (no network, no files) | unsafe_local (as your user)
    workers: EvalCompute[PositiveInt | None]  # programs tested in parallel per rank; null = one per core of the rank
    timeout_s: InEval[PositiveFloat]  # wall-clock seconds for all tests of one program
    prompt: InEval[str]  # code inserted before the response, such as imports; '' = none
    test: InEval[str]  # tests: a function check(candidate), or assert statements
    entry_point: InEval[str]  # name of the function under test


@dataclass
class RemoteRewardConfig(RewardConfig):
    """A server that scores over HTTP."""

    url: InEval[Name | None]  # address of the server, such as http://127.0.0.1:8000/score
    token_env: EvalCompute[Name | None]
    # name of the environment variable that holds the token, never the token itself; null = no token
    concurrency: EvalCompute[PositiveInt]  # parallel requests per rank
    timeout_s: InEval[PositiveFloat]  # a longer request fails; it is retried twice


@option("reward", "code", build="ippo_cli.rewards.code.reward:build_code_reward")
@dataclass
class CodeRewardConfig(CodeRunConfig):
    """Tests of the program in a response."""

    match: InEval[TestMatch]  # all (1 if every test passes) | share (fraction of tests that pass); both are logged


@option("reward", "code_pair", build="ippo_cli.rewards.code.reward:build_code_pair_reward")
@dataclass
class CodePairRewardConfig(CodeRunConfig):
    """Two agents write one program: the first a helper function, the second its caller; a weighted sum of stages."""

    helper: InEval[Name]  # name of the helper function
    parses: InEval[NonNegativeFloat]  # weight of valid Python
    defines: InEval[NonNegativeFloat]  # weight of defining the required functions
    calls: InEval[NonNegativeFloat]  # weight of calling the helper and using its result
    tests: InEval[NonNegativeFloat]  # weight of the fraction of tests that pass


@option("reward", "environment", build="ippo_cli.rewards.environment:build_environment_reward")
@dataclass
class EnvironmentRewardConfig(RewardConfig):
    """Rewards that the environment returns."""


@option("reward", "exact_match", build="ippo_cli.rewards.exact_match:build_exact_match_reward")
@dataclass
class ExactMatchConfig(RewardConfig):
    """Compares each response with its agent's reference answer."""

    match: InEval[Match]  # characters (fraction of correct positions) | exact (all or nothing)


@option("reward", "format", build="ippo_cli.rewards.format:build_format_reward")
@dataclass
class FormatRewardConfig(RewardConfig):
    """1 if the response matches a pattern."""

    pattern: InEval[Name | None]  # regular expression that the whole response must match; `.` also matches line ends


@option("reward", "function", build="ippo_cli.rewards.function:build_function_reward")
@dataclass
class FunctionRewardConfig(RewardConfig):
    """A user-defined Python function."""

    function: InEval[Name | None]  # path.py:function or module:function
    whole_batch: InEval[bool]  # scores compare rows: never split a rank's rows over several calls, even after failures
    per_sample: InEval[bool]  # call it once per row: function(example, responses) returns a number, or a dict
    concurrency: EvalCompute[PositiveInt | None]
    # async calls or processes in parallel; null = 16 async calls, 1 process
    process: InEval[bool]  # call it in a separate process, which can be killed
    timeout_s: InEval[PositiveFloat | None]  # a longer call fails; needs process=true, or an async function

    @property
    def user_function(self) -> str | None:
        return self.function

    @property
    def compares_rows(self) -> bool:
        return self.whole_batch


@option("reward", "grid", build="ippo_cli.rewards.grid:build_grid_reward")
@dataclass
class GridRewardConfig(RewardConfig):
    """Closeness of a walk's end to the goal, minus a cost for detours."""

    step_cost: InEval[UnitFloat]  # subtracted for every step that does not approach the goal


@option("reward", "gsm8k", build="ippo_cli.rewards.gsm8k:build_gsm8k_reward")
@dataclass
class Gsm8kRewardConfig(RewardConfig):
    """1 if the response's number equals the number of the reference answer."""

    match: InEval[NumberMatch]  # strict (the number after the last ####) | flexible (the last number); both are logged


@option("reward", "http", build="ippo_cli.rewards.http:HttpReward")
@dataclass
class HttpRewardConfig(RemoteRewardConfig):
    """A user-defined HTTP scorer: receives rows and returns numbers, as JSON."""

    batch_size: EvalCompute[PositiveInt]  # rows per request


@option("reward", "judge", build="ippo_cli.rewards.judge:JudgeReward")
@dataclass
class JudgeRewardConfig(RemoteRewardConfig):
    """A language model at an OpenAI-compatible endpoint that grades responses by a rubric; url ends in /v1."""

    model: InEval[Name | None]  # model name at the endpoint
    template: InEval[str]  # judge prompt: {prompt}, {response}, {agents.NAME} and fields of the example; or jinja:...
    pattern: InEval[Name | None]  # regular expression with one group, the number; the last match in the answer counts
    field: InEval[Name | None]  # instead of a pattern: field of the JSON object in the answer that holds the number
    min_score: InEval[float]  # lowest number of the scale; mapped to 0
    max_score: InEval[float]  # highest number of the scale; mapped to 1
    max_tokens: InEval[PositiveInt]  # maximum tokens of the judge's answer
    cache_answers: bool  # cache the judge's answers in the run's folder, so that a resumed run does not repeat requests


@option("reward", "length", build="ippo_cli.rewards.length:build_length_reward")
@dataclass
class LengthRewardConfig(RewardConfig):
    """1 if the response length is in the interval [low, high]."""

    unit: InEval[LengthUnit]  # unit of length: characters | words | tokens (of the response, end token included)
    low: InEval[NonNegativeInt]  # minimum length
    high: InEval[NonNegativeInt | None]  # maximum length; null = no limit
    margin: InEval[NonNegativeInt]
    # outside [low, high] the reward falls linearly from 1 to 0 over this length; 0 = at once


@option("reward", "math", build="ippo_cli.rewards.math:build_math_reward")
@dataclass
class MathRewardConfig(RewardConfig):
    """1 if math-verify finds the response's answer mathematically equal to the reference answer."""

    workers: EvalCompute[PositiveInt | None]  # processes per rank that compare answers; null = one per core of the rank
    timeout_s: InEval[PositiveFloat]  # a longer comparison is killed, and its row fails


@option("reward", "mix", build="ippo_cli.rewards.build:build_mix_reward")
@dataclass
class MixRewardConfig(RewardConfig):
    """A weighted sum of other rewards."""

    parts: InEval[dict[str, Any]]
    # rewards by name: {kind: length, high: 200}; other keys default to that option's values
    weights: InEval[dict[str, float]]  # weight by name of the part; default 1
    normalize: list[str]  # parts that are standardised over the valid rows of the buffer


@option("reward", "model", build="ippo_cli.rewards.model:ModelReward")
@dataclass
class ModelRewardConfig(RewardConfig):
    """A trained reward model, loaded on every rank: a sequence classifier with one label, or a critic of a run."""

    model: InEval[Name | None]  # folder or hub id of a model in safetensors format, with its tokenizer
    revision: InEval[str | None]  # commit, branch or tag of a hub model
    dtype: InEval[Dtype]  # fp32 | bf16
    device: EvalCompute[Name]  # auto (the rank's) | cpu | cuda | cuda:N
    batch_tokens: EvalCompute[PositiveInt]
    # tokens per batch, padding included; a longer conversation is a batch of one
    max_tokens: InEval[PositiveInt | None]  # maximum tokens of a conversation; null = the model's context length
    overlong: InEval[Overlong]  # cut (keep the end; metric `cut` is the fraction of such rows) | fail (the row fails)

    @property
    def model_of_ranks(self) -> ModelRewardConfig | None:
        return self if self.device == "auto" else None


@option("reward", "number", build="ippo_cli.rewards.number:build_number_reward")
@dataclass
class NumberRewardConfig(RewardConfig):
    """Weighted sum: correctness, closeness and format of the last number, compared with the reference answer."""

    exact_weight: InEval[NonNegativeFloat]  # weight of the correct number
    near_weight: InEval[NonNegativeFloat]  # weight of closeness: max(0, 1 - relative error)
    format_weight: InEval[NonNegativeFloat]  # weight of a response that is only a number, correct or not
