"""`rollout=openai_server`: completions of a server with OpenAI's interface that takes and returns token ids.

vLLM's server does, and SGLang's (with `return_token_ids`). Their weights cannot be replaced.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from ippo_cli.config.errors import EngineError
from ippo_cli.config.schema import OpenAIServerRolloutConfig, SamplingConfig, ServerConnectionConfig
from ippo_cli.rollout.completion_client import CONNECT_TIMEOUT_S, CompletionClient, ServerFailure
from ippo_cli.rollout.engine import EngineModel, EngineOutput, EngineRequest, EngineResources, InferenceEngine
from ippo_cli.rollout.engine_generator import EngineGenerator
from ippo_cli.rollout.engine_pool import EnginePool
from ippo_cli.rollout.generator import Poll
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.rollout.sampling import Sampling
from ippo_cli.rollout.tensor_hash import TensorHash

WAIT_S = 0.2
"""How long a step waits for the first completion."""
CONCURRENCY = 2
"""Requests that the server has, for each row that it decodes."""
COMPLETIONS = "/v1/completions"
POLL_S = 0.5
TEXT = "The 3 agents' answers: x = 17."
"""Tokenized by the server and by the run, which differ for most other models."""
MAX_SEED = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKeys:
    """The keys of a server, for errors."""

    option: str  # that selects it
    connection: str  # group of its address and its API key
    model: str  # name of its model
    context_limit: str


ROLLOUT_KEYS = ServerKeys(
    option="rollout=openai_server",
    connection="rollout.server",
    model="rollout.server.model",
    context_limit="rollout.context_limit",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that a server lists."""

    name: str
    max_length: int | None  # tokens of prompt and response; None if the server does not say


class OpenAIServerEngine:
    """A model at a server that runs already."""

    def __init__(
        self,
        model: EngineModel,
        settings: ServerConnectionConfig,
        *,
        url: str,
        served_name: str | None = None,
        keys: ServerKeys = ROLLOUT_KEYS,
    ) -> None:
        """`served_name`: None for the first model that the server lists. `keys`: those that errors name."""
        self._model, self._settings, self._keys = model, settings, keys
        self._url = url.rstrip("/").removesuffix("/v1")
        self._served_name = served_name
        self._client: CompletionClient | None = None

    def reuse(self, model: EngineModel) -> None:
        self._model = model

    def start(self) -> None:
        if self._client is not None:
            return
        self._client = connect(self._url, self._settings, self._keys, concurrency=CONCURRENCY * self._model.max_rows)
        try:
            self._find_model()
            self._check_tokenizer()
            self._check_completion()
        except BaseException:
            self.close()
            raise

    def submit(self, request: EngineRequest) -> None:
        if request.adapter is not None:
            raise EngineError(
                f"{self._keys.option}: {self._model.name} would need the adapter {request.adapter}, which cannot be "
                "sent to a server; merge it with ippo-export and serve the result"
            )
        assert self._client is not None
        self._client.submit(request.key, COMPLETIONS, self._make_body(request))

    def step(self, *, waits: bool = True) -> list[EngineOutput]:
        assert self._client is not None
        try:
            return [self._read_output(key, answer) for key, answer in self._client.collect(WAIT_S if waits else 0.0)]
        except ServerFailure as failure:
            self._fail(str(failure))

    def abort(self) -> None:
        if self._client is not None:
            self._client.cancel()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> list[str]:
        self._refuse_weights()

    def verify_weights(self, hashes: Mapping[str, TensorHash]) -> list[str]:
        self._refuse_weights()

    def load_adapter(self, name: str, folder: Path, version: int) -> None:
        self._refuse_weights()

    def verify_adapter(self, name: str, hashes: Mapping[str, TensorHash]) -> list[str]:
        self._refuse_weights()

    def sleep(self) -> bool:
        return False

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _refuse_weights(self) -> NoReturn:
        raise EngineError(
            f"{self._keys.option} cannot send weights to its servers: it serves evaluation and frozen agents; "
            "use rollout=vllm for agents that are trained"
        )

    def _make_body(self, request: EngineRequest) -> dict[str, Any]:
        sampling = request.sampling
        return {
            "model": self._served_name,
            "prompt": list(request.prompt),
            "max_tokens": request.max_new_tokens,
            "min_tokens": min(sampling.min_new_tokens, request.max_new_tokens),
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,  # off, in vLLM and SGLang
            "min_p": sampling.min_p,
            "repetition_penalty": sampling.repetition_penalty,
            "seed": request.seed % MAX_SEED,
            "stop": list(sampling.stop_strings),
            "stop_token_ids": list(request.stop_ids),
            "ignore_eos": True,  # the stop tokens above are all that end a response
            "include_stop_str_in_output": True,
            "no_stop_trim": True,  # the same for SGLang
            "skip_special_tokens": False,
            "add_special_tokens": False,
            "logprobs": 0,
            "return_token_ids": True,
        }

    def _read_output(self, key: int, answer: Any) -> EngineOutput:
        try:
            choice = answer["choices"][0]
            ids, logprobs = choice.get("token_ids"), choice["logprobs"]["token_logprobs"]
            reason = choice["finish_reason"]
        except (KeyError, IndexError, TypeError):
            self._fail("the server returned no log-probabilities; it must serve /v1/completions with `logprobs`")
        if ids is None:
            self._fail("the server returned no token ids; it must serve /v1/completions with `return_token_ids`")
        if reason not in ("stop", "length"):
            self._fail(f"the server ended a response with finish_reason={reason}")
        if len(logprobs) != len(ids) or None in logprobs:
            self._fail(f"the server returned {len(logprobs)} log-probabilities for {len(ids)} tokens")
        return EngineOutput(key=key, ids=list(ids), logprobs=list(logprobs), versions=[0] * len(ids))

    def _find_model(self) -> None:
        """Wait for the server, and check that it serves the model with a context that is long enough."""
        assert self._client is not None
        try:
            found = find_served_model(
                self._client, self._served_name, self._keys, wait_s=self._settings.start_timeout_s
            )
        except ServerFailure as failure:
            self._fail(str(failure))
        self._served_name, length = found.name, found.max_length
        if length is not None and length < self._model.max_length:
            self._fail(
                f"the server takes {length} tokens of prompt and response, and this run needs "
                f"{self._model.max_length}; set {self._keys.context_limit}={length}, or start the server for more"
            )

    def _check_tokenizer(self) -> None:
        """Compare a text's tokens, where the server can tokenize."""
        body = {"model": self._served_name, "prompt": TEXT, "add_special_tokens": False}
        try:
            found = self._call("POST", "/tokenize", body)["tokens"]
        except (ServerFailure, KeyError, TypeError):
            return
        expected = self._model.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
        if list(found) != list(expected):
            self._fail(
                f"the server has another tokenizer than this run's model ({self._served_name}); serve the model of "
                "`actor`, or one with the same tokenizer"
            )

    def _check_completion(self) -> None:
        """Complete one token."""
        certain = Sampling(top_k=1, max_new_tokens=1)
        prompt = self._model.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
        request = EngineRequest(key=0, prompt=prompt, sampling=certain, stop_ids=(), max_new_tokens=1, seed=0)
        try:
            output = self._read_output(0, self._call("POST", COMPLETIONS, self._make_body(request)))
        except ServerFailure as failure:
            self._fail(str(failure))
        if len(output.ids) != 1:
            self._fail(f"the server returned {len(output.ids)} tokens where one was requested")

    def _call(self, method: str, path: str, body: Any = None, timeout_s: float | None = None) -> Any:
        assert self._client is not None
        return self._client.call(method, path, body, timeout_s=timeout_s or self._settings.request_timeout_s)

    def _fail(self, reason: str) -> NoReturn:
        self.close()
        raise EngineError(f"{self._keys.connection}.url={self._url}: {self._model.name}: {reason}") from None


