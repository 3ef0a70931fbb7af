"""One rank of test_collecting_ranks.py: prints results as JSON, which the test checks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from players import Players, Rounds, transcript

from ippo_cli.config.errors import ConfigError, PreemptionRequested
from ippo_cli.config.schema import Zero3Gather
from ippo_cli.engine import distributed
from ippo_cli.tasks.environment import Action, EnvironmentPool, Step
from ippo_cli.types import Episode, Example

HELD = [range(6), range(6, 8)]  # by rank
FIRST_OF_LAST = HELD[1][0]


class Uneven(Rounds):
    """The second rank's episodes end long before those of the first; one of them fails."""

    def length(self, row: int) -> int:
        return 4 if row in HELD[0] else 1 + row % 2

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        result = super().reset(example, seed)
        if self.row == FIRST_OF_LAST:
            raise OSError("no board")
        return result


class Mistaken(Rounds):
    """Raises a configuration error on one rank only, in its second round."""

    def length(self, row: int) -> int:
        return 3

    def step(self, actions: Mapping[str, Action]) -> Step:
        if self.row == FIRST_OF_LAST and self.number == 1:
            raise ConfigError("task.agents.low.template='{x}'", "names a field", "name another")
        return super().step(actions)


def played(episodes: Sequence[Episode]) -> list[Any]:
    return [
        [
            str(one.failure or ""),
            transcript(one),
            [turn.completion.logprobs.tolist() for turn in one.turns],
            [dict(paid) for paid in one.rewards],
        ]
        for one in episodes
    ]


def raised(work: Any) -> str:
    try:
        work()
    except (Exception, PreemptionRequested) as error:
        return type(error).__name__
    return "nothing"


def results(rows: range) -> dict[str, Any]:
    players, rank = Players("low", "high"), distributed.rank()
    found: dict[str, Any] = {}
    for gather in ("all", "layer"):
        settings: dict[str, Any] = {"zero3_gather": Zero3Gather(gather), "continues": rank == 0}
        found[gather] = played(players.play(Uneven, rows, **settings))
        for name, listen in (("mistake", None), ("mistake in the midst", lambda *_: None)):
            found[f"{gather}: {name}"] = raised(
                lambda listen=listen, settings=settings: players.play(Mistaken, rows, on_episodes=listen, **settings)
            )
        limited = EnvironmentPool(Uneven, max_environments=2)
        found[f"{gather}: two at a time"] = played(players.play(limited, rows, **settings))
        calls = 0

        def poll() -> None:
            nonlocal calls
            calls += 1
            if rank == 1 and calls == 3:
                raise PreemptionRequested

        found[f"{gather}: asked to leave"] = raised(
            lambda settings=settings, poll=poll: players.play(Uneven, rows, poll=poll, **settings)
        )
    return found


if __name__ == "__main__":
    distributed.init(device="cpu", timeout_s=60)
    found = results(HELD[distributed.rank()])
    distributed.shutdown()
    print(json.dumps(found))
