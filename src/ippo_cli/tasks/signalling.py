"""Signalling game: one agent observes a signal, the other must act on it and observes only the first one's message.

Messages have no meaning at first: the agents must learn which message denotes which signal.
"""

from __future__ import annotations

import random

from ippo_cli.config.schema import SignallingConfig
from ippo_cli.types import Example


def signalling_examples(config: SignallingConfig, seed: int) -> tuple[list[Example], list[Example]]:
    """Return training and held-out examples with the fields `signal`, `message` and `act`; signals are balanced.

    `message` and `act` are random and independent of the signal: they show the format of responses, not the solution.
    Held-out examples contain the same signals, so they measure communication, not generalization.
    """
    source = random.Random(f"signalling {seed}")
    signals = sorted(set(config.signals))
    held_out = _examples(config, signals, config.eval_size, source)
    return _examples(config, signals, config.train_size, source), held_out


def _examples(config: SignallingConfig, signals: list[str], count: int, source: random.Random) -> list[Example]:
    return [
        {
            "signal": signals[row % len(signals)],
            "message": "".join(source.choices(sorted(set(config.symbols)), k=config.message_length)),
            "act": source.choice(signals),
        }
        for row in range(count)
    ]
