"""Check of `pilot=`."""

from __future__ import annotations

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, Mode, PilotConfig

DEFAULTS = PilotConfig(tokens=None, kl=0.02)
"""The values of conf/pilot/default.yaml."""


def check_pilot(config: Config) -> None:
    """Raise `ConfigError` if `pilot.*` is set without mode=pilot."""
    if config.mode is Mode.pilot:
        return
    for key, value in (("tokens", config.pilot.tokens), ("kl", config.pilot.kl)):
        if value != getattr(DEFAULTS, key):
            raise ConfigError(
                f"pilot.{key}={value:g}", "has an effect with mode=pilot only", "add mode=pilot, or remove it"
            )
