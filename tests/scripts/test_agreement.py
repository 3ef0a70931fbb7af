"""Comparison with published implementations: missing packages are reported, different formulas are detected."""

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


def our_gae(c: Case) -> tuple[Tensor, Tensor]:
    return gae(c.rewards, c.values, c.mask, gamma=c.gamma, gae_lambda=c.gae_lambda)


def gae_through_observations(c: Case) -> tuple[Tensor, Tensor]:
    """GAE that treats observations as tokens of reward and value 0, a published error."""
    every = torch.ones_like(c.mask)
    advantages, returns = gae(c.kept(c.rewards), c.kept(c.values), every, gamma=c.gamma, gae_lambda=c.gae_lambda)
    return c.kept(advantages), c.kept(returns)


def gae_loop(c: Case) -> tuple[Tensor, Tensor]:
    """GAE computed column by column."""
    advantage = next_value = torch.zeros_like(c.score)
    advantages = torch.zeros_like(c.rewards)
    for t in reversed(range(c.mask.shape[1])):
        is_action = c.mask[:, t]
        found = c.rewards[:, t] + c.gamma * (next_value + c.gae_lambda * advantage) - c.values[:, t]
        advantage, next_value = (
            torch.where(is_action, found, advantage),
            torch.where(is_action, c.values[:, t], next_value),
        )
        advantages[:, t] = torch.where(is_action, advantage, 0.0)
    return advantages, advantages + c.kept(c.values)


def test_missing_peers_are_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["agreement.py", "--cases", "1"])
    assert main() == 0
    output = capsys.readouterr().out
    for name, distribution, _ in PEERS:
        if not any(importlib.metadata.distributions(name=distribution)):
            assert f"not importable here: {name} (PackageNotFoundError" in output


def test_equal_formulas_agree() -> None:
    row = compare("peer", Comparison(what="GAE", ours=our_gae, theirs=gae_loop, on=("holes", "empty rows")), 20)
    assert (row.verdict, row.expected) == ("agrees", True)
    assert 0.0 < row.float32 < 1e-5
    assert row.float64 is not None
    assert row.float64 < 1e-12


def test_unknown_difference_is_unexpected() -> None:
    row = compare("peer", Comparison(what="GAE", ours=our_gae, theirs=gae_through_observations), 20)
    assert (row.verdict, row.expected) == ("DIFFERS", False)
    assert row.float32 > 0.1


def test_known_difference_must_be_fully_explained() -> None:
    right = Comparison(
        what="GAE", ours=our_gae, theirs=gae_through_observations, known="holes", translated=gae_through_observations
    )
    assert [compare("peer", right, 20).verdict, compare("peer", right, 20).expected] == ["differs: holes", True]
    wrong = Comparison(what="GAE", ours=our_gae, theirs=gae_through_observations, known="rounding", translated=our_gae)
    row = compare("peer", wrong, 20)
    assert "NOT THE WHOLE REASON" in row.verdict
    assert not row.expected


def test_missing_known_difference_is_unexpected() -> None:
    row = compare(
        "peer", Comparison(what="GAE", ours=our_gae, theirs=gae_through_observations, on=("plain",), known="holes"), 20
    )
    assert row.verdict == "AGREES, but was known to differ: holes"
    assert not row.expected


def test_error_or_nan_on_one_side_differs() -> None:
    def raise_error(_: Case) -> Tensor:
        raise ValueError("no")

    def nan(c: Case) -> Tensor:
        return torch.full_like(c.rewards, torch.nan)

    for theirs in (raise_error, nan):
        row = compare("peer", Comparison(what="rewards", ours=lambda c: c.rewards, theirs=theirs, known="so"), 1)
        assert row.float32 == float("inf")
    assert compare("peer", Comparison(what="both", ours=raise_error, theirs=raise_error), 1).verdict == "agrees"


def test_unexpected_difference_has_exit_code_1_and_keeps_rows(
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
def test_cases_match_their_kind_and_are_deterministic(kind: str) -> None:
    expected = KINDS[kind]
    for seed in range(30):
        case = make_case(seed, kind)
        same = make_case(seed, kind)
        assert torch.equal(case.new, same.new)
        assert torch.equal(case.mask, same.mask)
        assert (case.num_sequences < len(case.mask)) == (expected.empty_rows or expected.own_tokens is not None)
        assert expected.holes or int(case.turn.max()) <= 0
        assert torch.equal(case.turn >= 0, case.mask)
        for row in case.turn:
            turns = sorted(set(row[row >= 0].tolist()))
            assert turns == list(range(len(turns)))
        _, sizes = case.group.unique(return_counts=True)
        assert expected.lone or int(sizes.min()) >= 2
        assert expected.own_tokens in (None, case.num_tokens)


def test_both_sides_use_the_same_random_numbers() -> None:
    case = make_case(0, "holes")
    (first,), (second,) = (outcome(lambda c: torch.rand(len(c.score)), case, 3) or () for _ in range(2))
    assert torch.equal(first, second)


def test_every_peer_has_a_table() -> None:
    for _, _, module in PEERS:
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        assert "\nCOMPARISONS = (" in Path(spec.origin).read_text()
