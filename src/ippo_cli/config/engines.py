"""Checks of engines: those of each kind, and those of `rollout=my.py:Engine` before its code is loaded."""

from __future__ import annotations

from collections.abc import Iterator

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, EngineRolloutConfig, EngineSamplesConfig, RolloutConfig, Zero3Gather
from ippo_cli.config.vllm import check_openai_server, check_vllm_rollout

TILE_ROWS = 32
"""Rows of every linear map of a step with `rollout.batch_invariant`."""


def check_engines(config: Config, world_size: int) -> Iterator[ConfigError]:
    """Settings that the engines of a run do not support, or give another meaning."""
    yield from check_vllm_rollout(config, world_size)
    yield from check_user_engine(config)
    yield from check_exact_samples(config)
    yield from check_batch_invariance(config.rollout)


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
    if filtered and not (rollout.recompute_logprobs or rollout.verifies_drafts):
        yield ConfigError(
            "rollout.recompute_logprobs=false",
            f"leaves {filtered[0]} without the policy's log-probabilities: the engine returns those of filtered tokens",
            "use true, or no filter (top_p, top_k, min_p, repetition_penalty, min_new_tokens)",
        )


def check_batch_invariance(rollout: RolloutConfig) -> Iterator[ConfigError]:
    """Settings under which the bits of a row cannot be those of the row alone."""
    if not rollout.batch_invariant:
        return
    setting, size = "rollout.batch_invariant=true", rollout.decode_batch_size
    if rollout.kind != "hf":
        yield ConfigError(setting, f"has no effect with rollout={rollout.kind}, which has another decoder", "use false")
    elif size % TILE_ROWS:
        yield ConfigError(
            f"rollout.decode_batch_size={size}",
            f"is no multiple of {TILE_ROWS}, the rows of a matrix product with {setting}",
            f"use {-(-size // TILE_ROWS) * TILE_ROWS}",
        )
    elif rollout.zero3_gather is Zero3Gather.layer:
        yield ConfigError("rollout.zero3_gather=layer", f"gathers weights in every step, not with {setting}", "use all")


def check_exact_samples(config: Config) -> Iterator[ConfigError]:
    """Keys of `rollout.on_policy=exact`, and keys without an effect beside it."""
    rollout = config.rollout
    if not isinstance(rollout, EngineSamplesConfig):
        return
    setting, rounds = f"rollout.on_policy={rollout.on_policy.value}", rollout.verify_rounds
    if not rollout.verifies_drafts:
        if rounds is not None:
            rule = f"has no effect with {setting}, which keeps the engine's tokens"
            yield ConfigError(f"rollout.verify_rounds={rounds}", rule, "use null, or rollout.on_policy=exact")
        return
    if rounds is None:
        rule = f"leaves {setting} without drafts to verify"
        yield ConfigError("rollout.verify_rounds=null", rule, "use 4, or another number of at least 1")
    if rollout.recompute_logprobs:
        rule = f"computes again what the verification of {setting} has computed"
        yield ConfigError("rollout.recompute_logprobs=true", rule, "use false, or rollout.on_policy=approximate")
    if rollout.max_sampler_gap is not None:
        rule = f"has no effect: with {setting} all log-probabilities are the trained model's"
        yield ConfigError(f"rollout.max_sampler_gap={rollout.max_sampler_gap}", rule, "use null")
    if rollout.zero3_gather is Zero3Gather.layer:
        rule = f"gathers weights layer by layer, and {setting} verifies drafts with whole weights"
        yield ConfigError("rollout.zero3_gather=layer", rule, "use all")
