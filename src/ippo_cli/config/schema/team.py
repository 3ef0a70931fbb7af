"""`team=`: what agents share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class TeamKind(str, Enum):
    independent = "independent"


@dataclass
class TeamConfig:
    """What agents share."""

    kind: TeamKind  # independent: nothing
