"""A team: the agents of a run and the learners that train their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from ippo_cli.agents.agent import Agent, FrozenAgent
from ippo_cli.agents.learner import Learner
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.rollout.served_policy import ServedPolicy
from ippo_cli.types import CriticView, Episode, Rollout


@dataclass(kw_only=True, eq=False)
class Team(Mapping[str, Agent]):
    """Trainable agents by name, in the task's order, and every learner once, in the same order on all ranks.

    Iterates over trainable agents only; `generation_policies` has all.
    """

    agents: dict[str, Agent]
    learners: list[Learner]
    frozen: dict[str, FrozenAgent | ServedPolicy] = field(default_factory=dict)  # agents that are not trained
    names: tuple[str, ...] = ()  # of all agents, in the task's order

    def __getitem__(self, name: str) -> Agent:
        return self.agents[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.agents)

    def __len__(self) -> int:
        return len(self.agents)

    @property
    def generation_policies(self) -> dict[str, GenerationPolicy]:
        """The policies of all agents, in the task's order."""
        return {name: self.frozen.get(name) or self.agents[name] for name in self.names}

    def release_engines(self) -> None:
        """Release memory and hooks of all engines: learners and sharded frozen policies."""
        spread = [agent.reference_engine for agent in self.agents.values()]
        spread += [agent.engine for agent in self.frozen.values() if isinstance(agent, FrozenAgent)]
        frozen = {id(engine): engine for engine in spread if engine is not None}
        trained = [learner.local_engine for learner in self.learners]
        for engine in [*trained, *frozen.values()]:
            if engine is not None:
                engine.destroy()

    def update_references(self, iteration: int) -> None:
        """Copy policies into their references where this iteration requires it; both are on the same ranks."""
        for agent in self._updated_references(lambda every: iteration % every == 0).values():
            if agent.reference is not None:
                with agent.group.activate(), agent.policy.engine.whole_layers():
                    agent.reference.copy_from(agent.policy.engine.module)

    def updated_references(self, iteration: int) -> dict[str, Agent]:
        """Agents with references that differ from the initial ones, by the name of their weights."""
        return self._updated_references(lambda every: iteration >= every)

    def _updated_references(self, due: Callable[[int], bool]) -> dict[str, Agent]:
        return {
            agent.policy.name: agent
            for agent in self.agents.values()
            if agent.has_reference and (every := agent.reference_update_every) is not None and due(every)
        }

    def tokenizer(self, learner: Learner) -> PreTrainedTokenizerBase:
        """The tokenizer of a learner's rows: its agents share one vocabulary."""
        return self.agents[learner.agent_names[0]].tokenizer if learner.layout is None else learner.layout.tokenizer

    def critic_views(self, episodes: Sequence[Episode], rollouts: Mapping[str, Rollout]) -> dict[str, CriticView]:
        """The critic inputs that replace the rows of agents, by agent; without agents that need none."""
        views = {name: agent.critic_view(episodes, rollouts[name]) for name, agent in self.agents.items()}
        return {name: view for name, view in views.items() if view is not None}
