"""What passes over tokens hold, in bytes per token or logit: a transformer decoder's, measured on several families."""

from __future__ import annotations

from ippo_cli.models.shape import ModelShape


def forward_bytes(shape: ModelShape, width: int) -> float:
    """Per token, of a forward without gradients: one layer's temporaries."""
    return width * (6 * shape.hidden + 2 * shape.keys + 3 * shape.inner)


def activation_bytes(shape: ModelShape, width: int, *, checkpointed: bool, in_fp32: bool, longest: int) -> float:
    """Per token of rows of at most `longest`, of what a forward keeps for its backward pass; `in_fp32`: bf16 sequences
    attend in float32."""
    # Measured on Llama, Qwen2 and GPT-2 shapes; in bf16 norms keep something in float32 as well.
    layer = width * (8 * shape.hidden + 3 * shape.keys + 4 * shape.inner) + (4 * shape.hidden if width < 4 else 0)
    if in_fp32:  # queries, keys and values instead of those in bf16, and what attention gives beside its bf16
        layer += (4 - width) * (shape.hidden + 2 * shape.keys) + 4 * shape.hidden
    if shape.window is not None and longest > shape.window:
        # Attention through a mask is given keys and values once for every head of the queries.
        layer += (4 if in_fp32 else width) * 2 * shape.hidden if shape.keys < shape.hidden else 0
    if checkpointed:
        return shape.layers * width * shape.hidden + layer
    return shape.layers * layer


def kv_bytes(shape: ModelShape, width: int) -> float:
    """Per token: its keys and values."""
    return 2.0 * width * shape.layers * shape.keys


def logit_bytes(width: int, *, trains: bool, entropy: bool) -> int:
    """Of one logit: itself, its log-probability in float32, and in a pass of the update what entropy or gradient take.

    A host casts logits to float32 before their softmax.
    """
    if not trains:
        return width + 4 if width == 4 else width + 8
    gradient = 4 + 4 + (4 if entropy else 0) + (width if width < 4 else 0)
    return max(width + 4 + 4, gradient)
