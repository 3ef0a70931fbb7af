"""Attention of packed rows by one kernel per layer: FlashAttention for sequences of different lengths.

The kernel, `torch.nn.attention.varlen.varlen_attn`, reads a row and the cumulative lengths of its sequences.
`attend_varlen` decides where it is used; otherwise sequences attend in groups, see `packing`.

Dao 2023 (FlashAttention-2, arXiv 2307.08691). Its causal mask is aligned at the last query and key, so a suffix attends
to its shared prefix if that precedes its own keys. Such keys and values are copied for every suffix: the gradient of a
prefix token is the sum over its copies. Attention to prefix and suffix in two calls, joined by their log-sum-exps,
would copy nothing, but torch's operator has no gradient of the log-sum-exps, and windows that reach into a prefix
differ by query.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from ippo_cli.engine import distributed
from ippo_cli.models.varlen_layout import RowPart, VarlenLayout, build_layout
from ippo_cli.types import move_carrier

_log = logging.getLogger(__name__)

DEVICES = ("cuda",)
DTYPES = (torch.bfloat16, torch.float16)
MAX_HEAD_SIZE, HEAD_SIZE_STEP = 256, 8
REQUIRED_PARAMETERS = frozenset({"window_size", "scale"})
"""Parameters that torch 2.10 lacks."""
UNSUPPORTED_OPTIONS = ("softcap", "s_aux", "position_bias")
"""Options of the library's attention functions that change the scores."""

TEST_WINDOWS, TEST_TOLERANCE = (4, 150), 0.03
"""The kernel's test: its sliding windows, and the accepted relative error. With an emulation on a CPU, rounding to bf16
costs at most .004, and one key too many or too few at least .5.
"""


@dataclass(frozen=True, slots=True)
class VarlenKernel:
    """torch's function, and whether it reads several query heads per key head."""

    function: Callable[..., Tensor]
    has_grouped_heads: bool

    def __call__(
        self, states: Sequence[Tensor], layout: VarlenLayout, scale: float | None, window: int | None
    ) -> Tensor:
        """Attention of queries, keys and values of a row, each `[N, heads, size]`; `window` includes the token."""
        query, key, value = states
        if layout.key_copies is not None:
            key, value = layout.key_copies.gather(key), layout.key_copies.gather(value)
        repeats = query.shape[1] // key.shape[1]
        options = {"enable_gqa": True} if self.has_grouped_heads and repeats > 1 else {}
        if repeats > 1 and not self.has_grouped_heads:
            key, value = (each.repeat_interleave(repeats, dim=1) for each in (key, value))
        # The kernel counts the tokens before; without a limit it has a faster path.
        before = -1 if window is None or window >= layout.max_keys else window - 1
        return self.function(
            query,
            key,
            value,
            layout.query_bounds,
            layout.key_bounds,
            layout.max_queries,
            layout.max_keys,
            scale=scale,
            window_size=(before, 0),
            **options,
        )


@cache
def load_kernel() -> VarlenKernel | None:
    """torch's kernel; None where this version lacks it, or its sliding window or scale."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return wrap_kernel(varlen_attn)


def wrap_kernel(function: Callable[..., Any]) -> VarlenKernel | None:
    """The kernel of a function with torch's signature; None if it lacks what is needed."""
    names = inspect.signature(function).parameters.keys()
    return VarlenKernel(function, "enable_gqa" in names) if names >= REQUIRED_PARAMETERS else None


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What the kernel's test depends on."""

    device: torch.device
    dtype: torch.dtype
    heads: int
    key_heads: int
    head_size: int
    scale: float | None
    windowed: bool


_tested: dict[AttentionShape, VarlenKernel | None] = {}


def attend_varlen(
    states: Sequence[Tensor], layout: Callable[[], VarlenLayout], options: Mapping[str, Any]
) -> Tensor | None:
    """Attention of queries, keys and values of a row, each `[1, heads, N, size]`, by the kernel: `[1, N, heads, size]`.

    None if sequences must attend in groups: the kernel does not read such states, has failed its test, or raises.
    """
    query, key, value = states
    if not fits_kernel(query, key, value, options):
        return None
    scale, window = options.get("scaling"), options.get("sliding_window")
    shape = AttentionShape(
        query.device, query.dtype, query.shape[1], key.shape[1], query.shape[-1], scale, window is not None
    )
    if shape not in _tested:
        _tested[shape] = _test_kernel(shape)
    if (kernel := _tested[shape]) is None:
        return None
    try:
        return kernel([each[0].transpose(0, 1) for each in states], layout(), scale, window)[None]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        _refuse(shape, str(error))
        return None


