"""Builds the generator of `rollout=vllm`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from ippo_cli.config.errors import EngineError
from ippo_cli.config.schema import RolloutConfig, SamplingConfig, VllmConfig, VllmMode, VllmRolloutConfig
from ippo_cli.engine import distributed
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
            device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
            if settings.mode is VllmMode.server:
                return _make_server_engine(model, settings, device, number)
            from ippo_cli.rollout.vllm.in_process import InProcessEngine

            return InProcessEngine(model, settings, device)

        _pools[key] = EnginePool(make_engine)
    return _pools[key]


def _make_server_engine(model: EngineModel, settings: VllmConfig, device: torch.device, number: int) -> InferenceEngine:
    """An engine in a server of this rank, or in a running one."""
    from ippo_cli.rollout.vllm.server import ServerEngine

    rank, ranks = distributed.rank(), distributed.world_size()
    place = rank * (len(settings.url) // ranks) + number
    if settings.url and place >= len(settings.url):
        raise EngineError(
            f"rollout.vllm.url={settings.url} has no address for the model of {model.name} on rank {rank}; list one "
            "address for each model that agents sample from, in the order of the agents, for rank 0 first"
        )
    log_path = Path(tempfile.gettempdir()) / f"ippo-vllm-{os.getpid()}-{number}.log"
    url = settings.url[place] if settings.url else None
    return ServerEngine(model, settings, device, log_path=log_path, url=url)
