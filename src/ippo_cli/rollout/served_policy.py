"""Policies of frozen agents at servers: `task.agents.NAME.actor=server`. Only their tokenizers are loaded."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor
from transformers import AutoConfig, GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase

from ippo_cli.config.errors import EngineError
from ippo_cli.config.schema import RolloutConfig, SamplingConfig, ServerActorConfig
from ippo_cli.config.served_agents import served_model_name
from ippo_cli.engine.rank_group import RankGroup, world_group
from ippo_cli.models.actor import Policy, load_actor_tokenizer
from ippo_cli.rollout.decode import collect_stop_ids
from ippo_cli.rollout.engine import EngineModel, InferenceEngine
from ippo_cli.rollout.engine_generator import EngineGenerator
from ippo_cli.rollout.engine_pool import EnginePool
from ippo_cli.rollout.generator import Poll
from ippo_cli.rollout.openai_server import OpenAIServerEngine, ServerKeys
from ippo_cli.rollout.tensor_hash import TensorHash


@dataclass(kw_only=True)
class ServedPolicy:
    """A `GenerationPolicy` with weights at a server, on no rank; every rank sends its own requests."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    actor: ServerActorConfig
    model_config: PretrainedConfig  # of the text model; without entries if `actor.model` is a tokenizer alone
    stop_ids: tuple[int, ...]
    group: RankGroup = field(default_factory=world_group)
    shared_base: None = None
    adapter_name: None = None
    adapter_rank: int = 0
    model_weights_key: Hashable = None
    adapter_weights_key: Hashable = None

    @property
    def model_key(self) -> Hashable:
        return astuple(self.actor)

    @property
    def dtype(self) -> torch.dtype:
        return getattr(self.model_config, "dtype", None) or torch.float32

    def iterate_model_weights(self) -> Iterator[tuple[str, Tensor]]:
        self._refuse_weights()

    def save_adapter(self, folder: Path) -> dict[str, TensorHash]:
        self._refuse_weights()

    def generation_mode(self, gather: Literal["all", "layer"]) -> AbstractContextManager[Policy]:
        self._refuse_weights()

    def _refuse_weights(self) -> NoReturn:
        raise EngineError(f"task.agents.{self.name}.actor=server: the weights of {self.name} are at its server only")


def load_served_policy(name: str, actor: ServerActorConfig, model: str, revision: str | None) -> ServedPolicy:
    """Load the tokenizer of a model, and its configuration if the folder has one. Raises `PreflightError`."""
    tokenizer = load_actor_tokenizer(actor, model, revision)
    config, generation = PretrainedConfig(), None
    with suppress(Exception):  # a tokenizer alone, or a model that only its server knows
        config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=False)
        config = copy.deepcopy(config.get_text_config(decoder=True))
    options: dict[str, Any] = {} if revision is None else {"revision": revision}
    with suppress(OSError):
        generation = GenerationConfig.from_pretrained(model, **options)
    if actor.context_limit is not None:
        config.max_position_embeddings = actor.context_limit
    return ServedPolicy(
        name=name,
        tokenizer=tokenizer,
        actor=actor,
        model_config=config,
        stop_ids=collect_stop_ids(tokenizer, config, generation),
    )


def make_server_engine(model: EngineModel, actor: ServerActorConfig, agent: str) -> OpenAIServerEngine:
    """The engine of an agent at a server."""
    where = f"task.agents.{agent}.actor"
    keys = ServerKeys(
        option=f"{where}=server",
        connection=where,
        model=f"{where}.served_model",
        context_limit=f"{where}.context_limit",
    )
    assert actor.url is not None  # checked before anything is loaded
    return OpenAIServerEngine(model, actor, url=actor.url, served_name=served_model_name(actor), keys=keys)


def build_served_generator(
    policies: Mapping[str, ServedPolicy],
    config: RolloutConfig,
    sampling: Mapping[str, SamplingConfig],
    poll: Poll | None = None,
) -> EngineGenerator:
    """The generator of agents at servers, with one engine for each model at each address."""
    leads: dict[Hashable, ServedPolicy] = {}
    for policy in policies.values():
        leads.setdefault(policy.model_key, policy)

    def make_engine(model: EngineModel, number: int) -> InferenceEngine:
        lead = list(leads.values())[number]
        return make_server_engine(model, lead.actor, lead.name)

    engines = EnginePool(make_engine, reuses=False)
    return EngineGenerator(policies, config, sampling, poll, engines=engines, verify_every=0, pushes_weights=False)
