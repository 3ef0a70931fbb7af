"""A signalling game: one agent sees a signal, the other must act on it and has heard only what the first one said.

No message means anything at first: which one stands for which signal is for the two to settle.
"""

from __future__ import annotations

import random

from ippo_cli.config.schema import SignallingConfig
from ippo_cli.types import Example


def signalling_examples(config: SignallingConfig, seed: int) -> tuple[list[Example], list[Example]]:
    """Training and held-out examples with the fields `signal`, `message` and `act`; signals occur equally often.

    `message` and `act` are drawn at random, whatever the signal: they show the form of what each agent writes, and
    say nothing about what it should. There are no other signals than those that are trained on, so held-out examples
    measure how well the agents understand each other.
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
