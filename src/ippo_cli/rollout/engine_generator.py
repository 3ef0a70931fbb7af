"""Generation by inference engines: transfers changed weights, verifies them, and collects completions."""

from __future__ import annotations

import hashlib
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from ippo_cli.config.errors import EngineError, NonFiniteError
from ippo_cli.config.schema import RolloutConfig, SamplingConfig, SamplingMethod
from ippo_cli.config.text import join_names
from ippo_cli.engine import distributed
from ippo_cli.rollout.engine import EngineModel, EngineOutput, EngineRequest, InferenceEngine, TokenNoiseKey
from ippo_cli.rollout.engine_pool import EnginePool
from ippo_cli.rollout.generator import (
    OnFinished,
    Poll,
    Request,
    SamplingStream,
    context_limit,
    make_sampling,
)
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.rollout.sampling import Sampling
from ippo_cli.rollout.stop_strings import contains_stop_string, decode_tokens, length_to_stop_string
from ippo_cli.rollout.tensor_hash import TensorHash, tensor_hash
from ippo_cli.types import Completion

MAX_NAMES = 3  # tensors that an error names


@dataclass(kw_only=True)
class _Adapter:
    """An adapter in an engine."""

    policy: GenerationPolicy
    loaded: Hashable = None  # the key of the weights that the engine has
    version: int = 0  # transfers so far


@dataclass(kw_only=True)
class _Source:
    """A model that an engine has: the policy that holds its weights, and the adapters on it."""

    policy: GenerationPolicy
    engine: InferenceEngine
    agents: list[str]
    adapters: dict[str, _Adapter] = field(default_factory=dict)  # by name in the engine
    is_started: bool = False
    loaded: Hashable = None
    version: int = 0
    transfers: int = 0  # of whole models and adapters, for `verify_every`


