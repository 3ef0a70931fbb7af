r"""Reads numbers in texts, of responses and of references by one rule.

A number has an optional sign, an optional currency sign, digits, decimals after a point, and commas only between
thousands (or lakhs, as in `12,34,567`). A word such as `million` after it is a factor. Digits that belong to a larger
expression have no value: `1,2,3`, `3,5`, `3/4`, `10:30`, `2-5`, `10^6`, `1e3`, `1 024`, `1.024,50`, `2\pi`, `\frac34`,
`5>4`, `0b101`, `5k`. A reader could only guess it.
"""

from __future__ import annotations

import re
from decimal import Decimal

_SPACE = r"[^\S\r\n]"
_MINUS = "-\u2212"
_CURRENCY = "[$€£¥]"
NUMBER = rf"(?:{_CURRENCY}?(?<![0-9])[{_MINUS}])?{_CURRENCY}?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)"
"""A number as a regular expression; its commas are not checked. The minus in `5-3` is not a sign."""

_WHOLE_PART = re.compile(r"[0-9]*|[1-9][0-9]{0,2}(?:,[0-9]{3})+|[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}")
_OPERATORS = rf"\*\*|[{_MINUS}/*+^x\u00d7·⋅÷\u2013<>≤≥≠]"
_NEXT = rf"[{_MINUS}+]?{_CURRENCY}?\.?(?=[0-9])"  # the beginning of an operand
_MORE = rf"""
    [0-9] | [.,:_'\u2019]+(?=[0-9])
    | (?:{_OPERATORS}) \{{? {_NEXT} | [eE][{_MINUS}+]?(?=[0-9])
    | {_SPACE}*\\(?:times|cdot|div){_SPACE}*(?=[0-9])
    | (?<=(?<![0-9.,])0)[bBoOxX][0-9A-Fa-f]+ | [kKM](?![^\W_])
    | {_SPACE}+ (?:(?:{_OPERATORS}|:) {_SPACE}+ {_NEXT} | (?=[0-9]))
"""
_FACTOR = (
    rf"{_SPACE}*(?:\\(?:[dtc]?frac|sqrt|pi|times|cdot|div)(?![A-Za-z])|[\u00b2\u00b3\u00b9\u2070-\u2079π√½⅓⅔¼¾⅕⅛^])"
)
_GROUP = r"(?:\{[^{}]*\}|[0-9])"
_FRACTION = rf"\\[dtc]?frac\s*{_GROUP}\s*{_GROUP} | \\sqrt\s*(?:\[[^\[\]]*\])?\s*{_GROUP} | √\s*[0-9.]+ | [½⅓⅔¼¾⅕⅛]"
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}  # powers of ten
_TOKEN = re.compile(
    rf"""
    (?P<index> (?<=[^\W0-9]) [\^_] \{{? [{_MINUS}]? [0-9]+ )  # m^2 or x_1: neither a number nor a part of one
    | (?P<number> (?:{_CURRENCY}?(?<![0-9])[{_MINUS}])? {_CURRENCY}? (?:(?<!\.)\.)?[0-9]
        (?:{_MORE})* (?P<after> (?={_FACTOR}))? ) (?:{_SPACE}+ (?P<scale> {"|".join(_SCALES)})\b)?
    | (?P<expression> {_FRACTION} )
    """,
    re.VERBOSE,
)
_MARKED = re.compile(rf"[#]{{4}}[ \t]*(?={_CURRENCY}?[{_MINUS}]?{_CURRENCY}?\.?[0-9]|{_FRACTION})", re.VERBOSE)
_SUFFIX = re.compile(r"[ \t]*(?:[%€£¥]|\\%)?[.,]?")
_LATEX_COMMA = re.compile(r"\{,\}|,\\!|\\!,")


def parse_number(text: str) -> Decimal | None:
    """The value of a text that is one number, such as `-$1,024.00`; None for any other text."""
    if re.fullmatch(NUMBER, text) is None:
        return None
    digits = re.sub(rf"{_CURRENCY}|[{_MINUS}]", "", text)
    if not _WHOLE_PART.fullmatch(digits.partition(".")[0].rstrip(",")):
        return None
    sign = "-" if re.search(f"[{_MINUS}]", text) else ""
    return Decimal(sign + digits.replace(",", ""))


def last_number(text: str) -> Decimal | None:
    """The last number of a text; None if there is none, or if the last digits belong to a larger expression."""
    last = None
    for found in _TOKEN.finditer(_LATEX_COMMA.sub(",", text)):
        last = last if found["index"] else found
    return None if last is None else _parse_token(last)


def strict_number(text: str) -> Decimal | None:
    """The number directly after the last `####` that is followed by digits or a fraction."""
    text = _LATEX_COMMA.sub(",", text)
    marks = [found.end() for found in _MARKED.finditer(text)]
    found = _TOKEN.match(text, marks[-1]) if marks else None
    return None if found is None else _parse_token(found)


def parse_single_number(text: str) -> Decimal | None:
    """The value of a text that holds one number, with an optional percent or currency sign and full stop."""
    text = _LATEX_COMMA.sub(",", text.strip())
    found = _TOKEN.match(text)
    return _parse_token(found) if found and _SUFFIX.fullmatch(text, found.end()) else None


def _parse_token(found: re.Match[str]) -> Decimal | None:
    if found["number"] is None or found["after"] is not None:
        return None
    number = parse_number(found["number"])
    return number if number is None or found["scale"] is None else Decimal(f"{number:f}E{_SCALES[found['scale']]}")
