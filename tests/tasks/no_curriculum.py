"""`task.curriculum` switched off, for tests that build task configurations themselves."""

from __future__ import annotations

import yaml

from ippo_cli.compose.load import config_dir
from ippo_cli.config.schema import CurriculumConfig

NO_CURRICULUM = CurriculumConfig(**yaml.safe_load((config_dir() / "base" / "curriculum.yaml").read_text()))
