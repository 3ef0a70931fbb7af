"""Commands begin without looking for garbage, and what trains looks for it as usual."""

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


def test_garbage_is_looked_for_seldom_while_a_command_begins_and_as_usual_once_it_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    restore_gc()  # a command that another test ran may have begun here, and have trained nothing
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


def test_what_a_first_run_left_is_not_kept_by_a_second_one_in_the_same_process() -> None:
    class Left:
        """A part of a cycle."""

    restore_gc()
    one = Left()
    one.itself = one  # type: ignore[attr-defined]
    gone = weakref.ref(one)
    del one
    restore_gc()
    gc.collect()
    assert gone() is None
