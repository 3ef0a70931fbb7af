"""`reward=`: how responses become scores."""

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
    format = "format"  # pyright: ignore[reportAssignmentType]  # texts have a method of that name
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
    """What counts in an agent's score: the keys of `reward` that an agent may have values of its own for."""

    team_weight: float  # weight of the joint reward in each agent's score
    agent_weight: float  # weight of the agent's own reward
    turn_weight: float  # weight, in both, of numbers for single turns beside those for whole episodes


@dataclass
class RewardConfig(RewardWeightsConfig):
    """How responses become scores."""

    kind: RewardKind  # what scores responses; the options of this group
    credit_assignment: CreditAssignment  # none | difference (to its initial policy) | counterfactual | leave_out
    measure_credit_every: NonNegativeInt  # iterations between difference rewards that are only logged; 0 = never
    processor: list[str]  # steps on the mixed score: scale shift clip zscore running_zscore, or file.py:function
    scale: float  # processor `scale` multiplies by this
    shift: float  # processor `shift` adds this
    clip_low: float  # processor `clip` bounds
    clip_high: float  # processor `clip` bounds
    norm_eps: NonNegativeFloat  # `zscore` (of the buffer), `running_zscore` (of all so far) leave smaller deviations
    failure_budget: UnitFloat  # share of a buffer's rows that may fail before the run stops
    reward_batch_rows: NonNegativeInt  # reward this many finished rows while others are written; 0 = all rows at once


@dataclass
class ExactMatchConfig(RewardConfig):
    """Compares each response with its agent's reference answer."""

    match: Match  # characters (share of correct positions) | exact (all or nothing)


@dataclass
class FunctionRewardConfig(RewardConfig):
    """A function of the user's."""

    function: Name | None  # path.py:function or module:function
    whole_batch: bool  # its numbers compare rows: a rank's rows are never asked about in parts, not even after failures
    per_sample: bool  # it is called for every row by itself: function(example, responses) returns a number, or a dict
    concurrency: PositiveInt | None  # rows at once, of async calls or in processes; null = 16 of async calls, 1 process
    process: bool  # it is called in a process of its own, which can be killed
    timeout_s: PositiveFloat | None  # a call that takes longer has failed; needs process=true, or an async function


@dataclass
class GridRewardConfig(RewardConfig):
    """How near to its goal a walk ended, less what its detours cost."""

    step_cost: UnitFloat  # subtracted for every step that did not bring the walk nearer


@dataclass
class Gsm8kRewardConfig(RewardConfig):
    """Whether a response's number is that of the reference answer."""

    match: NumberMatch  # strict (the number after the last ####) | flexible (the last number); both are reported


@dataclass
class NumberRewardConfig(RewardConfig):
    """How near a response's last number is to the reference answer's, in which form; the weights are of these."""

    right: NonNegativeFloat  # of the right number
    near: NonNegativeFloat  # of nearness: 1 less the relative error, at least 0
    bare: NonNegativeFloat  # of a number and nothing else, right or wrong


@dataclass
class EnvironmentRewardConfig(RewardConfig):
    """What a world pays as it goes."""


@dataclass
class LengthRewardConfig(RewardConfig):
    """Whether responses are as long as they should be."""

    unit: LengthUnit  # what is counted: characters | words | tokens (of the response, its end included)
    low: NonNegativeInt  # from here on responses are long enough
    high: NonNegativeInt | None  # up to here they are short enough; null = there is no limit
    margin: NonNegativeInt  # outside, the reward falls from 1 to 0 over this many; 0 = at once


@dataclass
class FormatRewardConfig(RewardConfig):
    """Whether responses have a form."""

    pattern: Name | None  # regular expression that a whole response must match; `.` stands for line ends too


@dataclass
class MathRewardConfig(RewardConfig):
    """Whether a response's answer equals the reference answer as mathematics, told by math-verify."""

    workers: PositiveInt | None  # processes per rank that compare answers; null = one per core of the rank
    timeout_s: PositiveFloat  # a comparison that takes longer is killed, and the row has failed


