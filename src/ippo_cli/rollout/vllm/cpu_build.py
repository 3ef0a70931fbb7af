"""Changes of vLLM's CPU build, which packs weights for its kernels, so that weights can be replaced and read back."""

from __future__ import annotations

from typing import Any

from torch import nn

try:
    from vllm.model_executor.layers import utils as layer_utils  # pyright: ignore[reportMissingImports]
except ImportError:  # only tests of functions without an engine
    layer_utils = None  # pyright: ignore[reportAssignmentType]


def keep_weights() -> None:
    """Make linear layers keep their weights beside the packed copy that they compute with.

    vLLM discards them, so that nothing could be read back.
    """
    if layer_utils is None or hasattr(layer_utils, "ippo_pack"):
        return
    pack = layer_utils.dispatch_cpu_unquantized_gemm

    def pack_and_keep(layer: nn.Module, remove_weight: bool) -> None:
        pack(layer, False)

    layer_utils.ippo_pack = pack  # pyright: ignore[reportAttributeAccessIssue]
    layer_utils.dispatch_cpu_unquantized_gemm = pack_and_keep


def pack_layers(model: nn.Module) -> None:
    """Pack the current weights of all linear layers."""
    for layer in model.modules():
        if hasattr(layer, "cpu_linear") and layer_utils is not None:
            layer_utils.dispatch_cpu_unquantized_gemm(layer, False)


def keep_expert_weights() -> None:
    """Make mixture-of-experts layers keep their weights, and pack a copy for their kernel whenever they are loaded.

    vLLM replaces the weights by packed ones after the first load only; its kernel would read those of a later load,
    which are not packed, as if they were.
    """
    if layer_utils is None:
        return
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe  # pyright: ignore[reportMissingImports]
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (  # pyright: ignore[reportMissingImports]
        UnquantizedFusedMoEMethod,
    )

    experts_type = cpu_moe.CPUUnquantizedExperts
    if hasattr(experts_type, "ippo_packed"):
        return
    process, apply, set_up = (
        experts_type.process_weights_after_loading,
        experts_type.apply,
        UnquantizedFusedMoEMethod._setup_kernel,
    )

    def pack_copy(self: Any, layer: Any) -> None:
        if cpu_moe.is_zentorch_moe_supported(layer):  # its kernel reads the weights as they are
            process(self, layer)
            return
        self._pad_moe_intermediate(layer)
        weights = (layer.w13_weight, layer.w2_weight)
        self.ippo_packed = tuple(cpu_moe.cpu_prepack_moe_weight(weight, self.isa) for weight in weights)

    def apply_packed(self: Any, **arguments: Any) -> None:
        if self.ippo_packed is not None:
            arguments["w1"], arguments["w2"] = self.ippo_packed
        apply(self, **arguments)

    def set_up_each_time(self: Any, layer: Any, *arguments: Any, **named: Any) -> None:
        is_reload = self.moe_kernel is not None
        set_up(self, layer, *arguments, **named)
        if is_reload and isinstance(experts := self.moe_kernel.fused_experts, experts_type):
            experts.process_weights_after_loading(layer)

    experts_type.ippo_packed = None
    experts_type.process_weights_after_loading = pack_copy
    experts_type.apply = apply_packed
    UnquantizedFusedMoEMethod._setup_kernel = set_up_each_time
