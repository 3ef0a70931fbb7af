"""Folders of adapters in PEFT's format, as far as their settings tell: no weight is read."""

from __future__ import annotations

from pathlib import Path

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FILES = (ADAPTER_CONFIG, "adapter_model.safetensors")
BESIDE_MERGED = "adapter"
"""In the folder of a model that an adapter is merged into: the adapter."""


def has_merged_adapter(model: str) -> bool:
    """Whether an adapter is merged into the model of a folder."""
    return (Path(model) / BESIDE_MERGED / ADAPTER_CONFIG).is_file()
