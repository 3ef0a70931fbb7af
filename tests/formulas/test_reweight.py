"""Policy filtration: sampled rows and their frequencies."""

from __future__ import annotations

import pytest
import torch

from ippo_cli.formulas import reweight


def frequencies(score: list[float], *, method: str, power: float = 2.0) -> torch.Tensor:
    """Frequency of each row in 400 samples of a batch that repeats the scores 100 times."""
    repeated = torch.tensor(score).repeat(100)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.cat([reweight(repeated, method=method, power=power, generator=generator) for _ in range(400)])
    return torch.bincount(drawn % len(score), minlength=len(score)) / drawn.numel()


@pytest.mark.parametrize(
    ("method", "power", "weights"),
    [
        ("pow", 2.0, [1.0, 4.0, 0.0, 9.0]),
        ("pow", 1.0, [1.0, 2.0, 0.0, 3.0]),
        ("max_min", 2.0, [0.0, 1.0, 0.0, 1.0]),
        ("max_random", 2.0, [0.1, 0.1, 0.1, 0.4]),
    ],
)
def test_frequencies_match_weights(method: str, power: float, weights: list) -> None:
    expected = torch.tensor(weights) / sum(weights)
    actual = frequencies([1.0, -2.0, 0.0, 3.0], method=method, power=power)
    torch.testing.assert_close(actual, expected, atol=0.01, rtol=0)
    assert not actual[expected == 0].any()


@pytest.mark.parametrize("method", ["pow", "max_min", "max_random"])
def test_zero_scores_sampled_uniformly(method: str) -> None:
    torch.testing.assert_close(frequencies([0.0] * 4, method=method), torch.full((4,), 0.25), atol=0.01, rtol=0)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_scale_invariant(size: float) -> None:
    actual = frequencies([1.0 * size, -2.0 * size], method="pow", power=20.0)
    torch.testing.assert_close(actual, torch.tensor([0.0, 1.0]), atol=0.001, rtol=0)


def test_sample_determined_by_generator() -> None:
    score = torch.rand(50, generator=torch.Generator().manual_seed(1))
    draws = [
        reweight(score, method="pow", power=2.0, generator=torch.Generator().manual_seed(seed)) for seed in (5, 5, 6)
    ]
    assert draws[0].shape == (50,)
    assert draws[0].dtype == torch.long
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert draws[0].unique().numel() < 50  # with replacement
    assert reweight(score, method="pow", power=2.0, generator=None).shape == (50,)
    assert reweight(score[:0], method="pow", power=2.0, generator=None).shape == (0,)


def test_invalid_inputs_rejected() -> None:
    score = torch.tensor([1.0, 2.0])
    with pytest.raises(ValueError, match="method=top; must be one of pow max_min max_random"):
        reweight(score, method="top", power=2.0, generator=None)
    with pytest.raises(ValueError, match=r"power=-1\.0; must be 0 or more"):
        reweight(score, method="pow", power=-1.0, generator=None)
    for method in ("pow", "max_min", "max_random"):
        with pytest.raises(ValueError, match="NaN or an infinity"):
            reweight(torch.tensor([1.0, torch.nan]), method=method, power=2.0, generator=None)
