"""Rules of one agent: its prompts, and its actor's model and tokenizer."""

from __future__ import annotations

from ippo_cli.config.batch_sizes import format_divisors
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import (
    AgentConfig,
    Alphabet,
    Config,
    DataConfig,
    EnvironmentTaskConfig,
    LoraActorConfig,
    PolicyConfig,
    ServerActorConfig,
    TinyActorConfig,
)
from ippo_cli.config.teams import check_usable_name

MESSAGES_PREFIX = "messages:"  # of templates that name a field with a list of messages


def check_agent(config: Config, name: str, agent: AgentConfig) -> None:
    """Raise `ConfigError` for the first broken rule."""
    where = f"task.agents.{name}"
    check_usable_name(where, name)
    chat = config.task.chat_template if isinstance(config.task, DataConfig) else False
    if agent.system is not None and (chat is False or isinstance(agent.actor, TinyActorConfig)):
        raise ConfigError(
            f"{where}.system={agent.system!r}",
            "has an effect with a chat template only",
            "use task.chat_template=auto with actor=full, or put the text into the template",
        )
    if agent.template.startswith(MESSAGES_PREFIX) and (chat is False or isinstance(agent.actor, TinyActorConfig)):
        raise ConfigError(
            f"{where}.template={agent.template}",
            "is a list of messages, which only a chat template turns into a prompt",
            "use actor=full with an instruction-tuned model and task.chat_template=auto, or a jinja: template",
        )
    if isinstance(agent.actor, TinyActorConfig):
        _check_tiny_actor(config, where, agent, agent.actor)
    else:
        _check_model(config, name, agent.actor)


def _check_tiny_actor(config: Config, where: str, agent: AgentConfig, actor: TinyActorConfig) -> None:
    """Check the shape and the tokenizer of a model that is created locally."""
    if actor.model is not None:
        raise ConfigError(
            f"actor.model={actor.model}",
            f"cannot be set for actor={actor.kind.value}, which is created locally",
            "use actor=lora" if isinstance(actor, LoraActorConfig) else "use actor=full",
        )
    if actor.tokenizer is not None:
        raise ConfigError(
            f"actor.tokenizer={actor.tokenizer}",
            f"cannot be set for actor={actor.kind.value}, which creates its tokenizer",
            "use actor.alphabet, or actor=" + ("lora" if isinstance(actor, LoraActorConfig) else "full"),
        )
    if actor.chat_template is not None:
        raise ConfigError(
            f"actor.chat_template={actor.chat_template}",
            f"cannot be set for actor={actor.kind.value}: its prompts are plain text",
            "use actor=" + ("lora" if isinstance(actor, LoraActorConfig) else "full"),
        )
    if actor.hidden_size % 2:
        raise ConfigError(
            f"actor.hidden_size={actor.hidden_size}",
            "is odd, but position embeddings need an even size",
            f"use {actor.hidden_size + 1}",
        )
    if actor.hidden_size % actor.num_heads or (actor.hidden_size // actor.num_heads) % 2:
        raise ConfigError(
            f"actor.num_heads={actor.num_heads}",
            f"must divide actor.hidden_size={actor.hidden_size} into even parts",
            "use one of " + format_divisors(actor.hidden_size // 2),
        )
    if getattr(config.task, "chat_template", False) is True:
        raise ConfigError(
            "task.chat_template=true",
            "needs a tokenizer with a chat template, and actor=tiny has none",
            "use actor=full, or task.chat_template=auto",
        )
    known = (
        agent.answer is not None
        or agent.warm_start_answer is not None
        or isinstance(config.task, EnvironmentTaskConfig)
    )
    if actor.alphabet is Alphabet.auto and not known:
        raise ConfigError(
            f"{where}.answer=null",
            "leaves actor=tiny no reference answers to build its vocabulary from",
            "use actor.alphabet=printable, or give the reference answer as a template such as '{answer}'",
        )


def _check_model(config: Config, name: str, actor: PolicyConfig) -> None:
    """Check the names of a model and a tokenizer."""
    where = f"task.agents.{name}"
    if actor.tokenizer is None and actor.tokenizer_revision is not None:
        raise ConfigError(
            f"actor.tokenizer_revision={actor.tokenizer_revision}",
            "has no effect without actor.tokenizer",
            "set actor.tokenizer, or use actor.revision for a model and its tokenizer",
        )
    if actor.chat_template is not None and not isinstance(config.task, DataConfig):
        raise ConfigError(
            f"actor.chat_template={actor.chat_template}",
            f"has no effect: task={config.task.kind} uses no chat template",
            "set it to null",
        )
    if actor.model is None and isinstance(actor, ServerActorConfig):
        raise ConfigError(
            f"{where}.actor.model=null",
            f"names no tokenizer for agent {name}",
            f"set {where}.actor.model to the folder or hub id of the model at its server; no weights are loaded",
        )
    if actor.model is None:
        raise ConfigError(
            f"{'' if config.actor.kind is actor.kind else f'{where}.'}actor.model=null",
            f"names no weights for agent {name}",
            "set actor.model to a folder or a hub id, or use actor=tiny"
            + ("_lora" if isinstance(actor, LoraActorConfig) else ""),
        )
