"""`rollout=openai_server`: requests and answers of servers with OpenAI's interface, and servers that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from fake_server import serve
from tiny_engine import build_engine_model, build_model, build_request, build_tokenizer

from ippo_cli.config.errors import EngineError
from ippo_cli.config.schema import OpenAIServerConfig
from ippo_cli.rollout.engine import EngineOutput
from ippo_cli.rollout.openai_server import TEXT, OpenAIServerEngine

pytest.importorskip("httpx2", reason="needs the extra `http`")
TOKENIZER = build_tokenizer()
MODEL = build_engine_model(build_model(TOKENIZER), TOKENIZER)
Change = Callable[[str, Any], Any]  # of a path and its answer


def answer(path: str, body: Any) -> Any:
    """A server that repeats the prompt's last tokens."""
    if path == "/v1/models":
        return {"data": [{"id": "small", "max_model_len": 128}]}
    if path == "/tokenize":
        return {"tokens": TOKENIZER(body["prompt"])["input_ids"]}
    ids = body["prompt"][-body["max_tokens"] :]
    logprobs = [0.0 if body["top_k"] == 1 else -0.5] * len(ids)
    return {"choices": [{"token_ids": ids, "logprobs": {"token_logprobs": logprobs}, "finish_reason": "length"}]}


@contextmanager
def start(
    change: Change = lambda path, answer: answer, *, served_name: str | None = None, **settings: Any
) -> Iterator[tuple[OpenAIServerEngine, list[Any]]]:
    bodies: list[Any] = []

    def reply(path: str, body: Any) -> tuple[int, Any]:
        bodies.append(body)
        found = change(path, answer(path, body))
        return found if isinstance(found, tuple) else (200, found)

    values = {"url": [], "model": [], "token_env": None, "start_timeout_s": 5.0, "request_timeout_s": 5.0}
    with serve(reply) as url:
        config = OpenAIServerConfig(**(values | settings))
        engine = OpenAIServerEngine(MODEL, config, url=url + "/v1", served_name=served_name)
        engine.start()
        try:
            yield engine, bodies
        finally:
            engine.close()


def complete(engine: OpenAIServerEngine, count: int) -> dict[int, EngineOutput]:
    outputs: dict[int, EngineOutput] = {}
    while len(outputs) < count:
        outputs |= {output.key: output for output in engine.step()}
    return outputs


def test_completions_have_the_servers_tokens() -> None:
    with start() as (engine, bodies):
        for key in range(3):
            engine.submit(build_request(key, [10 + key, 11, 12], seed=key, max_new_tokens=2, stop_strings=("ab",)))
        outputs = complete(engine, 3)
        assert outputs[1] == EngineOutput(key=1, ids=[11, 12], logprobs=[-0.5, -0.5], versions=[0, 0])
        body = next(body for body in bodies if body and body.get("seed") == 2)
        assert body["prompt"] == [12, 11, 12]
        assert (body["stop"], body["stop_token_ids"], body["top_k"]) == (["ab"], [1], -1)


def test_key_is_sent_as_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERVER_KEY", raising=False)
    with pytest.raises(EngineError, match=r"token_env=SERVER_KEY: this environment variable is not set"):
        start(token_env="SERVER_KEY").__enter__()


@pytest.mark.parametrize(
    ("path", "found", "message"),
    [
        ("/v1/models", {"data": [{"id": "small", "max_model_len": 64}]}, "takes 64 tokens .* needs 128"),
        ("/v1/models", {"data": []}, "it serves: nothing"),
        ("/v1/models", "<html>", "does not list its models"),
        ("/tokenize", {"tokens": [1, 2]}, "another tokenizer"),
        ("/v1/completions", {"choices": [{"text": "a", "finish_reason": "stop"}]}, "no log-probabilities"),
        ("/v1/completions", (404, {}), "status 404"),
        (
            "/v1/completions",
            {"choices": [{"logprobs": {"token_logprobs": [0.0]}, "finish_reason": "stop"}]},
            "returned no token ids",
        ),
    ],
)
def test_servers_that_do_not_fit_are_refused(path: str, found: Any, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        start(lambda where, good: found if where == path else good).__enter__()


def test_server_without_tokenize_is_accepted() -> None:
    with start(lambda path, good: (404, {}) if path == "/tokenize" else good) as (engine, _):
        engine.submit(build_request(0, TOKENIZER(TEXT)["input_ids"], max_new_tokens=4))
        assert len(complete(engine, 1)[0].ids) == 4


def test_unknown_model_is_refused() -> None:
    with pytest.raises(EngineError, match="does not serve large; it serves: small"):
        start(served_name="large").__enter__()


def test_absent_server_is_refused() -> None:
    with serve(lambda path, body: (200, {})) as url:
        pass
    settings = OpenAIServerConfig(url=[], model=[], token_env=None, start_timeout_s=0.6, request_timeout_s=5.0)
    with pytest.raises(EngineError, match=r"is not ready .*; start it first"):
        OpenAIServerEngine(MODEL, settings, url=url).start()


def test_weights_and_adapters_cannot_be_sent() -> None:
    with start() as (engine, _):
        with pytest.raises(EngineError, match="cannot send weights"):
            engine.load_weights([("weight", torch.zeros(1))], 1)
        with pytest.raises(EngineError, match="the adapter low, which cannot be sent"):
            engine.submit(build_request(0, [5], adapter="low"))
