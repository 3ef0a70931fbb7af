"""Builds a team: loads models, builds engines, and resolves which agents share weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from ippo_cli.agents.agent import Agent, FrozenAgent
from ippo_cli.agents.build_critic import (
    build_critic_learner,
    enable_checkpointing,
    initial_moments,
    make_value_head,
    response_budget,
)
from ippo_cli.agents.centralized import build_critic_layouts, critic_context
from ippo_cli.agents.learner import Learner, param_groups
from ippo_cli.agents.references import (
    FrozenWeights,
    get_shared_base,
    load_initial_policy,
    load_reference_policy,
    make_learner_engine,
    splits_rows,
    tensor_plan,
)
from ippo_cli.agents.team import Team
from ippo_cli.algorithms.objectives import JointObjective, PolicyObjective
from ippo_cli.algorithms.user_objectives import build_user_loss
from ippo_cli.config.batch_sizes import mini_batch_size
from ippo_cli.config.credit import needs_reference
from ippo_cli.config.critic_fitting import policy_warmup
from ippo_cli.config.errors import PreflightError
from ippo_cli.config.placement import read_placement
from ippo_cli.config.schema import (
    AgentConfig,
    Config,
    ReferenceKind,
)
from ippo_cli.config.shared_rollouts import shared_authors
from ippo_cli.config.teams import agents_by_critic, agents_by_policy, ensemble_names, policy_by_agent, shares_critic
from ippo_cli.engine import distributed
from ippo_cli.engine.rank_group import RankGroup
from ippo_cli.models.actor import (
    Policy,
    check_readable_tokens,
    load_actor_lm,
    load_actor_tokenizer,
    tokenizer_setting,
)
from ippo_cli.models.critic import (
    ValueHead,
    load_value_head,
)
from ippo_cli.models.load import backbone_of
from ippo_cli.models.packing import enable_packing
from ippo_cli.rollout.generator import context_limit
from ippo_cli.rollout.served_policy import ServedPolicy, load_served_policy

if TYPE_CHECKING:  # only imported with adapters: peft takes seconds to import
    pass

LOGIT_CHUNK_ELEMENTS = 1 << 26  # 256 MiB in fp32; softmax and gradient of a chunk take a few times as much


def build_team(
    config: Config,
    weights: Mapping[str, Path | str],
    device: torch.device,
    saved: Path | None = None,
    *,
    trains: bool = True,
) -> Team:
    """Build the models and engines of all agents, in the same order on every rank; a rank builds those placed on it.

    `weights`: initial weights of each actor, by name of the weights. `saved`: a checkpoint that replaces them; the KL
    reference remains the initial model. `trains`: False for models without optimizers, which only compute.
    """
    frozen = FrozenWeights(device, create_groups(config), trains=trains)
    built: dict[str, Agent] = {}
    agents_frozen: dict[str, FrozenAgent | ServedPolicy] = {}
    learners: list[Learner] = []
    for holder, names in agents_by_policy(config).items():
        if config.task.agents[names[0]].frozen:
            agents_frozen[holder] = _build_frozen(config, holder, str(weights[holder]), frozen)
            continue
        place = None if saved is None else saved / holder
        member = _build_agent(config, holder, names, str(weights[holder]), place, frozen)
        built |= {name: replace(member, name=name) for name in names}
        learners += [member.policy, *member.critics]
    if shares_critic(config):
        ((name, names),) = agents_by_critic(config).items()
        place = None if saved is None else saved / name
        first = config.task.agents[names[0]]
        initial = str(weights[policy_by_agent(config)[names[0]]])
        member = build_critic_learner(config, name, names, first, initial, place, frozen)
        built = {agent: replace(built[agent], critic=member) for agent in built}
        learners.append(member)
    team = Team(
        agents={name: built[name] for name in config.task.agents if name in built},
        learners=learners,
        frozen=agents_frozen,
        names=tuple(config.task.agents),
    )
    share_model_configs(team)
    _set_critic_layouts(config, team)
    return team


def create_groups(config: Config) -> dict[str, RankGroup]:
    """The ranks that hold each component, by `AGENT.actor`, `AGENT.critic` and `AGENT.reference`, and `reward`."""
    placement = read_placement(config, distributed.world_size())
    return {component: distributed.rank_group(ranks) for component, ranks in placement.ranks.items()}


def share_model_configs(team: Team) -> None:
    """Set the configuration of each model on the ranks that do not hold it. Collective."""
    frozen = [agent for agent in team.frozen.values() if isinstance(agent, FrozenAgent)]
    models: list[Learner | FrozenAgent] = [*team.learners, *frozen]
    if all(model.group.is_world for model in models):
        return
    gathered = distributed.gather_objects([model.model_config if model.group.is_member else None for model in models])
    for model, configs in zip(models, zip(*gathered, strict=True), strict=True):
        model.remote_config = configs[model.group.ranks[0]]


def _set_critic_layouts(config: Config, team: Team) -> None:
    """Configure centralised critics to read the observations and actions of all agents."""
    own = {agent.critic.name: agent.critic for agent in team.values() if agent.critic is not None}
    critic_contexts = {
        name: critic_context(config, critic, own[name].model_config)
        for name, names in agents_by_critic(config).items()
        if (critic := config.task.agents[names[0]].critic).reads_team
    }
    layouts = build_critic_layouts(
        config,
        {name: agent.tokenizer for name, agent in team.generation_policies.items()},
        {name: context_limit(agent.model_config, config.rollout) for name, agent in team.items()},
        critic_contexts,
    )
    for name, layout in layouts.items():
        own[name].layout = layout


def _build_frozen(config: Config, name: str, weights: str, frozen: FrozenWeights) -> FrozenAgent | ServedPolicy:
    """An agent that keeps its initial weights; they may be shared with a reference, since neither is updated."""
    actor = config.task.agents[name].actor
    if actor.is_served:
        return load_served_policy(name, actor, weights, actor.revision)
    tokenizer = load_actor_tokenizer(actor, weights, actor.revision)
    group = frozen.groups[f"{name}.actor"]
    if not group.is_member:
        return FrozenAgent(name=name, tokenizer=tokenizer, held_policy=None, group=group)
    with group.activate():
        policy, engine = load_initial_policy(config, name, actor, weights, frozen)
    if actor.first_adapter is not None:
        from ippo_cli.models.adapters import AdapterPolicy

        base = get_shared_base(config, name, actor, weights, frozen)
        adapter = base.add_adapter(actor, "actor", config.seed, earlier=actor.first_adapter, key="actor.adapter")
        adapter.load(Path(actor.first_adapter), "actor.adapter")
        policy = AdapterPolicy(base, adapter).eval()
    check_readable_tokens(tokenizer, policy.lm, tokenizer_setting(actor, weights))
    return FrozenAgent(name=name, tokenizer=tokenizer, held_policy=policy, engine=engine, group=group)


def _build_agent(
    config: Config, holder: str, names: tuple[str, ...], weights: str, saved: Path | None, frozen: FrozenWeights
) -> Agent:
    """The first of the agents that share these weights; the others differ from it only in name."""
    agent = config.task.agents[names[0]]
    tokenizer = load_actor_tokenizer(agent.actor, weights, agent.actor.revision)
    group, reference_group = (frozen.groups[f"{names[0]}.{part}"] for part in ("actor", "reference"))
    policy, reference, reference_engine = None, None, None
    if group.is_member:
        with group.activate():
            policy = build_policy(config, holder, agent, weights, saved, frozen)
        check_readable_tokens(tokenizer, policy.lm, tokenizer_setting(agent.actor, weights))
    # Before an engine shards the policy.
    chunk_tokens = 1 if policy is None else _count_chunk_tokens(config, policy)
    if needs_reference(config) and reference_group.is_member:
        with reference_group.activate():
            reference, reference_engine = load_reference_policy(config, holder, agent.actor, weights, frozen)
        if agent.actor.reference not in (ReferenceKind.initial, ReferenceKind.base):
            check_readable_tokens(tokenizer, reference.lm, f"actor.reference={agent.actor.reference}")
    if reference is not None and policy is not None and not reference.packs:
        policy.packs = False  # the reference reads the same rows as the policy
        if splits_rows(config):
            raise PreflightError(
                f"deepspeed.sequence_parallel={config.deepspeed.sequence_parallel}: the reference of {holder}, "
                f"actor.reference={agent.actor.reference}, does not support packed rows; set it to 1"
            )
    if reference is not None and policy is None:
        chunk_tokens = _count_chunk_tokens(config, reference)
    actor = _build_actor_learner(config, holder, names, policy, reference, chunk_tokens, frozen)
    critics: list[Learner] = []
    if agent.critic.has_own_optimizer and not shares_critic(config):
        for name in ensemble_names(holder, agent.critic):
            place = None if saved is None else saved.with_name(name)
            critics.append(build_critic_learner(config, name, names, agent, weights, place, frozen))
    return Agent(
        name=names[0],
        tokenizer=tokenizer,
        policy=actor,
        critic=critics[0] if critics else None,
        other_critics=tuple(critics[1:]),
        reference=reference,
        reference_engine=reference_engine,
        has_reference=needs_reference(config),
        reference_group=reference_group,
        mask_agreement=getattr(agent.critic, "mask_agreement", None),
        mask_entropy=getattr(agent.critic, "mask_entropy", None),
        reference_update_every=agent.actor.reference_update_every,
        temperature=agent.rollout.temperature,
        chunk_tokens=chunk_tokens,
    )


def _count_chunk_tokens(config: Config, policy: Policy) -> int:
    """Tokens of which a policy computes logits at a time."""
    weight = policy.lm.get_output_embeddings().weight  # pyright: ignore[reportOptionalMemberAccess]
    vocabulary = getattr(weight, "ds_shape", weight.shape)[0]  # the reference may be sharded already
    return config.deepspeed.logit_chunk_tokens or max(LOGIT_CHUNK_ELEMENTS // vocabulary, 1)


def build_policy(
    config: Config, holder: str, agent: AgentConfig, weights: str, saved: Path | None, frozen: FrozenWeights
) -> Policy:
    """The actor's model with its initial or saved weights."""
    actor = agent.actor
    if actor.trains_adapter:
        from ippo_cli.models.adapters import AdapterPolicy

        base = get_shared_base(config, holder, actor, weights, frozen)
        adapter = base.add_adapter(actor, "actor", config.seed, earlier=actor.first_adapter, key="actor.adapter")
        policy: Policy = AdapterPolicy(base, adapter, _build_value_head(agent, base.lm))
        if saved is not None:
            policy.load_saved(saved)
        elif actor.first_adapter is not None:
            adapter.load(Path(actor.first_adapter), "actor.adapter")
        return policy
    source, revision = (weights, actor.revision) if saved is None else (str(saved / "actor"), None)
    spreads = config.deepspeed.stage == 3
    lm = load_actor_lm(actor, source, revision, as_stored=spreads)
    policy = Policy(lm, _build_value_head(agent, lm), in_step=spreads)
    if saved is not None and policy.value_head is not None:
        policy.value_head.copy_from(load_value_head(saved / "critic"))
    enable_checkpointing(lm, actor.gradient_checkpointing)
    policy.packs = config.deepspeed.pack_sequences and enable_packing(backbone_of(lm), split=splits_rows(config))
    return policy


