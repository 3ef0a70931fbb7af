"""Setup of a rank's process, and its exit before training."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from small import new_run

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import Preempted
from ippo_cli.engine import distributed
from ippo_cli.reporting.console import Console
from ippo_cli.training.process import prepare_process, run_training


@pytest.mark.parametrize(("visible", "expected"), [(1, 0), (4, 3)])
def test_rank_uses_the_launchers_gpu(visible: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_signal_during_warm_start_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, folder = new_run(tmp_path, "actor.warm_start_steps=5000")  # would take minutes
    monkeypatch.setattr(Console, "show_progress", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Preempted, match="during the warm start of low: nothing was trained"):
        run_training(config, folder, resumed=False)
    assert json.loads((folder / "run.json").read_text())["state"] == "preempted"
    assert not (folder / "initial" / "low").exists()


def test_signal_after_the_end_keeps_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, folder = new_run(tmp_path, "num_iterations=1")
    asked: list[str] = []

    def asked_to_leave() -> None:
        asked.append(json.loads((folder / "run.json").read_text())["state"])
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(os.getpid(), number)

    ended = distributed.shutdown
    monkeypatch.setattr(distributed, "shutdown", lambda: (asked_to_leave(), ended()))
    run_training(config, folder, resumed=False)
    assert asked == ["done"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
