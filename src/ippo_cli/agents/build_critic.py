"""Builds critics with a separate engine, and value heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn
from transformers import PreTrainedModel

from ippo_cli.agents.critic_start import load_critic
from ippo_cli.agents.learner import EnsembleMember, Learner, param_groups
from ippo_cli.agents.references import FrozenWeights, get_shared_base, make_learner_engine, splits_rows, tensor_plan
from ippo_cli.algorithms.objectives import ValueObjective
from ippo_cli.algorithms.return_moments import ReturnMoments
from ippo_cli.config.batch_sizes import critic_mini_batch_size
from ippo_cli.config.errors import PreflightError
from ippo_cli.config.model_args import unquantized_args
from ippo_cli.config.schema import (
    AgentConfig,
    Config,
    Dtype,
    OptimizedCriticConfig,
    TrainedCriticConfig,
)
from ippo_cli.config.teams import ensemble_names, policy_by_agent
from ippo_cli.models.actor import DTYPES
from ippo_cli.models.critic import (
    ValueHead,
    ValueHeadConfig,
    ValueModel,
    check_head_shape,
    configured_head_keys,
    head_keys,
    hidden_width,
)
from ippo_cli.models.freezing import freeze_parameters
from ippo_cli.models.load import UnusableModel, checkpoint_activations
from ippo_cli.models.packing import enable_packing
from ippo_cli.tasks.task import response_budgets

if TYPE_CHECKING:  # only imported with adapters: peft takes seconds to import
    from ippo_cli.models.adapters import AdapterCritic


def make_value_head(critic: TrainedCriticConfig, lm: PreTrainedModel, dtype: Dtype) -> ValueHead:
    """A zero head for a language model."""
    head = ValueHead(ValueHeadConfig(hidden_width(lm.config), **configured_head_keys(critic)))
    nn.Module.to(head, dtype=DTYPES[dtype])
    return head


def build_critic(
    config: Config, holder: str, agent: AgentConfig, weights: str, saved: Path | None, frozen: FrozenWeights
) -> ValueModel | AdapterCritic:
    """A critic with a separate engine: an adapter on the actor's frozen base, or a model."""
    critic, actor = agent.critic, agent.actor
    if critic.trains_adapter:
        from ippo_cli.models.adapters import AdapterCritic

        base = get_shared_base(config, holder, actor, weights, frozen)
        adapter = base.add_adapter(critic, "critic", config.seed, earlier=critic.warm_start, key="critic.warm_start")
        on_base = AdapterCritic(adapter, make_value_head(critic, base.lm, actor.dtype))
        if saved is not None:
            on_base.load_saved(saved)
        elif critic.warm_start is not None:
            on_base.load(Path(critic.warm_start), "critic.warm_start")
            try:
                check_head_shape(head_keys(on_base.value_head.config), critic)
            except UnusableModel as error:
                raise PreflightError(f"critic.warm_start={critic.warm_start}: {error}") from error
        return on_base
    if saved is not None:
        critic = replace(critic, warm_start=str(saved / "critic"))
    args = unquantized_args(actor) if critic.model is None else {}
    model = load_critic(critic, weights, actor.revision, as_stored=config.deepspeed.stage == 3, args=args)
    freeze_parameters(model, critic.freeze)
    enable_checkpointing(model.backbone, critic.gradient_checkpointing)
    model.packs = config.deepspeed.pack_sequences and enable_packing(model.backbone, split=splits_rows(config))
    return model


def build_critic_learner(
    config: Config,
    holder: str,
    names: tuple[str, ...],
    agent: AgentConfig,
    weights: str,
    saved: Path | None,
    frozen: FrozenWeights,
) -> Learner:
    """The learner of a critic with a separate engine; `agent` is the first of its agents."""
    critic, dtype = agent.critic, agent.critic_weights.dtype
    group, engine, moments = frozen.groups[f"{names[0]}.critic"], None, None
    if group.is_member:
        with group.activate():
            model = build_critic(config, holder, agent, weights, saved, frozen)
            if critic.popart_beta is None and model.value_head.is_normalized:
                model.value_head.remove_normalization()
            plan = tensor_plan(config, model.backbone) if isinstance(model, ValueModel) else None
            engine = make_learner_engine(model, param_groups(model, critic), config, dtype, critic, frozen, plan)
    if critic.popart_beta is not None:
        moments = initial_moments(None if engine is None else engine.module.value_head)
    return Learner(
        name=holder,
        agent_names=names,
        group=group,
        local_engine=engine,
        objective=ValueObjective(config=config.algorithm, response_budget=response_budget(config, names)),
        optimizer=critic,
        mini_batch_size=len(names) * critic_mini_batch_size(config, agent),
        ppo_epochs=critic.ppo_epochs or agent.algorithm.ppo_epochs,
        micro_batch_tokens=config.deepspeed.micro_batch_tokens,
        forward_batch_tokens=config.deepspeed.forward_batch_tokens,
        share_prefixes=config.deepspeed.share_prefixes,
        splits_rows=splits_rows(config),
        popart_beta=critic.popart_beta,
        return_moments=moments,
        has_new_head=critic.warm_start is None,
        member=_ensemble_member(config, holder, names, critic),
    )


def _ensemble_member(
    config: Config, name: str, names: tuple[str, ...], critic: OptimizedCriticConfig
) -> EnsembleMember | None:
    """The part of the prompts of one of several critics."""
    members = ensemble_names(policy_by_agent(config)[names[0]], critic)
    if len(members) == 1:
        return None
    return EnsembleMember(members.index(name), len(members), config.rollout.num_generations)


def initial_moments(head: ValueHead | None) -> ReturnMoments:
    """The moments of a critic before its first buffer: those of its head, on ranks that hold it."""
    return ReturnMoments() if head is None else ReturnMoments(mean=head.config.value_mean, std=head.config.value_std)


def response_budget(config: Config, names: tuple[str, ...]) -> int:
    """Token limit of one row: a constant of the loss, so it is the largest limit of all agents."""
    return max(response_budgets(config)[name] for name in names)


def enable_checkpointing(model: PreTrainedModel, on: bool) -> None:
    """Checkpoint the activations of a model, if that is on."""
    if on:
        checkpoint_activations(model)
