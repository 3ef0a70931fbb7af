"""`rollout=my.py:Engine`: sampling by an engine of a user."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.needs import Need, Taker, check_taker
from ippo_cli.config.schema import Config, RolloutConfig, SamplingConfig
from ippo_cli.config.served_agents import local_agents
from ippo_cli.models.shape import ModelShape
from ippo_cli.rollout.engine import EngineModel, EngineOutput, EngineRequest, EngineResources
from ippo_cli.rollout.engine_generator import EngineGenerator
from ippo_cli.rollout.engine_pool import EnginePool
from ippo_cli.rollout.exact_generator import verify_if_exact
from ippo_cli.rollout.generator import (
    Generator,
    HfGenerator,
    OnFinished,
    Poll,
    Request,
    SamplingStream,
    WrappedGenerator,
    make_sampling,
)
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.rollout.sampling import Sampling
from ippo_cli.rollout.tensor_hash import TensorHash
from ippo_cli.types import Completion
from ippo_cli.user_code.errors import format_user_error
from ippo_cli.user_code.load import load_component, read_state, restore_state, try_state

KEY = "rollout.engine"
MADE_UP_TOKENS = 4  # of a prompt and of a response before the run
EFFECTS: Mapping[str, tuple[tuple[Need, ...], str, str]] = {
    "update_weights": (
        (Need.current_weights, Need.policy_samples),
        "has no update_weights, so it samples with other weights",
        "an engine with update_weights",
    ),
    "update_adapter": ((Need.adapter_transfer,), "has no update_adapter", "an engine with update_adapter"),
    "greedy": ((Need.greedy_samples,), "has greedy = False", "an engine that decodes greedily"),
    "logprobs": ((Need.sampler_logprobs,), "returns no log-probabilities", "an engine with logprobs = True"),
}
"""By attribute: what an engine without it takes away, how the error says so, and what would leave it."""


class UserEngine:
    """An engine of a user, as the generator of engines calls it.

        class Engine:
            def generate(self, requests):  # each with prompt, sampling, stop_ids, max_new_tokens, seed
                return [[5, 6] for request in requests]  # token ids; with `logprobs = True`, pairs (ids, logprobs)

    Optional: `Keys`; `start(model)` with the tokenizer and the model's configuration; `update_weights(weights)`;
    `update_adapter(name, folder)`; `state_dict` and `load_state_dict`; `close()`; the attributes `logprobs` (False),
    `greedy` (True) and `deterministic` (True).
    """

    def __init__(self, config: RolloutConfig, model: EngineModel) -> None:
        self.setting, self.component = load_engine(config)
        self.first_state = self.state_dict()
        self._model, self._version = model, 0
        self._waiting: deque[EngineRequest] = deque()

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the model that it samples for."""
        return self._model.tokenizer

    @property
    def has_weights(self) -> bool:
        """Whether the trained weights are sent to it."""
        return hasattr(self.component, "update_weights")

    @property
    def has_logprobs(self) -> bool:
        """Whether it returns log-probabilities."""
        return bool(getattr(self.component, "logprobs", False))

    def missing_attributes(self) -> list[str]:
        """Keys of `EFFECTS` that it lacks."""
        has = {
            "update_weights": self.has_weights,
            "update_adapter": not self.has_weights or hasattr(self.component, "update_adapter"),
            "greedy": not self.has_weights or bool(getattr(self.component, "greedy", True)),
            "logprobs": self.has_logprobs,
        }
        return [name for name, value in has.items() if not value]

    def start(self) -> None:
        self._call_optional("start", self._model)

    def reuse(self, model: EngineModel) -> None:
        self._model = model

    def submit(self, request: EngineRequest) -> None:
        self._waiting.append(request)

    def step(self, *, waits: bool = True) -> list[EngineOutput]:
        size = min(len(self._waiting), self._model.max_rows)
        return self.generate([self._waiting.popleft() for _ in range(size)]) if size else []

    def generate(self, requests: Sequence[EngineRequest]) -> list[EngineOutput]:
        """Complete requests. Raises `ConfigError` for an exception and for results of another form."""
        results = self._call("generate", list(requests))
        if not isinstance(results, Sequence) or len(results) != len(requests):
            found = f"{len(results)} results" if isinstance(results, Sequence) else type(results).__name__
            rule = f"returned {found} for {len(requests)} requests"
            raise ConfigError(self.setting, rule, "return a list with one for each request")
        return [self._read_result(request, result) for request, result in zip(requests, results, strict=True)]

    def abort(self) -> None:
        self._waiting.clear()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> list[str]:
        self._version = version
        self._call("update_weights", weights)
        return []

    def verify_weights(self, hashes: Mapping[str, TensorHash]) -> list[str]:
        return []

    def load_adapter(self, name: str, folder: Path, version: int) -> None:
        self._version = version
        self._call("update_adapter", name, folder)

    def verify_adapter(self, name: str, hashes: Mapping[str, TensorHash]) -> list[str]:
        return []

    def sleep(self) -> bool:
        return False

    def close(self) -> None:
        self._call_optional("close")

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint stores; empty without one."""
        return read_state(self.component, self.setting)

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Restore the state."""
        restore_state(self.component, self.setting, stored)

    def _read_result(self, request: EngineRequest, result: Any) -> EngineOutput:
        if self.has_logprobs and not (isinstance(result, tuple) and len(result) == 2):
            rule = f"has logprobs = True, and returned {type(result).__name__} for a request"
            raise ConfigError(self.setting, rule, "return a tuple of ids and log-probabilities for each request")
        found, logprobs = result if self.has_logprobs else (result, None)
        ids, size = _to_list(found), len(self._model.tokenizer)
        if not all(isinstance(token, int) and 0 <= token < size for token in ids or [None]):
            rule = f"returned {ids!r:.60} as a response"
            raise ConfigError(self.setting, rule, f"return one token id or more for each request, from 0 to {size - 1}")
        if len(ids) > request.max_new_tokens:
            rule = f"returned {len(ids)} tokens where request.max_new_tokens is {request.max_new_tokens}"
            raise ConfigError(self.setting, rule, "return no more tokens than that")
        values = None if logprobs is None else _to_list(logprobs)
        if values is not None and not (len(values) == len(ids) and all(map(_is_logprob, values))):
            rule = f"returned {values!r:.60} as log-probabilities of {len(ids)} tokens"
            raise ConfigError(self.setting, rule, "return one number of at most 0 for each token")
        return EngineOutput(key=request.key, ids=ids, logprobs=values, versions=[self._version] * len(ids))

    def _call_optional(self, name: str, *arguments: Any) -> None:
        if hasattr(self.component, name):
            self._call(name, *arguments)

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self.component, name)(*arguments)
        except Exception as error:
            raise ConfigError(self.setting, f"raised {format_user_error(error)}", f"fix its {name}") from error


