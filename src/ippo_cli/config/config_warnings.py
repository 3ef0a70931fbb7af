"""Warnings about valid but suspicious settings, from the configuration and the size of the data."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ippo_cli.config.adapters import has_merged_adapter
from ippo_cli.config.batch_sizes import BatchSizes
from ippo_cli.config.checks import constrained_leaves
from ippo_cli.config.constraints import typical_ranges
from ippo_cli.config.data import has_splits
from ippo_cli.config.python_names import is_function_path
from ippo_cli.config.rewards import rewards_with_prefixes
from ippo_cli.config.schema import (
    PROTOCOLS,
    ActorKind,
    Alphabet,
    CodeRunConfig,
    Config,
    ConversationConfig,
    Dtype,
    JsonlConfig,
    Mode,
    Sandbox,
    SeparateCriticConfig,
    TinyActorConfig,
    has_data,
)
from ippo_cli.config.served_agents import local_agents
from ippo_cli.config.teams import agents_by_policy
from ippo_cli.config.text import join_names

MAX_TYPICAL_RATE = 1e-5  # PPO on all weights of a pretrained model: verl uses 1e-6 for actors, 1e-5 for critics
MAX_ACTOR_RATE = 1e-4  # warn above this rate, also for small models
MAX_CRITIC_RATE = 5e-4
MIN_SLOWDOWN = 1.5  # of bf16 compared with float32
FEWEST_PASSES, MOST_PASSES = 0.1, 50.0  # passes over the training data


@dataclass(frozen=True, slots=True, kw_only=True)
class WarningInputs:
    """Inputs of the rules."""

    config: Config
    batch_sizes: BatchSizes
    train_rows: int
    held_out_rows: int | None = None
    dry_run_failure: str = ""  # error of the user's code in a dry run with placeholder responses
    bf16_slowdown: float | None = None  # of a matrix product on this processor, if it computes in bf16
    newer_environment: str | None = None  # newest version of an environment that is configured in an older version


def config_warnings(settings: WarningInputs) -> dict[str, str]:
    """Warnings by name of the rule: `key=value; what is unusual; what would be usual`."""
    warnings = {name: rule(settings) for name, rule in RULES.items()}
    return {name: text for name, text in warnings.items() if text is not None}


def _actor_rate(settings: WarningInputs) -> str | None:
    agents = settings.config.task.agents
    rates = {name: agent.actor.learning_rate for name, agent in agents.items() if agent.actor.kind is ActorKind.full}
    return _rates_above("actor", rates, agents, MAX_ACTOR_RATE)


def _critic_rate(settings: WarningInputs) -> str | None:
    agents = settings.config.task.agents
    rates = {
        name: agent.critic.learning_rate
        for name, agent in agents.items()
        if isinstance(agent.critic, SeparateCriticConfig)
        and (agent.actor.kind is ActorKind.full or agent.critic.model is not None)
    }
    return _rates_above("critic", rates, agents, MAX_CRITIC_RATE)


def _rates_above(group: str, rates: Mapping[str, float], agents: Collection[str], above: float) -> str | None:
    unusual = [name for name, rate in rates.items() if rate > above]
    if not unusual:
        return None
    highest = max(rates[name] for name in unusual)
    where = (
        f"{group}.learning_rate" if len(unusual) == len(agents) else f"{group}.learning_rate of {join_names(unusual)}"
    )
    return (
        f"{where} is {highest:g}, {highest / MAX_TYPICAL_RATE:.0f} times the usual rate for pretrained weights; "
        "use 1e-6 to 1e-5"
    )


def _few_prompts(settings: WarningInputs) -> str | None:
    rows, prompts = settings.train_rows, settings.batch_sizes.prompts_per_iteration
    if not has_data(settings.config.task) or rows >= prompts:
        return None
    return (
        f"an iteration samples {prompts} prompts and the training data has {rows}: prompts are repeated; "
        "lower rollout.buffer_size, or raise rollout.num_generations"
    )


def _epoch_count(settings: WarningInputs) -> str | None:
    """Warn about few or many passes over the user's data; generated tasks have a fixed size."""
    if not has_data(settings.config.task) or settings.config.num_iterations is None:
        return None
    passes = settings.batch_sizes.num_iterations * settings.batch_sizes.prompts_per_iteration / settings.train_rows
    if FEWEST_PASSES <= passes <= MOST_PASSES:
        return None
    epochs = f"is {passes:.0f} epochs of" if passes > 1 else f"covers {passes:.1%} of"
    return (
        f"num_iterations={settings.batch_sizes.num_iterations} {epochs} the {settings.train_rows} training examples; "
        "num_iterations=null num_epochs=1 is one pass"
    )


