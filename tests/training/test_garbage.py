"""Commands begin without looking for garbage, and what trains looks for it as usual."""

from __future__ import annotations

import gc
import sys

import pytest

from ippo_cli.cli import exits
from ippo_cli.cli.entry import run_command
from ippo_cli.config.load import load_config
from ippo_cli.engine import distributed
from ippo_cli.training.process import prepare_process


def test_garbage_is_looked_for_seldom_while_a_command_begins_and_as_usual_once_it_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual, found = gc.get_threshold(), []
    monkeypatch.setattr(exits, "leave", found.append)
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