def fits_kernel(query: Tensor, key: Tensor, value: Tensor, options: Mapping[str, Any]) -> bool:
    """Whether FlashAttention reads states `[1, heads, N, size]` with these options of the library's attention."""
    size = query.shape[-1]
    return (
        query.device.type in DEVICES
        and query.dtype in DTYPES
        and query.dtype == key.dtype == value.dtype
        and size == key.shape[-1] == value.shape[-1] <= MAX_HEAD_SIZE
        and size % HEAD_SIZE_STEP == 0
        and query.shape[1] % key.shape[1] == 0
        and not options.get("dropout")
        and options.get("is_causal") is not False
        and all(options.get(name) is None for name in UNSUPPORTED_OPTIONS)
    )


def _test_kernel(shape: AttentionShape) -> VarlenKernel | None:
    """The kernel, if its outputs and gradients for a few tokens are those of plain attention in float32.

    A model is on the host when it is loaded, so the test of packed rows there does not reach the kernel.
    """
    kernel = load_kernel()
    if kernel is None:
        return None
    try:
        error = max(_kernel_error(kernel, shape, window) for window in (None, *(TEST_WINDOWS * shape.windowed)))
    except torch.OutOfMemoryError:
        raise
    except Exception as raised:  # any exception: kernels of other devices may raise anything
        return _refuse(shape, repr(raised))
    return kernel if error <= TEST_TOLERANCE else _refuse(shape, f"relative error {error:.2g}")


def _refuse(shape: AttentionShape, reason: str) -> None:
    """Record, with a log line, that states of a shape attend in groups."""
    _tested[shape] = None
    message = (
        f"packed rows attend in groups, since FlashAttention does not read {shape.heads} heads of {shape.head_size} "
        f"with {shape.key_heads} key heads in {shape.dtype}: {reason}"
    )
    if distributed.claim_log_once(message):
        _log.warning(message)


# Longer than the kernel's tiles of at most 128 tokens, also behind the prefix.
_TEST_PARTS = (RowPart(0, (300, 70), slice(0, 0)), RowPart(370, (200, 130, 1), slice(0, 300)))
_TEST_TOKENS = sum(sum(part.lengths) for part in _TEST_PARTS)


def _kernel_error(kernel: VarlenKernel, shape: AttentionShape, window: int | None) -> float:
    """The largest relative error of the kernel's outputs and gradients, for normally distributed scores."""
    random = torch.Generator().manual_seed(0)
    scale = shape.head_size**-0.5 if shape.scale is None else shape.scale
    sizes = [(1, heads, _TEST_TOKENS, shape.head_size) for heads in (shape.heads, shape.key_heads, shape.key_heads)]
    query, *others = (torch.randn(size, generator=random) for size in sizes)
    states = [each.to(shape.device, shape.dtype) for each in (query / (scale * shape.head_size**0.5), *others)]
    grad = torch.randn(_TEST_TOKENS, *sizes[0][1::2], generator=random).to(states[0])
    layout = move_carrier(build_layout(_TEST_PARTS), shape.device)
    # The caller may be in a checkpointed forward, which counts the tensors that are saved for the backward pass.
    with torch.inference_mode(False), torch.enable_grad(), saved_tensors_hooks(_keep, _keep):
        actual = _differentiate(lambda own: kernel(own, layout, shape.scale, window), states, grad)
        expected = _differentiate(
            lambda own: _attend_plainly(own, scale, window), [each.float() for each in states], grad.float()
        )
    errors = [(one.float() - other).norm() / other.norm() for one, other in zip(actual, expected, strict=True)]
    return torch.stack(errors).nan_to_num(nan=torch.inf).max().item()


def _keep(tensor: Tensor) -> Tensor:
    return tensor


def _differentiate(attention: Callable[[list[Tensor]], Tensor], states: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """The output for states `[1, heads, N, size]`, and the gradients of the states."""
    leaves = [each.detach().requires_grad_() for each in states]
    output = attention([leaf[0].transpose(0, 1) for leaf in leaves])
    return [output.detach(), *torch.autograd.grad(output, leaves, grad)]


def _attend_plainly(states: Sequence[Tensor], scale: float, window: int | None) -> Tensor:
    """Attention of the test's row, sequence by sequence: queries, keys and values `[N, heads, size]`."""
    query, *others = states
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], dim=1) for each in others)
    outputs = []
    for part in _TEST_PARTS:
        for own in part.slices():
            keys, values = (torch.cat([each[part.prefix], each[own]]) for each in (key, value))
            scores = torch.einsum("qhd,khd->hqk", query[own], keys) * scale
            visible = torch.ones_like(scores, dtype=torch.bool).tril(part.num_prefix_tokens)
            if window is not None:
                visible = visible.triu(part.num_prefix_tokens + 1 - window)
            weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
            outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(outputs)