def _warmups(settings: WarningInputs) -> str | None:
    if settings.config.mode is Mode.critic:
        return None
    iterations = settings.batch_sizes.num_iterations
    warmup = settings.config.algorithm.critic_warmup
    if warmup >= iterations:
        return f"algorithm.critic_warmup={warmup} covers all iterations ({iterations}): no actor is trained; lower it"
    agents = local_agents(settings.config)
    slow = {name: agent.actor.warmup_iterations for name, agent in agents.items()}
    slow = {name: steps for name, steps in slow.items() if steps >= iterations}
    if not slow:
        return None
    subject = f"{join_names(list(slow))} never" if len(slow) < len(agents) else "no actor ever"
    return (
        f"actor.warmup_iterations={max(slow.values())} covers all iterations ({iterations}): "
        f"{subject} reaches the learning rate; lower it"
    )


def _dry_run_failure(settings: WarningInputs) -> str | None:
    if not settings.dry_run_failure:
        return None
    return (
        f"an episode fails with placeholder responses ({settings.dry_run_failure}); "
        "if it fails with real responses too, there is no data to train on"
    )


def _outdated_environment(settings: WarningInputs) -> str | None:
    if settings.newer_environment is None:
        return None
    env_id = getattr(settings.config.task, "env_id", None)
    return f"task.env_id={env_id} is an older version; {settings.newer_environment} is the newest"


def _identical_prompts(settings: WarningInputs) -> str | None:
    """Warn about agents that share a policy and a prompt but have different reference answers."""
    task = settings.config.task
    if not isinstance(task, ConversationConfig) or task.protocol != "parallel":
        return None
    for names in agents_by_policy(settings.config).values():
        agents_by_prompt: dict[tuple[str, str | None], str] = {}
        for name in names:
            agent = task.agents[name]
            first = agents_by_prompt.setdefault((agent.template, agent.system), name)
            if agent.answer != task.agents[first].answer:
                return (
                    f"{join_names([first, name])} share one policy and one prompt, but have different answers; "
                    "name the agent in each template"
                )
    return None


def _unknown_characters(settings: WarningInputs) -> str | None:
    """Warn about agents with a limited alphabet that receive messages with arbitrary characters."""
    task, agents = settings.config.task, settings.config.task.agents
    if isinstance(task, ConversationConfig) and task.protocol == "parallel":
        return None
    free = [name for name, agent in agents.items() if agent.actor.kind in (ActorKind.full, ActorKind.server)]
    limited = [
        name
        for name, agent in agents.items()
        if isinstance(agent.actor, TinyActorConfig) and agent.actor.alphabet is Alphabet.auto
    ]
    if not free or not limited:
        return None
    return (
        f"{join_names(limited)} knows only characters of reference answers (actor.alphabet=auto) and reads others from "
        f"{join_names(free)} as <unk>; use task.agents.{limited[0]}.actor.alphabet=printable"
    )


def _unsafe_sandbox(settings: WarningInputs) -> str | None:
    for where, own in rewards_with_prefixes(settings.config):
        if isinstance(own.reward, CodeRunConfig) and own.reward.sandbox is Sandbox.unsafe_local:
            return (
                f"{where}.sandbox=unsafe_local runs generated code as your user, with your files and network; use bwrap"
            )
    return None


def _same_rows(settings: WarningInputs) -> str | None:
    task = settings.config.task
    if not has_data(task) or task.eval_share is not None:
        return None
    both = [source for source in _unsplit_sources(task.eval) if source in _unsplit_sources(task.train)]
    if not both:
        return None
    return (
        f"task.eval={both[0]} is in task.train too: held-out rows are also training rows; "
        "use task.eval=null task.eval_share=0.1"
    )


def _unread_split(settings: WarningInputs) -> str | None:
    """Warn about a split of a source without splits, such as a file."""
    task = settings.config.task
    if not has_data(task):
        return None
    for key in ("train", "eval"):
        split = getattr(task, f"{key}_split")
        whole = _unsplit_sources(getattr(task, key))
        if "[" in split and whole:
            return (
                f"task.{key}_split={split} has an effect on hub datasets only: all rows of {whole[0]} are used; "
                f"use task.{key}_size"
            )
    return None


def _unsplit_sources(sources: str | list[str] | None) -> list[str]:
    """Sources without splits: all their rows are read."""
    return [
        source for source in (sources if isinstance(sources, list) else [sources]) if source and not has_splits(source)
    ]


