"""Sampling settings without filters. Tests import this file by its path."""

from __future__ import annotations

from ippo_cli.rollout.sampling import Sampling

PLAIN = Sampling(max_new_tokens=20)
