"""`pilot=`: how much `mode=pilot` samples, and the step that it allows."""

from __future__ import annotations

from dataclasses import dataclass

from ippo_cli.config.constraints import PositiveFloat, PositiveInt
from ippo_cli.config.schema.registry import option


@option("pilot")
@dataclass
class PilotConfig:
    """Measurements of mode=pilot; training ignores them."""

    tokens: PositiveInt | None  # most sampled tokens; null = a hundredth of the run's, at least 8 prompts
    kl: PositiveFloat  # nats per token by which one optimizer step may change a policy
