"""Making a team: models are loaded, engines are built, and what is shared is decided, here and once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, PreTrainedModel

from ippo_cli.agents.agent import Agent, FrozenAgent
from ippo_cli.agents.centralized import critic_context, critic_layouts
from ippo_cli.agents.learner import Learner, param_groups
from ippo_cli.agents.team import Team
from ippo_cli.algorithms.objectives import JointObjective, PolicyObjective, ValueObjective
from ippo_cli.config.arithmetic import critic_mini_batch_size, mini_batch_size
from ippo_cli.config.credit import needs_reference
from ippo_cli.config.schema import (
    ActorConfig,
    CentralizedCriticConfig,
    Config,
    DeepspeedConfig,
    Dtype,
    OptimizerConfig,
    SeparateCriticConfig,
    ValueHeadCriticConfig,
)
from ippo_cli.config.teams import critics, holders, members, shares_critic
from ippo_cli.engine import distributed
from ippo_cli.engine.zero import Engine
from ippo_cli.engine.zero_config import bucket_elements, effective_stage, zero_config
from ippo_cli.models.actor import DTYPES, Policy, load_causal_lm, load_tokenizer, refuse_unreadable_tokens
from ippo_cli.models.critic import ValueHead, ValueHeadConfig, ValueModel, hidden_width, value_model
from ippo_cli.models.load import backbone_of, cannot_load, load_pretrained, what_is_missing
from ippo_cli.models.packing import enable_packing
from ippo_cli.rollout.generator import context_limit
from ippo_cli.tasks.task import response_budgets

LOGITS_AT_ONCE = 1 << 26  # 256 MiB in fp32; a chunk's softmax and gradient take a few times as much


def build_team(config: Config, weights: Mapping[str, Path | str], device: torch.device) -> Team:
    """Models and engines, and the agents that have them, in the same order on every rank.

    `weights`: where each actor starts, by the name that its weights go by.
    """
    references: dict[str, Policy] = {}
    built: dict[str, Agent] = {}
    frozen: dict[str, FrozenAgent] = {}
    learners: list[Learner] = []
    for holder, names in members(config).items():
        if config.task.agents[names[0]].frozen:
            frozen[holder] = _build_frozen(config, holder, str(weights[holder]), references, device)
            continue
        one = _build_agent(config, holder, names, str(weights[holder]), references, device)
        built |= {name: replace(one, name=name) for name in names}
        learners += [one.policy] if one.critic is None else [one.policy, one.critic]
    if shares_critic(config):
        ((name, names),) = critics(config).items()
        one = _critic_learner(config, name, names, str(weights[holders(config)[names[0]]]), device)
        built = {agent: replace(built[agent], critic=one) for agent in built}
        learners.append(one)
    team = Team(
        agents={name: built[name] for name in config.task.agents if name in built},
        learners=learners,
        frozen=frozen,
        names=tuple(config.task.agents),
    )
    _lay_out(config, team)
    return team


def _lay_out(config: Config, team: Team) -> None:
    """Let centralised critics read what all agents saw and said."""
    own = {agent.critic.name: agent.critic for agent in team.values() if agent.critic is not None}
    critic_contexts = {
        name: critic_context(config, critic, own[name].engine.module.backbone.config)
        for name, names in critics(config).items()
        if isinstance(critic := config.task.agents[names[0]].critic, CentralizedCriticConfig)
    }
    layouts = critic_layouts(
        config,
        {name: agent.tokenizer for name, agent in team.speakers.items()},
        {name: context_limit(agent.model_config, config.rollout) for name, agent in team.items()},
        critic_contexts,
    )
    for name, layout in layouts.items():
        own[name].layout = layout


def _build_frozen(
    config: Config, name: str, weights: str, references: dict[str, Policy], device: torch.device
) -> FrozenAgent:
    """An agent that keeps its initial weights: nothing writes to them, as to a reference, which may be the same."""
    actor = config.task.agents[name].actor
    tokenizer = load_tokenizer(weights, actor.revision)
    policy = _reference(actor, weights, references, device)
    refuse_unreadable_tokens(tokenizer, policy.lm, f"actor.model={weights}")
    return FrozenAgent(name=name, tokenizer=tokenizer, policy=policy)


def _build_agent(
    config: Config,
    holder: str,
    names: tuple[str, ...],
    weights: str,
    references: dict[str, Policy],
    device: torch.device,
) -> Agent:
    """The first of the agents that have these weights; the others differ from it in name."""
    agent = config.task.agents[names[0]]
    tokenizer = load_tokenizer(weights, agent.actor.revision)
    lm = load_causal_lm(weights, agent.actor.revision, agent.actor.dtype)
    refuse_unreadable_tokens(tokenizer, lm, f"actor.model={weights}")
    # Before an engine spreads it.
    vocabulary = len(lm.get_output_embeddings().weight)  # pyright: ignore[reportOptionalMemberAccess]
    separate = isinstance(agent.critic, SeparateCriticConfig) and not shares_critic(config)
    head = None
    if isinstance(agent.critic, ValueHeadCriticConfig):
        head = ValueHead(ValueHeadConfig(hidden_width(lm.config), agent.critic.value_head_hidden_dim))
        nn.Module.to(head, dtype=lm.dtype)
    policy = Policy(lm, head, in_step=config.deepspeed.stage == 3)
    reference = _reference(agent.actor, weights, references, device) if needs_reference(config) else None
    chunk_tokens = config.deepspeed.logit_chunk_tokens or max(LOGITS_AT_ONCE // vocabulary, 1)
    actor = _actor_learner(config, holder, names, policy, reference, chunk_tokens, device)
    return Agent(
        name=names[0],
        tokenizer=tokenizer,
        policy=actor,
        critic=_critic_learner(config, holder, names, weights, device) if separate else None,
        reference=reference,
        temperature=agent.rollout.temperature,
        chunk_tokens=chunk_tokens,
    )


def _actor_learner(
    config: Config,
    holder: str,
    names: tuple[str, ...],
    policy: Policy,
    reference: Policy | None,
    chunk_tokens: int,
    device: torch.device,
) -> Learner:
    agent = config.task.agents[names[0]]
    actor, critic = agent.actor, agent.critic
    _checkpoint_gradients(policy.lm, actor.gradient_checkpointing)
    policy.packs = config.deepspeed.pack_sequences and enable_packing(backbone_of(policy.lm))
    if reference is not None and not reference.packs:
        policy.packs = False  # the reference is given the rows that the policy reads
    kl_loss = config.algorithm.kl.loss
    objective = PolicyObjective if policy.value_head is None else JointObjective
    groups = param_groups(policy.lm, actor)
    if isinstance(critic, ValueHeadCriticConfig):
        assert policy.value_head is not None
        groups += param_groups(policy.value_head, actor, critic.learning_rate)
    return Learner(
        name=holder,
        trains=names,
        engine=_engine(policy, groups, config.deepspeed, actor.dtype, actor, device),
        objective=objective(
            config=config.algorithm,
            response_budget=_response_budget(config, names),
            temperature=agent.rollout.temperature,
            chunk_tokens=chunk_tokens,
            reference=reference if kl_loss.coef != 0.0 and kl_loss.estimator == "full" else None,
        ),
        optimizer=actor,
        mini_batch_size=len(names) * mini_batch_size(config, agent),
        ppo_epochs=agent.algorithm.ppo_epochs,
        micro_batch_tokens=config.deepspeed.micro_batch_tokens,
        forward_batch_tokens=config.deepspeed.forward_batch_tokens,
    )


def _critic_learner(config: Config, holder: str, names: tuple[str, ...], weights: str, device: torch.device) -> Learner:
    agent = config.task.agents[names[0]]
    actor, critic = agent.actor, agent.critic
    assert isinstance(critic, SeparateCriticConfig)
    model = load_critic(critic, weights, actor.revision)
    _checkpoint_gradients(model.backbone, critic.gradient_checkpointing)
    model.packs = config.deepspeed.pack_sequences and enable_packing(model.backbone)
    return Learner(
        name=holder,
        trains=names,
        engine=_engine(model, param_groups(model, critic), config.deepspeed, critic.dtype, critic, device),
        objective=ValueObjective(config=config.algorithm, response_budget=_response_budget(config, names)),
        optimizer=critic,
        mini_batch_size=len(names) * critic_mini_batch_size(config, agent),
        ppo_epochs=critic.ppo_epochs or agent.algorithm.ppo_epochs,
        micro_batch_tokens=config.deepspeed.micro_batch_tokens,
        forward_batch_tokens=config.deepspeed.forward_batch_tokens,
    )


def _response_budget(config: Config, names: tuple[str, ...]) -> int:
    """Tokens of one row: a constant of the loss, so it is that of the agent who may write most."""
    return max(response_budgets(config)[name] for name in names)


def load_critic(critic: SeparateCriticConfig, weights: str, revision: str | None) -> ValueModel:
    """A separate critic's initial weights: an earlier critic's, a model's of its own, or the actor's."""
    source, of = (weights, revision) if critic.model is None else (critic.model, critic.revision)
    try:
        if critic.warm_start is not None:
            model: ValueModel = load_pretrained(ValueModel, critic.warm_start, dtype=DTYPES[critic.dtype])
            if model.config.value_head_hidden_dim != critic.value_head_hidden_dim:
                raise ValueError(f"its value_head_hidden_dim is {model.config.value_head_hidden_dim}")
            return model
        backbone = load_pretrained(AutoModel, source, revision=of, dtype=DTYPES[critic.dtype])
    except Exception as error:
        if critic.warm_start is not None:
            source, given = critic.warm_start, f"critic.warm_start={critic.warm_start}"
        elif critic.model is None:
            given = f"critic.model=null (the actor's, {source})"
        else:
            given = f"critic.model={source}"
        raise cannot_load(given, "critic", error, what_is_missing(Path(source))) from error
    return value_model(backbone, critic.value_head_hidden_dim)


def _engine(
    module: nn.Module,
    groups: list[dict[str, Any]],
    deepspeed: DeepspeedConfig,
    dtype: Dtype,
    optimizer: OptimizerConfig,
    device: torch.device,
) -> Engine:
    size = sum(parameter.numel() for parameter in module.parameters())
    stage = effective_stage(
        deepspeed.stage,
        bf16=dtype is Dtype.bf16,
        ranks=distributed.world_size(),
        offload_optimizer=deepspeed.offload_optimizer,
    )
    settings = zero_config(
        stage=stage,
        dtype=dtype.value,
        offload_optimizer=deepspeed.offload_optimizer,
        offload_params=deepspeed.offload_params,
        reduce_bucket_size=bucket_elements(deepspeed.reduce_bucket_size, size),
        persistence_threshold=deepspeed.persistence_threshold,
        max_grad_norm=optimizer.max_grad_norm,
    )
    return Engine(module, groups, zero=settings, device=device)


def _reference(actor: ActorConfig, weights: str, references: dict[str, Policy], device: torch.device) -> Policy:
    """The frozen initial policy. Agents that start from the same weights share it: nothing ever writes to it."""
    key = f"{weights}@{actor.revision}:{actor.dtype.value}"
    if key not in references:
        policy = Policy(load_causal_lm(weights, actor.revision, actor.dtype)).to(device)
        policy.packs = enable_packing(backbone_of(policy.lm))
        references[key] = policy.requires_grad_(False).eval()
    return references[key]


def _checkpoint_gradients(model: PreTrainedModel, on: bool) -> None:
    if on:
        model.gradient_checkpointing_enable({"use_reentrant": False})
