"""The joint reward of two agents that write about one subject."""

from __future__ import annotations

import pytest

from ippo_cli.rewards.function import FunctionReward
from ippo_cli.rewards.writing import LINKS, PARTS, overlap, score, score_parts

BRIEF = "Bread is one of the oldest foods that people bake."
GOOD = (
    "Bread is very old. For example, farmers in Egypt baked flat loaves over hot stones; however, yeast came later and "
    "made every loaf soft."
)


def test_good_pair_scores_almost_1() -> None:
    parts = score_parts(BRIEF, GOOD)
    assert 1.6 <= len(GOOD) / len(BRIEF) <= 3.2
    assert parts == {"words": 1, "length_ratio": 1, "vocabulary_ratio": 1, "links": pytest.approx(0.45), "overlap": 1}
    assert score([{}], {"brief": [BRIEF], "long": [GOOD]})["team"] == [
        pytest.approx((0.5 + 1 + 0.5 + 0.4 * 0.45 + 0.6) / 3)
    ]


@pytest.mark.parametrize(("brief", "long"), [("", ""), (BRIEF, ""), ("", GOOD), ("Bread is old.", GOOD)])
def test_both_texts_need_enough_words(brief: str, long: str) -> None:
    assert score_parts(brief, long) == dict.fromkeys(PARTS, 0.0)


@pytest.mark.parametrize(
    ("ratio", "earned"),
    [(1.0, 0.0), (1.1, 0.0), (1.35, 0.5), (1.6, 1.0), (3.2, 1.0), (4.1, 0.5), (5.0, 0.0), (9.0, 0.0)],
)
def test_length_ratio(ratio: float, earned: float) -> None:
    brief = "aa bb cc dd ee ff gg hh".ljust(100, "h")
    long = "aa bb cc dd ee ff gg hh".ljust(round(100 * ratio), "h")
    assert score_parts(brief, long)["length_ratio"] == pytest.approx(earned)


def test_level_with_zero_ends_the_sum() -> None:
    repeated = " ".join([BRIEF, BRIEF])  # twice as long, with the same words
    parts = score_parts(BRIEF, repeated)
    assert parts["length_ratio"] == 1.0
    assert (parts["vocabulary_ratio"], parts["links"], parts["overlap"]) == (0.0, 0.0, 0.0)
    equal = score_parts(BRIEF, BRIEF)
    assert (equal["words"], equal["length_ratio"], equal["overlap"]) == (1.0, 0.0, 0.0)


def test_kinds_of_links_count_once() -> None:
    more = GOOD.replace("However", "Therefore").replace("later", "later, therefore,")
    assert score_parts(BRIEF, more)["links"] == pytest.approx(0.5)
    assert score_parts(BRIEF, GOOD.replace("very old", "however, however old"))["links"] == pytest.approx(0.45)
    none = GOOD.replace("For example, farmers", "Farmers").replace("however, ", "")
    assert score_parts(BRIEF, none)["links"] == 0.0


def test_links_match_whole_words() -> None:
    text = (
        "Bread and butter, cliffs and gifts, swiftly thickening soups of northern Italian hosts were baked everywhere."
    )
    assert len(LINKS) == 12
    assert "but" in text
    assert "if" in text
    assert score_parts(BRIEF, text)["links"] == 0.0


def test_overlap_of_content_words() -> None:
    assert overlap("The bread is old", "the wine is older") == 0.0
    assert overlap("the bread is old", "old bread") == 1.0
    assert overlap("bread old", "bread new") == pytest.approx(1 / 3)
    assert overlap("the", "is") == 0.0


def test_rows_and_agent_order() -> None:
    found = score([{}, {}], {"short": [BRIEF, GOOD], "long": [GOOD, BRIEF]})
    assert found["team"][0] > 0.8
    assert found["team"][1] == pytest.approx(0.5 / 3)
    assert set(found["parts"]) == set(PARTS)
    with pytest.raises(ValueError, match="requires two agents; the task has 1"):
        score([{}], {"solo": [BRIEF]})


def test_configuration_with_writing_reward() -> None:
    reward = FunctionReward("ippo_cli.rewards.writing:score")
    assert reward([{}], {"brief": [BRIEF], "long": [GOOD]}).team == score([{}], {"a": [BRIEF], "b": [GOOD]})["team"]
