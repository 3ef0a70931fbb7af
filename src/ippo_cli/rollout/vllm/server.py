"""`rollout.vllm.mode=server`: a vLLM engine in a process of its own, by HTTP; weights pass through shared memory."""

from __future__ import annotations

import atexit
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from ippo_cli.config.errors import EngineError
from ippo_cli.config.schema import VllmConfig
from ippo_cli.rollout.completion_client import CompletionClient, ServerFailure
from ippo_cli.rollout.engine import EngineModel, EngineOutput, EngineRequest
from ippo_cli.rollout.shared_tensors import SharedTensors
from ippo_cli.rollout.vllm.arguments import engine_arguments, request_parameters, write_model_folder
from ippo_cli.rollout.vllm.serve import COMMAND
from ippo_cli.rollout.vllm.server_process import ServerProcess
from ippo_cli.rollout.vllm.worker_extension import compare_adapter, sum_by_parameter

WAIT_S = 0.2
"""How long a step waits for the first completion."""
CHUNK_BYTES = 512 * 2**20
"""Weights that are in shared memory at once; one tensor may have more."""
CONCURRENCY = 2
"""Requests that the server has, for each row that it decodes: the next ones wait there."""
GENERATE = "/inference/v1/generate"


class ServerEngine:
    """A vLLM engine in another process on this host: one that it starts, or one at `url` that runs already."""

    def __init__(
        self,
        model: EngineModel,
        settings: VllmConfig,
        device: torch.device,
        *,
        log_path: Path,
        url: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`log_path`: of the server's output. `environment`: further variables, such as CUDA_VISIBLE_DEVICES."""
        self._model, self._settings, self._device = model, settings, device
        self._log_path, self._url, self._environment = log_path, url, dict(environment or {})
        self._process: ServerProcess | None = None
        self._client: CompletionClient | None = None
        self._memory: SharedTensors | None = None
        self._folder: Path | None = None
        self._served_name = ""
        self._places: dict[str, list[str]] = {}  # by tensor, the engine's parameters that it is part of
        self._adapters: dict[str, int] = {}  # numbers of adapters in vLLM
        self._adapter_versions: dict[str, int] = {}

    @property
    def process(self) -> ServerProcess | None:
        """The server that this engine started."""
        return self._process

    def reuse(self, model: EngineModel) -> None:
        self._model = model
        self._adapter_versions = {}  # their numbers in the server stay

    def start(self) -> None:
        if self._client is not None:
            return
        atexit.register(self.close)  # removes what is in shared memory
        try:
            address = self._url or self._start_server()
            self._client = CompletionClient(
                address,
                concurrency=CONCURRENCY * self._model.max_rows,
                silence_limit_s=self._settings.request_timeout_s,
            )
            self._check_server()
        except BaseException:
            self.close()
            raise

    def submit(self, request: EngineRequest) -> None:
        body = {
            "model": request.adapter or self._served_name,
            "token_ids": list(request.prompt),
            "sampling_params": request_parameters(request),
        }
        assert self._client is not None
        self._client.submit(request.key, GENERATE, body)

    def step(self) -> list[EngineOutput]:
        assert self._client is not None
        try:
            answers = self._client.collect(WAIT_S)
            return [self._read_output(key, answer) for key, answer in answers]
        except ServerFailure as failure:
            self._fail(str(failure))

    def abort(self) -> None:
        if self._client is not None:
            self._client.cancel()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> list[str]:
        mapped = bool(self._places)
        # Requests in flight keep their tokens, and their keys and values are computed from the new weights. Another
        # thread may submit requests at any time, which wait.
        self._call("POST", "/pause?mode=keep")
        for chunk in _in_chunks(weights, CHUNK_BYTES):
            try:
                self._share(chunk)
            except OSError as error:
                self._fail(f"the server cannot be sent weights through {self._memory_folder()}: {error.strerror}")
            places = self._rpc("ippo_load_shared", str(self._memory_folder()), mapped)
            if not mapped:
                self._places |= places[0]
        self._rpc("ippo_finish")
        if self._memory is not None:
            self._memory.clear()
        self._reset_prefix_cache()
        self._call("POST", "/update_weight_version", {"new_version": str(version)})
        self._call("POST", "/resume")
        return sorted(name for name, parameters in self._places.items() if not parameters)

    def verify_weights(self, hashes: Mapping[str, int]) -> list[str]:
        expected = sum_by_parameter(self._places, hashes)
        workers: list[dict[str, int]] = self._rpc("ippo_hashes")
        names = expected.keys() | {name for found in workers for name in found}
        wrong = {name for name in names if not _is_found(expected.get(name), [found.get(name) for found in workers])}
        return sorted(
            {name for name, parameters in self._places.items() if wrong.intersection(parameters)}
            | (wrong - expected.keys())
        )

    def load_adapter(self, name: str, folder: Path, version: int) -> None:
        is_new = name not in self._adapters
        if is_new and self._process is None:
            self._unload_adapter(name)  # of an earlier run, with a number that is not known here
        before = set(self._rpc("ippo_adapters")[0])
        self._call("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder), "load_inplace": True})
        if is_new:
            added = set(self._rpc("ippo_adapters")[0]) - before
            if len(added) != 1:
                self._fail(f"the server did not take the adapter {name} into a slot of its own")
            self._adapters[name] = added.pop()
        self._reset_prefix_cache()
        self._adapter_versions[name] = version

    def verify_adapter(self, name: str, hashes: Mapping[str, int]) -> list[str]:
        modules: dict[str, list[str]] = self._rpc("ippo_adapter_modules")[0]
        workers: list[dict[str, int]] = self._rpc("ippo_adapter_hashes", self._adapters[name])
        return compare_adapter(modules, hashes, workers)

    def sleep(self) -> bool:
        return False  # the server's device is not the trainer's

    def close(self) -> None:
        atexit.unregister(self.close)
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._process is not None:
            self._process.close()
            self._process = None
        if self._memory is not None:
            self._memory.remove()
            self._memory = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        self._places, self._adapters = {}, {}

    def _start_server(self) -> str:
        self._folder = Path(tempfile.mkdtemp(prefix="ippo-engine-"))
        self._memory = SharedTensors.create(CHUNK_BYTES)
        write_model_folder(self._model, self._folder)
        arguments = engine_arguments(self._model, self._settings, self._device, self._folder)
        for argument in ("model", "worker_extension_cls"):  # `serve` sets them
            del arguments[argument]
        arguments.pop("disable_log_stats", None)  # the counters show progress
        self._process = ServerProcess(
            self._folder,
            arguments,
            name=self._model.name,
            log_path=self._log_path,
            start_timeout_s=self._settings.start_timeout_s,
            environment=self._environment,
            remove_at_end=[self._folder, self._memory.folder],
        )
        self._process.start()
        return self._process.address

    def _check_server(self) -> None:
        """Raise `EngineError` unless the server has the model, the extension, and this host's memory."""
        hint = f"start it with: {COMMAND.replace('MODEL', self._model.config.name_or_path or 'MODEL')}"
        models = self._call("GET", "/v1/models")["data"]
        if self._process is not None and models[0]["id"] != self._process.model_name:
            self._fail("the server does not answer at its socket, but another server does")
        self._served_name = models[0]["id"]
        length = models[0].get("max_model_len")
        if length is not None and length < self._model.max_length:
            self._fail(
                f"the server takes {length} tokens of prompt and response, and this run needs "
                f"{self._model.max_length}; {hint} --max-model-len {self._model.max_length}"
            )
        if self._memory is None:
            self._memory = SharedTensors.create(CHUNK_BYTES)
        word = secrets.token_hex(8)
        (self._memory.folder / "word").write_text(word)
        assert self._client is not None
        try:
            found = self._client.call(
                "POST",
                "/collective_rpc",
                {"method": "ippo_describe", "args": [str(self._memory.folder / "word")]},
                timeout_s=self._settings.request_timeout_s,
            )["results"][0]
        except ServerFailure as failure:
            if failure.status is None:
                self._fail(str(failure))
            self._fail(f"the server cannot be sent weights ({failure}); {hint}")
        if found["word"] != word:
            self._fail(
                "the server runs on another host, or in a container with other memory: weights pass through shared "
                "memory; start it on this host"
            )
        expected = {
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "vocab_size": self._model.config.get_text_config().vocab_size,
            "hidden_size": self._model.config.get_text_config().hidden_size,
            "num_hidden_layers": self._model.config.get_text_config().num_hidden_layers,
        }
        differing = [f"{key} is {found[key]}, not {value}" for key, value in expected.items() if found[key] != value]
        if differing:
            self._fail(f"the server has another model: {'; '.join(differing)}; {hint}")
        if found["logprobs_mode"] != "processed_logprobs":
            self._fail(
                f"the server reports log-probabilities of another distribution ({found['logprobs_mode']}); {hint}"
            )
        adapters, rank = self._model.max_adapters, self._model.max_adapter_rank
        if adapters > found["max_loras"]:
            self._fail(
                f"the server has room for {found['max_loras']} adapters, and this run has {adapters}; {hint} "
                f"--enable-lora --max-loras {adapters} --max-lora-rank {rank}"
            )

    def _read_output(self, key: int, answer: Any) -> EngineOutput:
        choice = answer["choices"][0]
        if choice["finish_reason"] not in ("stop", "length"):
            self._fail(f"the server ended a response with finish_reason={choice['finish_reason']}")
        ids = choice["token_ids"]
        entries = choice["logprobs"]["content"]
        if [entry["token_id"] for entry in entries] != ids:
            self._fail("the server returned log-probabilities of other tokens than those of the response")
        adapter = self._adapter_versions.get(answer.get("model"))
        versions = [0] * len(ids) if adapter is None else [adapter] * len(ids)
        for span in () if adapter is not None else choice.get("weight_versions") or ():
            number = int(span["version"]) if span["version"].isdigit() else 0
            versions[span["start"] : span["end"]] = [number] * (span["end"] - span["start"])
        return EngineOutput(key=key, ids=ids, logprobs=[entry["logprob"] for entry in entries], versions=versions)

    def _unload_adapter(self, name: str) -> None:
        assert self._client is not None
        with suppress(ServerFailure):  # there may be none
            self._client.call(
                "POST", "/v1/unload_lora_adapter", {"lora_name": name}, timeout_s=self._settings.request_timeout_s
            )

    def _share(self, tensors: dict[str, Tensor]) -> None:
        assert self._memory is not None
        self._memory.write(tensors)

    def _memory_folder(self) -> Path:
        assert self._memory is not None
        return self._memory.folder

    def _is_busy(self) -> bool:
        return self._client is not None and self._client.num_in_flight > 0

    def _reset_prefix_cache(self) -> None:
        running = "?reset_running_requests=true" if self._is_busy() else ""
        if not self._call("POST", f"/reset_prefix_cache{running}")["success"]:
            self._fail("the server did not clear its prefix cache, which has keys and values of earlier weights")

    def _rpc(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of the workers; one result for each."""
        return self._call("POST", "/collective_rpc", {"method": method, "args": list(arguments)})["results"]

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        assert self._client is not None
        try:
            return self._client.call(method, path, body, timeout_s=self._settings.request_timeout_s)
        except ServerFailure as failure:
            self._fail(str(failure))

    def _fail(self, reason: str) -> NoReturn:
        """Close the engine and raise `EngineError`."""
        process = self._process
        if process is not None:
            error = process.failure(reason)
        else:
            error = EngineError(f"rollout.vllm.url={self._url}: {reason}")
        self.close()
        raise error from None


def _in_chunks(weights: Iterable[tuple[str, Tensor]], size: int) -> Iterator[dict[str, Tensor]]:
    """Consecutive tensors of at most `size` bytes together; copies, since a tensor may be released after the next."""
    chunk: dict[str, Tensor] = {}
    total = 0
    for name, tensor in weights:
        num_bytes = tensor.numel() * tensor.element_size()
        if chunk and total + num_bytes > size:
            yield chunk
            chunk, total = {}, 0
        chunk[name] = tensor.detach().to("cpu", copy=True)
        total += num_bytes
    if chunk:
        yield chunk


def _is_found(expected: int | None, found: list[int | None]) -> bool:
    """Whether workers have a parameter with this hash, whole in each or in parts."""
    if expected is None or None in found:
        return False
    return set(found) == {expected} or sum(part for part in found if part is not None) % 2**64 == expected
