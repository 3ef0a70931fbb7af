"""What a rank's process is prepared with."""

from __future__ import annotations

import pytest
import torch

from ippo_cli.config.load import load_config
from ippo_cli.engine import distributed
from ippo_cli.training.process import prepare_process


@pytest.mark.parametrize(("visible", "expected"), [(1, 0), (4, 3)])
def test_a_rank_uses_the_gpu_that_its_launcher_shows_it(
    visible: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: None)
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda **_: None)  # NCCL is not built for CPUs
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *_, **__: None)
    try:
        device = prepare_process(load_config(["launch.device=cuda"]))
    finally:
        distributed.shutdown()
    assert device == torch.device("cuda", expected)
    assert set(chosen) == {device}
