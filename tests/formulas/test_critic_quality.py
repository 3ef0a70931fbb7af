"""Agreement of values with references: numbers by hand, a second implementation, noise, and intervals."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from torch import Tensor

from ippo_cli.formulas.critic_quality import ValuedStates, average_ranks, calibration_bins, critic_quality, merge_ties


def exact_states(values: list[float], references: list[float], prompts: list[int]) -> ValuedStates:
    r = torch.tensor(references, dtype=torch.float64)
    return ValuedStates(
        values=torch.tensor(values),
        references=r,
        noise=torch.zeros(len(r)),
        halves=torch.stack([r, r], dim=1),
        prompts=torch.tensor(prompts),
        places=[0] * len(r),
    )


def test_numbers_by_hand() -> None:
    states = exact_states([0.0, 1.0, 2.0, 1.0], [1.0, 1.0, 3.0, 5.0], [7, 7, 9, 9])
    found = {name: estimate.value for name, estimate in critic_quality(states, 0).items()}
    # Means 1 and 2.5; sums of centred products: v 2, r 11, vr 2.
    assert found["bias"] == pytest.approx(-1.5)
    assert found["slope"] == pytest.approx(1.0)
    assert found["intercept"] == pytest.approx(1.5)
    assert found["explained_variance"] == pytest.approx(1 - (11 + 2 - 4) / 11)
    # Ranks 1 2.5 4 2.5 and 1.5 1.5 3 4: centred products 1.5 + 0 + 0.75 + 0 = 2.25, squares 4.5 each.
    assert found["rank_correlation"] == pytest.approx(2.25 / 4.5)
    # One pair without a difference of references, and one in the wrong order.
    assert found["pair_accuracy"] == 0.0
    assert found["rank_correlation_within"] == pytest.approx(-1 / math.sqrt(2))
    assert found["reliability"] == 1.0


def test_references_that_are_equal_up_to_rounding_are_tied() -> None:
    # One of four answers is right; the references of the wrong ones differ by rounding, and so do the values.
    references = torch.tensor([1.0, 0.0, 0.0, 0.0] * 8, dtype=torch.float64)
    noise = 1e-16 * torch.randn(32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = (references - 0.25).float().double() + 1e7 * noise
    states = ValuedStates(
        values=values,
        references=references + noise,
        noise=torch.zeros(32),
        halves=(references + noise)[:, None].expand(-1, 2),
        prompts=torch.arange(32) // 4,
        places=[0] * 32,
    )
    found = critic_quality(states, seed=0)
    assert found["rank_correlation"].value == pytest.approx(1.0)
    assert found["rank_correlation_within"].value == pytest.approx(1.0)
    assert found["pair_accuracy"].value == 1.0
    assert merge_ties(torch.tensor([3.0, 1.0, 3.0000001, 2.0])).tolist() == [3.0, 1.0, 3.0, 2.0]


def test_references_without_noise_of_their_own_have_the_mean_noise() -> None:
    """Continuations that agree by chance: their difference of 0.5 is one standard error of the mean noise of 0.125."""
    states = exact_states([1.0, 0.0, 0.0, 1.0], [0.0, 0.5, 0.0, 4.0], [7, 7, 9, 9])
    states.noise[2:] = 0.25
    found = critic_quality(states, 0)
    assert (found["pair_accuracy"].value, found["clear_pair_accuracy"].value) == (0.5, 1.0)


def test_average_ranks() -> None:
    assert average_ranks(torch.tensor([5.0, 2.0, 5.0])).tolist() == [2.5, 1.0, 2.5]


def random_states(prompts: int, each: int, k: int, seed: int, critic: str) -> tuple[ValuedStates, Tensor]:
    """States with known chances of success, and references from k throws."""
    source = torch.Generator().manual_seed(seed)
    chance = torch.rand(prompts, 1, generator=source).repeat(1, each) * 0.5
    chance = (chance + torch.rand(prompts, each, generator=source) * 0.5).flatten()
    thrown = (torch.rand(len(chance), k, generator=source) < chance[:, None]).double()
    values = {
        "exact": chance,
        "shuffled": chance[torch.randperm(len(chance), generator=source)],
        "half": 0.5 * chance + 0.25,
        "noisy": chance + 0.2 * torch.randn(len(chance), generator=source),
        "constant": torch.full_like(chance, 0.3),
    }[critic]
    states = ValuedStates(
        values=values,
        references=thrown.mean(dim=1),
        noise=thrown.var(dim=1) / k,
        halves=torch.stack([thrown[:, ::2].mean(dim=1), thrown[:, 1::2].mean(dim=1)], dim=1),
        prompts=torch.arange(prompts).repeat_interleave(each),
        places=[number % 2 for number in range(prompts * each)],
    )
    return states, chance


def test_exact_critic_has_perfect_corrected_numbers() -> None:
    states, _ = random_states(300, 8, 8, 0, "exact")
    found = critic_quality(states, 0)
    assert found["explained_variance"].value < 0.75, "noise lowers it"
    assert found["explained_variance_corrected"].value == pytest.approx(1.0, abs=0.04)
    assert found["rank_correlation_corrected"].value == pytest.approx(1.0, abs=0.02)
    assert found["rank_correlation_within_corrected"].value == pytest.approx(1.0, abs=0.05)
    assert found["slope"].value == pytest.approx(1.0, abs=0.05)
    assert found["bias"].low < 0 < found["bias"].high
    assert found["clear_pair_accuracy"].value > 0.93 > found["pair_accuracy"].value


def test_shuffled_critic_ranks_by_chance() -> None:
    states, _ = random_states(300, 8, 8, 1, "shuffled")
    found = critic_quality(states, 0)
    for name in ("rank_correlation", "rank_correlation_within", "rank_correlation_within_corrected", "slope"):
        assert found[name].value == pytest.approx(0.0, abs=0.06)
        assert found[name].low < 0 < found[name].high
    for name in ("pair_accuracy", "clear_pair_accuracy", "alternative_accuracy"):
        assert found[name].value == pytest.approx(0.5, abs=0.04)
    assert found["explained_variance_corrected"].value == pytest.approx(-1.0, abs=0.15)


def test_constant_critic_explains_nothing() -> None:
    states, _ = random_states(100, 8, 8, 2, "constant")
    found = critic_quality(states, 0)
    assert (found["rank_correlation"].value, found["rank_correlation_within"].value) == (0.0, 0.0)
    assert found["pair_accuracy"].value == 0.5
    assert found["explained_variance_corrected"].value == pytest.approx(0.0, abs=1e-6)
    assert math.isnan(found["slope"].value)


@pytest.mark.parametrize("k", [4, 16, 400])
def test_corrected_numbers_do_not_depend_on_continuations(k: int) -> None:
    """Values of half the spread explain 3/4 of the variance, whatever the number of continuations."""
    states, chance = random_states(600, 6, k, 3, "half")
    found = critic_quality(states, 0)
    known = 1 - float((chance - states.values).var() / chance.var())
    assert known == pytest.approx(0.75, abs=1e-4)
    assert found["explained_variance_corrected"].value == pytest.approx(known, abs=0.06)
    assert found["slope"].value == pytest.approx(2.0, abs=0.12)


def test_matches_second_implementation() -> None:
    states, _ = random_states(12, 5, 8, 4, "noisy")
    found = critic_quality(states, 0)
    v, r = states.values.double(), states.references
    both = torch.stack([average_ranks(v), average_ranks(r)])
    assert found["rank_correlation"].value == pytest.approx(float(torch.corrcoef(both)[0, 1]))
    s = float(states.noise.mean())
    assert found["explained_variance_corrected"].value == pytest.approx(
        1 - (float((r - v).var()) - s) / (float(r.var()) - s)
    )
    right, counted, alternatives = 0.0, 0, []
    for one, other in combinations(range(len(v)), 2):
        if states.prompts[one] == states.prompts[other] and r[one] != r[other]:
            is_right = float((v[one] > v[other]) == (r[one] > r[other]))
            right, counted = right + is_right, counted + 1
            if states.places[one] == states.places[other]:
                alternatives.append(is_right)
    assert found["pair_accuracy"].value == pytest.approx(right / counted)
    assert found["alternative_accuracy"].value == pytest.approx(sum(alternatives) / len(alternatives))
    ranks: list[tuple[Tensor, Tensor]] = []
    for prompt in range(12):
        own = states.prompts == prompt
        ranks.append((average_ranks(v[own]) - 3, average_ranks(r[own]) - 3))
    x, y = (torch.cat(part) for part in zip(*ranks, strict=True))
    assert found["rank_correlation_within"].value == pytest.approx(float((x * y).sum() / (x.norm() * y.norm())))


def test_intervals_are_over_prompts() -> None:
    """Copies of the states of a prompt do not narrow the intervals."""
    states, _ = random_states(40, 4, 8, 5, "noisy")
    copied = states.select(torch.ones(160, dtype=torch.bool))
    copied = ValuedStates(
        **{
            name: torch.cat([getattr(copied, name)] * 3)
            for name in ("values", "references", "noise", "halves", "prompts")
        },
        places=[*copied.places] * 3,
    )
    once, thrice = critic_quality(states, 0)["bias"], critic_quality(copied, 0)["bias"]
    assert thrice.high - thrice.low == pytest.approx(once.high - once.low, rel=0.02)
    assert once.low < once.value < once.high


def test_single_prompt_and_no_states() -> None:
    found = critic_quality(exact_states([0.0, 1.0], [0.0, 1.0], [3, 3]), 0)
    assert found["explained_variance"].value == 1.0
    assert math.isnan(found["explained_variance"].low)
    assert math.isnan(critic_quality(exact_states([], [], []), 0)["bias"].value)


def test_calibration_bins() -> None:
    states = exact_states([3.0, 0.0, 1.0, 2.0], [30.0, 0.0, 10.0, 20.0], [0, 0, 1, 1])
    rows = calibration_bins(states, 2)
    assert [(row["states"], row["value"], row["reference"]) for row in rows] == [(2, 0.5, 5.0), (2, 2.5, 25.0)]
    assert rows[0]["standard_error"] == pytest.approx(5.0)
