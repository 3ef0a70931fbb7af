"""Defaults that depend on other keys: the functions that `conf/` calls as `${name:...}`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf

from ippo_cli.config.batch_sizes import fit_mini_batch
from ippo_cli.config.schema import Mode, OnPolicy
from ippo_cli.engine.number_formats import default_dtype, has_gpu


def register_resolvers() -> None:
    """Register all resolvers with OmegaConf."""
    for name, resolver in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def default_behavior_level(rollout: str, ratio_base: str, on_policy: str = OnPolicy.approximate.value) -> str:
    """The default of `algorithm.behavior_correction.level`: engines round differently than the trainer."""
    is_corrected = rollout == "vllm" and ratio_base == "policy" and on_policy != OnPolicy.exact.value
    return "token" if is_corrected else "none"


def default_behavior_cap(rollout: str, level: str) -> float | None:
    """The default of `algorithm.behavior_correction.cap`."""
    return 2.0 if rollout == "vllm" and level != "none" else None


def default_recompute_logprobs(ratio_base: str, on_policy: str = OnPolicy.approximate.value) -> bool:
    """The default of `rollout.recompute_logprobs` with an engine: a ratio to the sampler needs no second forward, and
    the verification of drafts is one.
    """
    return ratio_base == "policy" and on_policy != OnPolicy.exact.value


def default_verify_rounds(on_policy: str) -> int | None:
    """The default of `rollout.verify_rounds`; None where nothing is verified."""
    return 4 if on_policy == OnPolicy.exact.value else None


def default_max_sampler_gap(
    recompute_logprobs: bool, dtype: str, ahead: int, planned_devices: int | None = None
) -> float | None:
    """The default of `rollout.max_sampler_gap`: a multiple of the gap that rounding makes; it needs both values.

    Episodes that are collected ahead may have tokens of earlier weights. A GPU multiplies float32 in TF32.
    """
    if not recompute_logprobs:
        return None
    if ahead:
        return 0.5
    if dtype != "fp32":
        return 0.1
    return 1e-2 if planned_devices or has_gpu() else 1e-3


def default_patience(mode: str) -> int | None:
    """The default of `evaluation.patience`: a critic is fitted until it stops improving."""
    return 3 if mode == Mode.critic.value else None


RESOLVERS: dict[str, Callable[..., Any]] = {
    "device_dtype": default_dtype,
    "fit_mini_batch": fit_mini_batch,
    "behavior_level": default_behavior_level,
    "behavior_cap": default_behavior_cap,
    "recompute_logprobs": default_recompute_logprobs,
    "verify_rounds": default_verify_rounds,
    "max_sampler_gap": default_max_sampler_gap,
    "patience": default_patience,
}
