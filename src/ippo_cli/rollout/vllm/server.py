"""`rollout.vllm.mode=server`: a vLLM engine in a separate process, by HTTP."""

from __future__ import annotations

import atexit
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from ippo_cli.config.errors import EngineError
from ippo_cli.config.schema import VllmConfig, WeightPath
from ippo_cli.rollout.completion_client import CompletionClient, ServerFailure
from ippo_cli.rollout.engine import EngineModel, EngineOutput, EngineRequest
from ippo_cli.rollout.shared_tensors import SharedTensors, boot_id
from ippo_cli.rollout.tensor_hash import TensorHash
from ippo_cli.rollout.vllm.arguments import engine_arguments, request_parameters, write_model_folder
from ippo_cli.rollout.vllm.serve import COMMAND, PROCESSOR
from ippo_cli.rollout.vllm.server_log import ServerLog
from ippo_cli.rollout.vllm.server_process import ServerProcess
from ippo_cli.rollout.vllm.weight_layout import find_differing_tensors
from ippo_cli.rollout.vllm.weight_transfer import (
    CHUNK_BYTES,
    NetworkTransfer,
    SharedMemoryTransfer,
    WeightTransfer,
    Workers,
    find_transfer_address,
)
from ippo_cli.rollout.vllm.worker_extension import compare_adapter

WAIT_S = 0.2
"""How long a step waits for the first completion."""
CONCURRENCY = 2
"""Requests that the server has, for each row that it decodes: the next ones wait there."""
GENERATE = "/inference/v1/generate"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHandle:
    """What another rank needs to send requests to a server."""

    address: str
    log_path: Path | None  # None: of a server that the run did not start
    log_start: int = 0


