"""The type checker of the formulas in tests; an int is accepted as a float."""

from __future__ import annotations

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
