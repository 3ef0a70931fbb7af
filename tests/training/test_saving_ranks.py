"""Saving on two ranks: what one wrote the other must see, and nobody waits for a rank that failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rank_scripts import found_by_ranks

from ippo_cli.runs.checkpoint_files import find_damage

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def found(root: Path) -> list[dict[str, Any]]:
    """What saving_ranks.py found on each of two ranks."""
    root.joinpath("printed").mkdir()
    ranks = found_by_ranks(Path(__file__).with_name("saving_ranks.py"), str(root), folder=root / "printed")
    return [rank | {"said": (root / "printed" / f"printed{n}").read_text()} for n, rank in enumerate(ranks)]


def test_a_checkpoint_lists_what_every_rank_wrote(found: list[dict[str, Any]], root: Path) -> None:
    assert [rank["shared"]["saved"] for rank in found] == [True, True]
    made = root / "shared" / "checkpoints" / "step_00000001"
    listed = json.loads((made / "manifest.json").read_text())["files"]
    assert set(listed) == {"rng_rank_0.json", "rng_rank_1.json", "state.json"}
    assert find_damage(made) is None


def test_each_rank_reads_its_share_of_a_checkpoint_and_damage_in_any_is_every_ranks(
    found: list[dict[str, Any]],
) -> None:
    assert [rank["shares"]["intact"] for rank in found] == ["step_00000001"] * 2
    files = ["rng_rank_0.json", "rng_rank_1.json", "state.json"]
    assert sorted(name for rank in found for name in rank["shares"]["read"]) == files, "each file once"
    assert all(rank["shares"]["read"] for rank in found)
    for rank in found:
        assert [name for name, _ in rank["shares"]["damaged"]] == files
        assert all(text.startswith("ResumeError: ") for _, text in rank["shares"]["damaged"])
    said = found[0]["said"]
    assert all(
        f"is damaged ({who}{name} has changed)" in said
        for name in files
        for who in ("", "rank 1: ")
        if name in found[bool(who)]["shares"]["read"]
    )
    assert "is damaged" not in found[1]["said"]


def test_a_checkpoint_without_another_ranks_files_is_none(found: list[dict[str, Any]], root: Path) -> None:
    assert [rank["apart"]["saved"] for rank in found] == [[False, False]] * 2
    reason = "rank 1 wrote rng_rank_1.json, and rank 0 does not see it; checkpoints need a folder that all ranks share"
    warnings = [line for line in found[0]["said"].splitlines() if line.startswith("warning: checkpoint")]
    assert warnings == [f"warning: checkpoint not saved ({reason})"] * 2
    assert "warning" not in found[1]["said"]
    for rank in found:
        assert rank["apart"]["third"] == f"StorageError: 3 checkpoints in a row could not be saved ({reason})"


def test_no_rank_leaves_its_part_of_a_failed_checkpoint_behind(found: list[dict[str, Any]], root: Path) -> None:
    assert found
    for disk in ("disk0", "disk1"):
        assert list((root / "apart" / disk / "checkpoints").iterdir()) == []


def test_what_rank_0_cannot_make_all_ranks_raise_together(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["in the way"]["raised"].startswith("StorageError: ")
        assert "checkpoints cannot be written (File exists" in rank["in the way"]["raised"]


def test_an_error_of_rank_0_is_every_ranks(found: list[dict[str, Any]]) -> None:
    assert [rank["on main"]["of ours"] for rank in found] == ["ConfigError: seed=x is no number; use one"] * 2
    assert found[0]["on main"]["of another kind"].startswith("ZeroDivisionError: ")
    assert found[1]["on main"]["of another kind"].startswith("OtherRankFailed: left because rank 0 failed")
    assert [rank["on main"]["answer"] for rank in found] == [0, 0]


def test_an_engine_whose_folder_one_rank_cannot_make_is_saved_by_none(found: list[dict[str, Any]], root: Path) -> None:
    assert found[0]["shards"]["failed"] == "nothing"
    assert found[1]["shards"]["failed"].startswith("FileExistsError: ")
    assert list((root / "shards" / "disk0" / "shards").iterdir()) == []


def test_each_rank_knows_the_shards_that_it_wrote(found: list[dict[str, Any]], root: Path) -> None:
    written = [name for rank in found for name in rank["shards"]["written"]]
    there = [str(file.relative_to(root / "shards")) for file in (root / "shards" / "both").rglob("*.pt")]
    assert len(written) == 3
    assert sorted(written) == sorted(there)
