"""`rollout.vllm.mode=colocate`: a vLLM engine in the process of a rank. Imports vllm, which takes seconds."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_MAPPING

from ippo_cli.config.errors import EngineError
from ippo_cli.config.schema import VllmConfig
from ippo_cli.engine import distributed
from ippo_cli.rollout.engine import EngineModel, EngineOutput, EngineRequest
from ippo_cli.rollout.tensor_hash import TensorHash
from ippo_cli.rollout.vllm.arguments import engine_arguments, make_params, write_model_folder
from ippo_cli.rollout.vllm.serve import V1_RUNNER
from ippo_cli.rollout.vllm.weight_layout import find_differing_tensors
from ippo_cli.rollout.vllm.worker_extension import compare_adapter


class InProcessEngine:
    """A vLLM engine in this process; on a GPU it sleeps while the rank trains."""

    def __init__(self, model: EngineModel, settings: VllmConfig, device: torch.device) -> None:
        self._model, self._settings, self._device = model, settings, device
        self._engine: Any = None
        self._places: dict[str, list[str]] = {}  # by tensor, the engine's parameters that it is part of
        self._adapters: dict[str, int] = {}  # numbers of adapters in vLLM
        self._version = 0
        self._versions: dict[str, int] = {}  # of adapters
        self._is_asleep = False

    def reuse(self, model: EngineModel) -> None:
        self._model = model
        self._adapters, self._versions = {}, {}

    def start(self) -> None:
        if self._engine is not None:
            return
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # the trainer's threads stay where they are
        if self._model.has_noise:
            os.environ.update(V1_RUNNER)
        from vllm import EngineArgs  # pyright: ignore[reportMissingImports]
        from vllm.v1.engine.llm_engine import LLMEngine  # pyright: ignore[reportMissingImports]

        with tempfile.TemporaryDirectory(prefix="ippo-engine-") as folder:
            write_model_folder(self._model, Path(folder))
            arguments = engine_arguments(self._model, self._settings, self._device, Path(folder))
            if distributed.world_size() > 1:
                arguments["distributed_executor_backend"] = "external_launcher"  # uses the ranks' process group
            if self._device.type == "cuda":
                arguments["enable_sleep_mode"] = True
            set_threads = torch.set_num_threads
            try:
                self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
            except Exception as error:
                message = f"rollout=vllm: the engine of {self._model.name} did not start: {error}"
                if "expert parallel group" in str(error):  # vLLM makes it only if its first engine has experts
                    message += "; with other models in one process use rollout.vllm.mode=server"
                raise EngineError(message) from error
            finally:
                torch.set_num_threads = set_threads  # vLLM's CPU build replaces it by a function without effect
        gc.unfreeze()  # the engine has exempted all objects, those of the trainer too, from garbage collection
        # Its shutdown would destroy the process group of the ranks.
        self._engine.engine_core._finalizer.detach()
        self._check_model_class()

    def _check_model_class(self) -> None:
        """Raise `EngineError` if vLLM has changed the class of the trained model.

        It runs models that it does not implement with transformers' classes, and replaces their `__call__`.
        """
        trained: Any = MODEL_MAPPING.get(type(self._model.config.get_text_config()), None)
        if trained is not None and trained.__call__ is not nn.Module.__call__:
            raise EngineError(
                f"rollout.vllm.mode=colocate: vLLM has no implementation of {trained.__name__} and changes that of "
                "transformers, which is trained in the same process; use rollout.vllm.mode=server, or rollout=hf"
            )

    def submit(self, request: EngineRequest) -> None:
        number = None if request.adapter is None else self._adapters[request.adapter]
        self._engine.add_request(
            str(request.key),
            {"prompt_token_ids": list(request.prompt)},
            make_params(request),
            lora_request=None if number is None else self._lora_request(request.adapter, number, ""),
        )

    def step(self, *, waits: bool = True) -> list[EngineOutput]:
        if not self._engine.has_unfinished_requests():
            return []
        try:
            outputs = self._engine.step()
        except Exception as error:
            raise EngineError(f"rollout=vllm: the engine of {self._model.name} failed: {error}") from error
        return [self._read_output(output) for output in outputs if output.finished]

    def abort(self) -> None:
        states = self._engine.output_processor.request_states
        self._engine.abort_request(list(states), internal=True)
        while self._engine.has_unfinished_requests():
            self._engine.step()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]], version: int) -> list[str]:
        self._wake("weights")
        mapped = bool(self._places)
        for layer in _by_layer(weights):
            places = self._call("ippo_load_weights", layer, mapped)
            self._places |= places
        self._call("ippo_finish")
        self._wake("kv_cache")
        self._engine.reset_prefix_cache()
        self._version = version
        return sorted(name for name, parameters in self._places.items() if not parameters)

    def verify_weights(self, hashes: Mapping[str, TensorHash]) -> list[str]:
        return find_differing_tensors(self._places, hashes, [self._call("ippo_hashes")])

    def load_adapter(self, name: str, folder: Path, version: int) -> None:
        number = self._adapters.setdefault(name, len(self._adapters) + 1)
        self._engine.add_lora(self._lora_request(name, number, str(folder), load_inplace=True))
        self._engine.reset_prefix_cache()
        self._versions[name] = version

    def verify_adapter(self, name: str, hashes: Mapping[str, TensorHash]) -> list[str]:
        found = self._call("ippo_adapter_hashes", self._adapters[name])
        return compare_adapter(self._call("ippo_adapter_modules"), hashes, [found])

    def sleep(self) -> bool:
        if self._device.type != "cuda":
            return False  # vLLM's CPU build does not sleep
        self._call_engine("sleep", 2)
        self._is_asleep = True
        return True

    def close(self) -> None:
        self._engine = None
        gc.collect()

    def _read_output(self, output: Any) -> EngineOutput:
        completion = output.outputs[0]
        adapter = None if output.lora_request is None else output.lora_request.lora_name
        ids = list(completion.token_ids)
        return EngineOutput(
            key=int(output.request_id.partition("-")[0]),
            ids=ids,
            logprobs=_read_logprobs(ids, completion.logprobs),
            versions=[self._version if adapter is None else self._versions[adapter]] * len(ids),
        )

    def _lora_request(self, name: str | None, number: int, path: str, **options: Any) -> Any:
        from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]

        return LoRARequest(lora_name=name, lora_int_id=number, lora_path=path or f"/{name}", **options)

    def _wake(self, part: str) -> None:
        if self._is_asleep:
            self._call_engine("wake_up", [part])
            self._is_asleep = part != "kv_cache"

    def _call_engine(self, method: str, *arguments: Any) -> None:
        getattr(self._engine, method)(*arguments)

    def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker."""
        try:
            return self._engine.collective_rpc(method, args=arguments)[0]
        except Exception as error:  # vLLM's own code, which differs between families of models
            reason = " ".join(str(error).split())[:300]
            raise EngineError(
                f"rollout=vllm: {method} failed in the engine of {self._model.name}: {reason}; use rollout=hf"
            ) from error


def _read_logprobs(ids: Sequence[int], found: Sequence[Mapping[int, Any]] | None) -> list[float] | None:
    """The log-probabilities of the tokens; None for drafts, which have none."""
    return None if found is None else [position[token].logprob for token, position in zip(ids, found, strict=True)]


def _by_layer(weights: Iterable[tuple[str, Tensor]]) -> Iterable[list[tuple[str, Tensor]]]:
    """Groups of consecutive tensors of one layer, copied: the engine keeps a layer's tensors until it is complete, and
    gathered ones are released before.
    """
    group: list[tuple[str, Tensor]] = []
    prefix = None
    for name, tensor in weights:
        own = ".".join(name.split(".")[:3])
        if group and own != prefix:
            yield group
            group = []
        prefix = own
        group.append((name, tensor.detach().clone()))
    if group:
        yield group
