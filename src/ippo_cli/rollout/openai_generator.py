"""Builds the generator of `rollout=openai_server`."""

from __future__ import annotations

from collections.abc import Mapping

from ippo_cli.config.errors import EngineError
from ippo_cli.config.schema import OpenAIServerRolloutConfig, SamplingConfig
from ippo_cli.rollout.engine import EngineModel, EngineResources, InferenceEngine
from ippo_cli.rollout.engine_generator import EngineGenerator
from ippo_cli.rollout.engine_pool import EnginePool
from ippo_cli.rollout.generator import Poll
from ippo_cli.rollout.openai_server import OpenAIServerEngine
from ippo_cli.rollout.policy import GenerationPolicy


def build_openai_generator(
    policies: Mapping[str, GenerationPolicy],
    config: OpenAIServerRolloutConfig,
    sampling: Mapping[str, SamplingConfig],
    poll: Poll | None = None,
    *,
    continues: bool = False,
    resources: EngineResources | None = None,
) -> EngineGenerator:
    """The generator with a server for each model.

    `continues` has no effect: servers cache prefixes themselves; nor has `resources`: they run already.
    """
    settings = config.server

    def make_engine(model: EngineModel, number: int) -> InferenceEngine:
        if len(settings.url) != 1 and number >= len(settings.url):
            raise EngineError(
                f"rollout.server.url={settings.url} has no address for the model of {model.name}; list one address, or "
                "one for each model that agents sample from"
            )
        url = settings.url[0] if len(settings.url) == 1 else settings.url[number]
        name = settings.model[number] if number < len(settings.model) else None
        return OpenAIServerEngine(model, settings, url=url, served_name=name)

    engines = EnginePool(make_engine, reuses=False)  # not shared: a server keeps its model
    return EngineGenerator(policies, config, sampling, poll, engines=engines, verify_every=0, pushes_weights=False)
