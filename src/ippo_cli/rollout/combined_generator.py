"""Generation for agents at servers beside agents with models in the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ippo_cli.config.schema import RolloutConfig, SamplingConfig
from ippo_cli.rollout.engine_generator import EngineGenerator
from ippo_cli.rollout.generator import Generator, OnFinished, Poll, Request, SamplingStream, StreamingGenerator
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.rollout.served_policy import ServedPolicy, build_served_generator
from ippo_cli.types import Completion


class CombinedGenerator:
    """Sends the requests of some agents to `served`, and those of all others to `main`."""

    def __init__(self, main: Generator, served: EngineGenerator, served_agents: Iterable[str]) -> None:
        self._main, self._served, self._served_agents = main, served, frozenset(served_agents)

    @property
    def parts(self) -> tuple[Generator, ...]:
        """The generators that it consists of."""
        return self._main, self._served

    def context_limit(self, agent: str) -> int:
        return self._generator_of(agent).context_limit(agent)

    def start_collection(self) -> None:
        self._served.start_collection()
        self._main.start_collection()

    def finish_collection(self) -> None:
        self._main.finish_collection()
        self._served.finish_collection()

    def close(self) -> None:
        self._main.close()
        self._served.close()

    def take_metrics(self) -> dict[str, float]:
        return self._main.take_metrics()

    def batch_groups(self, agents: Iterable[str]) -> list[tuple[str, ...]]:
        names = list(agents)
        own = [name for name in names if name not in self._served_agents]
        served = [name for name in names if name in self._served_agents]
        groups = [*self._main.batch_groups(own), *self._served.batch_groups(served)]
        return sorted(groups, key=lambda group: names.index(group[0]))

    def generate(
        self,
        agents: Sequence[str],
        requests: Sequence[Request],
        draws: SamplingStream,
        *,
        on_finished: OnFinished | None = None,
    ) -> list[Completion]:
        return self._generator_of(agents[0]).generate(agents, requests, draws, on_finished=on_finished)

    def _generator_of(self, agent: str) -> Generator:
        return self._served if agent in self._served_agents else self._main


class CombinedStreamingGenerator(CombinedGenerator):
    """The same for a main generator that accepts requests while it decodes others."""

    def __init__(self, main: StreamingGenerator, served: EngineGenerator, served_agents: Iterable[str]) -> None:
        super().__init__(main, served, served_agents)
        self._streaming = main
        self._num_in_flight = 0  # requests to `main`

    def finish_collection(self) -> None:
        super().finish_collection()
        self._num_in_flight = 0

    def submit(self, request: Request, draws: SamplingStream) -> int:
        """Keys of `main` are even, those of `served` odd."""
        if request.agent in self._served_agents:
            return 2 * self._served.submit(request, draws) + 1
        self._num_in_flight += 1
        return 2 * self._streaming.submit(request, draws)

    def step(self) -> list[tuple[int, Completion]]:
        main = self._streaming.step() if self._num_in_flight else []
        # Waiting for a server would stop engines in this process.
        served = self._served.step(waits=not self._num_in_flight)
        self._num_in_flight -= len(main)
        return [(2 * key, done) for key, done in main] + [(2 * key + 1, done) for key, done in served]

    def report_progress(self, names: str, done: int, rows: int) -> None:
        self._streaming.report_progress(names, done, rows)

    def transfer_weights(self) -> None:
        self._streaming.transfer_weights()

    def weights_version(self, agent: str) -> int:
        return (self._served if agent in self._served_agents else self._streaming).weights_version(agent)


def build_with_served_agents(
    policies: Mapping[str, GenerationPolicy],
    config: RolloutConfig,
    sampling: Mapping[str, SamplingConfig],
    build_main: Callable[[Mapping[str, GenerationPolicy]], Generator],
    poll: Poll | None = None,
) -> Generator:
    """The generator that `build_main` builds for policies in this run, and one for those at servers beside it."""
    served = {name: policy for name, policy in policies.items() if isinstance(policy, ServedPolicy)}
    if not served:
        return build_main(policies)
    generator = build_served_generator(served, config, sampling, poll)
    local = {name: policy for name, policy in policies.items() if name not in served}
    if not local:
        return generator
    main = build_main(local)
    if isinstance(main, StreamingGenerator):
        return CombinedStreamingGenerator(main, generator, served)
    return CombinedGenerator(main, generator, served)
