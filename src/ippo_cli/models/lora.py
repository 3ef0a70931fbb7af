"""LoRA adapters on a frozen base that several learners share; the caller selects the active adapter.

peft creates the layers and defines the file format. The selection is implemented here: peft's own switch visits all
layers and changes `requires_grad`, but here several engines share one base. Importing peft takes seconds, so this file
is imported only with adapters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import peft
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ippo_cli.config.adapters import (
    ADAPTER_FILES,
    PEFT_PREFIX,
    StoredAdapter,
    check_same_settings,
    read_adapter,
    resolve_initial_settings,
    scale_for_module,
)
from ippo_cli.config.errors import PreflightError
from ippo_cli.config.schema import ALL_LINEAR, AdapterInit, AdapterMismatch, LoraConfig
from ippo_cli.models.actor import Policy
from ippo_cli.models.linear_maps import (
    Widths,
    base_name,
    is_named,
    linear_maps,
    other_modules,
    short_names,
    targeted_maps,
)
from ippo_cli.models.load import checkpoint_activations

ADAPTER_PARAMETERS = ("lora_A", "lora_B", "lora_magnitude_vector")
FINGERPRINT_SAMPLE = 64  # elements at each end of every parameter that enter the fingerprint of a base


class FrozenBase:
    """A frozen language model and the adapters on it. Not a module: engines must not see it."""

    def __init__(self, lm: PreTrainedModel, source: str) -> None:
        self.lm = lm.requires_grad_(False)
        self.source = source
        self.packs = False  # whether it receives packed rows, see `enable_packing`
        self.widths = linear_maps(lm)
        self.others = other_modules(lm)
        self.quantized = bool(getattr(lm, "is_quantized", False))
        self.fingerprint = None if self.quantized else _compute_fingerprint(lm)  # quantised weights match no file
        self.module_paths = [path for path, _ in lm.named_modules()]
        self._transposed = {path for path, part in lm.named_modules() if isinstance(part, Conv1D)}
        self._active_adapter: str | None = None  # the adapter of all rows
        self._row_adapters: _RowAdapters | None = None
        self._depth = 0  # nesting depth of `reading`
        self._factor_cache: dict[tuple[int, str], Tensor] = {}
        self._observed_shapes: dict[str, list[torch.Size]] | None = None  # inputs of layers, while they are recorded
        self._count = 0
        self.has_row_inputs = True  # whether every layer receives one row per row

    def add_adapter(
        self, config: LoraConfig, setting: str, seed: int, *, earlier: str | None = None, key: str = ""
    ) -> Adapter:
        """Add an adapter with no effect yet; its weights are a function of the seed. `setting`: the config group.

        `earlier`: the folder of an adapter to start from, and `key` its setting; `load` reads its weights.
        """

        def widths_of_targets(config: LoraConfig) -> dict[str, Widths]:
            return targeted_maps(self.widths, self.others, config, setting, base_name(self.source))

        config = resolve_initial_settings(config, earlier, key, lambda: widths_of_targets(config))
        maps = widths_of_targets(config)
        name, self._count = f"adapter{self._count}", self._count + 1
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            peft.inject_adapter_in_model(_peft_config(config, list(maps), self.source), self.lm, name)
        vars(self.lm).pop("peft_config", None)  # otherwise it would act as a peft model
        layers = {path: self.lm.get_submodule(path) for path in maps}
        for layer in layers.values():
            vars(layer)["forward"] = partial(self._forward, layer)
        for part, parameter in self.lm.named_parameters():
            parameter.requires_grad_(any(f".{kind}." in part for kind in ADAPTER_PARAMETERS))
        self._check_target_modules_used(layers)
        return Adapter(self, name, config, layers)

    @contextmanager
    def use_adapter(self, adapter: str | None) -> Iterator[None]:
        """Run the forwards inside with this adapter, or with the base alone."""
        before = self._active_adapter, self._row_adapters
        self._active_adapter, self._row_adapters = adapter, None
        try:
            with self._share_dora_factors():
                yield
        finally:
            self._active_adapter, self._row_adapters = before

    @contextmanager
    def _share_dora_factors(self) -> Iterator[None]:
        """Within the outermost context, forwards without gradients share DoRA's factors."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._factor_cache.clear()

    @contextmanager
    def policies_by_row(self, policies: Sequence[Policy]) -> Iterator[Callable[[Tensor], None]]:
        """Run every row of the forwards inside with the adapter of one of the policies, see `MultiAdapterBatch`."""
        by_row, before = _RowAdapters([policy.adapter.name for policy in policies]), self._row_adapters  # type: ignore[attr-defined]

        def select(rows: Tensor) -> None:
            by_row.select(rows)
            self._row_adapters = by_row

        try:
            with self._share_dora_factors():
                yield select
        finally:
            self._row_adapters = before

    def checkpoint_gradients(self) -> None:
        """Recompute activations in the backward pass, with the adapter of the forward pass."""

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), self.use_adapter(self._active_adapter)

        checkpoint_activations(self.lm, context_fn=contexts)

    def merge_adapter(
        self, adapter: Adapter, weights: Mapping[str, Tensor], dtype: torch.dtype = torch.float32
    ) -> dict[str, Tensor]:
        """The base's weights plus an adapter's `weights` (by registered name).

        Lossless in float32 for every dtype of the base; bf16 loses changes below half a rounding step. Raises
        `PreflightError` for a quantised base, which has no weights to add to.
        """
        if self.quantized:
            raise PreflightError(
                "actor.model_args: an adapter cannot be merged into a quantised base; keep it as an adapter "
                "(ippo-export merged=false), or merge it with peft into the base as it is stored"
            )
        state: dict[str, Tensor] = {}
        for name, tensor in self.lm.state_dict().items():
            if ".lora_" not in name:
                tensor = tensor.to(dtype=dtype) if tensor.is_floating_point() else tensor
                state[name.replace(".base_layer.", ".")] = tensor.cpu()
        for path, own, change in self.weight_changes(adapter, weights):
            state[f"{path}.weight"] = (own + change).to(dtype).cpu()
        return state

    def weight_changes(self, adapter: Adapter, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
        """By map: its path, the base's weight and the adapter's change of it, both in float32."""
        for path, scale in adapter.scales.items():
            layer: Any = self.lm.get_submodule(path)
            own = layer.base_layer.weight.detach().float()
            down, up = (weights[f"{_module_key(path)}.{part}.weight"].to(own.device, torch.float32) for part in "AB")
            product = scale * (up @ down)
            if (magnitude := weights.get(f"{_module_key(path)}.M.weight")) is not None:
                whole = (own.T if path in self._transposed else own) + product
                product = _row_factors(whole, magnitude.to(own.device))[:, None] * whole - (whole - product)
            yield path, own, product.T if path in self._transposed else product

    def _forward(self, layer: Any, states: Tensor) -> Tensor:
        """Output of one map: base plus active adapter."""
        if self._observed_shapes is not None:
            self._observed_shapes.setdefault(str(id(layer)), []).append(states.shape)
        result: Tensor = layer.base_layer(states)
        if self._row_adapters is not None:
            change = self._row_adapters.change(layer, states)
            if change is None:
                return result
            factors = self._row_adapters.factors(layer, self._dora_factors)
            return result + self._scale_change(layer, result, change, factors).to(result.dtype)
        name = self._active_adapter
        if name is None or name not in layer.lora_A:
            return result
        down, up = layer.lora_A[name], layer.lora_B[name]
        change = up(down(states.to(down.weight.dtype))) * layer.scaling[name]
        return result + self._scale_change(layer, result, change, self._dora_factors(layer, name)).to(result.dtype)

    def _scale_change(self, layer: Any, result: Tensor, change: Tensor, factors: Tensor | None) -> Tensor:
        """The summand to the base's `result`: the low-rank `change`, or with DoRA's row factors f `f (result - bias +
        change) - (result - bias)`, as in PEFT.
        """
        if factors is None:
            return change
        bias = layer.base_layer.bias
        plain = (result if bias is None else result - bias).float()
        return (factors - 1.0) * plain + factors * change.float()

    def _dora_factors(self, layer: Any, name: str) -> Tensor | None:
        """DoRA's factor of every row of a map, `[out]` float32; None for an adapter without DoRA.

        Norms are constants for gradients, as in the paper (section 4.3). Without gradients they are computed once for
        all forwards inside the outermost `reading`, where weights do not change.
        """
        if name not in layer.lora_magnitude_vector:
            return None
        key = id(layer), name
        if not torch.is_grad_enabled() and key in self._factor_cache:
            return self._factor_cache[key]
        magnitude = layer.lora_magnitude_vector[name].weight
        with torch.no_grad():
            weight = layer.base_layer.weight.float()
            weight = weight.T if isinstance(layer.base_layer, Conv1D) else weight
            down, up = layer.lora_A[name].weight.float(), layer.lora_B[name].weight.float()
            whole = weight + layer.scaling[name] * (up @ down)
        factors = _row_factors(whole, magnitude)
        if not torch.is_grad_enabled() and self._depth:
            self._factor_cache[key] = factors
        return factors

    @torch.no_grad()
    def _check_target_modules_used(self, layers: Mapping[str, nn.Module]) -> None:
        """Check that layers call their maps: an adapter on a map that is used without a call has no effect."""
        rows, columns = 2, 3
        ids = torch.arange(5, 5 + rows * columns, device=self.lm.device).view(rows, columns)
        self._observed_shapes = {}
        try:
            self.lm(input_ids=ids % self.lm.config.get_text_config().vocab_size, use_cache=False)
            for path, layer in layers.items():
                shapes = self._observed_shapes.get(str(id(layer)))
                if not shapes:
                    raise PreflightError(
                        f"actor.model={self.source}: it reads {path} without calling it, and an adapter there has no "
                        "effect; remove it from target_modules"
                    )
                self.has_row_inputs = self.has_row_inputs and all(shape[:2] == (rows, columns) for shape in shapes)
        finally:
            self._observed_shapes = None


class _RowAdapters:
    """The adapters of a forward's rows: all are computed for every row, and those of other rows are masked.

    Each map then needs two matrix products, for any number of adapters, which are narrow.
    """

    def __init__(self, adapters: Sequence[str]) -> None:
        self._adapters = tuple(adapters)
        self._stack_cache: dict[int, tuple[Tensor, Tensor, tuple[tuple[int, int, float], ...]]] = {}
        self._rows: Tensor | None = None
        self._scale_cache: dict[tuple[tuple[int, int, float], ...], Tensor] = {}

    def select(self, rows: Tensor) -> None:
        """Set the adapter index of the rows `[n]` of the next forwards."""
        self._rows = rows
        self._scale_cache = {}

    def change(self, layer: Any, states: Tensor) -> Tensor | None:
        """The adapters' change of a map's output for `states [n, L, H]`; None if none of them covers the map."""
        if not any(name in layer.lora_A for name in self._adapters):
            return None
        if id(layer) not in self._stack_cache:
            self._stack_cache[id(layer)] = self._stack_adapters(layer)
        down, up, parts = self._stack_cache[id(layer)]
        inner = linear(states.to(down.dtype), down)
        return linear(inner * self._scales(parts, inner)[:, None], up)

    def factors(self, layer: Any, of_adapter: Callable[[Any, str], Tensor | None]) -> Tensor | None:
        """DoRA's factors of each row's adapter, `[n, 1, out]`; None if no adapter uses DoRA."""
        per_adapter = [of_adapter(layer, name) for name in self._adapters]
        known = next((factors for factors in per_adapter if factors is not None), None)
        if known is None:
            return None
        assert self._rows is not None
        stacked = torch.stack([torch.ones_like(known) if factors is None else factors for factors in per_adapter])
        return stacked[self._rows.to(stacked.device)][:, None]

    def _stack_adapters(self, layer: Any) -> tuple[Tensor, Tensor, tuple[tuple[int, int, float], ...]]:
        present = [(place, name) for place, name in enumerate(self._adapters) if name in layer.lora_A]
        down = torch.cat([layer.lora_A[name].weight for _, name in present])
        up = torch.cat([layer.lora_B[name].weight for _, name in present], dim=1)
        return down, up, tuple((place, layer.r[name], layer.scaling[name]) for place, name in present)

    def _scales(self, parts: tuple[tuple[int, int, float], ...], like: Tensor) -> Tensor:
        """`[n, ranks of all]`: an adapter's scale for its own rows, and 0 for others."""
        if parts not in self._scale_cache:
            assert self._rows is not None
            owner = torch.tensor([place for place, rank, _ in parts for _ in range(rank)], device=like.device)
            scale = torch.tensor([scale for _, rank, scale in parts for _ in range(rank)], device=like.device)
            self._scale_cache[parts] = ((self._rows[:, None] == owner) * scale).to(like.dtype)
        return self._scale_cache[parts]


class Adapter(nn.Module):
    """The weights of one adapter, which engines train and save; its base is not registered as a submodule."""

    def __init__(self, base: FrozenBase, name: str, config: LoraConfig, layers: Mapping[str, Any]) -> None:
        super().__init__()
        self.__dict__["base"] = base
        self.base: FrozenBase
        self.name, self.config = name, config
        self.scales = {path: float(layer.scaling[name]) for path, layer in layers.items()}
        for path, layer in layers.items():
            parts = {"A": layer.lora_A[name], "B": layer.lora_B[name]}
            if name in layer.lora_magnitude_vector:
                parts["M"] = layer.lora_magnitude_vector[name]
            self.add_module(_module_key(path), nn.ModuleDict(parts))

    @property
    def largest_rank(self) -> int:
        """The largest rank over its maps."""
        return max(parameter.shape[0] for name, parameter in self.named_parameters() if name.endswith(".A.weight"))

    def activate(self) -> AbstractContextManager[None]:
        """Run forwards of the base inside with this adapter."""
        return self.base.use_adapter(self.name)

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """Write `weights`, by registered name, in peft's format."""
        folder.mkdir(parents=True, exist_ok=True)
        _peft_config(self.config, self._target_names(), self.base.source).save_pretrained(str(folder))
        made_for = self.base.fingerprint
        named = {_peft_name(name): tensor.contiguous() for name, tensor in weights.items()}
        _write_safetensors(
            folder / ADAPTER_FILES[1], named, {"format": "pt"} | ({} if made_for is None else {"base": made_for})
        )

    def _target_names(self) -> list[str]:
        """The shortest target names that match exactly these maps."""
        names = self.config.target_modules
        if names != ALL_LINEAR:
            return list(names)
        names = short_names(list(self.scales))
        meant = {path for path in self.base.module_paths for name in names if is_named(name, path)}
        return names if meant == self.scales.keys() else list(self.scales)

    @torch.no_grad()
    def load(self, folder: Path, setting: str) -> None:
        """Load a saved adapter. Raises `PreflightError` for another shape, kind or base.

        With `adapter_mismatch=merge` it may have a lower rank, another scale, and fewer modules: its rows of A become
        the first ones, its columns of B are rescaled, and the other columns of B are zero, so that outputs are equal.
        """
        where = f"{setting}={folder}"
        adapter = read_adapter(folder, setting)
        merges = self.config.adapter_mismatch is AdapterMismatch.merge
        if not merges:
            check_same_settings(self.config, adapter, where)
        stored = self._read_weights(adapter, where)
        if merges:
            stored = self._expand_weights(adapter, stored)
        self._check_shapes(stored, where)
        for name, parameter in self.named_parameters():
            parameter.copy_(stored[_peft_name(name)])

    def _read_weights(self, adapter: StoredAdapter, where: str) -> dict[str, Tensor]:
        """Weights by PEFT's names. Raises `PreflightError` if they are unreadable, or belong to another base."""
        try:
            with safe_open(adapter.folder / ADAPTER_FILES[1], "pt") as file:
                stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
                made_for = (file.metadata() or {}).get("base")
        except Exception as error:
            raise PreflightError(f"{where}: {ADAPTER_FILES[1]} cannot be read ({error})") from error
        if None not in (made_for, self.base.fingerprint) and made_for != self.base.fingerprint:
            self._check_shapes(stored, where)  # a more specific error, if shapes differ
            raise PreflightError(f"{where}: it was made for another base than {base_name(self.base.source)}")
        return stored

    def _expand_weights(self, adapter: StoredAdapter, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights of a saved adapter expanded to the shapes of this one, with equal outputs."""
        result: dict[str, Tensor] = {}
        for path, scale in self.scales.items():
            own = {part: getattr(self, _module_key(path))[part].weight.detach().clone() for part in "AB"}
            if rank := adapter.module_rank(path):
                down, up = (stored[f"{PEFT_PREFIX}{path}.lora_{part}.weight"].to(own[part].device) for part in "AB")
                factor = scale_for_module(adapter.settings, path, rank) / scale
                own["A"][:rank] = down
                own["B"].zero_()
                own["B"][:, :rank] = (up.float() * factor).to(own["B"].dtype)
            result |= {f"{PEFT_PREFIX}{path}.lora_{part}.weight": weight for part, weight in own.items()}
        return result | {name: tensor for name, tensor in stored.items() if name not in result}

    def _check_shapes(self, stored: Mapping[str, Tensor], where: str) -> None:
        own = {_peft_name(name): parameter for name, parameter in self.named_parameters()}
        base = f"the base {base_name(self.base.source)}"
        if odd := sorted(own.keys() ^ stored.keys()):
            difference = "it lacks" if odd[0] in own else "it also has"
            raise PreflightError(
                f"{where}: it does not fit {base} with these target_modules: {difference} "
                f"{odd[0].removeprefix(PEFT_PREFIX)}; adapter_mismatch=merge uses the modules of both"
            )
        for name, parameter in own.items():
            if stored[name].shape != parameter.shape:
                raise PreflightError(
                    f"{where}: it was made for another base: {name.removeprefix(PEFT_PREFIX)} is "
                    f"{list(stored[name].shape)}, and {base} requires {list(parameter.shape)}"
                )


def _peft_config(config: LoraConfig, targets: Sequence[str], source: str) -> peft.LoraConfig:
    return peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # pyright: ignore[reportArgumentType]  (only ever multiplied)
        use_rslora=config.use_rslora,
        use_dora=config.use_dora,
        init_lora_weights="gaussian" if config.init is AdapterInit.gaussian else True,
        target_modules=list(targets),
        rank_pattern=dict(config.rank_pattern),
        alpha_pattern=dict(config.alpha_pattern),
        lora_dropout=0.0,
        base_model_name_or_path=source,
    )


def _row_factors(whole: Tensor, magnitude: Tensor) -> Tensor:
    """A trained magnitude divided by the norm of each row of `whole` `[out, in]`: `[out]`, float32.

    The norm is rounded to the magnitude's dtype, as in PEFT, so that a new adapter has factors of exactly 1.
    """
    return magnitude.float() / whole.norm(dim=1).to(magnitude.dtype).float()


def _module_key(path: str) -> str:
    """A module's path as a valid module name."""
    return path.replace(".", "/")


def _peft_name(name: str) -> str:
    """The name of `model/layers/0/q_proj.A.weight` in peft's files."""
    path, part, _ = name.rsplit(".", 2)
    if part == "M":
        return f"{PEFT_PREFIX}{path.replace('/', '.')}.lora_magnitude_vector"
    return f"{PEFT_PREFIX}{path.replace('/', '.')}.lora_{part}.weight"


def _write_safetensors(file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file deterministically: the library writes metadata in arbitrary order."""
    data = save(dict(tensors), dict(metadata))
    start = 8 + int.from_bytes(data[:8], "little")  # of the tensors, after the header and its length
    header = json.loads(data[8:start]) | {"__metadata__": dict(sorted(metadata.items()))}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    file.write_bytes(data[:8] + text.ljust(start - 8) + data[start:])


@torch.no_grad()
def _compute_fingerprint(lm: PreTrainedModel) -> str:
    """Fingerprint of a base: the ends of all parameters, in bf16, since it may be loaded in either dtype."""
    digest = hashlib.sha256()
    for name, parameter in sorted(lm.named_parameters()):
        flat = parameter.flatten()
        ends = (
            torch.cat([flat[:FINGERPRINT_SAMPLE], flat[-FINGERPRINT_SAMPLE:]])
            .to(torch.bfloat16)
            .view(torch.int16)
            .cpu()
        )
        digest.update(f"{name} {list(parameter.shape)}".encode() + ends.numpy().tobytes())
    return digest.hexdigest()


def load_adapter(base: FrozenBase, folder: Path, setting: str) -> Adapter:
    """Load a saved adapter with its own settings, on its base."""
    adapter = base.add_adapter(read_adapter(folder, setting).settings, setting, seed=0)
    adapter.load(folder, setting)
    return adapter


def load_with_peft(folder: Path, dtype: torch.dtype) -> nn.Module:
    """Load an adapter folder, with the base that it names, through peft."""
    return peft.AutoPeftModelForCausalLM.from_pretrained(str(folder), dtype=dtype)
