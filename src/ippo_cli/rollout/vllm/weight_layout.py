"""Where tensors of a checkpoint are in the engine's parameters, which fuse several of them, or have a part of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ippo_cli.rollout.tensor_hash import TensorHash, tensor_hash

WHOLE = ""
"""In place of the name of a tensor: the layout of the parameter is not known."""
SWAPPED_BACKENDS = ("FLASHINFER_CUTLASS",)
"""Kernels of experts that have the gate after the other projection."""
REORDERED_LAYERS = ("query_key_value",)
"""Layers of GPT-NeoX, BLOOM and Falcon: vLLM sorts their rows into queries, keys and values."""
ParameterHashes = dict[str, TensorHash]  # by tensor, or by WHOLE
TensorShapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPart:
    """A worker's part of a tensor, [rows, columns], and where it begins in the tensor."""

    values: Tensor
    row: int = 0
    column: int = 0

    @property
    def hash(self) -> TensorHash:
        return tensor_hash(self.values, row=self.row, column=self.column)


class WeightLayout:
    """The layout of a model's parameters, by the model's own description of what it fuses."""

    def __init__(self, model: nn.Module, *, rank: int, num_ranks: int) -> None:
        """`rank`, `num_ranks`: of tensor parallelism."""
        self._rank, self._num_ranks = rank, num_ranks
        self._fused: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", None) or {}
        self._experts: dict[str, tuple[int, str]] = {}  # by part of a tensor's name: number and w1, w2 or w3
        for module in model.modules():
            mapping: Any = getattr(module, "get_expert_mapping", None)
            if mapping is not None:
                for _, part, number, projection in mapping():
                    self._experts[part.replace("base_layer.", "")] = (number, projection)
        backends = {_backend_of(module) for module in model.modules()}
        self._swaps_gates = bool(backends.intersection(SWAPPED_BACKENDS))

    def hash_parameter(self, name: str, parameter: Tensor, shapes: TensorShapes) -> ParameterHashes:
        """The hash of each tensor in a parameter; that of the whole parameter if the layout is not known.

        `shapes`: of the tensors that were loaded into the parameter.
        """
        parts = self.find_parts(name, parameter, shapes)
        if parts is None:
            return {WHOLE: tensor_hash(parameter)}
        return {tensor: part.hash for tensor, part in parts.items()}

    def find_parts(self, name: str, parameter: Tensor, shapes: TensorShapes) -> dict[str, TensorPart] | None:
        """The part of each tensor in a parameter; None if the layout is not known."""
        if parameter.dim() > 2:
            return self._find_experts(parameter, shapes)
        if not shapes or _layer_of(name) in REORDERED_LAYERS:
            return None
        names = list(shapes) if len(shapes) == 1 else self._order_tensors(name, list(shapes))
        return None if names is None else self._find_rows(parameter, {tensor: shapes[tensor] for tensor in names})

    def _order_tensors(self, name: str, tensors: list[str]) -> list[str] | None:
        """The order of tensors in a fused parameter; None if the model does not name each of them once."""
        layers = self._fused.get(_layer_of(name), ())
        by_layer = {_layer_of(tensor): tensor for tensor in tensors}
        if len(by_layer) != len(tensors) or set(layers) != set(by_layer):
            return None
        return [by_layer[layer] for layer in layers]

    def _find_rows(self, parameter: Tensor, shapes: TensorShapes) -> dict[str, TensorPart] | None:
        """Tensors one below the other: whole, or for each rank an equal share of the rows or of the columns.

        One tensor alone may be followed by padding.
        """
        if any(len(shape) != parameter.dim() for shape in shapes.values()):
            return None
        column_shares = 1
        if parameter.dim() == 2 and any(shape[1] != parameter.shape[1] for shape in shapes.values()):
            column_shares = self._num_ranks
            if any(shape[1] != parameter.shape[1] * column_shares for shape in shapes.values()):
                return None
        rows, own_rows = sum(shape[0] for shape in shapes.values()), parameter.shape[0]
        row_shares = 1 if rows <= own_rows else self._num_ranks
        if rows > own_rows * row_shares or (len(shapes) > 1 and rows != own_rows * row_shares):
            return None
        parts, start = {}, 0
        for tensor, shape in shapes.items():
            count = shape[0] // row_shares if len(shapes) > 1 else min(shape[0], own_rows)
            row = self._rank * count if row_shares > 1 else 0
            parts[tensor] = TensorPart(
                values=parameter[start : start + max(0, min(count, shape[0] - row))],
                row=row,
                column=self._rank * parameter.shape[1] if column_shares > 1 else 0,
            )
            start += count
        return parts

    def _find_experts(self, parameter: Tensor, shapes: TensorShapes) -> dict[str, TensorPart] | None:
        """Projections of experts, [experts, rows, columns]: w1 above w3, or w2."""
        parts = {}
        for tensor, shape in shapes.items():
            found = next((place for part, place in self._experts.items() if part in tensor), None)
            if found is None or len(shape) != 2 or self._num_ranks > 1 or found[0] >= len(parameter):
                return None
            number, projection = found
            half = parameter.shape[1] // 2
            start = 0
            if projection != "w2":
                start = half if (projection == "w3") != self._swaps_gates else 0
            if start + shape[0] > parameter.shape[1] or shape[1] > parameter.shape[2]:
                return None
            parts[tensor] = TensorPart(values=parameter[number, start : start + shape[0], : shape[1]])
        return parts or None


def find_differing_tensors(
    places: Mapping[str, Sequence[str]],
    hashes: Mapping[str, TensorHash],
    workers: Sequence[Mapping[str, Mapping[str, Sequence[int]]]],
) -> list[str]:
    """The tensors that differ in some worker, and the parameters of workers that no tensor was loaded into.

    `places`: the parameters that each tensor was loaded into. `hashes`: expected, by tensor. `workers`: the hashes of
    each parameter in each worker (`WeightLayout.hash_parameter`).
    """
    tensors: dict[str, list[str]] = {name: [] for worker in workers for name in worker}
    for tensor, parameters in places.items():
        for parameter in parameters:
            tensors.setdefault(parameter, []).append(tensor)
    wrong: set[str] = set()
    for parameter, names in tensors.items():
        found = [worker.get(parameter, {}) for worker in workers]
        if not names:
            wrong.add(parameter)
        elif any(WHOLE in parts for parts in found):
            content = sum(hashes[name].content for name in names if name in hashes) % 2**64
            if not _is_found(content, [parts[WHOLE][0] if WHOLE in parts else None for parts in found]):
                wrong.update(names)
        else:
            for name in names:
                position = hashes[name].position if name in hashes else None
                if not _is_found(position, [parts[name][1] if name in parts else None for parts in found]):
                    wrong.add(name)
    return sorted(wrong)


def _is_found(expected: int | None, found: Sequence[int | None]) -> bool:
    """Whether workers have a tensor with this hash, whole in each or in parts."""
    if expected is None or None in found:
        return False
    return set(found) == {expected} or sum(part for part in found if part is not None) % 2**64 == expected


def _layer_of(name: str) -> str:
    """The layer in the name of a parameter: `q_proj` of `model.layers.0.self_attn.q_proj.weight`."""
    return name.split(".")[-2] if "." in name else name


def _backend_of(module: nn.Module) -> str:
    method: Any = getattr(module, "quant_method", None)
    return str(getattr(getattr(method, "unquantized_backend", None), "name", ""))
