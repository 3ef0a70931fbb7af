"""Comparing with published implementations: what is missing is said, and a wrong formula on either side is found."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ippo_cli.formulas import gae

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "bench" / "agreement.py"
sys.path.insert(0, str(SCRIPT.parent))

from agreement import PEERS, compare, main, outcome  # noqa: E402
from published.cases import KINDS, Case, Comparison, make_case  # noqa: E402


def ours(c: Case) -> tuple[Tensor, Tensor]:
    return gae(c.rewards, c.values, c.mask, gamma=c.gamma, gae_lambda=c.gae_lambda)


def through_holes(c: Case) -> tuple[Tensor, Tensor]:
    """GAE that takes observations for tokens of reward and value 0: a published mistake."""
    every = torch.ones_like(c.mask)
    advantages, returns = gae(c.kept(c.rewards), c.kept(c.values), every, gamma=c.gamma, gae_lambda=c.gae_lambda)
    return c.kept(advantages), c.kept(returns)


def step_by_step(c: Case) -> tuple[Tensor, Tensor]:
    """The same recurrence, a column at a time."""
    advantage = next_value = torch.zeros_like(c.score)
    advantages = torch.zeros_like(c.rewards)
    for t in reversed(range(c.mask.shape[1])):
        own = c.mask[:, t]
        found = c.rewards[:, t] + c.gamma * (next_value + c.gae_lambda * advantage) - c.values[:, t]
        advantage, next_value = torch.where(own, found, advantage), torch.where(own, c.values[:, t], next_value)
        advantages[:, t] = torch.where(own, advantage, 0.0)
    return advantages, advantages + c.kept(c.values)


def test_peers_that_are_not_there_are_named_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["agreement.py", "--cases", "1"])
    assert main() == 0
    said = capsys.readouterr().out
    for name, distribution, _ in PEERS:
        if not any(importlib.metadata.distributions(name=distribution)):
            assert f"not importable here: {name} (PackageNotFoundError" in said


def test_equal_formulas_agree() -> None:
    row = compare("peer", Comparison(what="GAE", ours=ours, theirs=step_by_step, on=("holes", "empty rows")), 20)
    assert (row.verdict, row.expected) == ("agrees", True)
    assert 0.0 < row.float32 < 1e-5
    assert row.float64 is not None
    assert row.float64 < 1e-12


def test_a_difference_nobody_knew_of_is_unexpected() -> None:
    row = compare("peer", Comparison(what="GAE", ours=ours, theirs=through_holes), 20)
    assert (row.verdict, row.expected) == ("DIFFERS", False)
    assert row.float32 > 0.1


def test_a_known_difference_is_expected_only_with_its_whole_reason() -> None:
    right = Comparison(what="GAE", ours=ours, theirs=through_holes, known="holes", translated=through_holes)
    assert [compare("peer", right, 20).verdict, compare("peer", right, 20).expected] == ["differs: holes", True]
    wrong = Comparison(what="GAE", ours=ours, theirs=through_holes, known="rounding", translated=ours)
    row = compare("peer", wrong, 20)
    assert "NOT THE WHOLE REASON" in row.verdict
    assert not row.expected


def test_a_known_difference_that_is_gone_is_unexpected() -> None:
    row = compare("peer", Comparison(what="GAE", ours=ours, theirs=through_holes, on=("plain",), known="holes"), 20)
    assert row.verdict == "AGREES, but was known to differ: holes"
    assert not row.expected


def test_a_side_that_alone_refuses_or_is_not_a_number_differs() -> None:
    def refuses(_: Case) -> Tensor:
        raise ValueError("no")

    def nan(c: Case) -> Tensor:
        return torch.full_like(c.rewards, torch.nan)

    for theirs in (refuses, nan):
        row = compare("peer", Comparison(what="rewards", ours=lambda c: c.rewards, theirs=theirs, known="so"), 1)
        assert row.float32 == float("inf")
    assert compare("peer", Comparison(what="both", ours=refuses, theirs=refuses), 1).verdict == "agrees"


def test_a_wrong_table_ends_with_exit_code_1_and_other_peers_rows_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "Comparison(what='sum', ours=lambda c: c.rewards.sum(), theirs=lambda c: {} * c.rewards.sum())"
    for name, factor in (("right", 1), ("wrong", 2)):
        text = f"from published.cases import Comparison\nCOMPARISONS = ({rows.format(factor)},)\n"
        (tmp_path / f"table_of_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("agreement.PEERS", tuple((name, "torch", f"table_of_{name}") for name in ("right", "wrong")))
    found = {}
    for name, code in (("right", 0), ("wrong", 1)):
        arguments = ["agreement.py", "--peers", name, "--cases", "2", "--json", str(tmp_path / "all.json")]
        monkeypatch.setattr(sys, "argv", arguments)
        assert main() == code
        found[name] = capsys.readouterr().out
    assert "| wrong " not in found["right"]
    version = importlib.metadata.version("torch")
    assert f"| right {version} | sum | holes | 0 | 0 | agrees |" in found["wrong"]
    assert "| DIFFERS |" in found["wrong"]
    assert [row["expected"] for row in json.loads((tmp_path / "all.json").read_text())["wrong"]] == [False]


@pytest.mark.parametrize("kind", KINDS)
def test_cases_are_what_their_kind_says_and_the_same_every_time(kind: str) -> None:
    like = KINDS[kind]
    for seed in range(30):
        case = make_case(seed, kind)
        again = make_case(seed, kind)
        assert torch.equal(case.new, again.new)
        assert torch.equal(case.mask, again.mask)
        assert (case.num_sequences < len(case.mask)) == (like.empty_rows or like.own_tokens is not None)
        assert like.holes or int(case.turn.max()) <= 0
        assert torch.equal(case.turn >= 0, case.mask)
        for row in case.turn:
            turns = sorted(set(row[row >= 0].tolist()))
            assert turns == list(range(len(turns)))
        _, sizes = case.group.unique(return_counts=True)
        assert like.lone or int(sizes.min()) >= 2
        assert like.own_tokens in (None, case.num_tokens)


def test_the_random_numbers_of_both_sides_are_the_same() -> None:
    case = make_case(0, "holes")
    (one,), (other,) = (outcome(lambda c: torch.rand(len(c.score)), case, 3) or () for _ in range(2))
    assert torch.equal(one, other)


def test_every_peer_has_a_table() -> None:
    for _, _, module in PEERS:
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        assert "\nCOMPARISONS = (" in Path(spec.origin).read_text()
