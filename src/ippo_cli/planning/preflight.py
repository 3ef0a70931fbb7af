"""Preflight checks of models, prompts, memory and disk before weights are loaded, for training and `mode=plan`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ippo_cli.agents.centralized import build_critic_layouts, critic_context
from ippo_cli.agents.critic_start import warm_start_config
from ippo_cli.agents.critic_view import CriticLayout
from ippo_cli.agents.initial import alphabet_lessons, check_has_lessons, warm_start_lessons
from ippo_cli.config.adapters import find_reference_folder, read_adapter
from ippo_cli.config.batch_sizes import BatchSizes
from ippo_cli.config.errors import PreflightError
from ippo_cli.config.model_args import model_config_overrides, quantized_bits
from ippo_cli.config.references import is_default_reference
from ippo_cli.config.schema import (
    ActorConfig,
    AdapterCriticConfig,
    AgentConfig,
    CentralizedCriticConfig,
    Config,
    Device,
    JsonlConfig,
    LoraActorConfig,
    OverlongPrompts,
    PlanConfig,
    ReferenceKind,
    SeparateCriticConfig,
    TinyActorConfig,
    ValueHeadCriticConfig,
)
from ippo_cli.config.teams import agents_by_base, agents_by_critic, policy_by_agent
from ippo_cli.engine.host_memory import host_memory
from ippo_cli.models.actor import check_readable_tokens, load_actor_tokenizer, tokenizer_setting
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
from ippo_cli.planning.episode_length import episode_lengths, length_warnings, max_critic_tokens
from ippo_cli.planning.memory import (
    GIB,
    AgentShapes,
    FrozenModel,
    MemoryEstimate,
    bytes_per_weight,
    checkpoint_bytes,
    estimate_memory,
    snapshot_bytes,
)
from ippo_cli.planning.reward_models import frozen_reward_models
from ippo_cli.rollout.generator import context_limit
from ippo_cli.tasks.conversation import PromptFormat, check_prompt_lengths, fitting_rows, prompt_formats
from ippo_cli.tasks.eval_rows import count_eval_episodes
from ippo_cli.tasks.rows import take_rows
from ippo_cli.tasks.schedule import ExampleSchedule
from ippo_cli.tasks.task import Task, example_only_agents, multi_turn_agents
from ippo_cli.tasks.templates import first_message
from ippo_cli.types import Example

STAGE_OVERRIDES = (
    ("deepspeed=zero2", {"stage": 2, "offload_optimizer": False, "offload_params": False}),
    ("deepspeed=zero3", {"stage": 3, "offload_optimizer": False, "offload_params": False}),
    ("deepspeed=zero3_offload", {"stage": 3, "offload_optimizer": True, "offload_params": True}),
)
MEMORY_ADVICE = {
    "load": "use a higher ZeRO stage, or a smaller model",
    "rollout": "lower rollout.decode_batch_size or rollout.max_new_tokens, shorten the prompts, or at stage 3 set "
    "rollout.zero3_gather=layer",
    "targets": "lower deepspeed.forward_batch_tokens or deepspeed.logit_chunk_tokens",
    "update": "lower deepspeed.micro_batch_tokens, or set gradient_checkpointing=true for actor and critic",
    "save": "use a higher ZeRO stage, or a smaller model",
}
"""How to reduce the memory of each phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpecs:
    """Tokenizers, context limits and model shapes of all agents, without weights."""

    tokenizers: dict[str, PreTrainedTokenizerBase]
    context_limits: dict[str, int]  # maximum tokens of prompt and response together
    shapes: dict[str, AgentShapes]
    layouts: dict[str, CriticLayout]  # of centralised critics, by the critic's name
    reward_models: tuple[FrozenModel, ...]  # reward models on the same devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Memory in bytes that the ranks on one machine share."""

    device: str  # `cpu` or `cuda`
    host_bytes: int  # host memory
    gpu_bytes: int  # memory of the smallest GPU; 0 on a CPU
    ranks: int  # on this machine
    ranks_per_device: int

    def memory_shortfall(self, device: float, host: float) -> tuple[str, float, float] | None:
        """(name, needed, available) of the memory that is too small for these bytes per rank; None if all fits."""
        if self.device == "cuda":
            if device * self.ranks_per_device > self.gpu_bytes:
                return "GPU", device * self.ranks_per_device, self.gpu_bytes
            return ("machine", host * self.ranks, self.host_bytes) if host * self.ranks > self.host_bytes else None
        needed = (device + host) * self.ranks
        return ("machine", needed, self.host_bytes) if needed > self.host_bytes else None


