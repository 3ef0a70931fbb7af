"""Checks of engines: those of each kind, and those of `rollout=my.py:Engine` before its code is loaded."""

from __future__ import annotations

from collections.abc import Iterator

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, EngineRolloutConfig
from ippo_cli.config.vllm import check_openai_server, check_vllm_rollout


def check_engines(config: Config, world_size: int) -> Iterator[ConfigError]:
    """Settings that the engines of a run do not support, or give another meaning."""
    yield from check_vllm_rollout(config, world_size)
    yield from check_user_engine(config)


def check_servers(config: Config, *, training: bool) -> Iterator[ConfigError]:
    """Servers of models that keep their weights."""
    yield from check_openai_server(config, training=training)


def check_user_engine(config: Config) -> Iterator[ConfigError]:
    """Settings that do not fit any engine of a user."""
    rollout = config.rollout
    if not isinstance(rollout, EngineRolloutConfig):
        return
    if rollout.engine is None:
        yield ConfigError("rollout.engine=null", "names no engine", "use rollout=my.py:Engine")
    filtered = [name for name, agent in config.task.agents.items() if agent.rollout.has_filters]
    if filtered and not rollout.recompute_logprobs:
        yield ConfigError(
            "rollout.recompute_logprobs=false",
            f"leaves {filtered[0]} without the policy's log-probabilities: the engine returns those of filtered tokens",
            "use true, or no filter (top_p, top_k, min_p, repetition_penalty, min_new_tokens)",
        )
