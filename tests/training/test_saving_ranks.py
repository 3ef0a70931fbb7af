"""Saving on two ranks: shared visibility of files, and no rank waits for a failed one."""

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
    """The results of saving_ranks.py on each of two ranks."""
    root.joinpath("printed").mkdir()
    ranks = found_by_ranks(Path(__file__).with_name("saving_ranks.py"), str(root), folder=root / "printed")
    return [rank | {"output": (root / "printed" / f"printed{n}").read_text()} for n, rank in enumerate(ranks)]


def test_checkpoint_lists_files_of_all_ranks(found: list[dict[str, Any]], root: Path) -> None:
    assert [rank["shared"]["saved"] for rank in found] == [True, True]
    made = root / "shared" / "checkpoints" / "step_00000001"
    listed = json.loads((made / "manifest.json").read_text())["files"]
    assert set(listed) == {"rng_rank_0.json", "rng_rank_1.json", "state.json"}
    assert find_damage(made) is None


def test_ranks_share_verification_and_agree_on_damage(
    found: list[dict[str, Any]],
) -> None:
    assert [rank["shares"]["intact"] for rank in found] == ["step_00000001"] * 2
    files = ["rng_rank_0.json", "rng_rank_1.json", "state.json"]
    assert sorted(name for rank in found for name in rank["shares"]["read"]) == files, "each file once"
    assert all(rank["shares"]["read"] for rank in found)
    for rank in found:
        assert [name for name, _ in rank["shares"]["damaged"]] == files
        assert all(text.startswith("ResumeError: ") for _, text in rank["shares"]["damaged"])
    result = found[0]["output"]
    assert all(
        f"is damaged ({who}{name} has changed)" in result
        for name in files
        for who in ("", "rank 1: ")
        if name in found[bool(who)]["shares"]["read"]
    )
    assert "is damaged" not in found[1]["output"]


def test_checkpoint_without_other_ranks_files_fails(found: list[dict[str, Any]], root: Path) -> None:
    assert [rank["apart"]["saved"] for rank in found] == [[False, False]] * 2
    reason = "rank 1 wrote rng_rank_1.json, but rank 0 does not see it; checkpoints need a folder that all ranks share"
    warnings = [line for line in found[0]["output"].splitlines() if line.startswith("warning: checkpoint")]
    assert warnings == [f"warning: checkpoint not saved ({reason})"] * 2
    assert "warning" not in found[1]["output"]
    for rank in found:
        assert rank["apart"]["third"] == f"StorageError: cannot save checkpoints, 3 failures in a row ({reason})"


def test_failed_checkpoint_leaves_no_files(found: list[dict[str, Any]], root: Path) -> None:
    assert found
    for disk in ("disk0", "disk1"):
        assert list((root / "apart" / disk / "checkpoints").iterdir()) == []


def test_all_ranks_raise_if_rank_0_cannot_create_folder(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["in the way"]["raised"].startswith("StorageError: ")
        assert "checkpoints cannot be written (File exists" in rank["in the way"]["raised"]


def test_error_of_rank_0_is_raised_on_all_ranks(found: list[dict[str, Any]]) -> None:
    assert [rank["on main"]["of ours"] for rank in found] == ["ConfigError: seed=x is no number; use one"] * 2
    assert found[0]["on main"]["of another kind"].startswith("ZeroDivisionError: ")
    assert found[1]["on main"]["of another kind"].startswith("OtherRankFailed: exiting because rank 0 failed")
    assert [rank["on main"]["answer"] for rank in found] == [0, 0]


def test_engine_is_not_saved_if_one_rank_fails(found: list[dict[str, Any]], root: Path) -> None:
    assert found[0]["shards"]["failed"] == "nothing"
    assert found[1]["shards"]["failed"].startswith("FileExistsError: ")
    assert list((root / "shards" / "disk0" / "shards").iterdir()) == []


def test_each_rank_knows_its_shards(found: list[dict[str, Any]], root: Path) -> None:
    written = [name for rank in found for name in rank["shards"]["written"]]
    there = [str(file.relative_to(root / "shards")) for file in (root / "shards" / "both").rglob("*.pt")]
    assert len(written) == 3
    assert sorted(written) == sorted(there)