class ServerEngine:
    """A vLLM engine in another process: one that it starts, or one at `url` that runs already.

    Several ranks can use one server: one of them starts it (`start`) and transfers weights, the others `attach`.
    """

    def __init__(
        self,
        model: EngineModel,
        settings: VllmConfig,
        device: torch.device,
        *,
        log_path: Path,
        url: str | None = None,
        environment: Mapping[str, str] | None = None,
        num_ranks: int = 1,
    ) -> None:
        """`log_path`: of the server's output. `environment`: further variables, such as CUDA_VISIBLE_DEVICES.
        `num_ranks`: ranks that send requests to the server.
        """
        self._model, self._settings, self._device, self._num_ranks = model, settings, device, num_ranks
        self._log_path, self._url, self._environment = log_path, url, dict(environment or {})
        self._process: ServerProcess | None = None
        self._log: ServerLog | None = None  # of a server that a rank of this run started
        self._client: CompletionClient | None = None
        self._transfer: WeightTransfer | None = None
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

    @property
    def handle(self) -> ServerHandle:
        """The started server, for `attach` in other ranks."""
        assert self._client is not None
        if self._log is None:
            return ServerHandle(address=self._client.address, log_path=None)
        return ServerHandle(address=self._client.address, log_path=self._log.path, log_start=self._log.start)

    def reuse(self, model: EngineModel) -> None:
        self._model = model
        self._adapter_versions = {}  # their numbers in the server stay

    def start(self) -> None:
        if self._client is not None:
            return
        atexit.register(self.close)  # removes what is in shared memory
        try:
            self._connect(self._url or self._start_server())
            self._check_model()
            self._transfer = self._choose_transfer()
        except BaseException:
            self.close()
            raise

    def attach(self, server: ServerHandle) -> None:
        """Send requests to a server that another rank has started; that rank transfers weights."""
        atexit.register(self.close)
        if server.log_path is None:
            self._url = server.address
        else:
            self._log = ServerLog(server.log_path, start=server.log_start)
        self._connect(server.address)

    def submit(self, request: EngineRequest) -> None:
        body = {
            "model": request.adapter or self._served_name,
            "token_ids": list(request.prompt),
            "sampling_params": request_parameters(request),
        }
        assert self._client is not None
        self._client.submit(request.key, GENERATE, body)

    def step(self, *, waits: bool = True) -> list[EngineOutput]:
        assert self._client is not None
        try:
            answers = self._client.collect(WAIT_S if waits else 0.0)
            return [self._read_output(key, answer) for key, answer in answers]
        except ServerFailure as failure:
            self._fail(str(failure))

    def abort(self) -> None:
        if self._client is not None:
            self._client.cancel()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> list[str]:
        if self._client is None:
            raise EngineError(f"rollout=vllm: the engine of {self._model.name} has ended")
        if self._transfer is None:  # another rank transfers them
            return []
        is_mapped = bool(self._places)
        # Requests in flight keep their tokens, and their keys and values are computed from the new weights. Another
        # thread or rank may submit requests at any time, which wait.
        self._call("POST", "/pause?mode=keep")
        try:
            self._places |= self._transfer.send_weights(weights, is_mapped=is_mapped)
        except ServerFailure as failure:
            self._fail(str(failure))
        self._rpc("ippo_finish")
        self._reset_prefix_cache()
        self._call("POST", "/update_weight_version", {"new_version": str(version)})
        self._call("POST", "/resume")
        return sorted(name for name, parameters in self._places.items() if not parameters)

    def verify_weights(self, hashes: Mapping[str, TensorHash]) -> list[str]:
        if self._transfer is None:
            return []
        return find_differing_tensors(self._places, hashes, self._rpc("ippo_hashes"))

    def load_adapter(self, name: str, folder: Path, version: int) -> None:
        if self._transfer is not None:
            is_new = name not in self._adapters
            if is_new and self._process is None:
                self._unload_adapter(name)  # of an earlier run, with a number that is not known here
            before = set(self._rpc("ippo_adapters")[0])
            try:
                with self._transfer.share_folder(folder) as path:
                    body = {"lora_name": name, "lora_path": path, "load_inplace": True}
                    self._call("POST", "/v1/load_lora_adapter", body)
            except ServerFailure as failure:
                self._fail(str(failure))
            if is_new:
                added = set(self._rpc("ippo_adapters")[0]) - before
                if len(added) != 1:
                    self._fail(f"the server did not take the adapter {name} into a new slot")
                self._adapters[name] = added.pop()
            self._reset_prefix_cache()
        self._adapter_versions[name] = version

    def verify_adapter(self, name: str, hashes: Mapping[str, TensorHash]) -> list[str]:
        if self._transfer is None:
            return []
        modules: dict[str, list[str]] = self._rpc("ippo_adapter_modules")[0]
        workers: list[dict[str, list[list[int]]]] = self._rpc("ippo_adapter_hashes", self._adapters[name])
        return compare_adapter(modules, hashes, workers)

    def sleep(self) -> bool:
        return False  # a server answers to several ranks, and may run on another device

    def close(self) -> None:
        atexit.unregister(self.close)
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._process is not None:
            self._process.close()
            self._process = None
        self._transfer = None
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
        model = replace(self._model, max_rows=self._num_ranks * self._model.max_rows)
        arguments = engine_arguments(model, self._settings, self._device, self._folder)
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
        self._log = self._process.log
        self._process.start()
        return self._process.address

    def _connect(self, address: str) -> None:
        self._client = CompletionClient(
            address,
            concurrency=CONCURRENCY * self._model.max_rows,
            silence_limit_s=self._settings.request_timeout_s,
        )
        models = self._call("GET", "/v1/models")["data"]
        if self._process is not None and models[0]["id"] != self._process.model_name:
            self._fail("the server does not answer at its socket, but another server does")
        self._served_name = models[0]["id"]
        length = models[0].get("max_model_len")
        if length is not None and length < self._model.max_length:
            self._fail(
                f"the server takes {length} tokens of prompt and response, and this run needs "
                f"{self._model.max_length}; {self._hint} --max-model-len {self._model.max_length}"
            )

    @property
    def _hint(self) -> str:
        return f"start it with: {COMMAND.replace('MODEL', self._model.config.name_or_path or 'MODEL')}"

    def _check_model(self) -> None:
        """Raise `EngineError` unless the server has the extension and a model of the same shape."""
        found = self._describe()[0]
        expected = {
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "vocab_size": self._model.config.get_text_config().vocab_size,
            "hidden_size": self._model.config.get_text_config().hidden_size,
            "num_hidden_layers": self._model.config.get_text_config().num_hidden_layers,
        }
        differing = [f"{key} is {found[key]}, not {value}" for key, value in expected.items() if found[key] != value]
        if differing:
            self._fail(f"the server has another model: {'; '.join(differing)}; {self._hint}")
        if found["logprobs_mode"] != "processed_logprobs":
            self._fail(
                f"the server reports log-probabilities of another distribution ({found['logprobs_mode']}); {self._hint}"
            )
        if self._model.has_noise and PROCESSOR not in found["logits_processors"]:
            self._fail(f"the server draws drafts with other noise; {self._hint} --logits-processors {PROCESSOR}")
        adapters, rank = self._model.max_adapters, self._model.max_adapter_rank
        if adapters > found["max_loras"]:
            self._fail(
                f"the server has room for {found['max_loras']} adapters, and this run has {adapters}; {self._hint} "
                f"--enable-lora --max-loras {adapters} --max-lora-rank {rank}"
            )

    def _choose_transfer(self) -> WeightTransfer:
        """Shared memory where every worker reads what this process writes there; else the network."""
        if self._memory is None:
            self._memory = SharedTensors.create(CHUNK_BYTES)
        chosen, word, file = self._settings.weight_path, secrets.token_hex(8), self._memory.folder / "word"
        file.write_text(word)
        found = self._describe(file)
        # The folder may be on a disk that hosts share: its files are no memory that they share.
        is_shared = all(worker["word"] == word and worker["boot_id"] == boot_id() for worker in found)
        assert self._client is not None
        workers = Workers(self._client, self._settings.request_timeout_s)
        if is_shared and chosen is not WeightPath.network:
            return SharedMemoryTransfer(workers, self._memory)
        if chosen is WeightPath.shared_memory:
            self._fail(
                "the server runs on another host, or in a container with other memory; start it on this host, or use "
                "rollout.vllm.weight_path=auto"
            )
        try:
            host, port = find_transfer_address(self._settings.listen_address, self._client.address)
        except ServerFailure as failure:
            self._fail(str(failure))
        return NetworkTransfer(workers, host, port, num_workers=len(found))

    def _describe(self, file: Path | None = None) -> list[dict[str, Any]]:
        """The description of each worker. `file`: one that they try to read."""
        assert self._client is not None
        try:
            return Workers(self._client, self._settings.request_timeout_s).call("ippo_describe", str(file or ""))
        except ServerFailure as failure:
            if failure.status is None:
                self._fail(str(failure))
            self._fail(f"the server cannot be sent weights ({failure}); {self._hint}")

    def _read_output(self, key: int, answer: Any) -> EngineOutput:
        choice = answer["choices"][0]
        if choice["finish_reason"] not in ("stop", "length"):
            self._fail(f"the server ended a response with finish_reason={choice['finish_reason']}")
        ids = choice["token_ids"]
        logprobs = None  # of drafts
        if not self._model.has_noise:
            entries = choice["logprobs"]["content"]
            if [entry["token_id"] for entry in entries] != ids:
                self._fail("the server returned log-probabilities of other tokens than those of the response")
            logprobs = [entry["logprob"] for entry in entries]
        adapter = self._adapter_versions.get(answer.get("model"))
        versions = [0] * len(ids) if adapter is None else [adapter] * len(ids)
        for span in () if adapter is not None else choice.get("weight_versions") or ():
            number = int(span["version"]) if span["version"].isdigit() else 0
            versions[span["start"] : span["end"]] = [number] * (span["end"] - span["start"])
        if 0 in versions:
            self._fail("the server did not report the version of the weights of every token")
        return EngineOutput(key=key, ids=ids, logprobs=logprobs, versions=versions)

    def _unload_adapter(self, name: str) -> None:
        assert self._client is not None
        with suppress(ServerFailure):  # there may be none
            self._client.call(
                "POST", "/v1/unload_lora_adapter", {"lora_name": name}, timeout_s=self._settings.request_timeout_s
            )

    def _may_be_busy(self) -> bool:
        """Whether the server may have requests in flight: those of other ranks are not known here."""
        return self._num_ranks > 1 or (self._client is not None and self._client.num_in_flight > 0)

    def _reset_prefix_cache(self) -> None:
        running = "?reset_running_requests=true" if self._may_be_busy() else ""
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
        if self._process is not None:
            error = self._process.failure(reason)
        elif self._log is not None:
            error = self._log.make_error(self._model.name, reason, None)
        else:
            error = EngineError(f"rollout.vllm.url={self._url}: {reason}")
        self.close()
        raise error from None
