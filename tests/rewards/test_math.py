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
    ("even", "the answer is even", 1.0),
    ("A+B", "\\boxed{A+B}", 1.0),
]


def test_answers_that_are_no_expressions(reward: MathReward) -> None:
    found = reward([{"answer": case[0]} for case in ANSWERS], {"solver": [case[1] for case in ANSWERS]})
    assert not found.failures
    assert found.team is not None
    wrong = [case for case, score in zip(ANSWERS, found.team, strict=True) if score != case[2]]
    assert wrong == []


KINDS = {
    "choices": [
        ("A", r"\boxed{A, B, C, D}", 0.0),
        ("A", r"\boxed{A,B}", 0.0),
        ("A", "The answer is (A) or (B).", 0.0),
        ("A", "The answer is A, B.", 0.0),
        ("B", r"\boxed{B, C}", 0.0),
        ("C", r"\boxed{B} or \boxed{C}", 0.0),
        ("D", r"\boxed{B} or \boxed{C} or \boxed{D}", 0.0),
        ("A", r"\boxed{\text{A or B}}", 0.0),
        ("A", r"\boxed{A and B}", 0.0),
        ("A", r"\boxed{A} and \boxed{B}", 0.0),
        ("A", r"\boxed{(A)(B)}", 0.0),
        ("A", r"\boxed{A/B}", 0.0),
        ("A", r"\boxed{A=B}", 0.0),
        ("B", r"\boxed{A=B}", 0.0),
        ("A", r"\boxed{\{A,B\}}", 0.0),
        ("A", "The answer is (A) 12 or (B) 14.", 0.0),
        ("C", "The answer is (C), because (A) and (B) are wrong.", 1.0),
        ("A", "The answer is A, I think.", 1.0),
        ("A, C", r"\boxed{C, A}", 1.0),
        ("A, C", r"\boxed{A} and \boxed{C}", 1.0),
        ("A, C", r"\boxed{A}", 0.0),
        ("A, C", r"\boxed{A, B, C}", 0.0),
        ("A, C", r"\boxed{AC}", 1.0),
        ("AC", r"\boxed{A, C}", 1.0),
        ("AC", r"\boxed{AC}", 1.0),
        ("AC", r"\boxed{A}", 0.0),
    ],
    "times, dates, ranges and ratios": [
        ("12:30", r"\boxed{2/5}", 0.0),
        ("3:45", r"\boxed{\frac{1}{15}}", 0.0),
        ("10:10", r"\boxed{1}", 0.0),
        ("2:3:4", r"\boxed{1/6}", 0.0),
        ("2:3:4", r"\boxed{2:3:4}", 1.0),
        ("2:3:4", r"\boxed{4:6:8}", 1.0),
        ("2:3", r"\boxed{4:6}", 1.0),
        ("1/15", r"\boxed{3:45}", 0.0),
        ("2024-01-05", r"\boxed{2018}", 0.0),
        ("2024-01-05", r"\boxed{2024-02-04}", 0.0),
        ("2024-01-05", r"\boxed{\text{January 5, 2024}}", 1.0),
        ("555-1234", r"\boxed{-679}", 0.0),
        ("555-1234", r"\boxed{555-1234}", 1.0),
        ("10-12", r"\boxed{-2}", 0.0),
        ("10-12", "\\boxed{10\u201312}", 1.0),
        ("1-2", r"\boxed{-1}", 0.0),
        ("2020-2021", r"\boxed{-1}", 0.0),
        ("3-1", r"\boxed{2}", 0.0),
        ("14:05", r"\boxed{2:05 \text{ PM}}", 1.0),
        ("6:30 a.m.", r"\boxed{6:30 \text{ in the evening}}", 0.0),
        ("18:30", r"\boxed{6:30\text{ in the evening}}", 1.0),
        ("5 o'clock", r"\boxed{5:00}", 1.0),
    ],
    "currencies and units": [
        ("$5", r"\boxed{5 \text{ cents}}", 0.0),
        ("5¢", r"\boxed{\$5}", 0.0),
        ("3 years", r"\boxed{3\text{ months}}", 0.0),
        ("2 weeks", r"\boxed{2\text{ years}}", 0.0),
        ("3 months", r"\boxed{3\text{ days}}", 0.0),
        ("5 square feet", r"\boxed{5 feet}", 0.0),
        (r"5\text{ square feet}", r"\boxed{5\text{ feet}}", 0.0),
        ("5 apples", r"\boxed{5 \text{ oranges}}", 0.0),
        ("5 apples", r"\boxed{5 \text{ red apples}}", 1.0),
        ("5 apples", r"\boxed{5}", 1.0),
        ("20°", r"\boxed{20\%}", 0.0),
        ("20°", r"\boxed{20}", 1.0),
        ("$1", r"\boxed{100 \text{ cents}}", 1.0),
        ("100 cents", r"\boxed{\$1}", 1.0),
        ("100 cents", "The answer is $1.", 1.0),
        ("$0.50", r"\boxed{50¢}", 1.0),
        ("50 cents", r"\boxed{\$0.50}", 1.0),
        ("1 year", r"\boxed{12 \text{ months}}", 1.0),
        ("£5", r"\boxed{500 \text{ pence}}", 1.0),
        ("£5", r"\boxed{5 \text{ pounds}}", 1.0),
        ("€12.50", r"\boxed{12.50}", 1.0),
        ("$12.50", r"\boxed{€12.50}", 0.0),
        ("5 sq ft", r"\boxed{5 \text{ ft}^2}", 1.0),
        ("5 m/s", r"\boxed{5 \text{ m/s}}", 1.0),
        ("5 m/s", "The answer is 5 m/s.", 1.0),
        ("5 m/s", r"\boxed{5}", 1.0),
        ("5 m/s", r"\boxed{18 \text{ km/h}}", 1.0),
        ("5 m/s", r"\boxed{18 km/h}", 1.0),
        ("5 m/s", r"\boxed{5 \text{ km/h}}", 0.0),
        ("60 km/h", r"\boxed{60 \text{ km/h}}", 1.0),
        ("60 km/h", r"\boxed{60 \text{ kilometers per hour}}", 1.0),
        ("60 km/h", r"\boxed{60 \text{ m/h}}", 0.0),
        ("60 km/h", r"\boxed{60}", 1.0),
        ("1 hour 30 minutes", r"\boxed{1 \text{ hour } 30 \text{ minutes}}", 1.0),
        ("1 hour 30 minutes", r"\boxed{90 \text{ minutes}}", 1.0),
        ("1 hour 30 minutes", r"\boxed{1 hour 30 minutes}", 1.0),
        ("1 hour 30 minutes", r"\boxed{1 \text{ hour and } 20 \text{ minutes}}", 0.0),
        ("5 feet 3 inches", r"\boxed{5 \text{ feet } 3 \text{ inches}}", 1.0),
        ("5 feet 3 inches", r"\boxed{5 \text{ feet } 4 \text{ inches}}", 0.0),
        ("July 4", r"\boxed{\text{July 4}}", 1.0),
        ("July 4", r"\boxed{\text{July 5}}", 0.0),
        ("July 4", r"\boxed{\text{4 June}}", 0.0),
    ],
    "thoughts and boxes": [
        ("5", r"<think>\boxed{6}</think> \boxed{5}", 1.0),
        ("5", r"<think>so \boxed{6}?</think> The answer is 5.", 1.0),
        ("5", r"<think>\boxed{5}</think> I do not know", 0.0),
        ("5", r"<think>\boxed{5}", 0.0),
        ("5", r"\boxed{5.}", 1.0),
        ("12", r"\boxed{12.}", 1.0),
        ("5", r"\boxed{5~\text{cm}}", 1.0),
        ("5", r"\boxed{5~}", 1.0),
        ("5", r"First \boxed{4}, then finally \boxed{5}", 1.0),
        ("5", r"First \boxed{5}, then finally \boxed{4}", 0.0),
        ("5", r"\boxed{5} and \boxed{5}", 1.0),
        ("4,5", r"\boxed{4} and \boxed{5}", 1.0),
        ("5", r"\boxed{4} and \boxed{5}", 0.0),
        ("C", "The correct option is (c).", 1.0),
    ],
    "words": [
        ("Yes", "Yes", 1.0),
        ("Yes", "The answer is No.", 0.0),
        ("Yes", "The answer is Yes, because it fits.", 1.0),
        ("Yes", "The answer is Yes or No.", 0.0),
        ("Tuesday", "The answer is Tuesday.", 1.0),
        ("Tuesday", r"\boxed{\text{Thursday}}", 0.0),
        ("ABC", r"\boxed{CBA}", 0.0),
        ("AB", r"\boxed{BA}", 0.0),
        ("listen", r"\boxed{silent}", 0.0),
        (r"\triangle ABC", r"\boxed{\triangle CAB}", 0.0),
        (r"\triangle ABC", r"\boxed{\triangle ABC}", 1.0),
        (r"\triangle ABC", r"\boxed{ABC}", 1.0),
    ],
    "lists, intervals and notations": [
        ("xy", r"\boxed{yx}", 1.0),
        ("1,2", r"\boxed{(2,1)}", 0.0),
        ("(1,2)", r"\boxed{2,1}", 0.0),
        ("1,2", r"\boxed{2,1}", 1.0),
        ("0x10", r"\boxed{0}", 0.0),
        ("0x1F", r"\boxed{31}", 1.0),
        (r"(-\infty, 2]", r"\boxed{x \le 2}", 1.0),
        (r"(-\infty, 2]", r"\boxed{x < 2}", 0.0),
        (r"x \le 2", r"\boxed{(-\infty, 2]}", 1.0),
        ("(0,1)", r"\boxed{0<x<1}", 1.0),
        ("(0,1)", r"\boxed{0<x \le 1}", 0.0),
        ("i", r"\boxed{\sqrt{-1}}", 1.0),
        ("2i", r"\boxed{2\sqrt{-1}}", 1.0),
        ("i", r"\boxed{1}", 0.0),
        (r"\emptyset", r"\boxed{\varnothing}", 1.0),
        (r"\varnothing", r"\boxed{\emptyset}", 1.0),
        ("1.5 x 10^3", r"\boxed{1500}", 1.0),
        ("1234.5", "\\boxed{\u0661\u0662\u0663\u0664\u066b\u0665}", 1.0),
        ("42", "答案是四十二", 1.0),
        ("42", "答えは42です。", 1.0),
        (r"x\in[1,2]", r"\boxed{1\le x\le 2}", 1.0),
        (r"$x \in [1,2]$", r"\boxed{x\in[1,2]}", 1.0),
        (r"x\in[1,2]", r"\boxed{[1,2]}", 1.0),
        (r"x\in[1,2]", r"\boxed{1<x<2}", 0.0),
        ("42", "정답은 42입니다.", 1.0),
        ("42", "答えは43です。", 0.0),
        ("12", "十二", 1.0),
        ("三分之二", r"\boxed{\frac23}", 1.0),
        ("百分之五十", r"\boxed{50\%}", 1.0),
        ("1050", r"\boxed{一千零五十}", 1.0),
    ],
    "expressions with units": [
        ("5xy", r"\boxed{5yx}", 1.0),
        ("6s^2", r"\boxed{6s^2}", 1.0),
        ("6s^2", r"\boxed{6}", 0.0),
        (r"\pi r^2 h", r"\boxed{\pi r^2 h}", 1.0),
        (r"120^\circ", r"\boxed{90^\circ + 30^\circ}", 1.0),
        ("8", r"\boxed{\$5 + \$3}", 1.0),
        ("5", "The answer is 5 or 6.", 0.0),
        ("6", "The answer is 5 or 6.", 0.0),
        ("10-12", "so it is 10-12 people overall here", 1.0),
        ("12:30", "The answer is 12:30 sharp.", 1.0),
        ("2:3:4", "The answer is 2:3:4 respectively.", 1.0),
        ("3:4", "The answer is 3:4 (boys to girls).", 1.0),
        (r"\text{odd}", "The answer is odd.", 1.0),
        (r"\sin x", r"\boxed{\sin(x)}", 1.0),
        (r"5 \text{ ways}", r"\boxed{5 \text{ arrangements}}", 1.0),
        ("-i", r"\boxed{-\sqrt{-1}}", 1.0),
        ("3+4i", r"\boxed{3+4\sqrt{-1}}", 1.0),
        (r"x=5\text{ cm}", r"\boxed{5\text{ cm}}", 1.0),
        (r"3 \text{ cm}", r"\boxed{x = 3 \text{ cm}}", 1.0),
        (r"2x \text{ cm}", r"\boxed{2x}", 1.0),
        (r"50 \text{ cm}", r"\boxed{\frac{1}{2} \text{ m}}", 1.0),
        ("45", r"\boxed{45^\circ}", 1.0),
        ("$3.50", r"\boxed{3.5 \text{ dollars}}", 1.0),
        ("$2,000", r"\boxed{\$2000}", 1.0),
        (r"\$2,000", "It costs $2000.", 1.0),
        (r"\$2,000", "It costs 2000 cents.", 0.0),
        (r"25\%", r"\boxed{25 \text{ percent}}", 1.0),
        ("1/4", r"\boxed{25\%}", 1.0),
        (r"9.8 \text{ m s}^{-2}", r"We obtain $9.8 \text{ m s}^{-2}$.", 1.0),
        ("30 mph", r"\boxed{30 \text{ miles per hour}}", 1.0),
        ("5 gallons", r"\boxed{20 \text{ quarts}}", 1.0),
        ("1 L", r"\boxed{1000 \text{ cm}^3}", 1.0),
    ],
    "angles": [
        (r"90^\circ", r"\boxed{90}", 1.0),
        (r"90^\circ", "The answer is 90.", 1.0),
        ("90\u00b0", r"\boxed{90}", 1.0),
        ("90", "\\boxed{90\u2218}", 1.0),
        ("90", r"\boxed{90\degree}", 1.0),
        (r"90\degree", r"\boxed{90^{\circ}}", 1.0),
        (r"90^\circ", r"\boxed{91}", 0.0),
        (r"90^\circ", r"\boxed{\frac{\pi}{2}}", 0.0),
        (r"36^\circ, 54^\circ", r"\boxed{36, 54}", 1.0),
        ("36, 54", r"\boxed{36^\circ, 54^\circ}", 1.0),
        (r"36^\circ, 54^\circ", r"\boxed{36^\circ, 55^\circ}", 0.0),
        (r"36^\circ, 54^\circ", r"\boxed{90}", 0.0),
    ],
    "noon and midnight": [
        ("noon", r"\boxed{12:00}", 1.0),
        ("noon", r"\boxed{12\text{ p.m.}}", 1.0),
        ("noon", "It is 12 noon.", 1.0),
        ("noon", r"\boxed{12:00 p.m. (noon)}", 1.0),
        ("noon", r"\boxed{12:00 a.m.}", 0.0),
        ("noon", r"\boxed{\text{midnight}}", 0.0),
        (r"\text{noon}", "The answer is noon.", 1.0),
        ("12:00 p.m.", r"\boxed{\text{noon}}", 1.0),
        ("12 noon", r"\boxed{12:00}", 1.0),
        ("midnight", r"\boxed{12:00\text{ a.m.}}", 1.0),
        ("midnight", r"\boxed{0:00}", 1.0),
        ("midnight", r"\boxed{24:00}", 1.0),
        ("midnight", r"\boxed{12\text{ p.m.}}", 0.0),
        ("12:00 a.m.", r"\boxed{midnight}", 1.0),
        ("6:30 p.m.", r"\boxed{noon}", 0.0),
    ],
    "minus signs": [
        ("-3", "\\boxed{\u22123}", 1.0),
        ("-3", "\\boxed{\u20133}", 1.0),
        ("-3", "\\boxed{\uff0d3}", 1.0),
        ("-3", "The answer is \u20133.", 1.0),
        ("3", "\\boxed{\u20133}", 0.0),
        ("\u20133", r"\boxed{-3}", 1.0),
        (r"-\frac12", "\\boxed{\u2013\\frac{1}{2}}", 1.0),
        ("x-1", "\\boxed{x \u2013 1}", 1.0),
        ("(-1,2)", "\\boxed{(\u20131,2)}", 1.0),
        ("5 \u2013 10", r"\boxed{5-10}", 1.0),
        ("2", "\\boxed{5\u20133}", 0.0),
        ("42", "The answer \u2013 42 \u2013 is even.", 1.0),
    ],
    "exact numbers and their decimals": [  # six decimals, as math-verify; graders of MATH accept no fewer
        (r"\pi", r"\boxed{3.141593}", 1.0),
        (r"\pi", r"\boxed{3.14159265}", 1.0),
        ("3.141593", r"\boxed{\pi}", 1.0),
        (r"\pi", r"\boxed{3.1416}", 0.0),
        (r"\pi", r"\boxed{3.14}", 0.0),
        ("3.14", r"\boxed{\pi}", 0.0),
        (r"\sqrt{2}", r"\boxed{1.414214}", 1.0),
        (r"\sqrt{2}", r"\boxed{1.41}", 0.0),
        (r"\frac{2}{3}", r"\boxed{0.67}", 0.0),
    ],
}


@pytest.mark.parametrize("kind", KINDS)
def test_answers_of_one_kind(reward: MathReward, kind: str) -> None:
    rows = KINDS[kind]
    found = reward([{"answer": row[0]} for row in rows], {"solver": [row[1] for row in rows]})
    assert not found.failures
    assert found.team is not None
    assert [row for row, score in zip(rows, found.team, strict=True) if score != row[2]] == []


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