def connect(url: str, settings: ServerConnectionConfig, keys: ServerKeys, *, concurrency: int = 1) -> CompletionClient:
    """A client for the server at an address, which is not called yet. Raises `EngineError` without its API key."""
    headers = {}
    if (variable := settings.token_env) is not None:
        if not (token := os.environ.get(variable, "").strip()):
            raise EngineError(
                f"{keys.connection}.token_env={variable}: this environment variable is not set; export {variable}=..."
            )
        headers = {"Authorization": f"Bearer {token}"}
    return CompletionClient(
        url.rstrip("/").removesuffix("/v1"),
        concurrency=concurrency,
        silence_limit_s=settings.request_timeout_s,
        headers=headers,
    )


def find_served_model(client: CompletionClient, name: str | None, keys: ServerKeys, *, wait_s: float) -> ServedModel:
    """Wait up to `wait_s` for the server, and find the model of this name, or the first one. Raises `ServerFailure`."""
    end = time.monotonic() + wait_s
    while True:
        try:
            listed = client.call("GET", "/v1/models", timeout_s=CONNECT_TIMEOUT_S)["data"]
            break
        except ServerFailure as failure:
            if failure.status is not None or time.monotonic() > end:
                raise ServerFailure(f"the server is not ready ({failure}); start it first") from None
        except (KeyError, TypeError):
            raise ServerFailure(
                "the server does not list its models at /v1/models; give its address without /v1"
            ) from None
        time.sleep(POLL_S)
    found = {entry["id"]: entry.get("max_model_len") for entry in listed}
    wanted = next(iter(found), "") if name is None else name
    if wanted not in found:
        raise ServerFailure(
            f"the server does not serve {wanted}; it serves: {', '.join(found) or 'nothing'}; set {keys.model}"
        )
    return ServedModel(name=wanted, max_length=found[wanted])


def build_openai_generator(
    policies: Mapping[str, GenerationPolicy],
    config: OpenAIServerRolloutConfig,
    sampling: Mapping[str, SamplingConfig],
    poll: Poll | None = None,
    *,
    continues: bool = False,
    resources: EngineResources | None = None,
) -> EngineGenerator:
    """The generator with a server for each model.

    `continues` has no effect: servers cache prefixes themselves; nor has `resources`: they run already.
    """
    settings = config.server

    def make_engine(model: EngineModel, number: int) -> InferenceEngine:
        if len(settings.url) != 1 and number >= len(settings.url):
            raise EngineError(
                f"rollout.server.url={settings.url} has no address for the model of {model.name}; list one address, or "
                "one for each model that agents sample from"
            )
        url = settings.url[0] if len(settings.url) == 1 else settings.url[number]
        name = settings.model[number] if number < len(settings.model) else None
        return OpenAIServerEngine(model, settings, url=url, served_name=name)

    engines = EnginePool(make_engine, reuses=False)  # not shared: a server keeps its model
    return EngineGenerator(policies, config, sampling, poll, engines=engines, verify_every=0, pushes_weights=False)
