"""`reward=`: how responses are scored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from ippo_cli.config.constraints import Name, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, UnitFloat
from ippo_cli.config.schema.optimizer import Dtype


class RewardKind(str, Enum):
    code = "code"
    code_pair = "code_pair"
    environment = "environment"
    exact_match = "exact_match"
    format = "format"  # pyright: ignore[reportAssignmentType]  # str has a method of that name
    function = "function"
    grid = "grid"
    gsm8k = "gsm8k"
    http = "http"
    judge = "judge"
    length = "length"
    math = "math"
    mix = "mix"
    model = "model"
    number = "number"


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

    team_weight: float  # weight of the joint reward in each agent's score
    agent_weight: float  # weight of the agent's own reward
    turn_weight: float  # weight of turn rewards relative to episode rewards, in both


@dataclass
class RewardConfig(RewardWeightsConfig):
    """Keys of all rewards."""

    kind: RewardKind  # how responses are scored; one of the options of this group
    credit_assignment: CreditAssignment  # none | difference (to the initial policy) | counterfactual | leave_out
    measure_credit_every: NonNegativeInt  # iterations between difference rewards that are only logged; 0 = never
    processor: list[str]  # steps on the combined score: scale shift clip zscore running_zscore, or file.py:function
    scale: float  # factor of processor `scale`
    shift: float  # summand of processor `shift`
    clip_low: float  # lower bound of processor `clip`
    clip_high: float  # upper bound of processor `clip`
    norm_eps: NonNegativeFloat  # `zscore` (buffer) and `running_zscore` (run) do not divide by a smaller deviation
    failure_budget: UnitFloat  # fraction of a buffer's rows that may fail before the run stops
    reward_batch_rows: NonNegativeInt  # reward this many finished rows during generation; 0 = all rows at once


@dataclass
class ExactMatchConfig(RewardConfig):
    """Compares each response with its agent's reference answer."""

    match: Match  # characters (fraction of correct positions) | exact (all or nothing)


@dataclass
class FunctionRewardConfig(RewardConfig):
    """A user-defined Python function."""

    function: Name | None  # path.py:function or module:function
    whole_batch: bool  # scores compare rows: never split a rank's rows over several calls, even after failures
    per_sample: bool  # call it once per row: function(example, responses) returns a number, or a dict
    concurrency: PositiveInt | None  # async calls or processes in parallel; null = 16 async calls, 1 process
    process: bool  # call it in a separate process, which can be killed
    timeout_s: PositiveFloat | None  # a longer call fails; needs process=true, or an async function


@dataclass
class GridRewardConfig(RewardConfig):
    """Closeness of a walk's end to the goal, minus a cost for detours."""

    step_cost: UnitFloat  # subtracted for every step that does not approach the goal


@dataclass
class Gsm8kRewardConfig(RewardConfig):
    """1 if the response's number equals the number of the reference answer."""

    match: NumberMatch  # strict (the number after the last ####) | flexible (the last number); both are logged


@dataclass
class NumberRewardConfig(RewardConfig):
    """Weighted sum: correctness, closeness and format of the last number, compared with the reference answer."""

    exact_weight: NonNegativeFloat  # weight of the correct number
    near_weight: NonNegativeFloat  # weight of closeness: max(0, 1 - relative error)
    format_weight: NonNegativeFloat  # weight of a response that is only a number, correct or not


@dataclass
class EnvironmentRewardConfig(RewardConfig):
    """Rewards that the environment returns."""


@dataclass
class LengthRewardConfig(RewardConfig):
    """1 if the response length is in the interval [low, high]."""

    unit: LengthUnit  # unit of length: characters | words | tokens (of the response, end token included)
    low: NonNegativeInt  # minimum length
    high: NonNegativeInt | None  # maximum length; null = no limit
    margin: NonNegativeInt  # outside [low, high] the reward falls linearly from 1 to 0 over this length; 0 = at once


@dataclass
class FormatRewardConfig(RewardConfig):
    """1 if the response matches a pattern."""

    pattern: Name | None  # regular expression that the whole response must match; `.` also matches line ends


