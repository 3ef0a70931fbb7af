"""Extraction of numbers from responses, and their comparison with references."""

from __future__ import annotations

import json
import time
from decimal import Decimal
from pathlib import Path

import pytest

from ippo_cli.config.schema import NumberMatch
from ippo_cli.rewards.gsm8k import Gsm8kReward, reference_number
from ippo_cli.rewards.number_text import last_number, strict_number

FILE = Path(__file__).resolve().parents[3] / "shared" / "data" / "gsm8k" / "test.jsonl"
REFERENCE = "She makes 9 * 2 = $<<9*2=18>>18 a day.\n#### 18"


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("#### 18", "18", "18"),
        ("####18", "18", "18"),
        ("#### 18.", "18", "18"),
        ("#### 18.00", "18", "18"),
        ("#### $18", "18", "18"),
        ("#### 1,024 dollars", "1024", "1024"),
        ("#### $1,024.50.", "1024.5", "1024.5"),
        ("#### -3", "-3", "-3"),
        ("#### \u22123", "-3", "-3"),
        ("#### -$3", "-3", "-3"),
        ("#### $-3", "-3", "-3"),
        ("#### .5", "0.5", "0.5"),
        ("#### 7\n#### 18", "18", "18"),  # the last number counts
        ("#### 18\nIn 2 days twice as much.", "18", "2"),
        ("#### 18\n####", "18", "18"),
        ("The answer is 18", None, "18"),
        ("so 21-3 = 18", None, "18"),
        ("21-3 = 18", None, "18"),
        ("#### eighteen", None, None),
        ("### 18", None, "18"),
        ("", None, None),
        (". , $ -", None, None),
        ("9" * 5000, None, "9" * 5000),
        ("#### 18 km/h", "18", "18"),
        ("#### 18\u00a0dollars", "18", "18"),
        ("#### 18%.", "18", "18"),
        ("#### 18, 19", "18", "19"),  # `strict` takes the first number after `####`
        ("#### 18 or 19", "18", "19"),
        ("#### 18/2", None, None),
        ("#### 1.8e1", None, None),
        ("#### 1 024", None, None),
        ("#### 1.024,50", None, None),
        ("#### +18", None, "18"),
        ("I think ...18", None, "18"),
        ("#### 5 million", "5000000", "5000000"),
        ("about 1.5 million people", None, "1500000"),
        ("#### 18k", None, None),
        ("#### 0b101", None, None),
        ("18>17", None, None),
        ("9 * 2 = <<9*2=18>>18", None, "18"),
        ("####\n18", None, "18"),
        ("#### answer: 18", None, "18"),
        ("#### **18**", None, "18"),
        (r"#### \boxed{18}", None, "18"),
        (r"\boxed{1,024}", None, "1024"),
        (r"\boxed{-18}", None, "-18"),
        ("#### \u0661\u0668", None, None),  # digits of other scripts
        ("#### \uff11\uff18", None, None),
        ("x\u00b2", None, None),
        ("#### 18 #### 19 ####", "19", "19"),
        ("##### 18", "18", "18"),
    ],
)
def test_strict_and_flexible_number(text: str, strict: str | None, flexible: str | None) -> None:
    assert strict_number(text) == (None if strict is None else Decimal(strict))
    assert last_number(text) == (None if flexible is None else Decimal(flexible))


