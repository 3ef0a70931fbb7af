"""When Python looks for garbage: seldom while modules are imported, which leave none and are never any themselves."""

from __future__ import annotations

import gc

_DEFAULT_THRESHOLDS = gc.get_threshold()
_IMPORT_THRESHOLDS = (100_000, 20, 100)


def relax_gc() -> None:
    """Until `restore_gc`: looking at what is being imported took a third of the time that a run took to begin."""
    gc.set_threshold(*_IMPORT_THRESHOLDS)


def restore_gc() -> None:
    """From here on, and never again among what was imported: every engine that ends collects garbage."""
    if not gc.get_freeze_count():  # in a second run of one process the first one's models would be kept as well
        gc.freeze()
    gc.set_threshold(*_DEFAULT_THRESHOLDS)
