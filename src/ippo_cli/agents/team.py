"""A team: the agents of a run, and the learners that train the weights of those who learn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from ippo_cli.agents.agent import Agent, FrozenAgent
from ippo_cli.agents.learner import Learner
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.types import CriticView, Episode, Rollout


@dataclass(kw_only=True, eq=False)
class Team(Mapping[str, Agent]):
    """Agents who learn by name, in the task's order, and every learner once, in the same order on all ranks.

    As a mapping it has no frozen agents: nothing is learnt from their rows. `speakers` has all.
    """

    agents: dict[str, Agent]
    learners: list[Learner]
    frozen: dict[str, FrozenAgent] = field(default_factory=dict)  # who speak with their initial weights
    names: tuple[str, ...] = ()  # of all, in the task's order

    def __getitem__(self, name: str) -> Agent:
        return self.agents[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.agents)

    def __len__(self) -> int:
        return len(self.agents)

    @property
    def generation_policies(self) -> dict[str, GenerationPolicy]:
        """Everyone who may be asked for responses, in the task's order."""
        return {name: self.frozen.get(name) or self.agents[name] for name in self.names}

    def free(self) -> None:
        """Give the engines' memory and hooks back: those of learners, and of frozen policies that are spread."""
        spread = [agent.reference_engine for agent in self.agents.values()]
        spread += [agent.engine for agent in self.frozen.values()]
        frozen = {id(engine): engine for engine in spread if engine is not None}
        for engine in [*(learner.engine for learner in self.learners), *frozen.values()]:
            engine.destroy()

    def update_references(self, iteration: int) -> None:
        """After that many iterations, let references that are due become what their policies are."""
        for agent in self._updated_references(lambda every: iteration % every == 0).values():
            assert agent.reference is not None
            agent.reference.copy_from(agent.policy.engine.module)

    def updated_references(self, iteration: int) -> dict[str, Agent]:
        """By the name of their weights, agents whose references are not those that they began with."""
        return self._updated_references(lambda every: iteration >= every)

    def _updated_references(self, due: Callable[[int], bool]) -> dict[str, Agent]:
        return {
            agent.policy.name: agent
            for agent in self.agents.values()
            if agent.reference is not None and (every := agent.reference_update_every) is not None and due(every)
        }

    def tokenizer(self, learner: Learner) -> PreTrainedTokenizerBase:
        """What a learner's rows are written in: its agents have one vocabulary."""
        return self.agents[learner.trains[0]].tokenizer if learner.layout is None else learner.layout.tokenizer

    def critic_views(self, episodes: Sequence[Episode], rollouts: Mapping[str, Rollout]) -> dict[str, CriticView]:
        """What critics read in place of the rows of their agents, by agent; nothing of those who read the rows."""
        views = {name: agent.critic_view(episodes, rollouts[name]) for name, agent in self.agents.items()}
        return {name: view for name, view in views.items() if view is not None}
