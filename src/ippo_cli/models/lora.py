"""LoRA adapters on a frozen base that several learners share: which one a forward reads with is chosen outside of it.

peft makes the layers and says how files look. What is not peft's is the choice: its own switch walks through all layers
and changes what requires a gradient, and here engines live side by side on one base. Importing peft takes seconds, so
that this file is imported where there are adapters only.
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
FINGERPRINT_SAMPLE = 64  # elements at each end of every parameter that a base is told apart by


class FrozenBase:
    """A language model whose own weights never change, and the adapters on it. No module: engines must not see it."""

    def __init__(self, lm: PreTrainedModel, source: str) -> None:
        self.lm = lm.requires_grad_(False)
        self.source = source
        self.packs = False  # whether it is given packed rows, see `enable_packing`
        self.widths = linear_maps(lm)
        self.others = other_modules(lm)
        self.quantized = bool(getattr(lm, "is_quantized", False))
        self.fingerprint = (
            None if self.quantized else _compute_fingerprint(lm)
        )  # quantised weights are those of no file
        self.parts = [path for path, _ in lm.named_modules()]
        self._transposed = {path for path, part in lm.named_modules() if isinstance(part, Conv1D)}
        self._reading: str | None = None  # the adapter of all rows
        self._row_adapters: _RowAdapters | None = None
        self._depth = 0  # of `reading` within `reading`
        self._factor_cache: dict[tuple[int, str], Tensor] = {}
        self._observed_shapes: dict[str, list[torch.Size]] | None = (
            None  # what layers were given, while that is looked at
        )
        self._count = 0
        self.has_row_inputs = True  # whether every layer sees rows as rows

    def add(self, config: LoraConfig, setting: str, seed: int, *, earlier: str | None = None, key: str = "") -> Adapter:
        """A new adapter, which changes nothing yet: weights are a function of the seed. `setting`: its group's name.

        `earlier`: the folder of the adapter that it is to start from, which `key` names; `load` takes up its weights.
        """

        def targeted(config: LoraConfig) -> dict[str, Widths]:
            return targeted_maps(self.widths, self.others, config, setting, base_name(self.source))

        config = resolve_initial_settings(config, earlier, key, lambda: targeted(config))
        maps = targeted(config)
        name, self._count = f"adapter{self._count}", self._count + 1
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            peft.inject_adapter_in_model(_peft_config(config, list(maps), self.source), self.lm, name)
        vars(self.lm).pop("peft_config", None)  # else it would take itself for a model of peft's
        layers = {path: self.lm.get_submodule(path) for path in maps}
        for layer in layers.values():
            vars(layer)["forward"] = partial(self._forward, layer)
        for part, parameter in self.lm.named_parameters():
            parameter.requires_grad_(any(f".{kind}." in part for kind in ADAPTER_PARAMETERS))
        self._check_target_modules_used(layers)
        return Adapter(self, name, config, layers)

    @contextmanager
    def reading(self, adapter: str | None) -> Iterator[None]:
        """Forwards inside read with this adapter, or with the base alone."""
        before = self._reading, self._row_adapters
        self._reading, self._row_adapters = adapter, None
        try:
            with self._share_dora_factors():
                yield
        finally:
            self._reading, self._row_adapters = before

    @contextmanager
    def _share_dora_factors(self) -> Iterator[None]:
        """Within the outermost of these, forwards without gradients share DoRA's factors."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._factor_cache.clear()

    @contextmanager
    def policies_by_row(self, policies: Sequence[Policy]) -> Iterator[Callable[[Tensor], None]]:
        """Forwards inside read every row with the adapter of one of the policies, see `MultiAdapterBatch`."""
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
        """Recompute activations in the backward pass, with the adapter that the forward pass read with."""

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), self.reading(self._reading)

        checkpoint_activations(self.lm, context_fn=contexts)

    def merged(
        self, adapter: Adapter, weights: Mapping[str, Tensor], dtype: torch.dtype = torch.float32
    ) -> dict[str, Tensor]:
        """The base's weights with an adapter's `weights` (by the names that it registers) added to them.

        In float32 nothing is lost whatever the base's type. In bf16 a change of less than half a rounding step is.
        Raises `PreflightError` for a quantised base, which has no weights to add to.
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
        """By map its path, the base's weight and what an adapter's `weights` add to it, both in float32."""
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
        """Of one map: the base's, and what the adapter in use adds."""
        if self._observed_shapes is not None:
            self._observed_shapes.setdefault(str(id(layer)), []).append(states.shape)
        result: Tensor = layer.base_layer(states)
        if self._row_adapters is not None:
            change = self._row_adapters.change(layer, states)
            if change is None:
                return result
            factors = self._row_adapters.factors(layer, self._dora_factors)
            return result + self._scale_change(layer, result, change, factors).to(result.dtype)
        name = self._reading
        if name is None or name not in layer.lora_A:
            return result
        down, up = layer.lora_A[name], layer.lora_B[name]
        change = up(down(states.to(down.weight.dtype))) * layer.scaling[name]
        return result + self._scale_change(layer, result, change, self._dora_factors(layer, name)).to(result.dtype)

    def _scale_change(self, layer: Any, result: Tensor, change: Tensor, factors: Tensor | None) -> Tensor:
        """What is added to the base's `result`: the low-rank `change`, or with DoRA's row factors f
        `f (result - bias + change) - (result - bias)`, as PEFT adds it."""
        if factors is None:
            return change
        bias = layer.base_layer.bias
        plain = (result if bias is None else result - bias).float()
        return (factors - 1.0) * plain + factors * change.float()

    def _dora_factors(self, layer: Any, name: str) -> Tensor | None:
        """DoRA's factor of every row of a map, `[out]` float32; None for an adapter without one.

        Norms are constants for gradients, as in the paper (section 4.3). Without gradients they are computed once for
        all forwards inside of the outermost `reading`, in which no weight changes.
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
        """Some models use a map's weights without calling it, which would leave its adapter without effect."""
        rows, columns = 2, 3
        ids = torch.arange(5, 5 + rows * columns, device=self.lm.device).view(rows, columns)
        self._observed_shapes = {}
        try:
            self.lm(input_ids=ids % self.lm.config.get_text_config().vocab_size, use_cache=False)
            for path, layer in layers.items():
                shapes = self._observed_shapes.get(str(id(layer)))
                if not shapes:
                    raise PreflightError(
                        f"actor.model={self.source}: it reads {path} without calling it, and an adapter there would do "
                        "nothing; leave it out of target_modules"
                    )
                self.has_row_inputs = self.has_row_inputs and all(shape[:2] == (rows, columns) for shape in shapes)
        finally:
            self._observed_shapes = None


