"""Which rows of an engine's parameter belong to which tensor of a checkpoint."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from ippo_cli.rollout.tensor_hash import tensor_hash
from ippo_cli.rollout.vllm.weight_layout import WHOLE, WeightLayout, find_differing_tensors

ATTENTION = "layers.0.self_attn"


class Engine(nn.Module):
    """What vLLM's models say of their layout."""

    packed_modules_mapping: ClassVar = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def get_expert_mapping(self) -> list[tuple[str, str, int, str]]:
        """As vLLM gives it: parameter, tensor, expert, projection."""
        return [
            ("experts.w2_" if projection == "w2" else "experts.w13_", f"experts.{number}.{name}.", number, projection)
            for number in range(3)
            for projection, name in (("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj"))
        ]


def make_tensors(**rows: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {f"{ATTENTION}.{name}.weight": torch.randn(count, 16) for name, count in rows.items()}


def compare(tensors: dict[str, Tensor], parameter: str, workers: list[Tensor]) -> list[str]:
    """The tensors that differ in workers which have shares of a parameter."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    found = [
        {parameter: WeightLayout(Engine(), rank=rank, num_ranks=len(workers)).hash_parameter(parameter, values, shapes)}
        for rank, values in enumerate(workers)
    ]
    places = {name: [parameter] for name in tensors}
    hashes = {name: tensor_hash(tensor) for name, tensor in tensors.items()}
    return [name.split(".")[-2] for name in find_differing_tensors(places, hashes, found)]


def test_exchanged_parts_of_a_fused_parameter_are_found() -> None:
    tensors = make_tensors(q_proj=8, k_proj=4, v_proj=4)
    q, k, v = tensors.values()
    name = f"{ATTENTION}.qkv_proj.weight"
    assert compare(tensors, name, [torch.cat([q, k, v])]) == []
    assert compare(tensors, name, [torch.cat([q, v, k])]) == ["k_proj", "v_proj"]
    assert compare(tensors, name, [torch.cat([q.roll(4, 0), k, v])]) == ["q_proj"]
    shuffled = dict(reversed(tensors.items()))
    assert compare(shuffled, name, [torch.cat([q, k, v])]) == []


def test_a_layout_that_the_model_does_not_describe_is_compared_without_order() -> None:
    tensors = make_tensors(one=8, other=8)
    one, other = tensors.values()
    assert compare(tensors, "layers.0.fused.weight", [torch.cat([other, one])]) == []
    assert compare(tensors, "layers.0.fused.weight", [torch.cat([other, one + 1])]) == ["one", "other"]
    fused = make_tensors(query_key_value=8)
    [values] = fused.values()
    assert compare(fused, f"{ATTENTION}.query_key_value.weight", [values.roll(1, 0)]) == []


def test_padding_after_a_tensor_is_ignored_and_a_shift_is_found() -> None:
    tensors = make_tensors(embed_tokens=10)
    [values] = tensors.values()
    padded = torch.cat([values, torch.randn(6, 16)])
    assert compare(tensors, "embed_tokens.weight", [padded]) == []
    assert compare(tensors, "embed_tokens.weight", [padded.roll(1, 0)]) == ["embed_tokens"]


@pytest.mark.parametrize("exchanged", [False, True])
def test_shares_of_tensor_parallel_workers_add_up(exchanged: bool) -> None:
    tensors = make_tensors(q_proj=8, k_proj=4, v_proj=4)
    q, k, v = tensors.values()
    workers = [torch.cat([q[:4], k[:2], v[:2]]), torch.cat([q[4:], k[2:], v[2:]])]
    row, column = make_tensors(embed_tokens=10), make_tensors(o_proj=4)
    [values] = row.values()
    padded = [values[:6], torch.cat([values[6:], torch.randn(2, 16)])]
    [wide] = column.values()
    halves = [wide[:, :8], wide[:, 8:]]
    if exchanged:
        workers.reverse()
        padded[0] = values[:6].roll(1, 0)
        halves.reverse()
    assert compare(tensors, f"{ATTENTION}.qkv_proj.weight", workers) == (
        ["k_proj", "q_proj", "v_proj"] if exchanged else []
    )
    assert compare(row, "embed_tokens.weight", padded) == (["embed_tokens"] if exchanged else [])
    assert compare(column, f"{ATTENTION}.o_proj.weight", halves) == (["o_proj"] if exchanged else [])


def make_experts() -> dict[str, Tensor]:
    torch.manual_seed(0)
    shapes = {"gate_proj": (6, 16), "up_proj": (6, 16), "down_proj": (16, 6)}
    return {
        f"layers.0.mlp.experts.{number}.{name}.weight": torch.randn(shape)
        for number in range(3)
        for name, shape in shapes.items()
    }


def fuse_experts(tensors: dict[str, Tensor], *, swaps: bool = False) -> Tensor:
    """Gates above the other projections of each expert, both padded to 8 rows."""
    fused = torch.randn(3, 16, 16)
    for name, tensor in tensors.items():
        start = 8 if ("up_proj" in name) != swaps else 0
        fused[int(name.split(".")[4]), start : start + 6] = tensor
    return fused


def test_exchanged_experts_and_projections_are_found() -> None:
    experts = {name: tensor for name, tensor in make_experts().items() if "down" not in name}
    parameter, fused = "layers.0.mlp.experts.w13_weight", fuse_experts(experts)
    assert compare(experts, parameter, [fused]) == []
    assert len(compare(experts, parameter, [fused[[1, 0, 2]]])) == 4
    assert len(compare(experts, parameter, [fused.roll(8, 1)])) == 6
    down = {name: tensor for name, tensor in make_experts().items() if "down" in name}
    stacked = torch.stack(list(down.values()))
    assert compare(down, "layers.0.mlp.experts.w2_weight", [stacked]) == []
    assert len(compare(down, "layers.0.mlp.experts.w2_weight", [stacked[[0, 2, 1]]])) == 2


def test_kernels_that_swap_the_projections_of_experts() -> None:
    class Method:
        class unquantized_backend:
            name = "FLASHINFER_CUTLASS"

    class Swapping(Engine):
        quant_method: Any = Method()

    experts = {name: tensor for name, tensor in make_experts().items() if "down" not in name}
    parameter, shapes = "experts.w13_weight", {name: tuple(tensor.shape) for name, tensor in experts.items()}
    found = WeightLayout(Swapping(), rank=0, num_ranks=1).hash_parameter(
        parameter, fuse_experts(experts, swaps=True), shapes
    )
    assert WHOLE not in found
    hashes = {name: tensor_hash(tensor) for name, tensor in experts.items()}
    assert find_differing_tensors({name: [parameter] for name in experts}, hashes, [{parameter: found}]) == []


def test_a_parameter_without_tensors_is_named() -> None:
    tensors = make_tensors(o_proj=4)
    [(name, values)] = tensors.items()
    layout = WeightLayout(Engine(), rank=0, num_ranks=1)
    worker = {
        "o.weight": layout.hash_parameter("o.weight", values, {name: tuple(values.shape)}),
        "lm_head.weight": layout.hash_parameter("lm_head.weight", values, {}),
    }
    assert find_differing_tensors({name: ["o.weight"]}, {name: tensor_hash(values)}, [worker]) == ["lm_head.weight"]
