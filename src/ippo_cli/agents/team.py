"""A team: the agents of a run, and the learners that train their weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from ippo_cli.agents.agent import Agent
from ippo_cli.agents.learner import Learner


@dataclass(kw_only=True, eq=False)
class Team(Mapping[str, Agent]):
    """Agents by name, in the task's order, and every learner once, in the same order on all ranks."""

    agents: dict[str, Agent]
    learners: list[Learner]

    def __getitem__(self, name: str) -> Agent:
        return self.agents[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.agents)

    def __len__(self) -> int:
        return len(self.agents)

    def tokenizer(self, learner: Learner) -> PreTrainedTokenizerBase:
        """What a learner's rows are written in: its agents have one vocabulary."""
        return self.agents[learner.trains[0]].tokenizer