def device_kind(wanted: Device) -> str:
    """`cuda` or `cpu`. Raises `PreflightError` if CUDA is requested but unavailable."""
    cuda = torch.cuda.is_available() if wanted is Device.auto else wanted is Device.cuda
    if cuda and not torch.cuda.is_available():
        raise PreflightError("launch.device=cuda, but no CUDA device is available; use launch.device=cpu")
    return "cuda" if cuda else "cpu"


def this_machine(device: str, ranks: int) -> Machine:
    """The current machine, with `ranks` training processes on it."""
    if device == "cpu":
        return Machine(device=device, host_bytes=host_memory().total, gpu_bytes=0, ranks=ranks, ranks_per_device=ranks)
    count = torch.cuda.device_count()
    return Machine(
        device=device,
        host_bytes=host_memory().total,
        gpu_bytes=min(torch.cuda.get_device_properties(number).total_memory for number in range(count)),
        ranks=ranks,
        ranks_per_device=-(-ranks // count),
    )


def planned_machine(plan: PlanConfig) -> Machine | None:
    """The machine described by `plan.*`, with the most ranks of any machine; None if `plan.devices` is not set."""
    if plan.devices is None:
        return None
    assert plan.per_machine is not None
    assert plan.memory_gib is not None
    assert plan.machine_memory_gib is not None
    return Machine(
        device="cuda",
        host_bytes=int(plan.machine_memory_gib * GIB),
        gpu_bytes=int(plan.memory_gib * GIB),
        ranks=min(plan.devices, plan.per_machine),
        ranks_per_device=1,
    )


def read_model_specs(config: Config, task: Task, weights: Mapping[str, Path | str] | None = None) -> ModelSpecs:
    """Read every agent's tokenizer and shapes from its actor's initial weights. Raises `PreflightError`.

    `weights`: the initial weights by policy. Without it, tokenizers of local models are created here.
    """
    tokenizers: dict[str, PreTrainedTokenizerBase] = {}
    contexts: dict[str, int] = {}
    shapes_of_agent: dict[str, tuple[ModelShape, ModelShape | None, str]] = {}
    empty_models: dict[tuple[str, str | None, str], Any] = {}  # cache: agents often start from the same model
    references: dict[str, ModelShape | None] = {}
    starts: dict[str, tuple[str, str | None]] = {}  # source and revision of each actor's initial weights
    holder_of = policy_by_agent(config)
    for base, names in agents_by_base(config).items():
        actor = config.task.agents[names[0]].actor
        source, revision = str(actor.model if weights is None else weights[holder_of[names[0]]]), actor.revision
        if weights is None and isinstance(actor, TinyActorConfig):
            source = f"{base}'s own"
            lessons = warm_start_lessons(names, config, task)
            check_has_lessons(names[0], actor, lessons)
            tokenizer = make_lesson_tokenizer(actor.alphabet, alphabet_lessons(names, lessons, config, task))
            empty_models[source, revision, str({})] = empty_model(tiny_config(actor, len(tokenizer)))
        else:
            tokenizer = load_actor_tokenizer(actor, source, revision)
        lm = _get_empty_model(empty_models, source, revision, actor)
        check_readable_tokens(tokenizer, lm, tokenizer_setting(actor, source))
        for name in names:
            agent = config.task.agents[name]
            tokenizers[name], contexts[name] = tokenizer, context_limit(lm.config, config.rollout)
            starts[name] = source, revision
            shapes_of_agent[name] = (
                _actor_shape(agent, lm, source),
                _critic_shape(agent, empty_models, source, revision),
                source,
            )
            references[name] = _reference_shape(agent, empty_models, lm, source)
    tokenizers = {name: tokenizers[name] for name in config.task.agents}
    contexts = {name: contexts[name] for name in config.task.agents}
    lengths = episode_lengths(config, task, prompt_formats(config.task, config.rollout, tokenizers), contexts)
    layouts = build_critic_layouts(config, tokenizers, contexts, _critic_contexts(config, empty_models, starts))
    critic_row = max_critic_tokens(lengths) if layouts else None
    shapes = {}
    for name in config.task.agents:
        actor, critic, source = shapes_of_agent[name]
        pinned = f"{source}@{config.task.agents[name].actor.revision}"
        shapes[name] = AgentShapes(
            actor=actor,
            critic=critic,
            length=lengths[name],
            weights_source=pinned,
            reference=references[name],
            critic_row_tokens=critic_row,
        )
    return ModelSpecs(
        tokenizers=tokenizers,
        context_limits=contexts,
        shapes=shapes,
        layouts=layouts,
        reward_models=frozen_reward_models(config),
    )


def example_schedule(config: Config, plan: BatchSizes, task: Task) -> ExampleSchedule:
    """The examples of each iteration."""
    return ExampleSchedule(
        task.train,
        seed=config.seed,
        prompts_per_iteration=plan.prompts_per_iteration,
        num_generations=config.rollout.num_generations,
    )


def drop_too_long_rows(config: Config, task: Task, material: ModelSpecs) -> tuple[Task, list[str]]:
    """Remove rows with too long prompts if `task.overlong=drop`; returns the task and log lines on excluded rows.

    Raises `PreflightError` if no row remains.
    """
    messages: list[str] = []
    parts = {"train": task.train, "held_out": task.held_out}
    for part in parts.values():
        messages += [f"data: {counts}" for counts in getattr(part, "counts", ()) if sum(counts.dropped.values())]
    if not drops_too_long(config):
        return task, list(dict.fromkeys(messages))
    formats = prompt_formats(config.task, config.rollout, material.tokenizers)
    known = {name: formats[name] for name in example_only_agents(config.task)}

    def message(agent: str, example: Example) -> str:
        return first_message(agent, config.task.agents[agent], example)

    for name, rows in parts.items():
        kept = fitting_rows(known, message, rows, material.context_limits)
        if len(kept) == len(rows):
            continue
        limit = f"rollout.max_prompt_tokens={config.rollout.max_prompt_tokens}"
        split = {"train": "training", "held_out": "held-out"}[name]
        if not kept:
            raise PreflightError(f"task.overlong=drop excludes all {len(rows)} {split} rows with {limit}; increase it")
        messages.append(
            f"data: {len(rows) - len(kept)} of {len(rows)} {split} rows excluded: prompts too long for {limit}"
        )
        parts[name] = take_rows(rows, kept)
        if 0 in getattr(parts[name], "sizes", ()) and getattr(parts[name], "weights", None):
            raise PreflightError(f"task.overlong=drop excludes all rows of a weighted source, with {limit}")
    return replace(task, train=parts["train"], held_out=parts["held_out"]), list(dict.fromkeys(messages))


def drops_too_long(config: Config) -> bool:
    """Whether rows with too long prompts are excluded."""
    return isinstance(config.task, JsonlConfig) and config.task.overlong is OverlongPrompts.drop


def build_prompt_formats(
    config: Config, plan: BatchSizes, task: Task, schedule: ExampleSchedule, material: ModelSpecs
) -> dict[str, PromptFormat]:
    """Build each agent's prompt format and check that first prompts fit into the context.

    Checks all examples if first prompts depend on the example only, else those of the dry run.
    """
    formats = prompt_formats(config.task, config.rollout, material.tokenizers)
    for name in multi_turn_agents(config.task):
        formats[name].check_history_continues()

    def message(agent: str, example: Example) -> str:
        return first_message(agent, config.task.agents[agent], example)

    scheduled = schedule.scheduled_examples(plan.num_iterations)
    known = {name: formats[name] for name in example_only_agents(config.task)}
    check_prompt_lengths(known, message, scheduled, "the training data", material.context_limits)
    check_prompt_lengths(known, message, enumerate(task.held_out), "the held-out data", material.context_limits)
    for name, observation in ({} if known else task.dry_run.first_observations).items():
        if name in formats:  # unknown agents are reported when episodes fail
            formats[name].check_lengths([(0, observation)], "the training data", material.context_limits[name])
    return formats


def model_warnings(config: Config, material: ModelSpecs) -> dict[str, str]:
    """Warnings about context lengths, longrope and chat templates, by rule."""
    lengths = {name: shapes.length for name, shapes in material.shapes.items()}
    warnings = (
        length_warnings(config, lengths, material.context_limits)
        | _critic_context_warnings(material)
        | _longrope_warnings(material)
    )
    return warnings | _chat_template_warnings(config, material)


def _chat_template_warnings(config: Config, material: ModelSpecs) -> dict[str, str]:
    """Warn if a chat template ends prompts with the end-of-sequence token, which stops generation at once."""
    for name, prompt_format in prompt_formats(config.task, config.rollout, material.tokenizers).items():
        end = prompt_format.tokenizer.eos_token_id
        if prompt_format.uses_chat_template and prompt_format.prompt_ids("x")[-1:] == [end]:
            token = prompt_format.tokenizer.eos_token
            return {
                "ended_prompts": f"{name}: the chat template ends prompts with {token}, which also ends responses, so "
                "the model may generate nothing; use a template that begins the assistant's message, or "
                "task.chat_template=false"
            }
    return {}


def _longrope_warnings(material: ModelSpecs) -> dict[str, str]:
    """Warn if a row's rotary frequencies depend on the longest row of its batch."""
    for name, shapes in material.shapes.items():
        limit, longest = shapes.actor.longrope_threshold, shapes.length.sequence_tokens
        if limit is not None and longest > limit:
            return {
                "longrope": f"{name}: with longrope, one row of more than {limit} tokens changes the rotary "
                f"frequencies of all rows in its batch; rollout.context_limit={limit} avoids this"
            }
    return {}


def _critic_context_warnings(material: ModelSpecs) -> dict[str, str]:
    """Warn if a centralised critic's input may exceed its context."""
    longest = max((shapes.critic_row_tokens or 0 for shapes in material.shapes.values()), default=0)
    for name, layout in material.layouts.items():
        if not layout.is_last_only and longest > layout.context:
            return {
                "long_views": f"the critic of {name} may need up to {longest} tokens per episode, but its context has "
                f"{layout.context}: the oldest observations and responses of other agents are truncated "
                "(value/truncated_context_fraction)"
            }
    return {}


def estimate_run_memory(
    config: Config, plan: BatchSizes, task: Task, material: ModelSpecs, ranks: int, device: str
) -> MemoryEstimate:
    """Estimate each rank's memory on a device of this kind."""
    evaluated = count_eval_episodes(len(task.held_out), config.evaluation)
    rows = max(plan.samples_per_rank[1], -(-max(evaluated.values()) // ranks))
    return estimate_memory(config, material.shapes, ranks, rows, device, material.reward_models)


def memory_error(
    config: Config, material: ModelSpecs, memory: MemoryEstimate, machine: Machine, ranks: int
) -> str | None:
    """The text of a `PreflightError` if weights, optimizer states and gradients alone do not fit; else None."""
    shortfall = machine.memory_shortfall(memory.certain_bytes, memory.host_bytes)
    if shortfall is None:
        return None
    place, needed, available = shortfall
    fitting = [
        option
        for option, settings in STAGE_OVERRIDES
        if _fits(replace(config, deepspeed=replace(config.deepspeed, **settings)), material, machine, ranks)
    ]
    remedy = f"use {fitting[0]}" if fitting else "use a smaller model, or more machines or GPUs"
    return (
        f"deepspeed.stage={config.deepspeed.stage} needs at least "
        f"{(memory.certain_bytes + memory.host_bytes) / GIB:.1f} GiB for weights, optimizer states and "
        f"gradients in each of {ranks} process{'es' if ranks > 1 else ''}; those on "
        f"this {place} need {needed / GIB:.1f} GiB, and it has {available / GIB:.1f}; {remedy}"
    )


def memory_warning(memory: MemoryEstimate, machine: Machine) -> str | None:
    """A warning if the estimated peak memory does not fit; else None."""
    phase, device = memory.peak_phase
    shortfall = machine.memory_shortfall(device, memory.host_bytes)
    if shortfall is None:
        return None
    place, needed, available = shortfall
    return (
        f"warning: {phase} may need {needed / GIB:.1f} GiB of this {place}, which has {available / GIB:.1f}; "
        f"{MEMORY_ADVICE[phase]}"
    )


def required_disk_bytes(config: Config, material: ModelSpecs, ranks: int) -> tuple[float, float]:
    """Bytes of one checkpoint, and of all checkpoints and snapshots that exist at the same time."""
    size = checkpoint_bytes(config, material.shapes, ranks)
    most = size * (config.checkpoint.keep + config.checkpoint.best + 1)  # 1: the one being written
    return size, most + snapshot_bytes(config, material.shapes)


def free_disk_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder, which may not exist yet."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    return shutil.disk_usage(existing).free


def _fits(config: Config, material: ModelSpecs, machine: Machine, ranks: int) -> bool:
    memory = estimate_memory(config, material.shapes, ranks, 1, machine.device, material.reward_models)
    return machine.memory_shortfall(memory.certain_bytes, memory.host_bytes) is None


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
    if isinstance(agent.actor, LoraActorConfig):
        earlier = agent.actor.adapter
        shape = add_adapter(shape, lm, agent.actor, "actor", source, earlier=earlier, key="actor.adapter")
    if isinstance(agent.critic, ValueHeadCriticConfig) and not agent.frozen:
        shape = add_value_head(shape, lm.config, agent.critic.value_head_hidden_dim)
    return shape


def _reference_shape(
    agent: AgentConfig, known: dict[tuple[str, str | None, str], Any], lm: PreTrainedModel, source: str
) -> ModelShape | None:
    """The shape of an agent's reference if it needs weights in addition to the initial model or base; else None."""
    actor = agent.actor
    if agent.frozen or is_default_reference(actor):
        return None
    is_lora, folder, is_adapter = isinstance(actor, LoraActorConfig), None, False
    if actor.reference not in (ReferenceKind.initial, ReferenceKind.base):
        folder, is_adapter = find_reference_folder(actor.reference)
    if folder is not None and not is_adapter:
        return actor_shape(_get_empty_model(known, str(folder), None))
    if actor.reference_update_every is not None:  # same size as the actor
        shape = actor_shape(lm)
        if isinstance(actor, LoraActorConfig):
            shape = add_adapter(shape, lm, actor, "actor", source, earlier=actor.adapter, key="actor.adapter")
        return replace(shape, sizes=shape.adapter or shape.sizes, adapter=None)
    if isinstance(actor, LoraActorConfig) and actor.reference == ReferenceKind.initial:
        folder = None if actor.adapter is None else Path(actor.adapter)
    if folder is None:
        return None
    adapter = read_adapter(folder, "actor.reference")
    on = lm if is_lora or adapter.base is None else _get_empty_model(known, adapter.base, None)
    shape = add_adapter(actor_shape(on), on, adapter.settings, "actor.reference", adapter.base or source)
    assert shape.adapter is not None
    return replace(shape, sizes=shape.adapter if is_lora else shape.sizes + shape.adapter, adapter=None)


def _critic_shape(
    agent: AgentConfig, known: dict[tuple[str, str | None, str], Any], actor: str, revision: str | None
) -> ModelShape | None:
    critic = agent.critic
    if agent.frozen:
        return None
    if isinstance(critic, AdapterCriticConfig):
        lm = _get_empty_model(known, actor, revision, agent.actor)
        earlier = critic.warm_start
        shape = add_adapter(actor_shape(lm), lm, critic, "critic", actor, earlier=earlier, key="critic.warm_start")
        return add_value_head(shape, lm.config, critic.value_head_hidden_dim)
    if not isinstance(critic, SeparateCriticConfig):
        return None
    if critic.warm_start is not None:
        return critic_shape(empty_backbone(warm_start_config(critic)), critic.value_head_hidden_dim)
    if critic.model is None:
        return critic_shape(_get_empty_model(known, actor, revision, agent.actor), critic.value_head_hidden_dim)
    return critic_shape(_get_empty_model(known, critic.model, critic.revision), critic.value_head_hidden_dim)


def _critic_contexts(
    config: Config, known: dict[tuple[str, str | None, str], Any], starts: Mapping[str, tuple[str, str | None]]
) -> dict[str, int]:
    """Context length of each centralised critic, by the critic's name."""
    found: dict[str, int] = {}
    for name, names in agents_by_critic(config).items():
        critic, actor = config.task.agents[names[0]].critic, config.task.agents[names[0]].actor
        if isinstance(critic, CentralizedCriticConfig):
            if critic.warm_start is not None:
                found[name] = critic_context(config, critic, warm_start_config(critic))
                continue
            of_actor = critic.model is None
            source, revision = starts[names[0]] if of_actor else (str(critic.model), critic.revision)
            found[name] = critic_context(
                config, critic, _get_empty_model(known, source, revision, actor if of_actor else None).config
            )
    return found
