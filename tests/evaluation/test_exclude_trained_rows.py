"""Exclusion of held-out rows that another run was trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import PreflightError
from ippo_cli.evaluation.exclude_trained_rows import exclude_trained_rows
from ippo_cli.tasks.task import make_examples

LETTERS = ("task=probe_conditional", "task.alphabet=abcd", "task.length=2", "task.eval_size=6")


def test_rows_of_run_with_other_seed_excluded() -> None:
    one = load_config([*LETTERS, "task.train_size=6", "seed=1"])
    held_out = make_examples(one.task, one.seed)[1]
    assert exclude_trained_rows(one.task, held_out, {Path("same"): replace(one, seed=1)}) == list(range(6))
    other = replace(one, seed=2)
    trained = [row["letters"] for row in make_examples(other.task, 2)[0]]
    untrained = [place for place, row in enumerate(held_out) if row["letters"] not in trained]
    assert 0 < len(untrained) < 6
    assert exclude_trained_rows(one.task, held_out, {Path("same"): one, Path("other"): other}) == untrained
    with pytest.raises(PreflightError, match=r"^run=other: .* trained on every held-out row .* runs of one seed"):
        exclude_trained_rows(one.task, [row for row in held_out if row["letters"] in trained], {Path("other"): other})


def test_signalling_rows_not_excluded() -> None:
    one = load_config(["task=signalling", "task.train_size=8", "task.eval_size=8", "seed=1"])
    held_out = make_examples(one.task, 1)[1]
    assert exclude_trained_rows(one.task, held_out, {Path("other"): replace(one, seed=2)}) == list(range(8))
