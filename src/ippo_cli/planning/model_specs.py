"""Tokenizers, context limits and model shapes of a run's agents, read without loading weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ippo_cli.agents.centralized import build_critic_layouts, critic_context
from ippo_cli.agents.critic_start import check_value_head_start, warm_start_config
from ippo_cli.agents.critic_view import CriticLayout
from ippo_cli.agents.initial import alphabet_lessons, check_has_lessons, warm_start_lessons
from ippo_cli.config.adapters import find_reference_folder, read_adapter
from ippo_cli.config.model_args import model_config_overrides, quantized_bits
from ippo_cli.config.references import is_default_reference
from ippo_cli.config.rewards import rewards_with_prefixes
from ippo_cli.config.schema import (
    ActorConfig,
    AgentConfig,
    Config,
    DeepspeedConfig,
    ReferenceKind,
    TinyActorConfig,
)
from ippo_cli.config.teams import agents_by_base, agents_by_critic, policy_by_agent
from ippo_cli.models.actor import check_readable_tokens, load_actor_tokenizer, tokenizer_setting
from ippo_cli.models.critic import hidden_width
from ippo_cli.models.reward_model import read_config, reward_model_shape
from ippo_cli.models.shape import (
    ModelShape,
    actor_shape,
    add_adapter,
    add_value_head,
    critic_shape,
    empty_backbone,
    empty_model,
    load_config,
    quantized_shape,
)
from ippo_cli.models.tiny import make_lesson_tokenizer, tiny_config
from ippo_cli.planning.agent_shapes import AgentShapes, bytes_per_weight
from ippo_cli.planning.episode_length import EpisodeLength, episode_lengths, max_critic_tokens
from ippo_cli.planning.memory import FrozenModel
from ippo_cli.planning.method_plan import method_plans
from ippo_cli.planning.model_checks import check_model_parallel, check_router_loss
from ippo_cli.rollout.generator import context_limit
from ippo_cli.rollout.served_policy import ServedPolicy, load_served_policy
from ippo_cli.tasks.conversation import prompt_formats
from ippo_cli.tasks.task import Task

ALPHABET_EXAMPLES = 512  # a plan reads the vocabulary of a local model from so many examples; a run reads more


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpecs:
    """Tokenizers, context limits and model shapes of all agents, without weights."""

    tokenizers: dict[str, PreTrainedTokenizerBase]
    context_limits: dict[str, int]  # maximum tokens of prompt and response together
    lengths: Mapping[str, EpisodeLength]
    shapes: dict[str, AgentShapes]  # without agents at servers
    served: dict[str, ServedPolicy]  # agents at servers
    layouts: dict[str, CriticLayout]  # of centralised critics, by the critic's name
    reward_models: tuple[FrozenModel, ...]  # reward models on the same devices
    warnings: Mapping[str, str] = field(default_factory=dict)  # about the models, by rule


def read_model_specs(config: Config, task: Task, weights: Mapping[str, Path | str] | None = None) -> ModelSpecs:
    """Read every agent's tokenizer and shapes from its actor's initial weights. Raises `PreflightError`.

    `weights`: the initial weights by policy. Without it, tokenizers of local models are created here.
    """
    read = _ModelReader(config, task)
    holder_of = policy_by_agent(config)
    for base, names in agents_by_base(config).items():
        actor = config.task.agents[names[0]].actor
        if weights is not None:
            read.read_base(base, names, str(weights[holder_of[names[0]]]))
        elif actor.is_created_here:
            read.create_base(base, names, actor)
        else:
            read.read_base(base, names, str(actor.model))
    tokenizers = {name: read.tokenizers[name] for name in config.task.agents}
    contexts = {name: read.contexts[name] for name in config.task.agents}
    for plan in method_plans(config):
        plan.check_tokenizers(tokenizers)
    lengths = episode_lengths(config, task, prompt_formats(config.task, config.rollout, tokenizers), contexts)
    layouts = build_critic_layouts(
        config, tokenizers, contexts, _critic_contexts(config, read.empty_models, read.starts)
    )
    critic_row = max_critic_tokens(lengths) if layouts else None
    shapes = {}
    for name in (name for name in config.task.agents if name not in read.served):
        actor, critic = read.shapes[name]
        shapes[name] = AgentShapes(
            actor=actor,
            critic=critic,
            length=lengths[name],
            weights_source=f"{read.starts[name][0]}@{config.task.agents[name].actor.revision}",
            reference=read.references[name],
            critic_row_tokens=critic_row,
        )
    return ModelSpecs(
        tokenizers=tokenizers,
        context_limits=contexts,
        lengths=lengths,
        served=read.served,
        shapes=shapes,
        layouts=layouts,
        reward_models=frozen_reward_models(config),
        warnings=read.warnings,
    )


@dataclass(slots=True)
class _ModelReader:
    """The tokenizers and shapes that were read so far, by agent."""

    config: Config
    task: Task
    tokenizers: dict[str, PreTrainedTokenizerBase] = field(default_factory=dict)
    contexts: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[ModelShape, ModelShape | None]] = field(default_factory=dict)  # of actor and critic
    references: dict[str, ModelShape | None] = field(default_factory=dict)
    served: dict[str, ServedPolicy] = field(default_factory=dict)
    starts: dict[str, tuple[str, str | None]] = field(default_factory=dict)  # source, revision of the initial weights
    warnings: dict[str, str] = field(default_factory=dict)  # by rule
    # Cache by source, revision and settings: agents often start from the same model.
    empty_models: dict[tuple[str, str | None, str], Any] = field(default_factory=dict)

    def create_base(self, base: str, names: Sequence[str], actor: TinyActorConfig) -> None:
        """Create the tokenizer of a local model from examples, and its model without weights."""
        lessons = warm_start_lessons(names, self.config, self.task, ALPHABET_EXAMPLES)
        check_has_lessons(names[0], actor, lessons)
        alphabet = alphabet_lessons(names, lessons, self.config, self.task, ALPHABET_EXAMPLES)
        tokenizer = make_lesson_tokenizer(actor.alphabet, alphabet)
        source = f"{base}'s own"
        self.empty_models[source, actor.revision, str({})] = empty_model(tiny_config(actor, len(tokenizer)))
        self._read_agents(base, names, source, tokenizer)

    def read_base(self, base: str, names: Sequence[str], source: str) -> None:
        """Read the tokenizer and the shapes of agents that share a base."""
        actor = self.config.task.agents[names[0]].actor
        if actor.is_served:  # it shares its model with no other agent of the run
            (name,) = names
            self.served[name] = load_served_policy(name, actor, source, actor.revision)
            self.tokenizers[name] = self.served[name].tokenizer
            self.contexts[name] = context_limit(self.served[name].model_config, self.config.rollout)
            return
        self._read_agents(base, names, source, load_actor_tokenizer(actor, source, actor.revision))

    def _read_agents(self, base: str, names: Sequence[str], source: str, tokenizer: PreTrainedTokenizerBase) -> None:
        agents, deepspeed = self.config.task.agents, self.config.deepspeed
        actor = agents[names[0]].actor
        lm = _get_empty_model(self.empty_models, source, actor.revision, actor)
        check_readable_tokens(tokenizer, lm, tokenizer_setting(actor, source))
        for name in names:
            agent = agents[name]
            if not agent.frozen:
                model = f"{base}'s actor" if actor.model is None else f"actor.model={actor.model}"
                check_model_parallel(lm, deepspeed, model)
                if (warning := check_router_loss(lm, self.config.algorithm, deepspeed, model)) is not None:
                    self.warnings["router_loss"] = warning
            self.tokenizers[name], self.contexts[name] = tokenizer, context_limit(lm.config, self.config.rollout)
            self.starts[name] = source, actor.revision
            critic = _critic_shape(agent, self.empty_models, source, actor.revision, deepspeed)
            self.shapes[name] = _actor_shape(agent, lm, source), critic
            self.references[name] = _reference_shape(agent, self.empty_models, lm, source, deepspeed)


def update_lengths(config: Config, task: Task, specs: ModelSpecs) -> ModelSpecs:
    """The specs with the lengths of a configuration that differs in limits of responses."""
    formats = prompt_formats(config.task, config.rollout, specs.tokenizers)
    lengths = episode_lengths(config, task, formats, specs.context_limits)
    critic_row = max_critic_tokens(lengths) if specs.layouts else None
    shapes = {
        name: replace(shapes, length=lengths[name], critic_row_tokens=critic_row)
        for name, shapes in specs.shapes.items()
    }
    return replace(specs, lengths=lengths, shapes=shapes)


def frozen_reward_models(config: Config) -> tuple[FrozenModel, ...]:
    """The reward models on the ranks' devices."""
    models = [
        (where, model)
        for where, own in rewards_with_prefixes(config)
        if (model := own.reward.model_of_ranks) is not None
    ]
    return tuple(
        FrozenModel(
            name="reward model" if where == "reward" else f"{where.rpartition('.')[2]} reward",
            shape=reward_model_shape(read_config(str(model.model), model.revision)),
            bytes_per_weight=bytes_per_weight(model.dtype),
        )
        for where, model in models
    )


