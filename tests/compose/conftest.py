"""Fixtures of composed configurations."""

from __future__ import annotations

from compositions import config, plain

__all__ = ["config", "plain"]
