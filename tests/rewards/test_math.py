"""Mathematical comparison of answers, in processes with a timeout."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

pytest.importorskip("math_verify", reason="needs the extra `math`")

from ippo_cli.config.errors import ConfigError
from ippo_cli.rewards.math import MathReward


@pytest.fixture(scope="module")
def reward() -> Iterator[MathReward]:
    reward = MathReward({"solver": "{answer}"}, workers=2, timeout_s=2.0)
    yield reward
    reward.close()


CASES = [
    (r"\frac{1}{2}", r"so it is $\frac{2}{4}$", 1.0, 1.0),
    ("1/2", r"\boxed{0.5}", 1.0, 1.0),
    ("x^2+1", "$1+x^2$", 1.0, 1.0),
    (r"\{1,2\}", r"$\{2,1\}$", 1.0, 1.0),
    (r"2\sqrt{2}", r"\boxed{\sqrt{8}}", 1.0, 1.0),
    ("She has 9 * 2.\n#### 18", "the answer is 18", 1.0, 1.0),
    ("1,024", r"\boxed{1024}", 1.0, 1.0),
    ("18", r"\boxed{19}", 0.0, 1.0),
    ("18", "no idea", 0.0, 0.0),
    ("18", "", 0.0, 0.0),
    # Different exact numbers that agree to six decimals.
    (r"\frac{1}{2^{99}}", r"\boxed{\frac{1}{2^{98}}}", 0.0, 1.0),
    (r"\frac{1}{2^{99}}", r"\boxed{2^{-99}}", 1.0, 1.0),
    ("[1/2^{99}, 1]", r"\boxed{[1/2^{98}, 1]}", 0.0, 1.0),
    ("0.0000001", r"\boxed{0.0000002}", 0.0, 1.0),
    (r"\frac{1}{3}", r"\boxed{0.333333}", 1.0, 1.0),
    # Numerals with a base.
    ("1234_5", r"\boxed{1234_6}", 0.0, 1.0),
    ("1234_5", r"\boxed{1234_{5}}", 1.0, 1.0),
    ("1234_5", r"\boxed{1234}", 1.0, 1.0),
    ("AB_{16}", r"\boxed{AC_{16}}", 0.0, 1.0),
    # Percentages: with or without the sign, or as a fraction.
    (r"50\%", r"\boxed{0.5}", 1.0, 1.0),
    (r"50\%", r"\boxed{50}", 1.0, 1.0),
    (r"50\%", "so it is 50%", 1.0, 1.0),
    ("0.5", r"\boxed{50\%}", 1.0, 1.0),
    (r"33\frac{1}{3}\%", r"\boxed{\frac13}", 1.0, 1.0),
    (r"50\%", r"\boxed{51\%}", 0.0, 1.0),
    # Currency.
    (r"\$18.90", r"\boxed{18.90}", 1.0, 1.0),
    (r"\$32,\!348", r"\boxed{32348}", 1.0, 1.0),
    ("$5", r"\boxed{\$5.00}", 1.0, 1.0),
    # Mixed numbers, scientific notation, recurring decimals, groups of digits, other digits.
    ("1 1/2", r"\boxed{1.5}", 1.0, 1.0),
    ("5 1/2", r"\boxed{3}", 0.0, 1.0),
    (r"5\ 1/2", r"\boxed{\frac{11}{2}}", 1.0, 1.0),
    ("1.5", "it is 1 1/2 cups", 1.0, 1.0),
    ("1.5e3", r"\boxed{1500}", 1.0, 1.0),
    ("1500", "It is 1.5e3.", 1.0, 1.0),
    ("1e-7", r"\boxed{2e-7}", 0.0, 1.0),
    (r"0.\overline{3}", r"\boxed{1/3}", 1.0, 1.0),
    (r"0.\overline{3}", r"\boxed{0}", 0.0, 1.0),
    (r"\frac16", r"\boxed{0.1(6)}", 1.0, 1.0),
    ("10 000", r"\boxed{0}", 0.0, 1.0),
    ("10 000", r"\boxed{10000}", 1.0, 1.0),
    ("\u00bd", r"\boxed{0.5}", 1.0, 1.0),
    ("\uff11\uff12", r"\boxed{12}", 1.0, 1.0),
    # Bases in words.
    (r"101_{\text{two}}", r"\boxed{101_{\text{three}}}", 0.0, 1.0),
    (r"101_\text{two}", r"\boxed{101_2}", 1.0, 1.0),
    ("101_2", "it is 101 in base 2", 1.0, 1.0),
    ("5", "<answer>5</answer>", 1.0, 1.0),
]


def test_mathematical_equality(reward: MathReward) -> None:
    found = reward([{"answer": case[0]} for case in CASES], {"solver": [case[1] for case in CASES]})
    assert not found.failures
    assert found.team == found.agent["solver"] == [case[2] for case in CASES]
    assert found.parts == {"found": [case[3] for case in CASES]}


ANSWERS = [  # choices, times of day, signs of Unicode and Chinese text, brackets, units
    ("B", "\\boxed{B}", 1.0),
    ("B", "\\boxed{\\text{B}}", 1.0),
    ("(B)", "The correct option is B.", 1.0),
    ("B", "**Answer: B**", 1.0),
    ("B", "Answer: (C)", 0.0),
    ("B", "\\boxed{C. 15}", 0.0),
    ("B", "\\boxed{B. 15}", 1.0),
    ("C", "the answer is $\\boxed{\\mathrm{(C)}\\ 3}$", 1.0),
    ("B", "The answer is 12.", 0.0),
    ("A", "The answer is A big number", 0.0),
    ("D", "So the final answer is D", 1.0),
    ("B", "\u7b54\u6848\u662fB", 1.0),
    ("B", "\u7b54\u6848\uff1a(B)\u3002", 1.0),
    ("\\textbf{(B)}", "\\boxed{\\text{(B) }}", 1.0),
    ("A", "A", 1.0),
    ("B", "(B)", 1.0),
    ("x", "\\boxed{x}", 1.0),
    ("6:30 p.m.", "at 6:30 PM.", 1.0),
    ("6:30 p.m.", "\\boxed{6:30 a.m.}", 0.0),
    ("6:30 p.m.", "\\boxed{18:30}", 1.0),
    ("\\text{10 a.m.}", "It is at 10:00 a.m.", 1.0),
    ("\\text{10 a.m.}", "\\boxed{10\\text{ am}}", 1.0),
    ("12:15 a.m.", "\\boxed{0:15}", 1.0),
    ("3:4", "\\boxed{\\frac34}", 1.0),
    ("3:4", "\\boxed{3:4}", 1.0),
    ("\\sqrt{2}", "The answer is \u221a2.", 1.0),
    ("2", "The answer is \u221a2.", 0.0),
    ("3", "so it is 3\\sqrt{2}", 0.0),
    ("3\\sqrt{2}", "so it is 3\\sqrt{2}", 1.0),
    ("3\\sqrt{2}", "so it is 3\u221a2", 1.0),
    ("\\frac{\\pi}{2}", "\u03c0/2", 1.0),
    ("\\frac{\\pi}{2}", "\\boxed{\u03c0/2}", 1.0),
    ("x^2+1", "\\boxed{x\xb2+1}", 1.0),
    ("x^2+1", "The answer is x\xb2+1.", 1.0),
    ("\\infty", "\\boxed{\u221e}", 1.0),
    ("[-1,\\infty)", "\\boxed{[-1,\u221e)}", 1.0),
    ("90", "\\boxed{90\xb0}", 1.0),
    ("90^\\circ", "The angle is 90\xb0.", 1.0),
    ("\\frac12", "\\boxed{\xbd}", 1.0),
    ("x\\le 5", "\\boxed{x\u22645}", 1.0),
    ("-3", "\\boxed{\u22123}", 1.0),
    ("42", "\u7b54\u6848\uff1a42", 1.0),
    ("42", "\u6240\u4ee5\u7b54\u6848\u4e3a42\u4e2a\u3002", 1.0),
    ("1.5", "\u7b54\u6848\u662f1.5\u5143", 1.0),
    ("\\frac{1}{2}", "\u7b54\u6848\u662f\\frac{1}{2}\u3002", 1.0),
    ("2^{10}", "2\xb9\u2070", 1.0),
    ("(1,2)", "\\boxed{(1,2)}", 1.0),
    ("(1,2)", "$\\left\\{1,2\\right\\}$", 0.0),
    ("\\{1,2\\}", "$(1,2)$", 0.0),
    ("\\{1,2\\}", "\\boxed{1,2}", 1.0),
    ("\\{1,2\\}", "\\boxed{\\{2, 1\\}}", 1.0),
    ("(1,2)", "\\boxed{1,2}", 1.0),
    ("1,2", "\\boxed{\\{1,2\\}}", 1.0),
    ("(1,2)", "\\boxed{[1,2]}", 0.0),
    ("5\\text{ hours}", "\\boxed{300\\text{ minutes}}", 1.0),
    ("5\\text{ hours}", "\\boxed{5}", 1.0),
    ("5\\text{ hours}", "It takes 5 minutes.", 0.0),
    ("5\\text{ hours}", "The answer is 5 hours.", 1.0),
    ("5\\text{ cm}^2", "\\boxed{5\\text{ cm}^2}", 1.0),
    ("5\\text{ cm}^2", "\\boxed{5\\text{ cm}}", 0.0),
    ("5\\text{ cm}^2", "\\boxed{5\\ \\mathrm{m}^2}", 0.0),
    ("1\\text{ m}^2", "\\boxed{10000\\text{ cm}^2}", 1.0),
    ("5\\text{ cm}", "\\boxed{0.05\\text{ m}}", 1.0),
    ("5", "\\boxed{5 \\text{ apples}}", 1.0),
    ("5m", "\\boxed{5m}", 1.0),
    ("2s", "\\boxed{3s}", 0.0),
    ("\\frac12\\text{ hour}", "\\boxed{30\\text{ minutes}}", 1.0),
    ("5 \\text{ feet}", "\\boxed{5 \\text{ ft}}", 1.0),
    ("5 \\text{ feet}", "\\boxed{5 \\text{ inches}}", 0.0),
    ("5\\text{ kg}", "\\boxed{5\\text{ g}}", 0.0),
    ("50\\text{ cents}", "\\boxed{50\\text{ dollars}}", 0.0),
    ("50\\text{ miles}", "so we get $50$ miles", 1.0),
    ("50\\text{ miles}", "so we get $50$ km", 0.0),
    ("12", "the answer is 12 in total", 1.0),
    ("12 in", "12 in", 1.0),
    ("5\\%", "\\boxed{5\\%}", 1.0),
    ("1/3", "the answer is 1/3.", 1.0),
    ("2.5", "The answer is 2.5.", 1.0),
    ("(-1,2)", "The answer is (-1, 2).", 1.0),
    ("42", "The option is 42", 1.0),
    ("\\text{even}", "\\boxed{\\text{even}}", 1.0),
    ("even", "the answer is even", 0.0),
    ("A+B", "\\boxed{A+B}", 1.0),
]


def test_answers_that_are_no_expressions(reward: MathReward) -> None:
    found = reward([{"answer": case[0]} for case in ANSWERS], {"solver": [case[1] for case in ANSWERS]})
    assert not found.failures
    assert found.team is not None
    wrong = [case for case, score in zip(ANSWERS, found.team, strict=True) if score != case[2]]
    assert wrong == []


def test_timeout_fails_only_its_row(reward: MathReward) -> None:
    reward([{"answer": "1"}] * 2, {"solver": ["1", "2"]})  # starts the processes
    tower = r"\boxed{9^{9^{9^{9^{9^{9}}}}}}"
    begun = time.monotonic()
    found = reward([{"answer": "3"}, {"answer": "3"}], {"solver": [tower, r"\boxed{3}"]})
    assert time.monotonic() - begun < 10
    assert list(found.failures) == [0]
    assert "longer than 2 s" in str(found.failures[0])
    assert found.team is not None
    assert found.team[1] == 1.0


def test_invalid_reference_fails_row(reward: MathReward) -> None:
    found = reward([{"answer": ""}], {"solver": ["1"]})
    assert "is not a mathematical expression" in str(found.failures[0])


def test_references_are_checked_before_training(reward: MathReward) -> None:
    assert reward.validate_examples([{"answer": "3/4"}, {"answer": r"\$3.00"}]) == []
    [warning] = reward.validate_examples([{"answer": "7"}, {"answer": ""}])
    assert "task.agents.solver.answer={answer}: 1 of 2 checked reference answers" in warning
    with pytest.raises(ConfigError, match="which is not an expression that math-verify can parse"):
        reward.validate_examples([{"answer": ""}, {"answer": " "}])


@pytest.mark.parametrize("reference", ["2 million", "5 widgets", "1/2 cup"])
def test_number_with_an_unknown_word_is_unreadable(reward: MathReward, reference: str) -> None:
    with pytest.raises(ConfigError, match="is not an expression"):
        reward.validate_examples([{"answer": reference}])