class UserEngineGenerator(EngineGenerator):
    """Samples every agent from an engine of a user, one for each model."""

    def __init__(
        self,
        policies: Mapping[str, GenerationPolicy],
        config: RolloutConfig,
        sampling: Mapping[str, SamplingConfig],
        poll: Poll | None = None,
    ) -> None:
        self.user_engines: list[UserEngine] = []

        def make_engine(model: EngineModel, number: int) -> UserEngine:
            self.user_engines.append(UserEngine(config, model))
            return self.user_engines[-1]

        pushes = hasattr(load_engine(config)[1], "update_weights")
        pool = EnginePool(make_engine, reuses=False)
        super().__init__(policies, config, sampling, poll, engines=pool, verify_every=0, pushes_weights=pushes)


class TrainingSampler(WrappedGenerator):
    """Sends the prompts of training to an engine without the trained weights, and all others to the trained models:
    evaluations measure the policies.
    """

    def __init__(self, engines: Generator, models: Generator) -> None:
        super().__init__(models)
        self._engines = engines

    @property
    def parts(self) -> tuple[Generator, ...]:
        return self._engines, self._generator

    def start_collection(self) -> None:
        super().start_collection()
        self._engines.start_collection()

    def finish_collection(self) -> None:
        self._engines.finish_collection()
        super().finish_collection()

    def close(self) -> None:
        self._engines.close()
        self._generator.close()

    def take_metrics(self) -> dict[str, float]:
        return self._engines.take_metrics()

    def generate(
        self,
        agents: Sequence[str],
        requests: Sequence[Request],
        draws: SamplingStream,
        *,
        on_finished: OnFinished | None = None,
    ) -> list[Completion]:
        generator = self._engines if draws.is_training else self._generator
        return generator.generate(agents, requests, draws, on_finished=on_finished)


