"""Checks, before a model loads, that inference engines support the models."""

from __future__ import annotations

from collections.abc import Mapping

from ippo_cli.config.errors import PreflightError
from ippo_cli.config.schema import Config
from ippo_cli.planning.agent_shapes import AgentShapes

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Widths of attention heads that vLLM's CPU build supports (0.32)."""


def check_engine_models(config: Config, shapes: Mapping[str, AgentShapes], device: str) -> None:
    """Raise `PreflightError` if vLLM cannot run an agent's model on this device."""
    if config.rollout.engines is None:
        return
    for name, shape in shapes.items():
        if shape.actor.is_stateful:  # vLLM stores transformed weights of these layers, so transfers cannot be verified
            raise PreflightError(
                f"rollout=vllm: the model of {name} has layers that carry a state over tokens (Mamba, hybrids), "
                "and their weights cannot be transferred to vLLM; use rollout=hf"
            )
        if device != "cpu":
            continue
        if shape.actor.has_latent_attention:
            raise PreflightError(
                f"rollout=vllm: the model of {name} has latent attention, which vLLM's CPU build supports only for few "
                "sizes and number formats; use a GPU, or rollout=hf"
            )
        size, actor = shape.actor.head_size, config.task.agents[name].actor
        if size and size not in CPU_HEAD_SIZES:
            remedy = "set actor.hidden_size to 32 times actor.num_heads" if actor.is_created_here else "use a GPU"
            raise PreflightError(
                f"rollout=vllm: the attention heads of {name} have {size} dimensions, and vLLM's CPU build supports "
                f"{' '.join(map(str, CPU_HEAD_SIZES))}; {remedy}, or rollout=hf"
            )
