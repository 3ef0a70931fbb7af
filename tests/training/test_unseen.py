"""Rows that are held out by one run, and were trained on by another."""

from __future__ import annotations

from pathlib import Path

import pytest

from ippo_cli.config.errors import PreflightError
from ippo_cli.config.load import compose_node, load_config, resolve, to_yaml
from ippo_cli.config.schema import Config
from ippo_cli.tasks.task import SOURCES
from ippo_cli.training.unseen import unseen_rows

LETTERS = ("task=probe_conditional", "task.alphabet=abcd", "task.length=2", "task.eval_size=6")


def run(folder: Path, *keys: str) -> dict[Path, Config]:
    """A run's folder as far as its configuration goes."""
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(resolve(compose_node(keys))))
    return {folder: load_config(keys)}


def test_held_out_rows_that_a_run_of_another_seed_was_trained_on_are_left_out(tmp_path: Path) -> None:
    task = load_config([*LETTERS, "task.train_size=6", "seed=1"])
    held_out = SOURCES[task.task.kind](task.task, task.seed)[1]
    alike = run(tmp_path / "alike", *LETTERS, "task.train_size=10", "seed=1")
    assert unseen_rows(task.task, held_out, alike) == list(range(6))
    keys = (*LETTERS, "task.train_size=6", "seed=2")
    other = run(tmp_path / "other", *keys)
    trained = [row["letters"] for row in SOURCES[task.task.kind](load_config(keys).task, 2)[0]]
    kept = [place for place, row in enumerate(held_out) if row["letters"] not in trained]
    assert 0 < len(kept) < 6
    assert unseen_rows(task.task, held_out, {**alike, **other}) == kept
    # What is typed for the evaluation does not change what the run was trained on.
    typed = {folder: load_config([*keys, "task.eval_size=2"]) for folder in other}
    assert unseen_rows(task.task, held_out, typed) == kept
    (folder,) = other
    (folder / "config.yaml").unlink()  # of a run that is older than some key, what it is evaluated as
    with pytest.raises(PreflightError, match=r"trained on every held-out row .* compare runs of one seed"):
        unseen_rows(task.task, [row for row in held_out if row["letters"] in trained], other)


def test_signals_are_those_of_the_training_in_any_run(tmp_path: Path) -> None:
    keys = ("task=signalling", "task.train_size=8", "task.eval_size=8")
    task = load_config([*keys, "seed=1"])
    held_out = SOURCES[task.task.kind](task.task, 1)[1]
    assert unseen_rows(task.task, held_out, run(tmp_path / "other", *keys, "seed=2")) == list(range(8))