def _get_empty_model(
    known: dict[tuple[str, str | None, str], Any], source: str, revision: str | None, actor: ActorConfig | None = None
) -> Any:
    """The model without weights, from `known` if cached; an actor's `model_args` override its configuration."""
    values = {} if actor is None else model_config_overrides(actor)
    key = source, revision, str(values)
    if key not in known:
        known[key] = empty_model(load_config(source, revision, values))
    return known[key]


def _actor_shape(agent: AgentConfig, lm: PreTrainedModel, source: str) -> ModelShape:
    shape = actor_shape(lm)
    if (bits := quantized_bits(agent.actor)) is not None:
        shape = quantized_shape(shape, lm, bits, bytes_per_weight(agent.actor.dtype))
    if agent.actor.trains_adapter:
        earlier = agent.actor.first_adapter
        shape = add_adapter(shape, lm, agent.actor, "actor", source, earlier=earlier, key="actor.adapter")
    if agent.critic.shares_actor_loss and not agent.frozen:
        shape = add_value_head(shape, lm.config, agent.critic)
    return shape


def _reference_shape(
    agent: AgentConfig,
    known: dict[tuple[str, str | None, str], Any],
    lm: PreTrainedModel,
    source: str,
    deepspeed: DeepspeedConfig,
) -> ModelShape | None:
    """The shape of an agent's reference if it needs weights in addition to the initial model or base; else None."""
    actor = agent.actor
    if agent.frozen or is_default_reference(actor):
        return None
    folder, is_adapter = None, False
    if actor.reference not in (ReferenceKind.initial, ReferenceKind.base):
        folder, is_adapter = find_reference_folder(actor.reference)
    if folder is not None and not is_adapter:
        reference = _get_empty_model(known, str(folder), None)
        # A reference may read the rows of a training pass, but keeps its own weights.
        check_model_parallel(reference, replace(deepspeed, tensor_parallel=1), f"actor.reference={actor.reference}")
        return actor_shape(reference)
    if actor.reference_update_every is not None:  # same size as the actor
        shape = actor_shape(lm)
        if actor.trains_adapter:
            shape = add_adapter(shape, lm, actor, "actor", source, earlier=actor.first_adapter, key="actor.adapter")
        return replace(shape, sizes=shape.adapter or shape.sizes, adapter=None)
    if actor.reference == ReferenceKind.initial and actor.first_adapter is not None:
        folder = Path(actor.first_adapter)
    if folder is None:
        return None
    adapter = read_adapter(folder, "actor.reference")
    on = lm if actor.trains_adapter or adapter.base is None else _get_empty_model(known, adapter.base, None)
    shape = add_adapter(actor_shape(on), on, adapter.settings, "actor.reference", adapter.base or source)
    assert shape.adapter is not None
    return replace(shape, sizes=shape.adapter if actor.trains_adapter else shape.sizes + shape.adapter, adapter=None)


