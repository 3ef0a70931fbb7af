"""Methods that vLLM adds to its workers (`worker_extension_cls`): load weights, and read back what was loaded.

Runs in the process of a vLLM worker, which may be another one. Importing this module changes vLLM's CPU build, see
`cpu_build`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ippo_cli.rollout.shared_tensors import SharedTensors, boot_id
from ippo_cli.rollout.tensor_hash import TensorHash, tensor_hash
from ippo_cli.rollout.tensor_stream import receive_tensors
from ippo_cli.rollout.vllm.cpu_build import keep_expert_weights, keep_weights, pack_layers
from ippo_cli.rollout.vllm.weight_layout import ParameterHashes, WeightLayout

keep_weights()
keep_expert_weights()


class WorkerExtension:
    """Mixed into vLLM's worker; names begin with `ippo_` since they share its namespace."""

    model_runner: Any
    lora_config: Any
    _ippo_shapes: dict[str, dict[str, tuple[int, ...]]]  # by parameter and tensor

    def ippo_load_weights(self, weights: Iterable[tuple[str, Tensor]], mapped: bool) -> dict[str, list[str]]:
        """Load a model's weights by their names in a checkpoint; call `ippo_finish` after the last of them.

        Returns the engine's parameters that each tensor was loaded into; empty if they are `mapped` already. vLLM also
        names parameters that its model does not have, such as biases of heads; these are left out.
        """
        model: Any = self._ippo_model()
        places: dict[str, list[str]] = {}
        if not getattr(self, "_ippo_is_loading", False):
            from vllm.model_executor.model_loader.reload import initialize_layerwise_reload  # pyright: ignore[reportMissingImports]

            initialize_layerwise_reload(model)
            self._ippo_is_loading = True
            if not mapped:
                self._ippo_shapes = {}
        if mapped:
            model.load_weights(iter(weights))
            return {}
        known = set(self.ippo_parameters())
        for name, tensor in weights:
            places[name] = sorted(known.intersection(model.load_weights(iter([(name, tensor)])) or ()))
            for parameter in places[name]:
                self._ippo_shapes.setdefault(parameter, {})[name] = tuple(tensor.shape)
        return places

    def ippo_load_shared(self, folder: str, mapped: bool) -> dict[str, list[str]]:
        """As `ippo_load_weights`, for tensors in shared memory.

        Copies them: vLLM keeps a layer's tensors until the layer is complete, and the next ones replace these.
        """
        weights = SharedTensors(Path(folder)).read()
        return self.ippo_load_weights(((name, tensor.clone()) for name, tensor in weights), mapped)

    def ippo_load_streamed(
        self, host: str, port: int, token: str, timeout_s: float, mapped: bool
    ) -> dict[str, list[str]]:
        """As `ippo_load_weights`, for tensors that a trainer sends from another host."""
        return self.ippo_load_weights(receive_tensors(host, port, token, timeout_s), mapped)

    def ippo_receive_files(self, host: str, port: int, token: str, timeout_s: float) -> str:
        """Receive the files of a folder: the path of a copy, until `ippo_remove_files`."""
        self.ippo_remove_files()
        self._ippo_files = Path(tempfile.mkdtemp(prefix="ippo-adapter-"))
        for name, content in receive_tensors(host, port, token, timeout_s):
            (self._ippo_files / Path(name).name).write_bytes(content.numpy().tobytes())
        return str(self._ippo_files)

    def ippo_remove_files(self) -> None:
        """Remove the files of `ippo_receive_files`."""
        if (folder := getattr(self, "_ippo_files", None)) is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def ippo_describe(self, path: str) -> dict[str, Any]:
        """What a trainer compares before it sends weights. `word`: the text of a file, None where it cannot be read;
        `boot_id`: with it, whether the trainer's shared memory is that of this process.
        """
        self._ippo_is_loading = False  # a transfer of an earlier trainer may have been interrupted
        config = self.model_runner.vllm_config
        text = config.model_config.hf_text_config
        return {
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "vocab_size": text.vocab_size,
            "hidden_size": text.hidden_size,
            "num_hidden_layers": text.num_hidden_layers,
            "logprobs_mode": str(config.model_config.logprobs_mode),
            "logits_processors": [str(name) for name in config.model_config.logits_processors or ()],
            "max_loras": 0 if config.lora_config is None else config.lora_config.max_loras,
            "word": _read_text(Path(path)),
            "boot_id": boot_id(),
        }

    def ippo_finish(self) -> None:
        """Process what was loaded: pack weights of the CPU build, tie the head to the embeddings."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload  # pyright: ignore[reportMissingImports]

        model = self._ippo_model()
        finalize_layerwise_reload(model, self.model_runner.vllm_config.model_config)
        self._ippo_is_loading = False
        pack_layers(model)  # a tied head has no separate tensor: its packed copy would stay old
        self.model_runner.reset_lora_state()

    def ippo_parameters(self) -> list[str]:
        """The names of the model's parameters; tied ones once."""
        return [_plain_name(name) for name, _ in self._ippo_model().named_parameters()]

    def ippo_hashes(self) -> dict[str, ParameterHashes]:
        """The hashes of the tensors in every parameter (`WeightLayout.hash_parameter`), in the model's dtype."""
        dtype, layout = self.model_runner.vllm_config.model_config.dtype, self._ippo_layout()
        hashes = {}
        for full_name, parameter in self._ippo_model().named_parameters():
            name = _plain_name(full_name)
            values = parameter.to(dtype) if parameter.is_floating_point() else parameter
            hashes[name] = layout.hash_parameter(name, values, self._ippo_shapes.get(name, {}))
        return hashes

    def ippo_adapter_hashes(self, number: int) -> dict[str, list[TensorHash]]:
        """The hashes of an adapter's matrices in the slot that forwards read, by module and `A` or `B`: one for each
        layer that the module fuses.
        """
        manager = self.model_runner.lora_manager._adapter_manager
        slot = manager.lora_index_to_id.index(number)
        return {
            f"{name}.{part}": [tensor_hash(whole[slot]) for whole in _as_tuple(stacked)]
            for name, module in manager.modules.items()
            for part, stacked in (("A", module.lora_a_stacked), ("B", module.lora_b_stacked))
        }

    def ippo_adapters(self) -> list[int]:
        """The numbers of the adapters that the model has."""
        manager = self.model_runner.lora_manager._adapter_manager
        return [number for number in manager.lora_index_to_id if number is not None]

    def ippo_adapter_modules(self) -> dict[str, list[str]]:
        """By module of the engine, the names of the layers that it fuses; its own name otherwise."""
        manager = self.model_runner.lora_manager._adapter_manager
        return {name: list(manager.packed_modules.get(name, [name])) for name in manager.modules}

    def ippo_corrupt(self, name: str, fault: str = "") -> None:
        """Change a parameter as a faulty transfer would: for tests of the verification.

        `fault`: empty to change one element; `roll`: to shift rows by one; `swap:A:B:C`: to exchange C rows from A with
        those from B; `experts`: to exchange the first two.
        """
        parameters = {_plain_name(own): parameter for own, parameter in self._ippo_model().named_parameters()}
        values = parameters[name].data
        if fault == "roll":
            values.copy_(values.roll(1, 0))
        elif fault == "experts":
            values[[0, 1]] = values[[1, 0]]
        elif fault:
            first, second, count = (int(number) for number in fault.split(":")[1:])
            rows = values[0] if values.dim() > 2 else values
            first_rows = rows[first : first + count].clone()
            rows[first : first + count] = rows[second : second + count]
            rows[second : second + count] = first_rows
        else:
            values.view(-1)[0] += 1

    def _ippo_layout(self) -> WeightLayout:
        if getattr(self, "_ippo_known_layout", None) is None:  # models list all experts of every layer
            from vllm.distributed import parallel_state  # pyright: ignore[reportMissingImports]

            self._ippo_known_layout = WeightLayout(
                self._ippo_model(),
                rank=parallel_state.get_tensor_model_parallel_rank(),
                num_ranks=parallel_state.get_tensor_model_parallel_world_size(),
            )
        return self._ippo_known_layout

    def _ippo_model(self) -> nn.Module:
        return self.model_runner.get_model()


