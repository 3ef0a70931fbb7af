"""`rollout=`: how responses are sampled."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

from ippo_cli.config.constraints import Name, NonNegativeInt, PositiveInt, Range, RepetitionPenalty, Temperature
from ippo_cli.config.marks import Changeable, EvalCompute, Frozen, InEval
from ippo_cli.config.schema.registry import option
from ippo_cli.config.schema.server import ServerConnectionConfig


class ContextMode(str, Enum):
    append = "append"
    retokenize = "retokenize"
    last_only = "last_only"


class SamplingMethod(str, Enum):
    gumbel = "gumbel"
    inverse_cdf = "inverse_cdf"


class OnPolicy(str, Enum):
    approximate = "approximate"
    exact = "exact"


class Zero3Gather(str, Enum):
    all = "all"
    layer = "layer"


@dataclass
class SamplingConfig:
    """How tokens are sampled: the keys of `rollout` that an agent may override."""

    temperature: InEval[Changeable[Temperature]]  # divides the logits, also in log-probs, entropy and KL
    top_p: InEval[Changeable[Annotated[float, Range(0.0, 1.0, open_low=True)]]]  # nucleus filter; 1 = off
    top_k: InEval[Changeable[NonNegativeInt]]  # keep the k most likely tokens; 0 = off
    min_p: InEval[Changeable[Annotated[float, Range(0.0, 1.0, open_high=True)]]]
    # minimum probability relative to the top token; 0 = off
    repetition_penalty: InEval[Changeable[RepetitionPenalty]]
    # divides the logits of tokens that occurred before; 1 = off
    max_new_tokens: InEval[Changeable[PositiveInt]]  # maximum tokens of a response
    min_new_tokens: InEval[Changeable[NonNegativeInt]]  # no stop token before this many tokens
    stop_strings: InEval[Changeable[list[str]]]  # strings that end a response

    @property
    def has_filters(self) -> bool:
        """Whether the sampling distribution differs from the softmax at this temperature."""
        changes_logits = self.repetition_penalty != 1 or self.min_new_tokens > 0
        return changes_logits or self.top_p < 1 or self.top_k > 0 or self.min_p > 0


@option("rollout", "hf", schema="rollout", generator="ippo_cli.rollout.generator:HfGenerator")
@dataclass
class RolloutConfig(SamplingConfig):
    """How responses are sampled."""

    kind: str  # hf: batched decoding with the training model | vllm: vLLM engines
    buffer_size: Frozen[PositiveInt]  # joint samples per iteration over all ranks: prompts x num_generations
    num_generations: Frozen[PositiveInt]  # responses per prompt and agent, aligned by index across agents
    sampling: InEval[SamplingMethod]
    # rollout=hf: gumbel (argmax of logits plus noise; hardly changed by rounding) | inverse_cdf (of earlier versions)
    decode_batch_size: EvalCompute[PositiveInt]
    # rows decoded in one batch, per rank; changes samples by rounding only (in bf16)
    batch_invariant: InEval[bool]  # rollout=hf: no bit of a response depends on decode_batch_size or other rows; slower
    refill_rounds: NonNegativeInt
    # dynamic sampling: up to this many rounds replace prompts for which all scores are equal; 0 = off
    max_prompt_tokens: InEval[PositiveInt]
    # a longer first prompt is an error; later (context=last_only) it ends the episode
    context_limit: InEval[Annotated[int, Range(2)] | None]
    # limit of prompt + response; null = the model's context length
    context: InEval[ContextMode]  # of later turns: append | retokenize (if rewritten by the chat template) | last_only
    recompute_logprobs: bool  # old log-probs from a forward of the training model, not from the sampler
    zero3_gather: Zero3Gather  # ZeRO stage 3: all (whole weights while decoding) | layer (one layer at a time)

    @property
    def engines(self) -> VllmConfig | None:
        """The settings of inference engines, which receive the weights; None: the trained model decodes."""
        return None

    @property
    def collects_ahead(self) -> bool:
        """Whether the next iteration's episodes are collected during training."""
        return False

    @property
    def updates_in_flight(self) -> bool:
        """Whether responses in progress continue with the weights of an update."""
        return False

    @property
    def user_engine(self) -> tuple[str, dict[str, Any]] | None:
        """The code of a user's engine and the values of its keys; None without one."""
        return None

    @property
    def gap_limit(self) -> float | None:
        """The bound on the difference of log-probabilities between sampler and model; None without engines."""
        return None

    @property
    def verifies_drafts(self) -> bool:
        """Whether the samples of engines are drafts, which the trained model verifies."""
        return False


