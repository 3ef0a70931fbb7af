"""Builds the generator of `rollout=vllm`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import torch

from ippo_cli.config.errors import EngineError
from ippo_cli.config.schema import RolloutConfig, SamplingConfig, VllmConfig, VllmMode, VllmRolloutConfig
from ippo_cli.rollout.engine import EngineModel, InferenceEngine
from ippo_cli.rollout.engine_generator import EngineGenerator
from ippo_cli.rollout.engine_pool import EnginePool
from ippo_cli.rollout.generator import Poll
from ippo_cli.rollout.policy import GenerationPolicy

_pools: dict[str, EnginePool] = {}  # by settings


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

    engines = _find_pool(settings)
    return EngineGenerator(policies, config, sampling, poll, engines=engines, verify_every=settings.verify_every)


def _find_pool(settings: VllmConfig) -> EnginePool:
    """The process's pool of engines with these settings."""
    key = str(asdict(settings))
    if key not in _pools:

        def make_engine(model: EngineModel, number: int) -> InferenceEngine:
            from ippo_cli.rollout.vllm.in_process import InProcessEngine

            if settings.mode is not VllmMode.colocate:
                raise EngineError("rollout.vllm.mode=server is not available")
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            return InProcessEngine(model, settings, device)

        _pools[key] = EnginePool(make_engine)
    return _pools[key]