def build_user_generator(
    policies: Mapping[str, GenerationPolicy],
    config: RolloutConfig,
    sampling: Mapping[str, SamplingConfig],
    poll: Poll | None = None,
    *,
    continues: bool = False,
    resources: EngineResources | None = None,
) -> Generator:
    """The generator with an engine of a user for each model; the arguments are those of `HfGenerator`."""
    engines = UserEngineGenerator(policies, config, sampling, poll)
    generator = verify_if_exact(engines, policies, config, sampling, poll)
    if all(engine.has_weights for engine in engines.user_engines):
        return generator
    return TrainingSampler(generator, HfGenerator(policies, config, sampling, poll, continues=continues))


def find_user_engines(generator: Any) -> list[UserEngine]:
    """The engines of a generator and of its parts."""
    parts = [engine for part in getattr(generator, "parts", ()) for engine in find_user_engines(part)]
    return [*getattr(generator, "user_engines", ()), *parts]


def load_engine(config: RolloutConfig) -> tuple[str, Any]:
    """The setting that names a user's engine, and an instance of it. Raises `ConfigError`."""
    assert config.user_engine is not None
    code, args = config.user_engine
    setting, component = f"{KEY}={code}", load_component(code, KEY, args)
    if not callable(getattr(component, "generate", None)):
        raise ConfigError(setting, "has no method generate(requests)", "write a class with this method")
    try_state(component, setting)
    return setting, component


def try_engine(
    config: Config, shapes: Mapping[str, ModelShape], tokenizers: Mapping[str, PreTrainedTokenizerBase], device: str
) -> None:
    """Load the engine of `rollout.engine`, compare what it lacks with what the run needs, and let one without weights
    complete made-up prompts. Raises `ConfigError`.
    """
    name = next(iter(local_agents(config)))
    length = 2 * MADE_UP_TOKENS
    model = EngineModel(
        name=name,
        config=PretrainedConfig(),
        tokenizer=tokenizers[name],
        dtype=torch.float32,
        max_length=length,
        usual_length=length,
        max_rows=2,
    )
    engine = UserEngine(config.rollout, model)
    for attribute in engine.missing_attributes():
        if config.rollout.verifies_drafts and attribute != "update_adapter":
            continue  # whatever it samples is verified
        needs, effect, remedy = EFFECTS[attribute]
        check_taker(config, Taker(needs, engine.setting, effect, remedy))
    if engine.has_weights:  # it has none yet
        return
    if hasattr(engine.component, "state_dict") and config.team.opponent_pool.every:
        setting = f"team.opponent_pool.every={config.team.opponent_pool.every}"
        rule = f"plays episodes with other engines than the one of {engine.setting}, which has a state"
        raise ConfigError(setting, rule, "use 0, or an engine without state_dict")
    try:
        engine.start()
        _try_requests(engine, make_sampling(config.rollout))
    finally:
        engine.close()


def _try_requests(engine: UserEngine, sampling: Sampling) -> None:
    """Let an engine complete made-up prompts, twice."""
    prompt = list(range(min(MADE_UP_TOKENS, len(engine.tokenizer))))
    requests = [
        EngineRequest(key=key, prompt=prompt, sampling=sampling, stop_ids=(), max_new_tokens=MADE_UP_TOKENS, seed=key)
        for key in range(2)
    ]
    before = engine.state_dict()
    outputs = engine.generate(requests)
    engine.load_state_dict(before)
    if getattr(engine.component, "deterministic", True) and engine.generate(requests) != outputs:
        raise ConfigError(
            engine.setting,
            "returned other tokens for the same seeds",
            "draw random numbers from request.seed, or write deterministic = False: resumed runs then differ",
        )


def _to_list(value: Any) -> list[Any]:
    return list(value.tolist() if hasattr(value, "tolist") else value)


def _is_logprob(value: Any) -> bool:
    return isinstance(value, int | float) and -math.inf < value <= 0
