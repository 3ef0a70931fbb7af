"""Sampling settings without filters. Tests import this file by its path."""

from __future__ import annotations

from ippo_cli.rollout.sampling import Sampling

PLAIN = Sampling(
    temperature=1.0,
    top_p=1.0,
    top_k=0,
    min_p=0.0,
    repetition_penalty=1.0,
    max_new_tokens=20,
    min_new_tokens=0,
    stop_strings=(),
    greedy=False,
)
