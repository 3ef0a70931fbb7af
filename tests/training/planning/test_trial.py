"""What a run is refused for before anything is written."""

from __future__ import annotations

import pytest
import torch

from ippo_cli.config.errors import PreflightError
from ippo_cli.config.load import load_config
from ippo_cli.training.planning.trial import refuse_untrainable


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device")
def test_a_device_that_is_not_there_is_told_before_there_is_a_folder() -> None:
    with pytest.raises(PreflightError, match=r"no CUDA device can be used here; use launch\.device=cpu$"):
        refuse_untrainable(load_config(["task=sorting", "launch.device=cuda"]), 1)
