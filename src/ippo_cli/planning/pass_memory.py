"""Activation memory of forward and backward passes of a transformer decoder, in bytes per token or logit."""

from __future__ import annotations

from ippo_cli.models.shape import ModelShape


def forward_bytes(shape: ModelShape, width: int) -> float:
    """Bytes per token of a forward pass without gradients: the temporaries of one layer."""
    return width * (6 * shape.hidden + 2 * shape.kv_width + 3 * shape.intermediate_size)


def activation_bytes(
    shape: ModelShape, width: int, *, checkpointed: bool, in_fp32: bool, longest: int, tensor_parallel: int = 1
) -> float:
    """Bytes per token that a forward pass keeps for its backward pass.

    `longest`: maximum row length. `in_fp32`: attention of bf16 models runs in fp32. `tensor_parallel`: ranks that split
    the heads and the feed-forward width; an estimate, without a measurement.
    """
    if tensor_parallel > 1:  # of eight tensors of the hidden width, queries and attention's output are split
        whole = activation_bytes(shape, width, checkpointed=checkpointed, in_fp32=in_fp32, longest=longest)
        split = width * (2 * shape.hidden + 3 * shape.kv_width + 4 * shape.intermediate_size)
        return whole - (1 if checkpointed else shape.layers) * split * (1 - 1 / tensor_parallel)
    # Measured on Llama, Qwen2 and GPT-2 shapes; in bf16, norms also keep fp32 tensors.
    layer = width * (8 * shape.hidden + 3 * shape.kv_width + 4 * shape.intermediate_size) + (
        4 * shape.hidden if width < 4 else 0
    )
    if in_fp32:  # queries, keys and values in fp32 instead of bf16, and attention's output in both
        layer += (4 - width) * (shape.hidden + 2 * shape.kv_width) + 4 * shape.hidden
    if shape.window is not None and longest > shape.window:
        # Attention with a mask repeats keys and values for every query head.
        layer += (4 if in_fp32 else width) * 2 * shape.hidden if shape.kv_width < shape.hidden else 0
    if checkpointed:
        return shape.layers * width * shape.hidden + layer
    return shape.layers * layer


def kv_bytes(shape: ModelShape, width: int) -> float:
    """Bytes per token of keys and values."""
    return 2.0 * width * shape.layers * shape.kv_width


def logit_bytes(width: int, *, trains: bool, entropy: bool) -> int:
    """Bytes per logit: the logit, its fp32 log-probability, and with `trains` its gradient and entropy terms.

    On the CPU, logits are cast to fp32 before the softmax.
    """
    if not trains:
        return width + 4 if width == 4 else width + 8
    gradient = 4 + 4 + (4 if entropy else 0) + (width if width < 4 else 0)
    return max(width + 4 + 4, gradient)