def _build_value_head(agent: AgentConfig, lm: PreTrainedModel) -> ValueHead | None:
    """The value head of a policy that carries one."""
    if not agent.critic.shares_actor_loss:
        return None
    head = make_value_head(agent.critic, lm, agent.actor.dtype)
    if agent.critic.warm_start is not None:
        head.copy_from(load_value_head(Path(agent.critic.warm_start)))
    if agent.critic.popart_beta is None and head.is_normalized:
        head.remove_normalization()
    return head


def _build_actor_learner(
    config: Config,
    holder: str,
    names: tuple[str, ...],
    policy: Policy | None,
    reference: Policy | None,
    chunk_tokens: int,
    frozen: FrozenWeights,
) -> Learner:
    """The learner of a policy; `policy` is None on ranks that do not hold it."""
    agent, authors = config.task.agents[names[0]], shared_authors(config, names[0])
    actor, critic = agent.actor, agent.critic
    kl_loss = config.algorithm.kl.loss
    popart_beta = critic.popart_beta if critic.shares_actor_loss else None
    objective = JointObjective if critic.shares_actor_loss else PolicyObjective
    group, engine, policy_groups = frozen.groups[f"{names[0]}.actor"], None, 0
    if policy is not None:
        groups = param_groups(policy.trained_module, actor)
        policy_groups = len(groups)
        if critic.shares_actor_loss:
            assert policy.value_head is not None
            groups += param_groups(policy.value_head, actor, critic.learning_rate)
        with group.activate():
            engine = make_learner_engine(
                policy, groups, config, actor.dtype, actor, frozen, tensor_plan(config, backbone_of(policy.lm))
            )
    return Learner(
        name=holder,
        agent_names=names,
        group=group,
        local_engine=engine,
        objective=objective(
            config=config.algorithm,
            response_budget=response_budget(config, names),
            temperature=agent.rollout.temperature,
            chunk_tokens=chunk_tokens,
            reference=reference if kl_loss.coef != 0.0 and kl_loss.estimator == "full" else None,
            warmup=policy_warmup(config),
            user_loss=build_user_loss(config.algorithm),
        ),
        optimizer=actor,
        mini_batch_size=(len(names) + len(authors)) * mini_batch_size(config, agent),
        ppo_epochs=agent.algorithm.ppo_epochs,
        micro_batch_tokens=config.deepspeed.micro_batch_tokens,
        forward_batch_tokens=config.deepspeed.forward_batch_tokens,
        share_prefixes=config.deepspeed.share_prefixes,
        splits_rows=splits_rows(config),
        policy_groups=policy_groups,
        shared_authors=authors,
        popart_beta=popart_beta,
        has_new_head=not critic.shares_actor_loss or critic.warm_start is None,
        return_moments=None if popart_beta is None else initial_moments(None if policy is None else policy.value_head),
        reads_packed_rows=reference is not None and reference.packs,
    )