@dataclass
class MathRewardConfig(RewardConfig):
    """1 if math-verify finds the response's answer mathematically equal to the reference answer."""

    workers: PositiveInt | None  # processes per rank that compare answers; null = one per core of the rank
    timeout_s: PositiveFloat  # a longer comparison is killed, and its row fails


@dataclass
class CodeRunConfig(RewardConfig):
    """Keys of rewards that run generated programs in a sandbox; {field} is replaced by that field of the example."""

    sandbox: Sandbox  # where programs run: none (error) | bwrap (no network, no files) | unsafe_local (as your user)
    workers: PositiveInt | None  # programs tested in parallel per rank; null = one per core of the rank
    timeout_s: PositiveFloat  # wall-clock seconds for all tests of one program
    prompt: str  # code inserted before the response, such as imports; '' = none
    test: str  # tests: a function check(candidate), or assert statements
    entry_point: str  # name of the function under test


@dataclass
class CodeRewardConfig(CodeRunConfig):
    """Tests of the program in a response."""

    match: TestMatch  # all (1 if every test passes) | share (fraction of tests that pass); both are logged


@dataclass
class CodePairRewardConfig(CodeRunConfig):
    """Two agents write one program: the first a helper function, the second its caller; a weighted sum of stages."""

    helper: Name  # name of the helper function
    parses: NonNegativeFloat  # weight of valid Python
    defines: NonNegativeFloat  # weight of defining the required functions
    calls: NonNegativeFloat  # weight of calling the helper and using its result
    tests: NonNegativeFloat  # weight of the fraction of tests that pass


@dataclass
class RemoteRewardConfig(RewardConfig):
    """A server that scores over HTTP."""

    url: Name | None  # address of the server, such as http://127.0.0.1:8000/score
    token_env: (
        Name | None
    )  # name of the environment variable that holds the token, never the token itself; null = no token
    concurrency: PositiveInt  # parallel requests per rank
    timeout_s: PositiveFloat  # a longer request fails; it is retried twice


@dataclass
class HttpRewardConfig(RemoteRewardConfig):
    """A user-defined HTTP scorer: receives rows and returns numbers, as JSON."""

    batch_size: PositiveInt  # rows per request


@dataclass
class JudgeRewardConfig(RemoteRewardConfig):
    """A language model at an OpenAI-compatible endpoint that grades responses by a rubric; url ends in /v1."""

    model: Name | None  # model name at the endpoint
    template: str  # judge prompt: {prompt}, {response}, {agents.NAME} and fields of the example; or jinja:...
    pattern: Name | None  # regular expression with one group, the number; the last match in the answer counts
    field: Name | None  # instead of a pattern: field of the JSON object in the answer that holds the number
    min_score: float  # lowest number of the scale; mapped to 0
    max_score: float  # highest number of the scale; mapped to 1
    max_tokens: PositiveInt  # maximum tokens of the judge's answer
    cache_answers: bool  # cache the judge's answers in the run's folder, so that a resumed run does not repeat requests


@dataclass
class ModelRewardConfig(RewardConfig):
    """A trained reward model, loaded on every rank: a sequence classifier with one label, or a critic of a run."""

    model: Name | None  # folder or hub id of a model in safetensors format, with its tokenizer
    revision: str | None  # commit, branch or tag of a hub model
    dtype: Dtype  # fp32 | bf16
    device: Name  # auto (the rank's) | cpu | cuda | cuda:N
    batch_tokens: PositiveInt  # tokens per batch, padding included; a longer conversation is a batch of one
    max_tokens: PositiveInt | None  # maximum tokens of a conversation; null = the model's context length
    overlong: Overlong  # cut (keep the end; metric `cut` is the fraction of such rows) | fail (the row fails)


@dataclass
class MixRewardConfig(RewardConfig):
    """A weighted sum of other rewards."""

    parts: dict[str, Any]  # rewards by name: {kind: length, high: 200}; other keys default to that option's values
    weights: dict[str, float]  # weight by name of the part; default 1
    normalize: list[str]  # parts that are standardised over the valid rows of the buffer
