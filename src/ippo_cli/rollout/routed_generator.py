"""Generation on the ranks that hold each agent's policy: requests go to these ranks, and completions return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ippo_cli.config.errors import PreemptionRequested
from ippo_cli.config.schema import RolloutConfig
from ippo_cli.engine import distributed
from ippo_cli.engine.rank_group import RankGroup
from ippo_cli.rollout.generator import (
    SYNCHRONIZED_ERRORS,
    Generator,
    OnFinished,
    Request,
    SamplingStream,
    context_limit,
)
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.types import Completion


class RoutedGenerator:
    """Generates on the groups of ranks that hold the agents' policies.

    A completion depends on its request only, so the ranks do not change it. Agents on different ranks generate at the
    same time. `generators` are those of the groups that have this rank; every rank has them in the same order.
    """

    def __init__(
        self,
        policies: Mapping[str, GenerationPolicy],
        config: RolloutConfig,
        generators: Mapping[RankGroup, Generator],
    ) -> None:
        self._policies, self._config, self._generators = policies, config, generators

    @property
    def parts(self) -> tuple[Generator, ...]:
        """The generators that it consists of on this rank."""
        return tuple(self._generators.values())

    def context_limit(self, agent: str) -> int:
        return context_limit(self._policies[agent].model_config, self._config)

    def start_collection(self) -> None:
        with distributed.synchronize_errors():
            self._call_each(lambda _, generator: generator.start_collection(), (Exception, PreemptionRequested))

    def _call_each(self, work: Callable[[RankGroup, Generator], None], kinds: tuple[type[BaseException], ...]) -> None:
        with ErrorsOfCalls(kinds) as calls:
            for group, generator in self._generators.items():
                with group.activate():
                    calls.run(partial(work, group, generator))

    def finish_collection(self) -> None:
        for generator in self._generators.values():
            generator.finish_collection()

    def close(self) -> None:
        for generator in self._generators.values():
            generator.close()

    def take_metrics(self) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for generator in self._generators.values():
            for name, value in generator.take_metrics().items():
                metrics[name] = metrics.get(name, 0.0) + value
        for found in distributed.gather_objects(metrics):
            metrics = found | metrics  # other ranks know other agents
        return metrics

    def batch_groups(self, agents: Iterable[str]) -> list[tuple[str, ...]]:
        names = tuple(agents)
        return [names] if names else []

    def generate(
        self,
        agents: Sequence[str],
        requests: Sequence[Request],
        draws: SamplingStream,
        *,
        on_finished: OnFinished | None = None,
    ) -> list[Completion]:
        """One completion for each request; `on_finished` is not called, since completions return together."""
        gathered = distributed.gather_objects(list(requests))
        completions: dict[tuple[int, int], Completion] = {}  # by rank and position of the request
        kinds = SYNCHRONIZED_ERRORS[self._config.zero3_gather]

        def generate_batch(generator: Generator, batch: tuple[str, ...]) -> None:
            completions.update(_generate_share(generator, batch, gathered, draws))

        def generate(group: RankGroup, generator: Generator) -> None:
            names = [agent for agent in agents if self._policies[agent].group is group]
            with ErrorsOfCalls(kinds) as calls:
                for batch in generator.batch_groups(names):
                    calls.run(partial(generate_batch, generator, batch))

        with distributed.synchronize_errors(kinds):
            self._call_each(generate, kinds)
        own_rank = distributed.rank()
        own = {
            place: completion
            for part in distributed.gather_objects(completions)
            for (rank, place), completion in part.items()
            if rank == own_rank
        }
        return [own[place] for place in range(len(requests))]


class ErrorsOfCalls:
    """Runs calls, each also after another has failed: other ranks wait for this one in the later ones. At the end it
    raises the first error of `kinds`, a preemption before others.
    """

    def __init__(self, kinds: tuple[type[BaseException], ...]) -> None:
        self._kinds = kinds
        self._errors: list[BaseException] = []

    def __enter__(self) -> ErrorsOfCalls:
        return self

    def run(self, call: Callable[[], object]) -> None:
        try:
            call()
        except self._kinds as error:
            self._errors.append(error)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._errors:
            preempted = (error for error in self._errors if isinstance(error, PreemptionRequested))
            raise next(preempted, self._errors[0])


def _generate_share(
    generator: Generator, agents: tuple[str, ...], gathered: Sequence[Sequence[Request]], draws: SamplingStream
) -> dict[tuple[int, int], Completion]:
    """The completions of this rank's share of all ranks' requests to some agents. Collective over their group."""
    places = [
        (rank, place)
        for rank, requests in enumerate(gathered)
        for place, request in enumerate(requests)
        if request.agent in agents
    ]
    if not places:
        return {}
    # By index, so that all turns of an episode are generated on the rank that caches its earlier turns. Positions of
    # episodes are unique on one rank only.
    own = [(rank, place, gathered[rank][place]) for rank, place in places]
    own = [entry for entry in own if entry[2].index % distributed.world_size() == distributed.rank()]
    requests = [replace(request, episode=request.index) for _, _, request in own]
    completions = generator.generate(agents, requests, draws)
    return {(rank, place): done for (rank, place, _), done in zip(own, completions, strict=True)}
