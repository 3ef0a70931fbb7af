"""A server of a guessing game with OpenEnv's protocol: of the package `openenv`, or by itself, with the same messages.

`python guess_server.py [--package] [--port N] [--max-sessions N]` prints its port. Some messages to the game are
requests for trouble: `sleep SECONDS`, `crash`, and of the server without the package `garbage`, `nan`, `undecided`,
`twice` and `drop`.
"""

from __future__ import annotations

import argparse
import json
import socket
import threading
import time
from http import HTTPStatus
from typing import Any

SCHEMA = {
    "action": {
        "properties": {
            "metadata": {"type": "object"},
            "message": {"type": "string", "description": "a digit"},
            "loud": {"type": "boolean", "default": False},
        },
        "required": ["message"],
        "type": "object",
    },
    "observation": {
        "properties": {
            "done": {"type": "boolean"},
            "reward": {"anyOf": [{"type": "number"}, {"type": "null"}]},
            "metadata": {"type": "object"},
            "hint": {"type": "string"},
            "tries": {"type": "integer"},
        },
        "type": "object",
    },
}
MAX_TRIES = 6


class Guess:
    """Find a digit, with hints; the observation after reset names the number of earlier episodes if `count` is set."""

    def __init__(self) -> None:
        self.episodes = 0

    def reset(self, seed: int = 0, count: bool = False, over: bool = False) -> dict[str, Any]:
        self.digit, self.tries = seed % 10, 0
        self.episodes += 1
        return {"hint": f"episode {self.episodes}" if count else "?", "tries": 0, "done": over, "metadata": {}}

    def step(self, message: str) -> dict[str, Any]:
        if message.startswith("sleep "):
            time.sleep(float(message.split()[1]))
        if message == "crash":
            raise ValueError("the board is gone")
        self.tries += 1
        guess = int(message) if message.strip().isdigit() else -1
        right = guess == self.digit
        return {
            "hint": "yes" if right else "up" if guess < self.digit else "down",
            "tries": self.tries,
            "reward": float(right),
            "done": right or self.tries == MAX_TRIES,
            "metadata": {"distance": abs(guess - self.digit), "note": "text"},
        }


def serve_with_package(listener: socket.socket, max_sessions: int) -> None:
    import uvicorn
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class GuessAction(Action):
        message: str
        loud: bool = False

    class GuessObservation(Observation):
        hint: str = ""
        tries: int = 0

    class GuessEnvironment(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self.game = Guess()

        def reset(self, seed: int = 0, count: bool = False, over: bool = False) -> GuessObservation:
            return GuessObservation(**self.game.reset(seed, count, over))

        def step(self, action: GuessAction) -> GuessObservation:
            return GuessObservation(**self.game.step(action.message))

        @property
        def state(self) -> State:
            return State()

    app = create_app(GuessEnvironment, GuessAction, GuessObservation, max_concurrent_envs=max_sessions)
    announce(listener)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


def serve_messages(listener: socket.socket, max_sessions: int) -> None:
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.server import Request, Response, ServerConnection, serve

    lock, free = threading.Lock(), [max_sessions]

    def answer_http(connection: ServerConnection, request: Request) -> Response | None:
        if request.path == "/ws":
            return None
        found = request.path == "/schema"
        return connection.respond(
            HTTPStatus.OK if found else HTTPStatus.NOT_FOUND, json.dumps(SCHEMA) if found else "nothing here"
        )

    def play(connection: ServerConnection) -> None:
        with lock:
            free[0] -= 1
            is_full = free[0] < 0
        try:
            if is_full:
                text = f"Server at capacity: {max_sessions}/{max_sessions} sessions active"
                connection.send(error("CAPACITY_REACHED", text))
                return
            game = Guess()
            while (request := json.loads(connection.recv()))["type"] != "close":
                connection.send(reply(game, request, connection))
        except ConnectionClosed:
            pass
        finally:
            with lock:
                free[0] += 1

    def reply(game: Guess, request: dict[str, Any], connection: ServerConnection) -> str:
        data = request["data"]
        try:
            if request["type"] == "reset":
                return observation(game.reset(**data))
            unknown = sorted(data.keys() - {"message", "loud"})
            problems = [] if "message" in data else [problem("missing", "message", "Field required")]
            problems += [problem("extra_forbidden", name, "Extra inputs are not permitted") for name in unknown]
            if not isinstance(data.get("message", ""), str):
                problems.append(problem("string_type", "message", "Input should be a valid string"))
            if problems:
                return error("VALIDATION_ERROR", "Invalid message", errors=problems)
            if data["message"] == "drop":
                connection.close()
            if data["message"] == "garbage":
                return "<html>"
            if data["message"] == "nan":
                return observation({"hint": "", "reward": float("nan")})
            if data["message"] == "undecided":
                return observation({"hint": "", "done": "no"})
            if data["message"] == "twice":
                connection.send(observation(game.step("")))
            return observation(game.step(data["message"]))
        except ValueError as failure:
            return error("EXECUTION_ERROR", str(failure))

    announce(listener)
    with serve(play, sock=listener, process_request=answer_http) as server:
        server.serve_forever()


def announce(listener: socket.socket) -> None:
    """Print the port once everything is imported: connections are accepted from then on."""
    print(listener.getsockname()[1], flush=True)


def observation(values: dict[str, Any]) -> str:
    inner = {name: value for name, value in values.items() if name not in ("reward", "done")}
    data = {"observation": inner, "reward": values.get("reward"), "done": values.get("done", False)}
    return json.dumps({"type": "observation", "data": data | {"metadata": values.get("metadata") or None}})


def problem(kind: str, field: str, message: str) -> dict[str, Any]:
    return {"type": kind, "loc": [field], "msg": message}


def error(code: str, message: str, **values: Any) -> str:
    return json.dumps({"type": "error", "data": {"message": message, "code": code, **values}})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--package", action="store_true")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--max-sessions", type=int, default=64)
    chosen = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", chosen.port))
    (serve_with_package if chosen.package else serve_messages)(listener, chosen.max_sessions)
