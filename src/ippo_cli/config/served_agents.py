"""Frozen agents at inference servers: `task.agents.NAME.actor=server`."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import AgentConfig, Config, ServerActorConfig


def served_agents(config: Config) -> dict[str, ServerActorConfig]:
    """The actors of agents at servers, by agent."""
    agents = config.task.agents.items()
    return {name: agent.actor for name, agent in agents if isinstance(agent.actor, ServerActorConfig)}


def local_agents(config: Config) -> dict[str, AgentConfig]:
    """The agents with models in this run's processes."""
    agents = config.task.agents.items()
    return {name: agent for name, agent in agents if not isinstance(agent.actor, ServerActorConfig)}


def served_model_name(actor: ServerActorConfig) -> str:
    """The name of the model at its server."""
    return actor.served_model or str(actor.model)


def check_served_agents(config: Config, *, training: bool) -> Iterator[ConfigError]:
    """A server needs an address, and keeps its weights."""
    for name, actor in served_agents(config).items():
        where = f"task.agents.{name}"
        if actor.url is None or urlsplit(actor.url).scheme not in ("http", "https"):
            yield ConfigError(
                f"{where}.actor.url={'null' if actor.url is None else actor.url}",
                f"is not the address of {name}'s server",
                "use one such as http://127.0.0.1:8000",
            )
        if training and not config.task.agents[name].frozen:
            yield ConfigError(
                f"{where}.actor=server",
                f"keeps its weights, and {name} would be trained on samples of other weights",
                f"set {where}.frozen=true; servers of rollout=vllm rollout.vllm.mode=server take weights",
            )