def _critic_shape(
    agent: AgentConfig,
    known: dict[tuple[str, str | None, str], Any],
    actor: str,
    revision: str | None,
    deepspeed: DeepspeedConfig,
) -> ModelShape | None:
    critic = agent.critic
    if agent.frozen:
        return None
    if critic.trains_adapter:
        lm = _get_empty_model(known, actor, revision, agent.actor)
        earlier = critic.warm_start
        shape = add_adapter(actor_shape(lm), lm, critic, "critic", actor, earlier=earlier, key="critic.warm_start")
        return add_value_head(shape, lm.config, critic)
    if critic.shares_actor_loss and critic.warm_start is not None:
        check_value_head_start(critic, hidden_width(_get_empty_model(known, actor, revision, agent.actor).config))
    if not critic.has_own_backbone:
        return None
    if critic.warm_start is not None:
        start = empty_backbone(warm_start_config(critic))
        check_model_parallel(start, deepspeed, f"critic.warm_start={critic.warm_start}")
        return critic_shape(start, critic)
    if critic.model is None:
        return critic_shape(_get_empty_model(known, actor, revision, agent.actor), critic)
    lm = _get_empty_model(known, critic.model, critic.revision)
    check_model_parallel(lm, deepspeed, f"critic.model={critic.model}")
    return critic_shape(lm, critic)


def _critic_contexts(
    config: Config, known: dict[tuple[str, str | None, str], Any], starts: Mapping[str, tuple[str, str | None]]
) -> dict[str, int]:
    """Context length of each centralised critic, by the critic's name."""
    found: dict[str, int] = {}
    for name, names in agents_by_critic(config).items():
        critic, actor = config.task.agents[names[0]].critic, config.task.agents[names[0]].actor
        if critic.reads_team:
            if critic.warm_start is not None:
                found[name] = critic_context(config, critic, warm_start_config(critic))
                continue
            of_actor = critic.model is None
            source, revision = starts[names[0]] if of_actor else (str(critic.model), critic.revision)
            found[name] = critic_context(
                config, critic, _get_empty_model(known, source, revision, actor if of_actor else None).config
            )
    return found