def compare_adapter(
    modules: Mapping[str, list[str]],
    hashes: Mapping[str, TensorHash],
    workers: Sequence[Mapping[str, Sequence[Sequence[int]]]],
) -> list[str]:
    """The matrices of an adapter that differ in some worker, and those that the engine has no place for.

    `modules`: the layers that each of the engine's modules fuses. `hashes`: expected, by `LAYER.A` and `LAYER.B`.
    `workers`: the hashes of each module's matrices in each worker (`WorkerExtension.ippo_adapter_hashes`).
    """
    wrong, known = [], set()
    for module, parts in modules.items():
        folder = module.rpartition(".")[0]
        layers = [part if "." in part else f"{folder}.{part}" for part in parts]
        for matrix in "AB":
            expected = [tuple(hashes.get(f"{layer}.{matrix}", (0, 0))) for layer in layers]
            known.update(f"{layer}.{matrix}" for layer in layers)
            if any([tuple(one) for one in found.get(f"{module}.{matrix}", ())] != expected for found in workers):
                wrong.append(f"{module}.lora_{matrix}")
    return sorted([*wrong, *(hashes.keys() - known)])


def _read_text(file: Path) -> str | None:
    try:
        return file.read_text()
    except OSError:  # on another host, or another user's
        return None


def _plain_name(name: str) -> str:
    """The name of a parameter without the wrapper of layers that can have adapters."""
    return name.replace(".base_layer.", ".")


def _as_tuple(stacked: Any) -> tuple[Tensor, ...]:
    return stacked if isinstance(stacked, tuple) else (stacked,)
