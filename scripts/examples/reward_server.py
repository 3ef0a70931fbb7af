"""A reward server for `reward=http`, in the standard library only: `reward_server.py [--port 8000]`.

    ippo-train task=sorting reward=http reward.url=http://127.0.0.1:8000/score

Replace `score` by your own function. With `--token-env NAME`, requests must have the token of that environment
variable, as runs with `reward.token_env=NAME` do.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MOST_BYTES = 64 * 2**20


def score(row: dict[str, Any]) -> float | dict[str, Any] | None:
    """Return the score of one row: a number, or numbers by name; return None or raise if there is no score.

    `row["example"]` has the example's fields, `row["responses"]` the last response of each agent, and `row["prompts"]`
    the messages before it. This example prefers short responses.
    """
    own = {agent: 1.0 / (1.0 + len(text.split())) for agent, text in row["responses"].items()}
    return {
        "team": sum(own.values()) / len(own),
        "agent": own,
        "parts": {"characters": sum(map(len, row["responses"].values()))},
    }


def scored(row: dict[str, Any]) -> Any:
    try:
        return score(row)
    except Exception as error:  # only this row fails
        return {"error": f"{type(error).__name__}: {error}"}


class Handler(BaseHTTPRequestHandler):
    """Handles requests `{"rows": [...]}` with responses `{"rows": [...]}`."""

    protocol_version = "HTTP/1.1"  # keeps connections open
    timeout = 60
    token = ""

    def do_POST(self) -> None:
        wanted = f"Bearer {self.token}"
        if self.token and not hmac.compare_digest(self.headers.get("Authorization", "").encode(), wanted.encode()):
            self.close_connection = True  # the body is unread
            return self.answer(401, {"error": "the token is missing or wrong"})
        try:
            size = int(self.headers.get("Content-Length", ""))
            if not 0 <= size <= MOST_BYTES:
                raise ValueError(f"{size} bytes")
            rows = json.loads(self.rfile.read(size))["rows"]
            answer = {"rows": [scored(row) for row in rows]}
        except (KeyError, TypeError, ValueError) as error:
            self.close_connection = True
            return self.answer(400, {"error": f'send {{"rows": [...]}} ({error})'})
        return self.answer(200, answer)

    def answer(self, status: int, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: one line per request is too much."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 accepts other machines; use a token then")
    parser.add_argument("--port", type=int, default=8000, help="0: a free port")
    parser.add_argument("--token-env", help="environment variable with the token")
    given = parser.parse_args()
    if given.token_env:
        Handler.token = os.environ.get(given.token_env, "")
        if not Handler.token:
            raise SystemExit(f"--token-env {given.token_env}: the variable is not set")
    with Server((given.host, given.port), Handler) as server:
        print(f"listening at http://{given.host}:{server.server_address[1]}/score", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
