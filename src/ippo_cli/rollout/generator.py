"""Generation: completes the requests of agents with the models that are trained."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.profiler import record_function

from ippo_cli.config.errors import NonFiniteError, PreemptionRequested
from ippo_cli.config.schema import (
    RolloutConfig,
    SamplingConfig,
    SamplingMethod,
    TaskConfig,
    Zero3Gather,
    load_implementation,
)
from ippo_cli.config.text import join_names
from ippo_cli.engine import distributed
from ippo_cli.models.actor import Policy
from ippo_cli.rollout.decode import SelectReaders, decode
from ippo_cli.rollout.decode_state import DecodeHooks, DecodeRows
from ippo_cli.rollout.engine import EngineResources
from ippo_cli.rollout.noise import GumbelNoise, TokenNoise, UniformNoise, row_keys, uniforms
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.rollout.prefix_cache import MAX_BYTES, PrefixCache
from ippo_cli.rollout.sampling import Sampling
from ippo_cli.types import Completion

Poll = Callable[[str, int, int], None]  # agent, finished requests, all requests
OnFinished = Callable[[Sequence[int], Sequence[Completion]], None]  # positions of requests, and their completions
SYNCHRONIZED_ERRORS: Mapping[Zero3Gather, tuple[type[BaseException], ...]] = {
    Zero3Gather.all: (Exception, PreemptionRequested),
    Zero3Gather.layer: (NonFiniteError, PreemptionRequested),  # other errors: other ranks would wait inside a forward
}
"""Exceptions that one rank may raise during decoding without blocking the others in a collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt to complete. The sample depends only on (seed, purpose, agent, index, turn or seed of the request).

    The first tokens of the `response` may be given. The completion includes them, with log-probabilities of 0, and all
    limits count them.
    """

    agent: str
    prompt: list[int]
    episode: int  # position of its episode on this rank: later requests of one episode reuse its cache
    index: int  # global sample index
    turn: int  # turn number of the agent in its episode, from 0
    max_new_tokens: int | None = None  # if less than the agent's setting
    stop_strings: tuple[str, ...] = ()  # in addition to the agent's
    seed: int | None = None  # selects the random numbers in place of the turn
    response: tuple[int, ...] = ()  # the first tokens of the response, which are given

    @property
    def stream(self) -> str:
        """The name of its random numbers among those of the agent's sample; empty for the first turn."""
        if self.seed is not None:
            return f"/seed/{self.seed}"
        return f"/{self.turn}" if self.turn else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingStream:
    """The random numbers of sampling: a function of seed, purpose, agent, index and turn."""

    seed: int
    purpose: str
    greedy: bool = False

    @property
    def is_training(self) -> bool:
        """Whether the samples are the responses that a run trains on."""
        return not self.greedy and re.fullmatch(r"train/\d+", self.purpose) is not None

    def noise(self, requests: Sequence[Request], width: int, method: SamplingMethod) -> TokenNoise:
        """The noise of responses of up to `width` tokens, `[len(requests), width]`."""
        if method is SamplingMethod.inverse_cdf:
            return UniformNoise(self._draw(requests, lambda stream, index: uniforms(self.seed, stream, index, width)))
        return GumbelNoise(self.gumbel_keys(requests), width)

    def gumbel_keys(self, requests: Sequence[Request]) -> Tensor:
        """The keys of the Gumbel noise of each request, `[n]` int64 (`row_keys`)."""
        return self._draw(requests, lambda stream, index: row_keys(self.seed, stream, index))

    def _draw(self, requests: Sequence[Request], draw: Callable[[str, Tensor], Tensor]) -> Tensor:
        """Draw numbers `[n, ...]` for the requests of each stream, and return those of all requests, in order."""
        places_by_stream: dict[str, list[int]] = {}
        for place, request in enumerate(requests):
            places_by_stream.setdefault(f"{self.purpose}/{request.agent}{request.stream}", []).append(place)
        drawn = [
            draw(stream, torch.tensor([requests[place].index for place in places], dtype=torch.long))
            for stream, places in places_by_stream.items()
        ]
        order = torch.tensor([place for places in places_by_stream.values() for place in places], dtype=torch.long)
        return torch.cat(drawn)[order.argsort()] if drawn else draw("", order)


