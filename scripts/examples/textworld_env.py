"""Train on generated games of TextWorld: read a room, write a command, complete a quest.

    pip install textworld   # on Linux; builds the game interpreter jericho with make and a C compiler
    ippo-train task=environment task.environment=textworld_env.py:make +task.environment_args.games=4 ...

`docs/episodes.md` has a complete command. The seed of an episode selects its game; the reward of a command is the
game's score for it, divided by the highest score. Games are generated once, into `folder`, and are compiled there.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import textworld

FOLDER = "textworld_games"
COMMANDS = ("none", "listed", "numbered")
TEXTS = ("objective", "description", "inventory", "feedback")
INVALID_REWARD = -0.1
"""Reward of a number that is not in the list; the game does not continue."""
INFOS = textworld.EnvInfos(
    objective=True, description=True, inventory=True, admissible_commands=True, max_score=True, won=True
)
generating = Lock()


class Game:
    """A compiled game, and the interpreters of it that no environment uses: starting one takes a second."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.idle: deque[Any] = deque()

    def acquire(self) -> Any:
        try:
            return self.idle.pop()
        except IndexError:
            return textworld.start(self.path, INFOS)


class TextWorld:
    """One of several games in each episode. The observation is complete: `rollout.context=last_only` suffices."""

    def __init__(self, games: Sequence[Game], commands: str, texts: Sequence[str]) -> None:
        self.games, self.commands, self.texts = games, commands, texts
        self.game: Game | None = None

    def reset(self, seed: int) -> tuple[str, dict[str, Any]]:
        self.close()
        self.game = self.games[seed % len(self.games)]
        self.interpreter = self.game.acquire()
        self.state = self.interpreter.reset()
        self.state["feedback"] = ""  # the title of the game and its first room
        return self.describe(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        command = self.read(action)
        if command is None:
            return self.describe(), INVALID_REWARD, False, False, {"won": False}
        before = self.state.score or 0
        self.state, _, done = self.interpreter.step(command)
        gained = (self.state.score - before) / self.state.max_score
        return self.describe(), gained, done, False, {"won": self.state.won}

    def actions(self) -> list[str]:
        """Legal responses, for the warm start of `actor=tiny` and for `mode=plan`."""
        found = self.state.admissible_commands
        return [str(number) for number in range(1, len(found) + 1)] if self.commands == "numbered" else list(found)

    def close(self) -> None:
        if self.game is not None:
            self.game.idle.append(self.interpreter)
            self.game = None

    def read(self, action: str) -> str | None:
        """The command of a response: its text, or that of its number."""
        if self.commands != "numbered":
            return action.strip()
        found, number = self.state.admissible_commands, action.strip()
        return found[int(number) - 1] if number.isdecimal() and 0 < int(number) <= len(found) else None

    def describe(self) -> str:
        state = self.state
        texts = [clean(state[name]) for name in self.texts]
        if self.commands == "listed":
            texts.append("Commands: " + ", ".join(state.admissible_commands) + ".")
        if self.commands == "numbered":
            texts += [f"{number} {command}" for number, command in enumerate(state.admissible_commands, 1)]
        return "\n".join(filter(None, texts))


def make(
    games: int = 4,
    rooms: int = 2,
    objects: int = 2,
    quest_length: int = 2,
    commands: str = "listed",
    texts: Sequence[str] = TEXTS,
    folder: str = FOLDER,
) -> TextWorld:
    """Return an environment with `games` games.

    The agent reads the `texts`, and the admissible commands as `commands` says: none | listed | numbered.
    """
    if commands not in COMMANDS or not set(texts) <= set(TEXTS):
        raise ValueError(f"use commands={' | '.join(COMMANDS)} and texts of [{', '.join(TEXTS)}]")
    with generating:
        return TextWorld(load_games(games, rooms, objects, quest_length, folder), commands, texts)


def load_games(games: int, rooms: int, objects: int, quest_length: int, folder: str) -> list[Game]:
    """Return games 0, 1, ... of this size; those that do not exist yet are generated from their number."""
    found = []
    for number in range(games):
        options = textworld.GameOptions()
        options.seeds = number
        options.nb_rooms, options.nb_objects, options.quest_length = rooms, objects, quest_length
        options.path = str(Path(folder).resolve() / f"{rooms}-{objects}-{quest_length}-{number}.z8")
        if options.path not in KNOWN:
            path = options.path if Path(options.path).is_file() else textworld.make(options)[0]
            KNOWN[options.path] = Game(path)
        found.append(KNOWN[options.path])
    return found


def clean(text: str | None) -> str:
    """The text in one paragraph, without the title and the status line of the interpreter."""
    lines = [line for line in (text or "").splitlines() if not re.search(r"-=.*=-|^\s*>|^\s*\d+/\d+\s*$", line)]
    return re.sub(r"\s+", " ", " ".join(lines)).strip()


KNOWN: dict[str, Game] = {}
"""Games of this process by path."""