class _RowAdapters:
    """The adapters of a forward's rows: all of them are computed for every row, and all but its own struck out.

    Each map is then two matrix products, however many adapters there are, and adapters are narrow.
    """

    def __init__(self, adapters: Sequence[str]) -> None:
        self._adapters = tuple(adapters)
        self._stack_cache: dict[int, tuple[Tensor, Tensor, tuple[tuple[int, int, float], ...]]] = {}
        self._rows: Tensor | None = None
        self._scale_cache: dict[tuple[tuple[int, int, float], ...], Tensor] = {}

    def select(self, rows: Tensor) -> None:
        """The places of the adapters, among those given, with which the rows `[n]` of the next forwards are read."""
        self._rows = rows
        self._scale_cache = {}

    def change(self, layer: Any, states: Tensor) -> Tensor | None:
        """What adapters add to a map's output for `states [n, L, H]`; None where only others, as a critic's, sit."""
        if not any(name in layer.lora_A for name in self._adapters):
            return None
        if id(layer) not in self._stack_cache:
            self._stack_cache[id(layer)] = self._stack(layer)
        down, up, parts = self._stack_cache[id(layer)]
        inner = linear(states.to(down.dtype), down)
        return linear(inner * self._scales(parts, inner)[:, None], up)

    def factors(self, layer: Any, of_adapter: Callable[[Any, str], Tensor | None]) -> Tensor | None:
        """DoRA's factors of each row's adapter, `[n, 1, out]`; None where no adapter has any."""
        found = [of_adapter(layer, name) for name in self._adapters]
        known = next((factors for factors in found if factors is not None), None)
        if known is None:
            return None
        assert self._rows is not None
        stacked = torch.stack([torch.ones_like(known) if factors is None else factors for factors in found])
        return stacked[self._rows.to(stacked.device)][:, None]

    def _stack(self, layer: Any) -> tuple[Tensor, Tensor, tuple[tuple[int, int, float], ...]]:
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
    """The weights of one adapter, which engines train and save; its base is registered nowhere in it."""

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

    def reading(self) -> AbstractContextManager[None]:
        """Forwards of the base inside read with this adapter."""
        return self.base.reading(self.name)

    def save(self, folder: Path, weights: Mapping[str, Tensor]) -> None:
        """`weights` by registered names, in peft's format."""
        folder.mkdir(parents=True, exist_ok=True)
        _peft_config(self.config, self._target_names(), self.base.source).save_pretrained(str(folder))
        made_for = self.base.fingerprint
        named = {_peft_name(name): tensor.contiguous() for name, tensor in weights.items()}
        _write_safetensors(
            folder / ADAPTER_FILES[1], named, {"format": "pt"} | ({} if made_for is None else {"base": made_for})
        )

    def _target_names(self) -> list[str]:
        """As short as they can be to be read as these maps and no other module."""
        names = self.config.target_modules
        if names != ALL_LINEAR:
            return list(names)
        names = short_names(list(self.scales))
        meant = {path for path in self.base.parts for name in names if is_named(name, path)}
        return names if meant == self.scales.keys() else list(self.scales)

    @torch.no_grad()
    def load(self, folder: Path, setting: str) -> None:
        """Take up an earlier adapter. Raises `PreflightError` where it is of another shape, kind or base.

        With `adapter_mismatch=merge` it may have a lower rank, another scale, and fewer modules: its rows of A are the
        first ones, its columns of B are scaled, and the other columns of B are zero, so that both compute the same.
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
        """By PEFT's names. Raises `PreflightError` where they cannot be read, or are those of another base."""
        try:
            with safe_open(adapter.folder / ADAPTER_FILES[1], "pt") as file:
                stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
                made_for = (file.metadata() or {}).get("base")
        except Exception as error:
            raise PreflightError(f"{where}: {ADAPTER_FILES[1]} cannot be read ({error})") from error
        if None not in (made_for, self.base.fingerprint) and made_for != self.base.fingerprint:
            self._check_shapes(stored, where)  # says more, where shapes differ
            raise PreflightError(f"{where}: it was made for another base than {base_name(self.base.source)}")
        return stored

    def _expand_weights(self, adapter: StoredAdapter, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """An earlier adapter's weights in the shapes of this one, which computes the same with them."""
        result: dict[str, Tensor] = {}
        for path, scale in self.scales.items():
            own = {part: getattr(self, _module_key(path))[part].weight.detach().clone() for part in "AB"}
            if rank := adapter.rank(path):
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
                f"{odd[0].removeprefix(PEFT_PREFIX)}; adapter_mismatch=merge takes the modules of both"
            )
        for name, parameter in own.items():
            if stored[name].shape != parameter.shape:
                raise PreflightError(
                    f"{where}: it was made for another base: {name.removeprefix(PEFT_PREFIX)} is "
                    f"{list(stored[name].shape)}, and {base} wants {list(parameter.shape)}"
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
    """A trained magnitude by the norm of each row of `whole` `[out, in]`: `[out]`, float32.

    The norm is rounded to the magnitude's type, as PEFT does, so that a new adapter has factors of exactly 1.
    """
    return magnitude.float() / whole.norm(dim=1).to(magnitude.dtype).float()


def _module_key(path: str) -> str:
    """A module's path as the name of one module."""
    return path.replace(".", "/")


def _peft_name(name: str) -> str:
    """`model/layers/0/q_proj.A.weight` as peft's files have it."""
    path, part, _ = name.rsplit(".", 2)
    if part == "M":
        return f"{PEFT_PREFIX}{path.replace('/', '.')}.lora_magnitude_vector"
    return f"{PEFT_PREFIX}{path.replace('/', '.')}.lora_{part}.weight"


def _write_safetensors(file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A safetensors file that is the same bytes each time: the library puts metadata in any order."""
    data = save(dict(tensors), dict(metadata))
    start = 8 + int.from_bytes(data[:8], "little")  # of the tensors, behind the header and its length
    header = json.loads(data[8:start]) | {"__metadata__": dict(sorted(metadata.items()))}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    file.write_bytes(data[:8] + text.ljust(start - 8) + data[start:])


@torch.no_grad()
def _compute_fingerprint(lm: PreTrainedModel) -> str:
    """Of a base: the ends of all of its parameters, in bf16, for it may be loaded in either format."""
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
    """An earlier adapter with its own settings, on its base."""
    adapter = base.add(read_adapter(folder, setting).settings, setting, seed=0)
    adapter.load(folder, setting)
    return adapter


def load_with_peft(folder: Path, dtype: torch.dtype) -> nn.Module:
    """A folder with an adapter, on the base that it names, as peft itself loads it."""
    return peft.AutoPeftModelForCausalLM.from_pretrained(str(folder), dtype=dtype)
