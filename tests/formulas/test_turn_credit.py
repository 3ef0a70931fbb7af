"""Credit of turns: cases computed by hand, the inverse, and the expected gradient of a two-turn game."""

from __future__ import annotations

import pytest
import torch

from ippo_cli.formulas import alternative_baseline, score_to_go, telescope_credit, turn_credit

ALL = torch.ones(1, 3, dtype=torch.bool)


def test_score_to_go_by_hand() -> None:
    assert score_to_go(torch.tensor([[1.0, 2.0, 4.0]]), gamma=0.5).tolist() == [[3.0, 4.0, 4.0]]


def test_telescoped_credit_sums_to_the_credit() -> None:
    torch.manual_seed(0)
    credit = torch.randn(5, 4, dtype=torch.float64)
    for gamma in (1.0, 0.9):
        torch.testing.assert_close(score_to_go(telescope_credit(credit, gamma=gamma), gamma=gamma), credit)


def test_telescoped_credit_is_shaping_with_the_baseline() -> None:
    torch.manual_seed(0)
    scores, baseline = torch.randn(2, 3), torch.randn(2, 3)
    credit = turn_credit(score_to_go(scores, gamma=0.9), baseline, ALL.expand(2, 3))
    later = torch.cat([baseline[:, 1:], torch.zeros(2, 1)], dim=1)
    torch.testing.assert_close(telescope_credit(credit, gamma=0.9), scores - baseline + 0.9 * later)


def test_baseline_is_mean_of_known_alternatives() -> None:
    returns = torch.tensor([[[1.0, 3.0], [5.0, torch.nan], [torch.nan, 7.0]]])
    known = torch.tensor([[[True, True], [True, False], [False, False]]])
    baseline, has_any = alternative_baseline(returns, known)
    assert baseline.tolist() == [[2.0, 5.0, 0.0]]
    assert has_any.tolist() == [[True, True, False]]


def test_turns_without_measurement_have_no_credit() -> None:
    measured = torch.tensor([[True, False, True]])
    credit = turn_credit(torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[1.0, 1.0, 4.0]]), measured)
    assert credit.tolist() == [[2.0, 0.0, -3.0]]


@pytest.mark.parametrize("share_later_numbers", [True, False])
def test_expected_gradient_is_that_of_returns(share_later_numbers: bool) -> None:
    """Two turns of one bit; the second turn's policy depends on the first bit. All outcomes are enumerated: those of
    the turns, of the alternatives, and of the random number of a later turn, which alternatives share.
    """
    first = torch.tensor(0.3, dtype=torch.float64)
    second = torch.tensor([0.6, 0.2], dtype=torch.float64)  # P(1) after each first bit
    value = torch.tensor([[1.0, -2.0], [0.5, 4.0]], dtype=torch.float64)
    limits = sorted([0.0, 0.2, 0.6, 1.0])  # a random number u gives the bit u < P(1)

    def bit(after: int, place: int) -> int:
        return int(limits[place] < second[after])

    plain, credited = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for a in (0, 1):
        for alternative in (0, 1):
            for place in range(3):
                for later in [place] if share_later_numbers else range(3):
                    for alternative_b in (0, 1):
                        chance = (first if a else 1 - first) * (first if alternative else 1 - first)
                        chance = chance * (limits[place + 1] - limits[place])
                        if not share_later_numbers:
                            chance = chance * (limits[later + 1] - limits[later])
                        b = bit(a, place)
                        chance = chance * (second[a] if alternative_b else 1 - second[a])
                        returns = value[a, b].reshape(1, 1).expand(1, 2)  # the score is at the last turn
                        others = torch.stack([value[alternative, bit(alternative, later)], value[a, alternative_b]])
                        baseline, has_any = alternative_baseline(
                            others.reshape(1, 2, 1), torch.ones(1, 2, 1, dtype=torch.bool)
                        )
                        credit = turn_credit(returns, baseline, has_any)[0]
                        score = torch.zeros(2, 3, dtype=torch.float64)  # d log pi of each turn by its logits
                        score[0, 0] = a - first
                        score[1, 1 + a] = b - second[a]
                        plain += chance * (score * returns[0][:, None]).sum(dim=0)
                        credited += chance * (score * credit[:, None]).sum(dim=0)
    torch.testing.assert_close(credited, plain)
    assert float(plain.abs().min()) > 0.01
