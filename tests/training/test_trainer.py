"""What a run needs, put together: what does not fit is told before the first rollout."""

from __future__ import annotations

from pathlib import Path

import pytest
from small import train

from ippo_cli.config.errors import ConfigError


def test_a_prompt_without_room_ends_a_run_before_it_begins(tmp_path: Path) -> None:
    said = "lets in agent low's prompt of 7 tokens, row 0 of the training data, "
    with pytest.raises(ConfigError, match=said):
        train(tmp_path, "rollout.context_limit=7", "num_iterations=99")
