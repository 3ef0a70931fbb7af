"""Checks, before a model loads, of the servers of agents with `actor=server`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ippo_cli.config.errors import EngineError, UnusableServer
from ippo_cli.config.schema import Config
from ippo_cli.config.served_agents import served_agents, served_model_name
from ippo_cli.rollout.engine import EngineModel
from ippo_cli.rollout.generator import context_limit
from ippo_cli.rollout.served_policy import ServedPolicy, load_served_policy, make_server_engine


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The server of an agent."""

    agent: str
    place: str  # the model and the address
    error: UnusableServer | None


def check_servers(config: Config, policies: Mapping[str, ServedPolicy] | None = None) -> None:
    """Wait for the servers of all agents, and check their models, tokenizers and answers. Raises `UnusableServer`.

    `policies`: those of these agents, if they are loaded.
    """
    if policies is None:
        policies = {
            name: load_served_policy(name, actor, str(actor.model), actor.revision)
            for name, actor in served_agents(config).items()
        }
    for state in inspect_servers(config, policies, waits=True):
        if state.error is not None:
            raise state.error


def inspect_servers(config: Config, policies: Mapping[str, ServedPolicy], *, waits: bool) -> Iterator[ServerState]:
    """Check a server of each policy; `waits`: until `actor.start_timeout_s` for one that does not answer yet."""
    for name, policy in policies.items():
        limit = context_limit(policy.model_config, config.rollout)
        model = EngineModel(
            name=name,
            config=policy.model_config,
            tokenizer=policy.tokenizer,
            dtype=policy.dtype,
            max_length=limit,
            usual_length=limit,
            max_rows=1,
        )
        actor = policy.actor if waits else replace(policy.actor, start_timeout_s=0.0)
        engine, error = make_server_engine(model, actor, name), None
        try:
            engine.start()
        except EngineError as failure:
            error = UnusableServer(str(failure))
        finally:
            engine.close()
        yield ServerState(agent=name, place=f"{served_model_name(actor)} at {actor.url}", error=error)
