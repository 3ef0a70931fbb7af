r"""Reads answers that math-verify misreads: letters of choices, times of day, quantities with units, sets in braces.

It parses `(B) 12` as the product of b and 12, `6:30` as 1/5, `5 minutes` and `5 hours` as 5, and accepts the set
`\{1,2\}` for the pair `(1,2)`.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

_FONT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|sf|it|tt)|mbox|boldsymbol|operatorname)\s*\{([^{}]*)\}"
)
_SPACING = re.compile(r"\\[,;:! ]|\\(?:quad|qquad|left|right|displaystyle)(?![A-Za-z])|\\[()\[\]]|\*\*|[~$]|\s+")
_ANSWER = re.compile(r"(?:\b(?:answer|choice|option)\b|答案|选)\s*(?:is|was|为|是)?\s*[:\uff1a]?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|[.!](?=\s|$)|。")
_CHOICE = re.compile(r"\(?([A-J])\)?[.:]?")
_CHOSEN = re.compile(
    r"(?:(?:option|choice)\s*)?(?:\(([A-J])\).*|([A-J])(?:\s*[.:),;].*|\s+(?:because|since|as|is|which|with)\b.*)?)",
    re.DOTALL,
)
_MERIDIEM = r"\s*([ap])\.?\s?m\b\.?"
_TIME = re.compile(
    rf"(?<![\d:.])([0-9]{{1,2}})(?::([0-5][0-9]){_MERIDIEM}|{_MERIDIEM}|:([0-5][0-9])(?![\d:]))", re.IGNORECASE
)
_UNITS = {  # names and the scale of each unit, by dimension
    "time": "ms 1/1000; s sec second 1; min minute 60; h hr hour 3600; day 86400; week 604800",
    "length": "mm millimeter millimetre 1/1000; cm centimeter centimetre 1/100; m meter metre 1;"
    "km kilometer kilometre 1000; in inch 127/5000; ft foot feet 381/1250; yd yard 1143/1250; mi mile 201168/125",
    "mass": "mg milligram 1/1000; g gram 1; kg kilogram 1000; oz ounce 45359237/1600000; lb pound 45359237/100000",
    "volume": "ml milliliter millilitre 1/1000; l liter litre 1",
    "money": "cent 1/100; dollar 1",
}


class Unit(NamedTuple):
    """A unit: its dimension, such as length^2, and its size in the base unit of the dimension."""

    dimension: str
    size: Fraction


def _read_units() -> dict[str, Unit]:
    table = {}
    for dimension, rows in _UNITS.items():
        for *names, size in (row.split() for row in rows.split(";")):
            table |= {name: Unit(dimension, Fraction(size)) for name in names}
            table |= {f"{name}s": table[name] for name in names if len(name) > 1}
    return table | {"inches": table["inch"]}


UNITS = _read_units()
_UNIT = re.compile(
    rf"(?<![A-Za-z\\])({'|'.join(sorted(UNITS, key=len, reverse=True))})(?![A-Za-z])\.?\s*(?:\^\s*\{{?([23])\}}?)?",
    re.IGNORECASE,
)


def find_final_answer(text: str) -> str:
    r"""The content of the last `\boxed{}`, else the sentence after the last "answer is"; empty if there is neither."""
    start = text.rfind(r"\boxed{")
    depth = 0
    for place in range(start + 6, len(text)) if start >= 0 else ():
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return text[start + 7 : place]
    found = list(_ANSWER.finditer(text))
    return _SENTENCE_END.split(text[found[-1].end() :], maxsplit=1)[0].strip() if found else ""


def strip_markup(answer: str) -> str:
    r"""An answer without fonts, spacing and dollar signs: `\textbf{(B)}\ 12` as `(B) 12`."""
    while (plain := _FONT.sub(r" \1 ", answer)) != answer:
        answer = plain
    return re.sub(r"\s+", " ", _SPACING.sub(" ", answer)).strip()


def compare_choices(reference: str, answer: str) -> bool | None:
    """Whether the answer names the choice of the reference; None if one of them is no choice. Both without markup."""
    wanted, chosen = _CHOICE.fullmatch(reference), _CHOSEN.fullmatch(answer)
    return None if wanted is None or chosen is None else wanted[1] == (chosen[1] or chosen[2])


def compare_times(reference: str, answer: str) -> bool | None:
    """Whether the answer's time of day is the reference's; None if the reference has no `a.m.` or `p.m.`, or the answer
    no time. Both without markup; an answer with text around it is read at its last time."""
    wanted, found = _TIME.fullmatch(reference), list(_TIME.finditer(answer))
    if wanted is None or not (wanted[3] or wanted[4]) or not found:
        return None
    return _minutes_of_day(wanted) == _minutes_of_day(found[-1])


def _minutes_of_day(time: re.Match[str]) -> int:
    half = (time[3] or time[4] or "").lower()
    hour = int(time[1]) % 12 + 12 * (half == "p") if half else int(time[1])
    return 60 * hour + int(time[2] or time[5] or 0)


def is_set(answer: str) -> bool:
    r"""Whether an answer without markup is a set in braces."""
    return answer.startswith((r"\{", r"\lbrace")) and answer.endswith((r"\}", r"\rbrace"))


def is_tuple(answer: str) -> bool:
    """Whether an answer without markup is a pair, a longer tuple or an interval."""
    return answer.startswith(("(", "[")) and answer.endswith((")", "]")) and "," in answer


def split_unit(answer: str) -> tuple[str, Unit | None]:
    """An answer without markup as its text before the unit, and the unit; None without a known unit at its end."""
    for found in _UNIT.finditer(answer):
        if re.fullmatch(r"[\s.]*", answer[found.end() :]) and re.search(r"[0-9)}\s]$", answer[: found.start()]):
            unit = UNITS[found[1].lower()]
            power = int(found[2] or 1)
            dimension = unit.dimension if power == 1 else f"{unit.dimension}^{power}"
            return answer[: found.start()].strip(), Unit(dimension, unit.size**power)
    return answer, None


def find_unit_after(text: str, value: str) -> Unit | None:
    """The unit directly after the last occurrence of a value in a text without markup; None if there is none."""
    place = text.rfind(value)
    found = (
        _UNIT.match(text, place + len(value) + (text[place + len(value) :][:1] == " "))
        if value and place >= 0
        else None
    )
    return None if found is None else split_unit(f"1 {found[0]}")[1]