@dataclass
class CodeRunConfig(RewardConfig):
    """Programs that models write, tested in a sandbox; fields of an example stand in braces."""

    sandbox: Sandbox  # where programs run: none (refused) | bwrap (no network, no files) | unsafe_local (as you)
    workers: PositiveInt | None  # programs tested at once per rank; null = one per core of the rank
    timeout_s: PositiveFloat  # seconds on the wall that all tests of a program may take together
    prompt: str  # what stands before a response in its program, such as imports; '' = nothing
    test: str  # tests: a function check(candidate), or assert statements
    entry_point: str  # the name of the function under test


@dataclass
class CodeRewardConfig(CodeRunConfig):
    """Whether the program of a response passes its tests."""

    match: TestMatch  # all (1 where every test is passed) | share (of tests that are passed); both are reported


@dataclass
class CodePairRewardConfig(CodeRunConfig):
    """Two agents write one program, the first one a helper, the second one what calls it; the weights are of stages."""

    helper: Name  # the name of the helper function
    parses: NonNegativeFloat  # of texts that are Python
    defines: NonNegativeFloat  # of texts that define their function
    calls: NonNegativeFloat  # of calling the helper and using what it returns
    tests: NonNegativeFloat  # of the share of tests that are passed


@dataclass
class RemoteRewardConfig(RewardConfig):
    """A server that is asked over HTTP."""

    url: Name | None  # where it is asked, such as http://127.0.0.1:8000/score
    token_env: (
        Name | None
    )  # name of the environment variable that holds its token, never the token; null = none is sent
    concurrency: PositiveInt  # requests at once, per rank
    timeout_s: PositiveFloat  # a request that takes longer has failed, and is sent again twice


@dataclass
class HttpRewardConfig(RemoteRewardConfig):
    """A scorer of the user's behind HTTP: rows in, numbers out, as JSON."""

    batch_size: PositiveInt  # rows of one request


@dataclass
class JudgeRewardConfig(RemoteRewardConfig):
    """A language model behind an OpenAI-compatible endpoint, asked for a number by a rubric; url ends in /v1."""

    model: Name | None  # the model's name at the endpoint
    template: str  # what it is asked: {prompt}, {response}, {agents.NAME} and fields of the example; or jinja:...
    pattern: Name | None  # regular expression with one group, the number; the last match in its answer counts
    field: Name | None  # instead of a pattern: the field of the JSON object in its answer that holds the number
    lowest: float  # the lowest number that it may give, which is worth 0
    highest: float  # the highest one, worth 1
    max_tokens: PositiveInt  # tokens of its answer
    keep_answers: bool  # its answers are written into the run's folder, so that a resumed run asks nothing again


@dataclass
class ModelRewardConfig(RewardConfig):
    """A trained reward model, loaded on every rank: a sequence classifier of one label, or a critic of ours."""

    model: Name | None  # folder or hub id, with a tokenizer of its own, in safetensors format
    revision: str | None  # commit, branch or tag of a hub model
    dtype: Dtype  # fp32 | bf16
    device: Name  # auto (the rank's) | cpu | cuda | cuda:N
    batch_tokens: PositiveInt  # tokens read together, padding included; a longer conversation is read alone
    max_tokens: PositiveInt | None  # of a conversation; null = the model's context
    too_long: Overlong  # cut (the end is read; the share of such rows is the part `cut`) | fail (the row has failed)


@dataclass
class MixRewardConfig(RewardConfig):
    """A weighted sum of other rewards."""

    parts: dict[str, Any]  # by name, what it is made of: {kind: length, high: 200}, with other keys as that option has
    weights: dict[str, float]  # by the same names; 1 where a name is missing
    normalize: list[str]  # parts that are counted in deviations from their mean over the valid rows of the buffer
