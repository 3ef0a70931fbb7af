"""Builds the generator of `rollout=vllm`."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ippo_cli.config.errors import EngineError
from ippo_cli.config.schema import RolloutConfig, SamplingConfig, VllmMode, VllmRolloutConfig
from ippo_cli.rollout.engine import EngineModel, InferenceEngine
from ippo_cli.rollout.engine_generator import EngineGenerator
from ippo_cli.rollout.generator import Poll
from ippo_cli.rollout.policy import GenerationPolicy


def build_vllm_generator(
    policies: Mapping[str, GenerationPolicy],
    config: RolloutConfig,
    sampling: Mapping[str, SamplingConfig],
    poll: Poll | None = None,
    *,
    continues: bool = False,
) -> EngineGenerator:
    """The generator with an engine for each model. `continues` has no effect: vLLM caches prefixes itself."""
    assert isinstance(config, VllmRolloutConfig)
    settings = config.vllm

    def make_engine(model: EngineModel, number: int) -> InferenceEngine:
        from ippo_cli.rollout.vllm.in_process import InProcessEngine

        if settings.mode is not VllmMode.colocate:
            raise EngineError("rollout.vllm.mode=server is not available")
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return InProcessEngine(model, settings, device)

    return EngineGenerator(
        policies, config, sampling, poll, make_engine=make_engine, verify_every=settings.verify_every
    )