class Generator(Protocol):
    """The protocol of completion generators."""

    def context_limit(self, agent: str) -> int:
        """Token limit of prompt and completion together."""
        ...

    def start_collection(self) -> None:
        """Prepare for episodes with the current weights; nothing of earlier episodes is cached. Collective."""
        ...

    def finish_collection(self) -> None:
        """Free what the collection needed, also after an error. Not collective."""
        ...

    def close(self) -> None:
        """Release everything; the generator cannot be used afterwards."""
        ...

    def take_metrics(self) -> dict[str, float]:
        """Metrics since the last call: seconds of preparation, and what a kind of generator counts. Collective."""
        ...

    def batch_groups(self, agents: Iterable[str]) -> list[tuple[str, ...]]:
        """Partition the agents into groups that `generate` serves in one batch; ordered by each group's first agent."""
        ...

    def generate(
        self,
        agents: Sequence[str],
        requests: Sequence[Request],
        draws: SamplingStream,
        *,
        on_finished: OnFinished | None = None,
    ) -> list[Completion]:
        """One completion for each request, in order. Collective: ranks without requests take part.

        `agents`: one group of `together`, which includes the agents of all requests.

        `on_finished` receives completions as soon as they end, without those that have no room for a token.
        """
        ...


class WrappedGenerator:
    """Forwards everything but `generate` to a generator that belongs to another object."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    def context_limit(self, agent: str) -> int:
        return self._generator.context_limit(agent)

    def start_collection(self) -> None:
        self._generator.start_collection()

    def finish_collection(self) -> None:
        self._generator.finish_collection()

    def close(self) -> None:
        """Its generator belongs to others."""

    def take_metrics(self) -> dict[str, float]:
        return {}

    def batch_groups(self, agents: Iterable[str]) -> list[tuple[str, ...]]:
        return self._generator.batch_groups(agents)


@runtime_checkable
class StreamingGenerator(Generator, Protocol):
    """A generator that accepts requests while it decodes others. Unless noted, methods are not collective."""

    def submit(self, request: Request, draws: SamplingStream) -> int:
        """Accept a request, and return its key."""
        ...

    def step(self) -> list[tuple[int, Completion]]:
        """Advance all requests; the keys and completions of those that ended."""
        ...

    def report_progress(self, names: str, done: int, rows: int) -> None:
        """Report progress; may raise `PreemptionRequested`."""
        ...

    def transfer_weights(self) -> None:
        """Transfer weights that have changed; requests in flight continue with them. Collective."""
        ...

    def weights_version(self, agent: str) -> int:
        """The number of the transfer of the weights that an agent samples with."""
        ...


class HfGenerator:
    """Batched decoding with the agents' own models, one agent after another; agents on one base in one batch.

    With `continues` the attention cache of every completion is kept, and a later request of the same episode that
    extends it reads only the new tokens. This helps agents with several turns.

    `sampling` has the sampling settings of each agent.

    `poll` is called after every token. If it raises `PreemptionRequested` on one rank, `generate` raises it on all:
    after the agent, or with layered gathering before the next token.

    `resources` has no effect: the models decode themselves.
    """

    def __init__(
        self,
        policies: Mapping[str, GenerationPolicy],
        config: RolloutConfig,
        sampling: Mapping[str, SamplingConfig],
        poll: Poll | None = None,
        *,
        continues: bool = False,
        resources: EngineResources | None = None,
    ) -> None:
        self._policies, self._config, self._poll, self._continues = policies, config, poll, continues
        self._prefixes: dict[str, PrefixCache] = {}  # one for all agents that are decoded together
        self._sampling = {agent: make_sampling(sampling[agent]) for agent in policies}

    def context_limit(self, agent: str) -> int:
        return context_limit(self._policies[agent].model_config, self._config)

    def start_collection(self) -> None:
        self._prefixes = {}
        if self._continues:
            for agents in self.batch_groups(self._policies):
                self._prefixes |= dict.fromkeys(agents, PrefixCache(MAX_BYTES * len(agents)))

    def finish_collection(self) -> None:
        self._prefixes = {}

    def close(self) -> None:
        self.finish_collection()

    def take_metrics(self) -> dict[str, float]:
        return {}

    def batch_groups(self, agents: Iterable[str]) -> list[tuple[str, ...]]:
        parts: dict[Any, list[str]] = {}
        for agent in agents:
            apart = None if self._config.batch_invariant else self._policies[agent].shared_base
            key = agent if apart is None else (id(apart), self._sampling[agent])
            parts.setdefault(key, []).append(agent)
        return [tuple(part) for part in parts.values()]

    def generate(
        self,
        agents: Sequence[str],
        requests: Sequence[Request],
        draws: SamplingStream,
        *,
        on_finished: OnFinished | None = None,
    ) -> list[Completion]:
        with distributed.synchronize_errors(SYNCHRONIZED_ERRORS[self._config.zero3_gather]):
            return self._generate(agents, requests, draws, on_finished)
        raise AssertionError("unreachable: the block above returns or raises")

    def _generate(
        self, agents: Sequence[str], requests: Sequence[Request], draws: SamplingStream, on_finished: OnFinished | None
    ) -> list[Completion]:
        names = join_names(list(agents))

        def report_progress(done: int, rows: int) -> None:
            if self._poll is not None:
                self._poll(names, done, rows)

        layered = self._config.zero3_gather is Zero3Gather.layer
        meeting = _LockstepPoll(report_progress) if layered else None
        sampling = replace(self._sampling[agents[0]], greedy=draws.greedy)
        with record_function(f"ippo/rollout/{names}"), self._batch_model(agents) as (model, select):
            noise = None if draws.greedy else draws.noise(requests, sampling.max_new_tokens, self._config.sampling)
            places = {agent: place for place, agent in enumerate(agents)}
            responses = [request.response for request in requests]
            rows = DecodeRows(
                prompts=[request.prompt for request in requests],
                noise=noise,
                max_new_tokens=[request.max_new_tokens or sampling.max_new_tokens for request in requests],
                stop_strings=[request.stop_strings for request in requests],
                responses=responses if any(responses) else None,
                prefixes=self._prefixes.get(agents[0]),
                keys=[(request.agent, request.episode) for request in requests],
                readers=np.array([places[request.agent] for request in requests], dtype=np.int64),
            )
            hooks = DecodeHooks(
                poll=report_progress if meeting is None else meeting.poll,
                on_finished=on_finished,
                any_rank=None if meeting is None else meeting.any_rank,
                select=select,
            )
            try:
                return decode(
                    model.lm,
                    self._policies[agents[0]].tokenizer,
                    rows,
                    sampling,
                    batch_size=self._config.decode_batch_size,
                    context_limit=self.context_limit(agents[0]),
                    hooks=hooks,
                    batch_invariant=self._config.batch_invariant,
                )
            except FloatingPointError as error:
                raise NonFiniteError(f"{names}: {error}") from error

    @contextmanager
    def _batch_model(self, agents: Sequence[str]) -> Iterator[tuple[Policy, SelectReaders | None]]:
        """The model that generates for all of the agents, and the function that selects the policy of each row, by
        index among the agents.
        """
        with ExitStack() as held:
            gather = self._config.zero3_gather.value
            policies = [held.enter_context(self._policies[agent].generation_mode(gather)) for agent in agents]
            if len(agents) == 1:
                yield policies[0], None
                return
            apart = policies[0].shared_base
            assert apart is not None
            choose = held.enter_context(apart.policies_by_row(policies))
            device = policies[0].lm.device
            yield policies[0], lambda readers: choose(torch.from_numpy(readers).to(device))


class _LockstepPoll:
    """Raises an exception of `poll` on one rank on all ranks that decode in step, before the next forward.

    All ranks are then in the same rollout, and none waits for weights of another.
    """

    def __init__(self, poll: Callable[[int, int], None]) -> None:
        self._poll = poll
        self._requested = False

    def poll(self, done: int, rows: int) -> None:
        try:
            self._poll(done, rows)
        except PreemptionRequested:
            self._requested = True

    def any_rank(self, flag: bool) -> bool:
        up, requested = distributed.all_max(torch.tensor([int(flag), int(self._requested)])).tolist()
        if requested:
            raise PreemptionRequested
        return bool(up)


def build_generator(
    policies: Mapping[str, GenerationPolicy],
    config: RolloutConfig,
    sampling: Mapping[str, SamplingConfig],
    poll: Poll | None = None,
    *,
    continues: bool = False,
    resources: EngineResources | None = None,
) -> Generator:
    """Build the generator of the configured kind, with the arguments of `HfGenerator`.

    `resources`: of inference engines that the generator starts.
    """
    return load_implementation("rollout", config.kind, "generator")(
        policies, config, sampling, poll, continues=continues, resources=resources
    )


def sampling_settings(task: TaskConfig) -> dict[str, SamplingConfig]:
    """The sampling settings of each agent."""
    return {name: agent.rollout for name, agent in task.agents.items()}


def make_sampling(config: SamplingConfig) -> Sampling:
    """The sampling settings of training rollouts."""
    return Sampling(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        repetition_penalty=config.repetition_penalty,
        max_new_tokens=config.max_new_tokens,
        min_new_tokens=config.min_new_tokens,
        stop_strings=tuple(config.stop_strings),
        greedy=False,
    )


def context_limit(model_config: object, config: RolloutConfig) -> int:
    """Token limit of prompt and completion together."""
    made_for = getattr(model_config, "max_position_embeddings", None) or 1 << 30
    return min(made_for, config.context_limit or made_for)
