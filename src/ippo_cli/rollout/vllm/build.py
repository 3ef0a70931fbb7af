"""Builds the generator of `rollout=vllm`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from ippo_cli.config.schema import SamplingConfig, VllmConfig, VllmMode, VllmRolloutConfig
from ippo_cli.rollout.engine import EngineModel, EngineResources, InferenceEngine
from ippo_cli.rollout.engine_generator import EngineGenerator
from ippo_cli.rollout.engine_pool import EnginePool
from ippo_cli.rollout.exact_generator import verify_if_exact
from ippo_cli.rollout.generator import Generator, Poll
from ippo_cli.rollout.policy import GenerationPolicy

_factories: dict[str, _EngineFactory] = {}  # by settings


def build_vllm_generator(
    policies: Mapping[str, GenerationPolicy],
    config: VllmRolloutConfig,
    sampling: Mapping[str, SamplingConfig],
    poll: Poll | None = None,
    *,
    continues: bool = False,
    resources: EngineResources | None = None,
) -> Generator:
    """The generator with an engine for each model. `continues` has no effect: vLLM caches prefixes itself."""
    settings, resources = config.vllm, resources or EngineResources()
    factory = _factories.setdefault(
        f"{asdict(settings)} {resources.devices}", _EngineFactory(settings, resources.devices)
    )
    factory.log_folder = resources.log_folder
    engines = EngineGenerator(
        policies, config, sampling, poll, engines=factory.pool, verify_every=settings.verify_every
    )
    return verify_if_exact(engines, policies, config, sampling, poll)


class _EngineFactory:
    """Makes the engines of this process with the same settings, and keeps the unused ones."""

    def __init__(self, settings: VllmConfig, devices: tuple[int, ...] | None) -> None:
        self._settings, self._devices = settings, devices
        self._num_servers = 0
        self.log_folder: Path | None = None
        self.pool = EnginePool(self._make)

    def _make(self, model: EngineModel, number: int) -> InferenceEngine:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self._settings.mode is VllmMode.colocate:
            from ippo_cli.rollout.vllm.in_process import InProcessEngine

            return InProcessEngine(model, self._settings, device)
        from ippo_cli.rollout.vllm.shared_server import SharedServerEngine

        # Generators count their engines from 0, and each engine needs a separate server and log.
        number, self._num_servers = self._num_servers, self._num_servers + 1
        folder = self.log_folder or Path(tempfile.gettempdir()) / f"ippo-vllm-{os.getpid()}"
        return SharedServerEngine(
            model, self._settings, device, number=number, log_folder=folder, devices=self._devices
        )
