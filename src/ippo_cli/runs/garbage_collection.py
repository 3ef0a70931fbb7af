"""When Python looks for garbage: seldom while modules are imported, which leave none and are never any themselves."""

from __future__ import annotations

import gc

_USUAL = gc.get_threshold()
_SELDOM = (100_000, 20, 100)


def collect_seldom() -> None:
    """Until `collect_as_usual`: looking at what is being imported took a third of the time that a run took to begin."""
    gc.set_threshold(*_SELDOM)


def collect_as_usual() -> None:
    """From here on, and never again among what was imported: every engine that ends collects garbage."""
    if not gc.get_freeze_count():  # in a second run of one process the first one's models would be kept as well
        gc.freeze()
    gc.set_threshold(*_USUAL)
