"""An HTTP server in a thread. Tests import this file by its path."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class ServerAnswer:
    """A response: `body` is sent as JSON, or unchanged if it is bytes."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Served:
    """A running server with the bodies and headers of its requests."""

    url: str
    bodies: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    at_once: int = 0  # maximum number of concurrent requests
    _open: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def serving(answer: Callable[[Any, int], ServerAnswer]) -> Iterator[Served]:
    """Run a server that responds with `answer(body, number of the request)`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            with served._lock:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                served.bodies.append(body)
                served.headers.append(dict(self.headers))
                number = len(served.bodies) - 1
                served._open += 1
                served.at_once = max(served.at_once, served._open)
            result = answer(body, number)
            with served._lock:
                served._open -= 1
            content = result.body if isinstance(result.body, bytes) else json.dumps(result.body).encode()
            self.send_response(result.status)
            for name, value in {"Content-Length": str(len(content)), **result.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(content)
            except OSError:  # the client closed the connection
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        served = Served(f"http://127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield served
        finally:
            server.shutdown()
