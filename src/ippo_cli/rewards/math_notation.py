r"""Rewrites notations of numbers that math-verify misparses.

It parses `5 1/2` as (5 + 1) / 2, `1.5e3` as 1.5 * e * 3, `0.\overline{3}` and `0.(3)` as 0, `10 000` as 10 * 0,
`101_{\text{two}}` as 101, and `101 base 2` or `5 apples` as products of letters. It does not read roots, powers and
other signs of Unicode, numbers beside Chinese text, and LaTeX without dollar signs.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from fractions import Fraction
from itertools import groupby
from typing import Any

BASES = {
    "two": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "nine": "9",
    "ten": "10",
    "eleven": "11",
    "twelve": "12",
    "thirteen": "13",
    "fourteen": "14",
    "fifteen": "15",
    "sixteen": "16",
}
MAX_ZEROS = 60  # numbers in scientific notation with larger exponents are not expanded
_SPACE = r"(?:\s|\\[ ,;:!])"
_GROUPED = re.compile(rf"(?<![\w.,])(?<![0-9]\s)[0-9]{{1,3}}(?:{_SPACE}[0-9]{{3}})+(?![\w/]|\s[0-9])")
_MIXED = re.compile(rf"(?<![\w.,/^])([0-9]+){_SPACE}+([0-9]+)/([0-9]+)(?![\w/^])")
_SCIENTIFIC = re.compile(r"(?<![\w\\.])[0-9]+(?:\.[0-9]+)?[eE][+-]?[0-9]{1,4}(?![\w^])")
_RECURRING = re.compile(
    r"(?<![\w.,])([0-9]+)\.([0-9]*)(?:\\(?:overline|bar|dot)\s*(?:\{([0-9]+)\}|([0-9]))|\(([0-9]+)\)(?!\s*[\w(^]))"
)
_TEXT = r"\\(?:text|textrm|mathrm|mbox)\s*\{"
_NAMED = rf"({'|'.join(BASES)}|[0-9]+)"
_BASE = re.compile(
    rf"\b([0-9A-Z]+)(?:\s*_\s*(?:\{{\s*{_TEXT}{_NAMED}\s*\}}\s*\}}|{_TEXT}{_NAMED}\s*\}}|\{{{_NAMED}\}})"
    rf"|,?\s+(?:in\s+)?base\s+{_NAMED}\b)"
)
_SIGNS = {
    "∞": r"\infty ",
    "π": r"\pi ",
    "\u00d7": r"\times ",
    "⋅": r"\cdot ",
    "·": r"\cdot ",
    "÷": r"\div ",
    "±": r"\pm ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "\u222a": r"\cup ",
    "∩": r"\cap ",
    "°": r"^\circ ",
    "\u2212": "-",
    "\u2010": "-",
    "\u2011": "-",
    "\uff0d": "-",
    "\ufe63": "-",
    "\u2218": r"\circ ",  # of a composition; `_DEGREE` reads that of an angle
    "\u00ba": r"^\circ ",
    "。": ". ",
    "\uff0c": ", ",
    "\uff1a": ": ",
    "\uff08": "(",
    "\uff09": ")",
    "\u066b": ".",
    "\u066c": ",",
    "∅": r"\emptyset ",
    "△": r"\triangle ",
    "∠": r"\angle ",
}
_SIGN_DASH = re.compile(r"(?<![\w.)\]}])(?<![0-9)\]}] )[\u2012\u2013](?=[0-9.\\(])")
_FORMULA_DASH = re.compile(r"[\u2012\u2013](?!\s?[0-9])|(?<![0-9])(?<![0-9]\s)[\u2012\u2013]")
_DEGREE = re.compile(r"\^?\\degrees?(?![A-Za-z])|(?<=[0-9])\u2218")
_PREFIXED = re.compile(r"(?<![\w.])0(?:[xX][0-9A-Fa-f]+|[bB][01]+|[oO][0-7]+)(?![\w.])")
_TIMES_TEN = re.compile(r"(?<=[0-9])\s*[xX]\s*(?=10\s*\^)")
_ROOT = re.compile(r"([√∛∜])\s*(?:\(([^()]*)\)|\{([^{}]*)\}|([0-9]+(?:\.[0-9]+)?|[A-Za-z]))")
_ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}
_POWER = re.compile(r"[⁺⁻⁰¹²³⁴-⁹]+")
_INDEX = re.compile(r"[₀-₉]+")
_EAST_ASIAN = "[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # kana, Chinese characters, Hangul
_BESIDE_EAST_ASIAN = re.compile(rf"(?<={_EAST_ASIAN})(?=[!-~])|(?<=[!-~])(?={_EAST_ASIAN})")
_MARKED = re.compile(r"\$|\\boxed|\\\(|\\\[|\\begin")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_FORMULA_COMMANDS = {"frac", "dfrac", "tfrac", "sqrt", "pi", "infty", "circ", "cdot", "times", "binom", "log", "ln"}
_FORMULA_SIGN = re.compile(r"[\^_]\{|[(\[][^()\[\]]*,[^()\[\]]*[)\]]")  # powers, indices, tuples and intervals
_UNIT = re.compile(r"\$?[0-9][0-9.,/]*\s+[A-Za-z]{3,}(?:\s+[A-Za-z]+)*\.?\$?")


def rewrite_notation(text: str) -> str:
    """Rewrite the notations of a text without changing its meaning."""
    text = _DEGREE.sub(r"^\\circ ", text)
    if not text.isascii():
        text = _rewrite_unicode(rewrite_chinese_numbers(text))
    text = re.sub(r"</?answer>|~", " ", text).replace(r"\varnothing", r"\emptyset")
    text = _PREFIXED.sub(lambda found: str(int(found[0], 0)), text)
    text = _TIMES_TEN.sub(r" \\times ", text)
    text = _BASE.sub(_rewrite_base, text)
    text = _RECURRING.sub(_to_fraction, text)
    text = _SCIENTIFIC.sub(_expand_scientific, text)
    text = _MIXED.sub(_to_improper_fraction, text)
    return _GROUPED.sub(lambda found: re.sub(_SPACE, "", found[0]), text)


def rewrite_dashes(formula: str) -> str:
    """Write the en dashes of a formula as minus signs, except those between two numbers, which are a range."""
    return _FORMULA_DASH.sub("-", formula)


def mark_mathematics(text: str) -> str:
    """Put dollar signs around LaTeX in a text that marks no mathematics, such as `it is \\sqrt{2}`."""
    if _MARKED.search(text):
        return text
    parts = re.split(r"(\s+)", text)
    formula = [_COMMAND.search(part) or not re.search(r"[^\W\d_]{2}|^$", part) for part in parts]
    marked = []
    for is_formula, group in groupby(range(len(parts)), key=lambda place: bool(formula[place])):
        joined = "".join(parts[place] for place in group)
        if is_formula and (_FORMULA_COMMANDS.intersection(_COMMAND.findall(joined)) or _FORMULA_SIGN.search(joined)):
            core = joined.strip().rstrip(".,;:!?")
            joined = joined.replace(core, f"${core}$", 1)
        marked.append(joined)
    return "".join(marked)


def _rewrite_unicode(text: str) -> str:
    """Write the signs of Unicode in LaTeX, and spaces between Chinese, Japanese or Korean text and numbers."""
    text = _SIGN_DASH.sub("-", text)
    text = _ROOT.sub(lambda found: f"{_ROOTS[found[1]]}{{{found[2] or found[3] or found[4] or ''}}}", text)
    for pattern, mark in ((_POWER, "^"), (_INDEX, "_")):
        text = pattern.sub(lambda found, mark=mark: f"{mark}{{{unicodedata.normalize('NFKC', found[0])}}}", text)
    text = _BESIDE_EAST_ASIAN.sub(
        " ", "".join(_SIGNS.get(character) or _rewrite_character(character) for character in text)
    )
    return text.replace("\u2212", "-")


def has_unknown_unit(text: str, value: Any) -> bool:
    """Whether a number followed by a word, such as `5 apples`, was parsed as a product of letters."""
    return _UNIT.fullmatch(text) is not None and bool(getattr(value, "free_symbols", None))


def _rewrite_character(character: str) -> str:
    """Replace digits of other scripts with ASCII digits, and vulgar fractions such as one half with `\\frac`."""
    if character.isascii():
        return character
    kind, *codes = unicodedata.decomposition(character).split() or [""]
    if kind == "<fraction>" and len(codes) > 2:
        above, below = "".join(chr(int(code, 16)) for code in codes).split("\u2044")
        return rf"\frac{{{above}}}{{{below}}}"
    return str(unicodedata.digit(character)) if unicodedata.category(character) == "Nd" else character


def _rewrite_base(found: re.Match[str]) -> str:
    base = next(name for name in found.groups()[1:] if name)
    return f"{found[1]}_{{{BASES.get(base, base)}}}"


def _to_fraction(found: re.Match[str]) -> str:
    """1/6 for `0.1(6)`."""
    whole, begin, *cycles = found.groups()
    cycle = next(digits for digits in cycles if digits)
    repeated = int(whole + begin + cycle) - int(whole + begin)
    value = Fraction(repeated, (10 ** len(cycle) - 1) * 10 ** len(begin))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _expand_scientific(found: re.Match[str]) -> str:
    """1500 for `1.5e3`."""
    number = Decimal(found[0])
    return f"{number:f}" if abs(number.adjusted()) < MAX_ZEROS else found[0]


def _to_improper_fraction(found: re.Match[str]) -> str:
    """3/2 for `1 1/2`."""
    whole, above, below = map(int, found.groups())
    return f"{whole * below + above}/{below}" if above < below else found[0]


_DIGITS = {character: value for value, character in enumerate("零一二三四五六七八九")} | {"\u3007": 0, "两": 2}
_SCALES = {"十": 10, "百": 100, "千": 1000}
_MYRIADS = {"万": 10**4, "亿": 10**8}
_WHOLE = f"[{''.join((*_DIGITS, *_SCALES, *_MYRIADS))}]+"
_NUMBER = rf"负?(?:百分之|{_WHOLE}分之)?{_WHOLE}(?:点[{''.join(_DIGITS)}]+)?"
_ANSWER = re.compile(rf"(\A\s*|\\boxed\{{\s*|答案\s*(?:是|为|:|\uff1a)\s*)({_NUMBER})(?=\s*(?:\Z|\}}|[.。,\uff0c\n]))")


def rewrite_chinese_numbers(text: str) -> str:
    r"""Write the numerals that are a whole text, the content of `\boxed{}` or the words after 答案是 in digits."""
    return _ANSWER.sub(lambda found: found[1] + _write_number(found[2]), text)


def _write_number(numeral: str) -> str:
    sign = "-" if numeral.startswith("负") else ""
    below, _, above = numeral.removeprefix("负").rpartition("分之")
    value = _write_decimal(above)
    if below == "百":
        return rf"{sign}{value}\%"
    return rf"{sign}\frac{{{value}}}{{{_read_whole(below)}}}" if below else f"{sign}{value}"


def _write_decimal(numeral: str) -> str:
    whole, _, decimals = numeral.partition("点")
    return f"{_read_whole(whole)}{'.' * bool(decimals)}{''.join(str(_DIGITS[digit]) for digit in decimals)}"


def _read_whole(numeral: str) -> int:
    """42 for 四十二, and 2024 for 二〇二四, which names digits only."""
    if all(character in _DIGITS for character in numeral):
        return int("".join(str(_DIGITS[character]) for character in numeral))
    total = section = digit = 0
    for character in numeral:
        if character in _DIGITS:
            digit = _DIGITS[character]
        elif character in _SCALES:
            section, digit = section + (digit or 1) * _SCALES[character], 0
        else:
            total, section, digit = (total + section + digit) * _MYRIADS[character], 0, 0
    return total + section + digit