def _rounded_merge(settings: WarningInputs) -> str | None:
    """Warn about a merged model loaded in bf16: rounding loses most of the changes of a short training."""
    for agent in local_agents(settings.config).values():
        actor, critic = agent.actor, agent.critic
        loaded = [("actor.model", actor.model, "actor.dtype", actor.dtype)]
        if isinstance(critic, SeparateCriticConfig):
            loaded.append(("critic.model", critic.model, "critic.dtype", critic.dtype))
            loaded.append(("critic.warm_start", critic.warm_start, "critic.dtype", critic.dtype))
        for key, folder, dtype_key, dtype in loaded:
            if folder is not None and dtype is Dtype.bf16 and has_merged_adapter(folder):
                return (
                    f"{key} has an adapter merged into it, and {dtype_key}=bf16 may lose most of its changes by "
                    f"rounding; use {dtype_key}=fp32"
                )
    return None


def _constant_prompts(settings: WarningInputs) -> str | None:
    """Warn about templates without fields: all rows have the same prompt or the same reference answer."""
    task = settings.config.task
    if not isinstance(task, JsonlConfig) or task.protocol not in PROTOCOLS:
        return None
    for name, agent in task.agents.items():
        for leaf, text in (("template", agent.template), ("answer", agent.answer)):
            if text and is_constant_template(text):
                part = "prompt" if leaf == "template" else "reference"
                return (
                    f"task.agents.{name}.{leaf}={text!r:.40} names no field of rows: every row has the same {part}; "
                    "use {FIELD}, or FILE.py:NAME"
                )
    return None


def is_constant_template(template: str) -> bool:
    """Whether a template has no field."""
    if is_function_path(template) or template.startswith("messages:"):
        return False
    if template.startswith("jinja:"):
        return "{{" not in template and "{%" not in template
    return all(field is None for _, field, _, _ in string.Formatter().parse(template))


def _sizes_beyond_data(settings: WarningInputs) -> str | None:
    """Warn about sizes above the number of rows."""
    task, held_out = settings.config.task, settings.held_out_rows
    if (line := eval_size_warning(settings.config, held_out)) is not None:
        return line
    if has_data(task):
        for key, available in (("train_size", settings.train_rows), ("eval_size", held_out)):
            size = getattr(task, key)
            if size is not None and available is not None and size > available:
                return f"task.{key}={size} is more than the {available} available rows: all rows are used"
    return None


def eval_size_warning(config: Config, held_out: int | None) -> str | None:
    """A warning if `evaluation.size` is more than the number of held-out rows."""
    size = config.evaluation.size
    if size is None or held_out is None or size <= held_out:
        return None
    return f"evaluation.size={size} is more than the {held_out} held-out rows: all rows are used"


def _atypical_values(settings: WarningInputs) -> str | None:
    """Warn about numbers outside the usual range of their field."""
    found: dict[str, str] = {}
    leaves = constrained_leaves(settings.config, of_fields=typical_ranges)
    for key, value, usual in sorted(leaves, key=lambda leaf: leaf[0].startswith("task.agents.")):
        if usual is not None and (why := usual.warning(value)) is not None:
            short = re.sub(r"^task\.agents\.\w+\.", "", key)  # agents inherit values of their group
            if found.get(short) != f"{value:g}; {why}":
                found[key] = f"{value:g}; {why}"
    return None if not found else " and ".join(f"{key}={text}" for key, text in list(found.items())[:2])


def _emulated_bf16(settings: WarningInputs) -> str | None:
    slowdown = settings.bf16_slowdown
    if slowdown is None or slowdown < MIN_SLOWDOWN:
        return None
    return (
        f"actor.dtype=bf16 is emulated by this processor: a matrix product takes {slowdown:.0f} times as long as in "
        "float32; use actor.dtype=fp32"
    )


RULES: dict[str, Callable[[WarningInputs], str | None]] = {
    "actor_learning_rate": _actor_rate,
    "critic_learning_rate": _critic_rate,
    "rounded_merge": _rounded_merge,
    "emulated_bf16": _emulated_bf16,
    "magnitudes": _atypical_values,
    "sizes": _sizes_beyond_data,
    "few_prompts": _few_prompts,
    "passes": _epoch_count,
    "warmups": _warmups,
    "dry_run": _dry_run_failure,
    "older_environment": _outdated_environment,
    "equal_prompts": _identical_prompts,
    "unknown_characters": _unknown_characters,
    "unsafe_sandbox": _unsafe_sandbox,
    "same_rows": _same_rows,
    "unread_split": _unread_split,
    "constant_prompts": _constant_prompts,
}
"""Rules by name; `run.json` stores the warnings under these names."""
