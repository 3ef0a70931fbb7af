"""Rules of rewards from other models or servers: http, judge and model."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import JudgeRewardConfig, ModelRewardConfig, RemoteRewardConfig, RewardConfig

DEVICES = re.compile(r"auto|cpu|cuda|cuda:\d+")


def check_reward_model(reward: RewardConfig, where: str) -> None:
    """Raise `ConfigError` for an invalid server, model or answer format."""
    if isinstance(reward, RemoteRewardConfig):
        _check_remote(reward, where)
    if isinstance(reward, JudgeRewardConfig):
        _check_judge(reward, where)
    if isinstance(reward, ModelRewardConfig):
        if reward.model is None:
            raise ConfigError(f"{where}.model=null", "names no reward model", f"set {where}.model=FOLDER or a hub id")
        if not DEVICES.fullmatch(reward.device):
            raise ConfigError(f"{where}.device={reward.device}", "is not a device", "use auto, cpu, cuda or cuda:0")


def _check_remote(reward: RemoteRewardConfig, where: str) -> None:
    example = "http://127.0.0.1:8000/v1" if isinstance(reward, JudgeRewardConfig) else "http://127.0.0.1:8000/score"
    if reward.url is None:
        raise ConfigError(f"{where}.url=null", "names no server", f"set {where}.url={example}")
    if not is_web_address(reward.url):
        raise ConfigError(f"{where}.url={reward.url}", "is not an HTTP address", f"use {where}.url={example}")
    if reward.token_env is not None and not re.fullmatch(r"[A-Za-z_]\w*", reward.token_env):
        raise ConfigError(  # without the value, which may be the token
            f"{where}.token_env", "is not the name of an environment variable", f"set {where}.token_env=MY_API_KEY"
        )


def is_web_address(url: str, schemes: tuple[str, ...] = ("http", "https")) -> bool:
    """Whether a text is the address of a server, with one of these schemes."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in schemes and bool(parts.hostname)


def _check_judge(reward: JudgeRewardConfig, where: str) -> None:
    if reward.model is None:
        raise ConfigError(f"{where}.model=null", "names no model", f"set {where}.model=NAME of the endpoint")
    if (reward.pattern is None) == (reward.field is None):
        raise ConfigError(
            f"{where}.pattern={reward.pattern} {where}.field={reward.field}",
            "define the position of the number " + ("nowhere" if reward.field is None else "twice"),
            f"set one of them, the other to null: {where}.pattern=null {where}.field=score",
        )
    if reward.pattern is not None:
        _check_number(reward.pattern, f"{where}.pattern={reward.pattern}")
    if reward.min_score >= reward.max_score:
        raise ConfigError(
            f"{where}.min_score={reward.min_score} {where}.max_score={reward.max_score}",
            "are not an interval",
            "set min_score below max_score",
        )
    if not re.search(r"\bresponse\b|\bagents\b|\.py:", reward.template):
        raise ConfigError(
            f"{where}.template={reward.template!r:.60}",
            "does not contain the response",
            "add {response}",
        )


def _check_number(pattern: str, setting: str) -> None:
    remedy = r"write one group around the number: 'Score:\s*(\d+)'"
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ConfigError(setting, f"is not a regular expression ({error})", remedy) from error
    if groups != 1:
        raise ConfigError(setting, f"has {groups} groups instead of one", remedy)
