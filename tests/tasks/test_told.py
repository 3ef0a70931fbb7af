"""What a world says reaches agents through their templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

from ippo_cli.tasks.environment import Action, Step
from ippo_cli.tasks.told import Told


class Counting:
    """Says how often it was stepped, to one agent and then to both."""

    def reset(self, example: Mapping[str, object], seed: int) -> Mapping[str, str]:
        self.steps = 0
        return {"one": f"seed {seed}"}

    def step(self, actions: Mapping[str, Action]) -> Step:
        self.steps += 1
        told = {"one": str(self.steps), "two": str(self.steps)}
        return Step(observations=told, rewards={"one": 1.0}, terminated=self.steps == 3, parts={"steps": self.steps})

    def actions(self) -> Mapping[str, Sequence[str]]:
        return {"one": ["x"]}

    def close(self) -> None:
        self.steps = -1


def test_the_first_message_goes_through_template_and_later_ones_through_turn_template() -> None:
    agents = {
        "one": SimpleNamespace(template="{word}: {observation}>", turn_template="{turn} {observation}<"),
        "two": SimpleNamespace(template="{observation}{turn}", turn_template=None),
    }
    world = Counting()
    told = Told(world, agents)  # type: ignore[arg-type]
    assert told.reset({"word": "w"}, 7) == {"one": "w: seed 7>"}
    assert told.actions() == {"one": ["x"]}
    answer = Action(text="x")
    assert told.step({"one": answer}).observations == {"one": "2 1<", "two": "11"}
    step = told.step({"one": answer, "two": answer})
    assert step.observations == {"one": "3 2<", "two": "2"}, "without a turn_template as the world says it"
    last = told.step({"one": answer, "two": answer})
    assert (last.observations["one"], last.terminated, last.rewards, last.parts) == (
        "4 3<",
        True,
        {"one": 1.0},
        {"steps": 3},
    )
    assert told.reset({"word": "v"}, 8) == {"one": "v: seed 8>"}, "turns are counted by episode"
    told.close()
    assert world.steps == -1
