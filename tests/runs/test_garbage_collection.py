"""Garbage collection is rare during startup and normal during training."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest

from ippo_cli.cli.entry import run_command
from ippo_cli.compose import exits
from ippo_cli.compose.load import load_config
from ippo_cli.engine import distributed
from ippo_cli.runs.garbage_collection import restore_gc
from ippo_cli.training.process import prepare_process


def test_gc_is_rare_at_startup_and_normal_in_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    restore_gc()  # a command of another test may have started in this process without training
    usual, found = gc.get_threshold(), []
    monkeypatch.setattr(exits, "exit_process", found.append)
    monkeypatch.setattr(sys, "argv", ["ippo-train", "seed=1"])
    run_command("ippo-train", "", lambda argv: found.append(gc.get_threshold()))
    assert found[0][0] >= 100 * usual[0]
    assert found[1:] == [0]
    try:
        prepare_process(load_config([]))
    finally:
        distributed.shutdown()
    assert gc.get_threshold() == usual
    assert gc.get_freeze_count() > 100_000


def test_second_run_frees_objects_of_first_run() -> None:
    class Left:
        """A member of a reference cycle."""

    restore_gc()
    one = Left()
    one.itself = one  # type: ignore[attr-defined]
    gone = weakref.ref(one)
    del one
    restore_gc()
    gc.collect()
    assert gone() is None
