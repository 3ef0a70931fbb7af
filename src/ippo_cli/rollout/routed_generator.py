"""Generation on the ranks that hold each agent's policy: requests go to these ranks, and completions return."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

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
    """Generates with `local` for the agents whose policies this rank holds, and sends the other requests elsewhere.

    A completion depends on its request only, so the ranks do not change it. Agents on different ranks generate at the
    same time. `local` is None on a rank without policies.
    """

    def __init__(
        self, policies: Mapping[str, GenerationPolicy], config: RolloutConfig, local: Generator | None
    ) -> None:
        self._policies, self._config, self._local = policies, config, local

    def context_limit(self, agent: str) -> int:
        return context_limit(self._policies[agent].model_config, self._config)

    def start_collection(self) -> None:
        if self._local is not None:
            self._local.start_collection()

    def finish_collection(self) -> None:
        if self._local is not None:
            self._local.finish_collection()

    def close(self) -> None:
        if self._local is not None:
            self._local.close()

    def take_seconds(self) -> dict[str, float]:
        return {} if self._local is None else self._local.take_seconds()

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
        with distributed.synchronize_errors(SYNCHRONIZED_ERRORS[self._config.zero3_gather]):
            for group, batch in self._iterate_batches(agents):
                completions |= self._generate_share(group, batch, gathered, draws)
        own_rank = distributed.rank()
        own = {
            place: completion
            for part in distributed.gather_objects(completions)
            for (rank, place), completion in part.items()
            if rank == own_rank
        }
        return [own[place] for place in range(len(requests))]

    def _iterate_batches(self, agents: Sequence[str]) -> Iterator[tuple[RankGroup, tuple[str, ...]]]:
        """The batches of the local generator, in the same order on all ranks of a group."""
        by_group: dict[RankGroup, list[str]] = {}
        for agent in agents:
            by_group.setdefault(self._policies[agent].group, []).append(agent)
        for group, names in by_group.items():
            if group.is_member:
                assert self._local is not None
                yield from ((group, batch) for batch in self._local.batch_groups(names))

    def _generate_share(
        self, group: RankGroup, agents: tuple[str, ...], gathered: Sequence[Sequence[Request]], draws: SamplingStream
    ) -> dict[tuple[int, int], Completion]:
        """The completions of this rank's share of all ranks' requests to some agents."""
        assert self._local is not None
        places = [
            (rank, place)
            for rank, requests in enumerate(gathered)
            for place, request in enumerate(requests)
            if request.agent in agents
        ]
        if not places:
            return {}
        # By index, so that all turns of an episode are generated on the rank that caches its earlier turns.
        own = [(rank, place) for rank, place in places if gathered[rank][place].index % group.size == group.rank]
        # Positions of episodes are unique on one rank only.
        requests = [replace(gathered[rank][place], episode=gathered[rank][place].index) for rank, place in own]
        with group.activate():
            return dict(zip(own, self._local.generate(agents, requests, draws), strict=True))