@dataclass
class EngineSamplesConfig(RolloutConfig):
    """Responses are sampled by engines, with other rounding or other weights than those of the trained model."""

    on_policy: EvalCompute[OnPolicy]
    # approximate (the engine's tokens) | exact (they are drafts: each token is the trained model's own sample)
    verify_rounds: EvalCompute[PositiveInt | None]
    # on_policy=exact: drafts of a response, each from the first wrong token; the trained model decodes the rest
    max_sampler_gap: Changeable[Annotated[float, Range(0.0, open_low=True)] | None]
    # largest mean |log p_train - log p_sampler| of an agent's tokens; above it the run ends; null = off

    @property
    def gap_limit(self) -> float | None:
        return self.max_sampler_gap

    @property
    def verifies_drafts(self) -> bool:
        return self.on_policy is OnPolicy.exact


class VllmMode(str, Enum):
    colocate = "colocate"
    server = "server"


class WeightPath(str, Enum):
    auto = "auto"
    shared_memory = "shared_memory"
    network = "network"


@dataclass
class VllmConfig:
    """The engines of `rollout=vllm`: one for each model that agents sample from."""

    mode: EvalCompute[VllmMode]  # colocate: in the process of each rank | server: processes of their own
    url: EvalCompute[list[str]]
    # server: addresses of servers that are running already, one per engine; empty: the run starts and ends its own
    ranks_per_server: EvalCompute[PositiveInt | None]
    # server: ranks that share a server of each model; null: all of a machine, or one group per device
    weight_path: EvalCompute[WeightPath]
    # server: how weights reach it: auto (memory on this host, else network) | shared_memory | network
    listen_address: EvalCompute[Name | None]
    # server, network: HOST or HOST:PORT where rank 0 sends weights (rank r: PORT + r); null: this host's address
    # on the route to the server, a free port
    kv_cache_gib: EvalCompute[Annotated[float, Range(0.0, open_low=True)] | None]
    # memory of each engine's key-value cache; null: enough for decode_batch_size rows of full length
    verify_every: Changeable[NonNegativeInt]
    # compare the weights in the engines with the trained ones after every n-th transfer; 0: after the first only
    enforce_eager: EvalCompute[bool | None]  # no compilation and no CUDA graphs; null: true on a CPU
    start_timeout_s: EvalCompute[Annotated[float, Range(0.0, open_low=True)]]  # until an engine has started
    request_timeout_s: EvalCompute[Annotated[float, Range(0.0, open_low=True)]]  # server: without any answer
    engine_args: EvalCompute[dict[str, Any]]  # further arguments of vLLM's EngineArgs, by their names there


@option(
    "rollout",
    "vllm",
    generator="ippo_cli.rollout.vllm.build:build_vllm_generator",
    check="ippo_cli.rollout.vllm.model_support:check_models",
)
@dataclass
class VllmRolloutConfig(EngineSamplesConfig):
    """Responses are sampled by vLLM."""

    vllm: VllmConfig
    ahead: Annotated[int, Range(0, 1)]
    # 1: while an iteration trains, the next one's episodes are collected with the weights before that update
    in_flight_updates: bool  # ahead=1: responses in progress after the update continue with the new weights

    @property
    def engines(self) -> VllmConfig:
        return self.vllm

    @property
    def collects_ahead(self) -> bool:
        return self.ahead > 0

    @property
    def updates_in_flight(self) -> bool:
        return self.in_flight_updates


@option(
    "rollout",
    "engine",
    generator="ippo_cli.rollout.user_engine:build_user_generator",
    check="ippo_cli.rollout.user_engine:try_engine",
)
@dataclass
class EngineRolloutConfig(EngineSamplesConfig):
    """Responses of training are sampled by an engine of yours: `rollout=my.py:Engine`."""

    engine: InEval[Name | None]  # path.py:name of a class; see docs/extend.md
    engine_args: InEval[dict[str, Any]]  # values of its keys

    @property
    def user_engine(self) -> tuple[str, dict[str, Any]] | None:
        return None if self.engine is None else (self.engine, self.engine_args)


@dataclass
class OpenAIServerConfig(ServerConnectionConfig):
    """Servers of `rollout=openai_server`."""

    url: InEval[list[str]]  # addresses such as http://127.0.0.1:8000, without /v1: one, or one per model
    model: InEval[list[str]]  # names of the models at their servers, one per model; empty: the first that each lists


@option("rollout", "openai_server", generator="ippo_cli.rollout.openai_server:build_openai_generator")
@dataclass
class OpenAIServerRolloutConfig(RolloutConfig):
    """Responses are sampled by servers with OpenAI's interface, which keep their weights: evaluation only."""

    server: OpenAIServerConfig
