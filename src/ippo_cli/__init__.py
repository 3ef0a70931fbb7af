"""Train language models with PPO and Independent PPO from the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ippo_cli.api.run import Run, train

__version__ = "0.1.0"
__all__ = ["Run", "__version__", "train"]
_MODULES = {"Run": "ippo_cli.api.run", "train": "ippo_cli.api.run"}


def __getattr__(name: str) -> Any:
    """Import the Python interface when it is used, so that commands start fast."""
    if name not in _MODULES:
        raise AttributeError(f"module 'ippo_cli' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)
