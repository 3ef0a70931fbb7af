"""`task.curriculum` switched off, for tests that build task configurations themselves."""

from __future__ import annotations

from ippo_cli.config.schema import CurriculumConfig

NO_CURRICULUM = CurriculumConfig(
    band_low=None,
    band_high=None,
    outside_weight=0.1,
    success_score=1.0,
    smoothing=0.5,
    level_field=None,
    levels=[],
    unlock_rate=0.7,
)