class EngineGenerator:
    """Samples every agent from an inference engine that has its weights.

    Agents with the same weights share an engine, and adapters on one base too. A request's sample depends on its seed,
    which is a function of (seed, purpose, agent, index, turn): in float32 neither the order in which requests end nor
    other requests change it.

    A completion's log-probabilities are those of the distribution that it was sampled from, filters and temperature
    included; `rollout.recompute_logprobs` replaces those of the ratio by the trainer's.
    """

    def __init__(
        self,
        policies: Mapping[str, GenerationPolicy],
        config: RolloutConfig,
        sampling: Mapping[str, SamplingConfig],
        poll: Poll | None = None,
        *,
        engines: EnginePool,
        verify_every: int,
        pushes_weights: bool = True,
    ) -> None:
        self._policies, self._config, self._poll = policies, config, poll
        self._verify_every, self._pushes_weights = verify_every, pushes_weights
        self._sampling = {agent: make_sampling(sampling[agent]) for agent in policies}
        self._stop_ids = {agent: policy.stop_ids for agent, policy in policies.items()}
        self._source_of: dict[str, _Source] = {}
        self._adapter_of: dict[str, str | None] = {}
        self._engines = engines
        self._sources = self._find_sources()
        self._seconds = 0.0
        self._pending: dict[int, Request] = {}  # requests in flight, by key
        self._next_key = 0

    def context_limit(self, agent: str) -> int:
        return context_limit(self._policies[agent].model_config, self._config)

    def batch_groups(self, agents: Iterable[str]) -> list[tuple[str, ...]]:
        names = tuple(agents)
        return [names] if names else []

    def start_collection(self) -> None:
        """Start the engines and transfer weights that have changed. Collective."""
        for source in self._sources:
            with distributed.synchronize_errors():
                if not source.is_started:
                    source.engine.start()
                    source.is_started = True
        self.transfer_weights()

    def transfer_weights(self) -> None:
        """Transfer weights that have changed; requests in flight continue with them. Collective."""
        began = time.perf_counter()
        for source in self._sources if self._pushes_weights else ():
            self._load_model(source)
            for name, adapter in source.adapters.items():
                self._load_adapter(source, name, adapter)
        self._seconds += time.perf_counter() - began

    def weights_version(self, agent: str) -> int:
        """The number of the transfer of the weights that an agent samples with."""
        source, adapter = self._source_of[agent], self._adapter_of[agent]
        return source.version if adapter is None else source.adapters[adapter].version

    def finish_collection(self) -> None:
        """Forget requests in flight, and free the engines' memory for training."""
        self._abort()
        for source in self._sources:
            if source.is_started and source.engine.sleep():
                source.loaded = None
                for adapter in source.adapters.values():
                    adapter.loaded = None

    def close(self) -> None:
        """Release the engines for other generators."""
        for source in self._sources:
            self._engines.release(source.engine)
        self._sources = []

    def take_metrics(self) -> dict[str, float]:
        """Seconds of transfers since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return {"time/weights": seconds} if self._pushes_weights else {}

    def generate(
        self,
        agents: Sequence[str],
        requests: Sequence[Request],
        draws: SamplingStream,
        *,
        on_finished: OnFinished | None = None,
    ) -> list[Completion]:
        completions: dict[int, Completion] = {}
        with distributed.synchronize_errors(), self._aborting_on_error():
            places = {self.submit(request, draws): place for place, request in enumerate(requests)}
            while len(completions) < len(requests):
                ended = self.step()
                completions |= {places[key]: completion for key, completion in ended}
                self.report_progress(join_names(list(agents)), len(completions), len(requests))
                if on_finished is not None and ended:
                    on_finished([places[key] for key, _ in ended], [completion for _, completion in ended])
        return [completions[place] for place in range(len(requests))]

    def submit(self, request: Request, draws: SamplingStream) -> int:
        """Accept a request, and return its key. Not collective."""
        sampling = self._request_sampling(request, draws)
        key, self._next_key = self._next_key, self._next_key + 1
        room = self.context_limit(request.agent) - len(request.prompt)
        self._pending[key] = request
        if not request.prompt:
            raise ValueError(f"a prompt of {request.agent} has no tokens; a prompt needs at least one")
        self._source_of[request.agent].engine.submit(
            EngineRequest(
                key=key,
                prompt=[*request.prompt, *request.response],
                sampling=sampling,
                stop_ids=self._stop_ids[request.agent],
                max_new_tokens=min(sampling.max_new_tokens, room - len(request.response)),
                seed=request_seed(draws, request),
                adapter=self._adapter_of[request.agent],
                noise=self._noise_key(request, draws),
            )
        )
        return key

    def _request_sampling(self, request: Request, draws: SamplingStream) -> Sampling:
        """The agent's settings with the request's own limits, without the tokens that are given."""
        sampling, length = self._sampling[request.agent], len(request.response)
        return replace(
            sampling,
            greedy=draws.greedy,
            max_new_tokens=min(sampling.max_new_tokens, request.max_new_tokens or sampling.max_new_tokens) - length,
            min_new_tokens=max(0, sampling.min_new_tokens - length),
            stop_strings=(*sampling.stop_strings, *request.stop_strings),
        )

    def _noise_key(self, request: Request, draws: SamplingStream) -> TokenNoiseKey | None:
        """The noise of a draft, which its verification uses as well."""
        if not self._config.verifies_drafts or draws.greedy or self._config.sampling is not SamplingMethod.gumbel:
            return None
        return TokenNoiseKey(int(draws.gumbel_keys([request])), len(request.response))

    def step(self, *, waits: bool = True) -> list[tuple[int, Completion]]:
        """Advance all requests; the keys and completions of those that ended. Not collective.

        `waits`: whether to wait for the first completion of a server for a short time.
        """
        outputs = [
            output
            for source in self._sources
            if source.is_started and any(request.agent in source.agents for request in self._pending.values())
            for output in source.engine.step(waits=waits)
        ]
        return [(output.key, self._complete(output)) for output in outputs]

    def report_progress(self, names: str, done: int, rows: int) -> None:
        """Report progress; may raise `PreemptionRequested`."""
        if self._poll is not None:
            self._poll(names, done, rows)

    def _find_sources(self) -> list[_Source]:
        """One source for each model, in the order of the agents."""
        groups: dict[Hashable, list[str]] = {}
        for agent, policy in self._policies.items():
            groups.setdefault(policy.model_key, []).append(agent)
        sources = []
        for number, agents in enumerate(groups.values()):
            lead = self._policies[agents[0]]
            adapters = {}
            for agent in agents:
                name = self._policies[agent].adapter_name
                self._adapter_of[agent] = name
                if name is not None and name not in adapters:
                    adapters[name] = _Adapter(policy=self._policies[agent])
            ranks = [adapter.policy.adapter_rank for adapter in adapters.values()]
            limit = self.context_limit(agents[0])
            max_new_tokens = max(self._sampling[agent].max_new_tokens for agent in agents)
            model = EngineModel(
                name=join_names(agents),
                config=lead.model_config,
                tokenizer=lead.tokenizer,
                dtype=lead.dtype,
                max_length=limit,
                usual_length=min(limit, self._config.max_prompt_tokens + max_new_tokens),
                max_rows=self._config.decode_batch_size,
                max_adapters=len(adapters),
                max_adapter_rank=max(ranks, default=0),
                has_noise=self._config.verifies_drafts,
            )
            source = _Source(policy=lead, engine=self._engines.acquire(model, number), agents=agents, adapters=adapters)
            sources.append(source)
            self._source_of |= dict.fromkeys(agents, source)
        return sources

    def _load_model(self, source: _Source) -> None:
        """Transfer a model's weights if the engine has others. Collective."""
        key = source.policy.model_weights_key
        if source.loaded == key and source.version:
            return
        names = join_names(source.agents)
        verifies = self._is_verification_due(source)
        hashes: dict[str, TensorHash] = {}
        source.loaded = None
        with distributed.synchronize_errors():
            weights = _HashedWeights(source.policy.iterate_model_weights(), hashes if verifies else None)
            try:
                unplaced = source.engine.load_weights(weights, source.version + 1)
            finally:
                weights.exhaust()  # other ranks take part in gathering every tensor
            if unplaced:
                raise EngineError(
                    f"rollout={self._config.kind}: the engine of {names} has no place for {_list_names(unplaced)}; "
                    "the engine's model differs from the trained one: use rollout=hf"
                )
            if verifies and (differing := source.engine.verify_weights(hashes)):
                remedy = "resume the run, or use rollout=hf"
                if not source.version:
                    remedy = "if a new run ends in the same way, the engine stores this kind of model in another form: "
                    remedy += "use rollout=hf"
                raise EngineError(
                    f"rollout={self._config.kind}: transfer {source.version + 1} to the engine of {names} failed: "
                    f"{_list_names(differing)} differ from the trained weights; {remedy}"
                )
        source.loaded, source.version, source.transfers = key, source.version + 1, source.transfers + 1

    def _load_adapter(self, source: _Source, name: str, adapter: _Adapter) -> None:
        """Transfer an adapter if the engine has an earlier one. Collective."""
        key = adapter.policy.adapter_weights_key
        if adapter.loaded == key and adapter.version:
            return
        adapter.loaded = None
        with distributed.synchronize_errors():
            folder = Path(tempfile.mkdtemp(prefix="ippo-adapter-", dir=_memory_folder()))
            try:
                hashes = adapter.policy.save_adapter(folder)
                source.engine.load_adapter(name, folder, adapter.version + 1)
                verifies = self._is_verification_due(source)
                if verifies and (differing := source.engine.verify_adapter(name, hashes)):
                    raise EngineError(
                        f"rollout={self._config.kind}: transfer {adapter.version + 1} of the adapter of "
                        f"{adapter.policy.name} failed: {_list_names(differing)} differ from the trained weights; "
                        "resume the run, or use rollout=hf"
                    )
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        adapter.loaded, adapter.version, source.transfers = key, adapter.version + 1, source.transfers + 1

    def _is_verification_due(self, source: _Source) -> bool:
        if not source.transfers:
            return True
        return self._verify_every > 0 and source.transfers % self._verify_every == 0

    def _complete(self, output: EngineOutput) -> Completion:
        """The completion of an ended request."""
        request = self._pending.pop(output.key)
        stop_strings = (*self._sampling[request.agent].stop_strings, *request.stop_strings)
        tokenizer = self._policies[request.agent].tokenizer
        response = list(request.response)
        values = [math.nan] * len(output.ids) if output.logprobs is None else output.logprobs
        all_ids, all_logprobs = [*response, *output.ids], [*[0.0] * len(response), *values]
        length = length_to_stop_string(all_ids, stop_strings, tokenizer)
        ids, logprobs = all_ids[:length], torch.tensor(all_logprobs[:length], dtype=torch.float32)
        if output.logprobs is not None and not torch.isfinite(logprobs).all():
            raise NonFiniteError(f"{request.agent}: the engine's log-probabilities are not finite numbers")
        stops = self._stop_ids[request.agent]
        finished = bool(ids) and (ids[-1] in stops or contains_stop_string(ids, stop_strings, tokenizer))
        return Completion(
            ids=torch.tensor(ids, dtype=torch.long),
            logprobs=logprobs,
            behavior_logprobs=logprobs,
            text=decode_tokens(ids, tokenizer, with_special=False),
            finished=finished,
            versions=torch.tensor([*output.versions[:1] * len(response), *output.versions][:length], dtype=torch.long),
        )

    def _aborting_on_error(self) -> _Abort:
        return _Abort(self._abort)

    def _abort(self) -> None:
        """Forget all requests in flight."""
        if self._pending:
            self._pending.clear()
            for source in self._sources:
                if source.is_started:
                    source.engine.abort()


class _Abort:
    """Calls a function if its block raises."""

    def __init__(self, abort: Callable[[], None]) -> None:
        self._abort = abort

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._abort()


class _HashedWeights:
    """Iterates over named tensors once, and hashes each if `hashes` is given."""

    def __init__(self, weights: Iterator[tuple[str, Tensor]], hashes: dict[str, TensorHash] | None) -> None:
        self._weights, self._hashes = weights, hashes

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._weights:
            if self._hashes is not None:
                self._hashes[name] = tensor_hash(tensor)
            yield name, tensor

    def exhaust(self) -> None:
        """Visit the remaining tensors."""
        for _ in self._weights:
            pass


def request_seed(draws: SamplingStream, request: Request) -> int:
    """The seed of a request, below 2**63: a function of (seed, purpose, agent, index, turn or seed of the request)."""
    name = f"{draws.seed}/{draws.purpose}/{request.agent}/{request.index}{request.stream or '/0'}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def _list_names(names: Sequence[str]) -> str:
    listed = ", ".join(names[:MAX_NAMES])
    return listed if len(names) <= MAX_NAMES else f"{listed} and {len(names) - MAX_NAMES} more tensors"


def _memory_folder() -> Path | None:
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else None
