"""A world that agents are told about through their templates, as they are told about examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ippo_cli.config.schema import PromptConfig
from ippo_cli.tasks.environment import Action, Environment, Step
from ippo_cli.tasks.templates import render_template
from ippo_cli.types import Example


class Told:
    """The same world; what it says is put into `template` in an agent's first turn and into `turn_template` later.

    Templates see the example's fields, `{observation}` and `{turn}` (the agent's own, from 1). Without a
    `turn_template` an agent is told later what the world says, as it is.
    """

    def __init__(self, world: Environment, agents: Mapping[str, PromptConfig]) -> None:
        self.world = world
        self.agents = agents

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        self.example = example
        self.turns: Counter[str] = Counter()
        return self._tell(self.world.reset(example, seed))

    def step(self, actions: Mapping[str, Action]) -> Step:
        self.turns.update(list(actions))
        step = self.world.step(actions)
        return replace(step, observations=self._tell(step.observations))

    def actions(self) -> Mapping[str, Sequence[str]]:
        """What may be answered, where the world knows."""
        known = getattr(self.world, "actions", None)
        return {} if known is None else known()

    def close(self) -> None:
        self.world.close()

    def _tell(self, observations: Mapping[str, str]) -> dict[str, str]:
        return {name: self._message(name, observation) for name, observation in observations.items()}

    def _message(self, name: str, observation: str) -> str:
        agent, first = self.agents[name], not self.turns[name]
        template = agent.template if first else getattr(agent, "turn_template", None)
        if template is None:
            return observation
        words = {"observation": observation, "turn": str(self.turns[name] + 1)}
        leaf = "template" if first else "turn_template"
        return render_template(template, self.example, f"task.agents.{name}.{leaf}", words)
