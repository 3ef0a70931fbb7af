"""Loads shards of another world size: whole parameters and optimizer states, parameter by parameter.

DeepSpeed's universal checkpoints need a conversion program and support only ZeRO's own stages; on one rank an engine
here may have none (`zero_config.effective_stage`). A shard's content is simple: fp32 values and the optimizer's
tensors, flat, in the order of the parameters, each rank with its part. So this module reads the files directly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

VALUE = "value"  # key beside the names of the optimizer's tensors
FullState = dict[str, Tensor]
"""A flat fp32 parameter and its optimizer state: flat tensors, or scalars such as `step`."""


class Shards:
    """The shards of one engine from all ranks of another world size; memory-mapped, read rank by rank."""

    def __init__(self, folder: Path, names: Sequence[str], read: Callable[[str], dict[str, Any]]) -> None:
        """`names`: of the trained parameters, in the optimizer's order."""
        self.names = names
        models = sorted(folder.glob("*model_states.pt"), key=_rank_of_file)
        files = sorted(folder.glob("*optim_states.pt"), key=_rank_of_file)
        if not models:
            raise FileNotFoundError(f"{folder}: no shards of an engine here")
        self.model = read(str(models[0]))
        self._parts = [read(str(file))["optimizer_state_dict"] for file in files]

    @property
    def module(self) -> Mapping[str, Tensor]:
        """The module's state; sharded weights have only their names."""
        return self.model["module"]

    def __iter__(self) -> Iterator[tuple[str, FullState]]:
        """Iterate over every parameter by name."""
        if not self._parts:
            yield from self._stage0_states()
        elif "param_slice_mappings" in self._parts[0]:
            yield from self._stage12_states()
        else:
            yield from self._stage3_states()

    def _stage0_states(self) -> Iterator[tuple[str, FullState]]:
        """States of stage 0: the torch optimizer's state."""
        states = self.model["optimizer"]["state"]
        for number, name in enumerate(self.names):
            yield name, {VALUE: self.module[name].flatten(), **_flatten_state(states.get(number, {}))}

    def _stage12_states(self) -> Iterator[tuple[str, FullState]]:
        """States of stages 1 and 2: a group is one flat tensor of parameters, and each rank has a slice of it."""
        for group in range(len(self._parts[0]["param_slice_mappings"])):
            places = [part["param_slice_mappings"][group] for part in self._parts]
            states = [part["base_optimizer_state"]["state"].get(group, {}) for part in self._parts]
            values = [part["single_partition_of_fp32_groups"][group] for part in self._parts]
            for name in dict.fromkeys(name for own in places for name in own):
                slices = [(rank, own[name]) for rank, own in enumerate(places) if name in own]
                ranges = [(rank, place.start, place.numel) for rank, place in slices]
                yield name, _join_shards(values, states, ranges)

    def _stage3_states(self) -> Iterator[tuple[str, FullState]]:
        """States of stage 3: each parameter is split over all ranks, padded at the end."""
        values = [torch.cat([group.flatten() for group in part["fp32_flat_groups"]]) for part in self._parts]
        states = [_concatenate_groups(part["optimizer_state_dict"]["state"]) for part in self._parts]
        shapes = {name: shape for group in self.model["param_shapes"] for name, shape in group.items()}
        start = 0
        for name, shape in shapes.items():
            numel = int(torch.Size(shape).numel())
            own = -(-numel // len(self._parts))
            whole = _join_shards(values, states, [(rank, start, own) for rank in range(len(self._parts))])
            yield name, {key: tensor if tensor.ndim == 0 else tensor[:numel] for key, tensor in whole.items()}
            start += own


def _rank_of_file(file: Path) -> int:
    """`zero_pp_rank_12_mp_rank_00_optim_states.pt` -> 12."""
    _, separator, after = file.name.partition("pp_rank_")
    return int(after.split("_")[0]) if separator else 0


def _flatten_state(state: Mapping[str, Any]) -> FullState:
    return {key: tensor.flatten() if tensor.ndim else tensor for key, tensor in state.items()}


def _concatenate_groups(states: Mapping[int, Mapping[str, Tensor]]) -> FullState:
    """The states of all groups of a rank, concatenated."""
    keys = states[0] if states else {}
    return {
        key: torch.cat([states[group][key] for group in sorted(states)]) if keys[key].ndim else keys[key]
        for key in keys
    }


def _join_shards(
    values: Sequence[Tensor], states: Sequence[Mapping[str, Tensor]], ranges: Sequence[tuple[int, int, int]]
) -> FullState:
    """Join a parameter from the (rank, start, length) of its parts."""
    whole = {VALUE: torch.cat([values[rank].narrow(0, start, length) for rank, start, length in ranges])}
    for key, first in states[ranges[0][0]].items():
        parts = [states[rank][key].narrow(0, start, length) for rank, start, length in ranges if first.ndim]
        whole[key] = torch.cat(parts) if parts else first
    return whole


@torch.no_grad()
def restore_shards(module: nn.Module, shards: Shards, zero: Any, optimizer: torch.optim.Optimizer, rank: int) -> None:
    """Write this rank's part into a new module and optimizer; `zero` is DeepSpeed's (`optimizer` at stage 0)."""
    buffers, params = dict(module.named_buffers()), dict(module.named_parameters())
    for name in buffers.keys() & shards.module.keys():
        buffers[name].copy_(shards.module[name])
    missing = set(shards.names)
    for name, whole in shards:
        if name not in missing:
            raise RuntimeError(f"the checkpoint is of another module: {name} is not trained here")
        write_parameter(params[name], whole, zero, optimizer, rank)
        missing.remove(name)
    if missing:
        raise RuntimeError(f"the checkpoint is of another module: {len(missing)} names are missing")
    refresh_persistent(zero)


def refresh_persistent(zero: Any) -> None:
    """Update the parameters that stage 3 keeps unsharded on every rank from their shards. Collective."""
    if persistent := getattr(zero, "persistent_parameters", None):
        persistent[0].partition(persistent)
        persistent[0].all_gather(persistent)


def write_parameter(
    param: nn.Parameter, whole: FullState, zero: Any, optimizer: torch.optim.Optimizer, rank: int
) -> None:
    """Write this rank's part of a parameter and of its optimizer state, and the parameter in the model's dtype."""
    if hasattr(param, "ds_tensor"):
        _write_partition(param, whole, zero, rank)
        return
    param.copy_(whole[VALUE].view(param.shape))
    fragment = getattr(param, "_hp_mapping", None)
    if fragment is not None:
        of_param, of_group = fragment.lp_fragment_address, fragment.hp_fragment_address
        part = {key: t.narrow(0, of_param.start, of_param.numel) if t.ndim else t for key, t in whole.items()}
        fragment.hp_fragment.copy_(part.pop(VALUE))
        flat = optimizer.param_groups[fragment.param_group_index]["params"][0]
        for key, tensor in part.items():
            _write_slice(optimizer.state[flat], key, tensor, flat, of_group.start)
    elif zero is optimizer:  # stage 0; at other stages this rank has no other part
        for key, tensor in whole.items():
            if key != VALUE:
                _write_slice(optimizer.state[param], key, tensor, param, 0)


def _write_slice(state: dict[str, Any], key: str, tensor: Tensor, like: Tensor, start: int) -> None:
    """Write a slice of an optimizer tensor, and create the tensor if it is missing."""
    if not tensor.ndim:
        state[key] = tensor.clone()
        return
    if key not in state:
        state[key] = torch.zeros_like(like)
    state[key].view(-1).narrow(0, start, len(tensor)).copy_(tensor)


def _write_partition(param: Any, whole: FullState, zero: Any, rank: int) -> None:
    """This rank's part of a stage 3 parameter."""

    def part(tensor: Tensor, length: int) -> Tensor:
        filled = nn.functional.pad(tensor, (0, max(0, length * (rank + 1) - len(tensor))))
        return filled.narrow(0, length * rank, length)

    value, group = zero._get_fp32_opt_state_partition(param, release_swap_buffers=False)
    flat = zero.fp32_partitioned_groups_flat[group]
    value.data.copy_(part(whole[VALUE], value.numel()))
    param.ds_tensor.data.copy_(part(whole[VALUE], param.ds_tensor.numel()))
    start = value.storage_offset() - flat.storage_offset()
    for key, tensor in whole.items():
        if key != VALUE:
            own = part(tensor, value.numel()) if tensor.ndim else tensor
            _write_slice(zero.optimizer.state[flat], key, own, flat, start)
