"""Resuming with another number of ranks: weights, moments and steps are equal up to rounding."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cases import build, update
from rank_scripts import finish, read_output, start_ranks
from resharding_ranks import KINDS, gone_on_with, saved
from torch import Tensor

from ippo_cli.engine import distributed

pytestmark = pytest.mark.slow
Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Shards of one rank, made here, and of two; `found.pt` has the results of two ranks from those of one."""
    root = tmp_path_factory.mktemp("shards")
    distributed.init(device="cpu", timeout_s=100)
    try:
        for kind in KINDS:
            saved(root / "one", *kind)
        (root / "printed").mkdir()
        script = Path(__file__).with_name("resharding_ranks.py")
        codes = finish(start_ranks(script, str(root), folder=root / "printed"), 200)
        assert codes == [0, 0], read_output(root / "printed")
        yield root
    finally:
        distributed.shutdown()


@pytest.fixture(scope="module")
def expected(root: Path) -> dict[str, Weights]:
    """The weights after three updates on one rank, by dtype."""
    return {dtype: undisturbed(dtype) for dtype in ("fp32", "bf16")}


def undisturbed(dtype: str) -> Weights:
    engine = build(stage=0, dtype=dtype)
    for _ in range(3):
        update(engine)
    found = {name: value.detach().float().clone() for name, value in engine.module.state_dict().items()}
    engine.destroy()
    return found


def difference(found: Weights, expected: Weights) -> float:
    assert found.keys() == expected.keys()
    return max(float((found[name] - value).abs().max()) for name, value in expected.items())


@pytest.mark.parametrize(("stage", "dtype"), KINDS)
def test_resharding_between_one_and_two_ranks(root: Path, expected: dict[str, Weights], stage: int, dtype: str) -> None:
    tolerance = {"fp32": 2e-4, "bf16": 2e-2}[dtype]
    by_two = torch.load(root / "found.pt")[(stage, dtype)]
    assert difference(by_two, expected[dtype]) < tolerance
    assert difference(gone_on_with(root / "two", stage, dtype), expected[dtype]) < tolerance


def test_resharding_between_stages(root: Path, expected: dict[str, Weights]) -> None:
    for stage in (1, 3):
        (root / f"other{stage}").mkdir()
        (root / f"other{stage}" / f"fp32_{stage}").symlink_to(root / "two" / f"fp32_{4 - stage}")
        assert difference(gone_on_with(root / f"other{stage}", stage, "fp32"), expected["fp32"]) < 2e-4


def test_moments_affect_update(expected: dict[str, Weights], root: Path) -> None:
    engine = build(stage=0)
    shards = torch.load(root / "one" / "fp32_0" / "shards" / "mp_rank_00_model_states.pt", weights_only=False)
    engine.module.load_state_dict(shards["module"])
    update(engine)
    found = {name: value.detach().float().clone() for name, value in engine.module.state_dict().items()}
    engine.destroy()
    assert difference(found, expected["fp32"]) > 1e-2
