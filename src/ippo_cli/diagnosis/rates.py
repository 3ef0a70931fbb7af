"""Learning rates to try: the default of the kind of actor where the rate is far from it, else a part of the rate."""

from __future__ import annotations

from ippo_cli.config.schema import ActorKind, AgentConfig

DEFAULT_RATES = {ActorKind.full: 1e-6, ActorKind.lora: 1e-5, ActorKind.tiny: 3.5e-4, ActorKind.tiny_lora: 3.5e-3}
"""`actor.learning_rate` of the files in `conf/actor`."""
FAR = 3.0  # a rate above this many times the default is replaced by the default


def lower_rate(agent: AgentConfig, factor: float) -> str:
    """An override with a lower rate: the default of far higher rates, else the rate divided by `factor`."""
    rate, default = agent.actor.learning_rate, DEFAULT_RATES.get(agent.actor.kind)
    if default is not None and rate > FAR * default:
        return f"actor.learning_rate={default:g}"
    return f"actor.learning_rate={rate / factor:g}"


def default_rate(agent: AgentConfig) -> str:
    """An override with the default rate of the actor's kind."""
    return f"actor.learning_rate={DEFAULT_RATES.get(agent.actor.kind, agent.actor.learning_rate):g}"


def describe_rate(agent: AgentConfig) -> str:
    """`actor.learning_rate=0.03`, with the default where it is far lower."""
    rate, default = agent.actor.learning_rate, DEFAULT_RATES.get(agent.actor.kind)
    known = f" (actor={agent.actor.kind.value}: {default:g})" if default is not None and rate > FAR * default else ""
    return f"actor.learning_rate={rate:g}{known}"


def other_rates(agent: AgentConfig, factor: float) -> tuple[str, ...]:
    """Overrides with other rates: the default if the rate is far from it on either side, else both neighbours."""
    rate, default = agent.actor.learning_rate, DEFAULT_RATES.get(agent.actor.kind)
    if default is not None and not default / FAR <= rate <= FAR * default:
        return (f"actor.learning_rate={default:g}",)
    return f"actor.learning_rate={factor * rate:g}", f"actor.learning_rate={rate / factor:g}"
