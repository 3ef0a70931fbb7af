"""Garbage collection settings: rare collections during imports, imported objects frozen afterwards."""

from __future__ import annotations

import gc

_DEFAULT_THRESHOLDS = gc.get_threshold()
_IMPORT_THRESHOLDS = (100_000, 20, 100)


def relax_gc() -> None:
    """Collect rarely until `restore_gc`: collections during imports took a third of the startup time."""
    gc.set_threshold(*_IMPORT_THRESHOLDS)


def restore_gc() -> None:
    """Restore the default thresholds and freeze imported objects: every closed engine triggers a full collection."""
    if not gc.get_freeze_count():  # a second run in one process would also freeze the first run's models
        gc.freeze()
    gc.set_threshold(*_DEFAULT_THRESHOLDS)
