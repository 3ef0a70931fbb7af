"""Models that vLLM supports, before any is loaded."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PreTrainedTokenizerBase

from ippo_cli.config.errors import PreflightError
from ippo_cli.config.schema import Config
from ippo_cli.models.shape import ModelShape

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Widths of attention heads that vLLM's CPU build supports (0.32)."""


def check_models(
    config: Config, shapes: Mapping[str, ModelShape], tokenizers: Mapping[str, PreTrainedTokenizerBase], device: str
) -> None:
    """Raise `PreflightError` if vLLM cannot run an agent's model on this device."""
    for name, shape in shapes.items():
        if shape.is_stateful:  # vLLM stores transformed weights of these layers, so transfers cannot be verified
            raise PreflightError(
                f"rollout=vllm: the model of {name} has layers that carry a state over tokens (Mamba, hybrids), "
                "and their weights cannot be transferred to vLLM; use rollout=hf"
            )
        if device != "cpu":
            continue
        if shape.has_latent_attention:
            raise PreflightError(
                f"rollout=vllm: the model of {name} has latent attention, which vLLM's CPU build supports only for few "
                "sizes and number formats; use a GPU, or rollout=hf"
            )
        size, actor = shape.head_size, config.task.agents[name].actor
        if size and size not in CPU_HEAD_SIZES:
            remedy = "set actor.hidden_size to 32 times actor.num_heads" if actor.is_created_here else "use a GPU"
            raise PreflightError(
                f"rollout=vllm: the attention heads of {name} have {size} dimensions, and vLLM's CPU build supports "
                f"{' '.join(map(str, CPU_HEAD_SIZES))}; {remedy}, or rollout=hf"
            )