EXPRESSIONS = [
    "1,2,3",
    "3,5 kg",
    "3,4",
    "0,500",
    "1,024,5",
    "3/4",
    "3 / 4",
    "10:30",
    "3 : 4",
    "21-3",
    "21 - 3",
    "2x3",
    "2 \u00d7 3",
]
EXPRESSIONS += [
    "10^6",
    "10^{6}",
    "5\u00b2",
    "1.5e-3",
    "1'000",
    "1_000",
    "1\u202f000",
    "1.2.3",
    "2024-01-05",
    "12/25/2024",
    "2**3",
]
EXPRESSIONS += [
    "2\\pi",
    "2π",
    r"\frac{3}{4}",
    r"3\frac12",
    r"\sqrt{2}",
    "√2",
    "½",
    "5½",
    "5/$3",
    "1..5",
    r"2 \times 3",
    r"2\cdot3",
    "3--2",
]


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_digits_of_an_expression_are_no_number_on_either_side(text: str) -> None:
    assert reference_number(text) is None
    assert last_number(f"So 7 times: {text}") is None
    assert strict_number(f"#### 7\n#### {text}") is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("20 m^2", 20),
        ("20 m^{2}", 20),
        ("x_1 = 7", 7),
        ("day 3: 15", 15),
        ("9 in total, 5 left", 5),
        (r"32,\!348", 32348),
        ("1{,}024", 1024),
    ],
)
def test_units_and_punctuation_beside_a_number(text: str, number: int) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize("text", ["1 ", "1,", "1^", "####", "\\frac{", "\\frac{1}", "\\sqrt[", " ", "#### "])
def test_number_search_takes_linear_time(text: str) -> None:
    begun = time.process_time()
    last_number(text * 100_000)
    strict_number(text * 100_000)
    assert time.process_time() - begun < 5.0


def test_match_selects_score_and_both_are_logged() -> None:
    texts = ["#### 18.0", "it is 18", "#### 17", "no idea"]
    for match, expected in ((NumberMatch.strict, [1.0, 0.0, 0.0, 0.0]), (NumberMatch.flexible, [1.0, 1.0, 0.0, 0.0])):
        found = Gsm8kReward({"solver": "{answer}"}, match)([{"answer": REFERENCE}] * 4, {"solver": texts})
        assert found.team == found.agent["solver"] == expected
        assert found.parts == {"strict": [1.0, 0.0, 0.0, 0.0], "flexible": [1.0, 1.0, 0.0, 0.0]}


def test_team_reward_is_mean_over_agents() -> None:
    reward = Gsm8kReward({"a": "{answer}", "b": "{other}"}, NumberMatch.strict)
    found = reward([{"answer": REFERENCE, "other": "1,000"}], {"a": ["#### 18"], "b": ["#### 18"]})
    assert found.team == [0.5]
    assert found.agent == {"a": [1.0], "b": [0.0]}


def test_reference_without_number_has_no_score() -> None:
    found = Gsm8kReward({"solver": "{answer}"}, NumberMatch.strict)([{"answer": "unknown"}], {"solver": ["#### 1"]})
    assert found.team is not None
    assert found.team[0] != found.team[0], "NaN: the row is excluded and counted"


@pytest.mark.skipif(not FILE.is_file(), reason="the GSM8K files are not beside the checkout")
def test_all_gsm8k_references_have_a_number() -> None:
    rows = [json.loads(line) for line in FILE.read_text().splitlines()]
    assert len(rows) == 1319
    for row in rows:
        written = row["answer"].rsplit("#### ", 1)[1].replace(",", "")
        assert reference_number(row["answer"]) == Decimal(written)
    for match in NumberMatch:
        found = Gsm8kReward({"solver": "{answer}"}, match)(rows, {"solver": [row["answer"] for row in rows]})
        assert found.team == found.parts["strict"] == found.parts["flexible"] == [1.0] * 1319


@pytest.mark.parametrize("text", ["1,5", "$1,5", "12,34", "1,,2", "1,234,56", "1234,567", "#### 1,2"])
def test_reference_with_invalid_commas(text: str) -> None:
    assert reference_number(text) is None


@pytest.mark.parametrize(
    ("text", "number"), [("1,234,567.5", "1234567.5"), ("12,34,567", "1234567"), ("5,", "5"), (".5", "0.5")]
)
def test_reference_with_thousands(text: str, number: str) -> None:
    assert reference_number(text) == Decimal(number)
