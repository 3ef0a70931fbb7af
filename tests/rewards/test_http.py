"""HTTP rewards: request and response format, retries, timeouts and tokens."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx2", reason="needs the extra `http`")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "examples"))

import reward_server
from servers import ServerAnswer, serving
from spoken import episode, spoken_once

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import PreflightError
from ippo_cli.config.schema import Config
from ippo_cli.planning.trial import check_trainable
from ippo_cli.rewards import remote
from ippo_cli.rewards.build import build_reward
from ippo_cli.rewards.contract import Reward, check_reward_connection, close_reward
from ippo_cli.rewards.mix import MixPart, MixReward
from ippo_cli.rewards.score import call_reward
from ippo_cli.types import Episode

SORTED = spoken_once([{"letters": str(row)} for row in range(6)], {"low": list("abcdef"), "high": list("ABCDEF")})


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(remote, "LONGEST_WAIT_S", 0.2)


def asked(url: str, episodes: list[Episode] = SORTED, *keys: str) -> Reward:
    return asked_and_failed(url, episodes, *keys)[0]


def asked_and_failed(url: str, episodes: list[Episode], *keys: str) -> tuple[Reward, Exception | None]:
    config = composed(keys)
    reward = build_reward(replace(config.reward, url=url), config.task.agents)  # type: ignore[call-arg]
    try:
        return call_reward(reward, episodes, list(config.task.agents), config.reward)
    finally:
        close_reward(reward)


@cache
def composed(keys: tuple[str, ...]) -> Config:
    return load_config(["task=sorting", "reward=http", "reward.url=http://set/below", *keys])


def ones(body: Any, _: int) -> ServerAnswer:
    return ServerAnswer({"rows": [1.0] * len(body["rows"])})


def test_request_and_response_format() -> None:
    def answer(body: Any, _: int) -> ServerAnswer:
        rows = [float(row["example"]["letters"]) for row in body["rows"]]
        return ServerAnswer(
            {"rows": [{"team": n, "agent": {"low": n, "high": -n}, "parts": {"score": n}} for n in rows]}
        )

    talk = [episode(("low", 0, "x", "first"), ("low", 1, "y", "then"), example={"letters": "7"})]
    with serving(answer) as server:
        found = asked(server.url, [*SORTED, *talk], "reward.batch_size=4", "task.agents.low.system=be brief")
    assert found.team == [0, 1, 2, 3, 4, 5, 7]
    assert found.agent == {"low": [0, 1, 2, 3, 4, 5, 7], "high": [0, -1, -2, -3, -4, -5, -7]}
    assert found.parts == {"info_score": [0, 1, 2, 3, 4, 5, 7]}
    one, other = sorted((body["rows"] for body in server.bodies), key=len)  # they are sent concurrently
    assert (len(one), len(other)) == (3, 4)
    first, last = other[0], one[2]
    assert first["responses"] == {"low": "a", "high": "A"}
    assert last["responses"] == {"low": "y", "high": ""}
    assert last["prompts"] == {
        "low": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "x"},
            {"role": "user", "content": "then"},
        ],
        "high": [],
    }


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_transient_failures_are_retried(status: int) -> None:
    with serving(lambda body, number: ones(body, 0) if number == 2 else ServerAnswer({}, status)) as server:
        assert asked(server.url).team == [1.0] * 6
    assert len(server.bodies) == 3


def test_rejected_batch_is_sent_row_by_row() -> None:
    def answer(body: Any, _: int) -> ServerAnswer:
        return (
            ServerAnswer({"reason": "d"}, 422)
            if any(row["responses"]["low"] == "d" for row in body["rows"])
            else ones(body, 0)
        )

    with serving(answer) as server:
        found = asked(server.url)
    assert found.valid == [True, True, True, False, True, True]
    assert len(server.bodies) == 1 + 6


@pytest.mark.parametrize(
    "bad", [None, {"error": "no"}, "1.0", {"team": None}, {"team": 1, "agents": {}}, {"agent": {"low": 1}}, 1e400, {}]
)
def test_unscored_row_is_retried_alone(bad: Any) -> None:
    def answer(body: Any, _: int) -> ServerAnswer:
        return ServerAnswer({"rows": [bad if row["responses"]["low"] == "b" else 0.5 for row in body["rows"]]})

    with serving(answer) as server:
        found = asked(server.url)
    assert found.valid == [True, False, True, True, True, True]
    assert found.team is not None
    assert [found.team[row] for row in (0, 2, 3, 4, 5)] == [0.5] * 5
    assert [len(body["rows"]) for body in server.bodies] == [6, 1, 1, 1]


@pytest.mark.parametrize("body", [b"<html>", {"rows": [1.0]}, [1.0] * 6, b"[" * 100_000])
def test_invalid_response_fails_all_rows(body: Any) -> None:
    with serving(lambda *_: ServerAnswer(body)) as server:
        found = asked(server.url, SORTED, "reward.batch_size=6")
    # A response with one entry is valid only for a request of one row.
    assert (found.team == [1.0] * 6) if isinstance(body, dict) else (found.valid == [False] * 6)
    assert len(server.bodies) == (3 + 6 if isinstance(body, dict) else 3 + 6 * 3)


def test_retry_after_header() -> None:
    begun = time.monotonic()
    result = [ServerAnswer({}, 503, {"Retry-After": "0.1"}), ServerAnswer({}, 429, {"Retry-After": "3600"})]
    with serving(lambda body, number: result[number] if number < 2 else ones(body, 0)) as server:
        assert asked(server.url).team == [1.0] * 6
    assert 0.3 <= time.monotonic() - begun < 5


def test_request_timeout() -> None:
    def answer(body: Any, _: int) -> ServerAnswer:
        time.sleep(60)
        return ones(body, 0)

    with serving(answer) as server:
        begun = time.monotonic()
        assert asked(server.url, SORTED, "reward.timeout_s=0.2").valid == [False] * 6
        assert time.monotonic() - begun < 20
    assert len(server.bodies) == 3


def test_concurrency_limit() -> None:
    def answer(body: Any, _: int) -> ServerAnswer:
        time.sleep(0.03)
        return ones(body, 0)

    with serving(answer) as server:
        asked(server.url, SORTED, "reward.batch_size=1", "reward.concurrency=3")
    assert server.at_once == 3


def test_unreachable_server_stops_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    whole = remote.RemoteClient.request_json

    async def counted(self: Any, content: bytes) -> Any:
        tries.append(1)
        return await whole(self, content)

    monkeypatch.setattr(remote.RemoteClient, "request_json", counted)
    with socket.socket() as bound:  # no server listens on this port
        bound.bind(("127.0.0.1", 0))
        found = asked(f"http://127.0.0.1:{bound.getsockname()[1]}", SORTED * 10, "reward.batch_size=1")
    assert found.valid == [False] * 60
    assert len(tries) <= 3 * 2 * remote.MAX_UNANSWERED


def test_token_is_sent_only_to_configured_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SCORER", "canary-7f3a9c")
    with serving(ones) as elsewhere:
        moved = ServerAnswer({}, 307, {"Location": f"{elsewhere.url}/score"})
        with serving(lambda *_: moved) as server:
            found, failure = asked_and_failed(server.url, SORTED, "reward.token_env=MY_SCORER")
        assert server.headers[0]["Authorization"] == "Bearer canary-7f3a9c"
        assert elsewhere.bodies == []
    assert found.valid == [False] * 6
    assert "redirects (307) to http://127.0.0.1:" in str(failure)
    with serving(
        lambda body, number: ones(body, 0) if number else ServerAnswer({}, 308, {"Location": "/new"})
    ) as server:
        assert asked(server.url, SORTED, "reward.token_env=MY_SCORER").team == [1.0] * 6
    with serving(lambda *_: ServerAnswer({"you sent": "canary-7f3a9c"}, 403)) as server:
        failure = asked_and_failed(server.url, SORTED, "reward.token_env=MY_SCORER")[1]
    assert "returned status 403" in str(failure)
    assert "canary" not in str(failure)
    monkeypatch.delenv("MY_SCORER")
    with pytest.raises(PreflightError, match="export MY_SCORER="):
        asked("http://127.0.0.1:1", SORTED, "reward.token_env=MY_SCORER")


def test_response_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda *_: ServerAnswer(b" " * (remote.MAX_REPLY_BYTES + 2))) as server:
        assert asked(server.url, SORTED, "reward.batch_size=1").valid == [False] * 6
    assert len(server.bodies) == 6


@pytest.fixture
def reference() -> Iterator[str]:
    """The example server of this project."""
    with reward_server.Server(("127.0.0.1", 0), reward_server.Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/score"
        server.shutdown()


def test_reference_server(reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = spoken_once([{}] * 2, {"low": ["one", "one two three"], "high": ["one", "one"]})
    assert asked(reference, talk).team == [0.5, 0.375]
    monkeypatch.setattr(reward_server.Handler, "token", "canary-7f3a9c")
    assert asked(reference, talk).valid == [False, False]
    monkeypatch.setenv("MY_SCORER", "canary-7f3a9c")
    assert asked(reference, talk, "reward.token_env=MY_SCORER").parts["characters"] == [6, 16]


def test_connection_check() -> None:
    with serving(ones) as server:  # this server responds to HEAD with 501
        config = load_config(["task=sorting", "reward=http", f"reward.url={server.url}"])
        check_trainable(config, 1)
    assert server.bodies == []
    text = rf"^reward\.url={server.url} cannot be reached \(.*\); start the server first$"
    with pytest.raises(PreflightError, match=text):
        check_trainable(config, 1)
    part = build_reward(config.reward, config.task.agents)
    with pytest.raises(PreflightError, match=text):
        check_reward_connection(MixReward({"asked": MixPart(reward=part, weight=1.0, splittable=True)}, [], 0.1))
    close_reward(part)
