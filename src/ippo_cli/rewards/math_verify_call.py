"""Compares two texts as mathematics; runs in a process that can be killed. Needs the extra `math`.

Computer algebra can take unbounded time, for example on a tower of powers. math-verify's own time limits are off: they
use alarms, which do not interrupt all of its code. This module checks what math-verify compares only to six decimals,
drops or cannot parse (exact numbers, numerals in bases, percentages, currency); `math_notation.py` rewrites what it
misparses, `math_answers.py` reads answers that are no expressions.
"""

from __future__ import annotations

import logging
import re
from functools import cache
from typing import Any, NamedTuple

from math_verify import parse, verify  # pyright: ignore[reportMissingImports]
from sympy import Basic, Eq, FiniteSet, Float, Mul, Rational, UnevaluatedExpr  # pyright: ignore

from ippo_cli.rewards.math_answers import (
    compare_choices,
    compare_times,
    find_final_answer,
    find_unit_after,
    is_set,
    is_tuple,
    split_unit,
    strip_markup,
)
from ippo_cli.rewards.math_notation import has_unknown_unit, mark_mathematics, rewrite_notation

logging.getLogger("math_verify").setLevel(logging.ERROR)  # suppresses its warning that time limits are off

DIGITS = 50  # precision for evaluating exact numbers
EXACT_TOLERANCE = 1e-30  # relative tolerance for exact numbers
ROUNDED_TOLERANCE = 1e-3  # relative tolerance if a number has decimals, in addition to math-verify's six decimals
MAX_BARE_CHOICE = 20  # characters of a response that is only the letter of a choice
_NUMERAL_WITH_BASE = re.compile(r"([0-9A-Za-z]+)_\{?(?:\\text\{)?([0-9]+)\}*")
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\{\s*\\?%\s*\})\s*$")
_SPACING = re.compile(r"\\[!,;: ]|\\(?:dollar|quad)\b")


class ParsedAnswer(NamedTuple):
    """An answer parsed by math-verify (`values`) without its percent sign, and the parsed text."""

    values: list[Any]
    text: str
    is_percent: bool


def compare(reference: str, text: str) -> dict[str, float]:
    """Whether the text has an answer (`found`), and whether the answer equals the reference (`right`)."""
    text = rewrite_notation(text)
    right = _compare_special(reference, text)
    if right is None:
        wanted, answer = parse_reference(reference), _parse_response(mark_mathematics(text))
        right = bool(answer.values) and _is_equal_quantity(reference, wanted, text, answer)
        return {"found": float(bool(answer.values)), "right": float(right)}
    return {"found": 1.0, "right": float(right)}


def _compare_special(reference: str, text: str) -> bool | None:
    """Compare choices and times of day; None for other answers."""
    wanted, final = strip_markup(_last_part(reference)), find_final_answer(text)
    bare = text if len(text) <= MAX_BARE_CHOICE else ""
    right = compare_choices(wanted, strip_markup(final or bare))
    return compare_times(wanted, strip_markup(final or text)) if right is None else right


def _last_part(reference: str) -> str:
    return rewrite_notation(reference.rsplit("####", 1)[-1].strip())


def _is_equal_quantity(reference: str, wanted: ParsedAnswer, text: str, answer: ParsedAnswer) -> bool:
    """Equality of values, and of units and brackets where both sides have them."""
    brackets = strip_markup(wanted.text), strip_markup(answer.text)
    if any(is_set(one) and is_tuple(other) for one, other in (brackets, brackets[::-1])):
        return False
    wanted_value, wanted_unit = split_unit(strip_markup(_last_part(reference)))
    final, answer_unit = split_unit(strip_markup(find_final_answer(text)))
    if answer_unit is None and not final:
        answer_unit = find_unit_after(strip_markup(text), brackets[1])
        final = brackets[1]
    if wanted_unit is None or answer_unit is None or wanted_unit == answer_unit:
        return _is_equal(wanted, answer)
    if wanted_unit.dimension != answer_unit.dimension:
        return False
    values = [parse(f"${value}$", parsing_timeout=0)[:1] for value in (wanted_value, final)]
    if not all(value and isinstance(value[0], Basic) for value in values):
        return False
    sizes = [Rational(unit.size.numerator, unit.size.denominator) for unit in (wanted_unit, answer_unit)]
    first, second = (_right_side(value[0]) * size for value, size in zip(values, sizes, strict=True))
    return _verify([first, str(first)], [second, str(second)])


@cache
def parse_reference(text: str) -> ParsedAnswer:
    """Parse a reference answer: the text after the last `####`, in LaTeX with or without `$`.

    Raises `ValueError` if math-verify cannot parse it.
    """
    answer = _without_currency(_last_part(text))
    marked = any(mark in answer for mark in ("$", r"\boxed", r"\(", r"\["))
    if marked:
        found = _parse_response(answer)
    else:
        value, unit = split_unit(strip_markup(answer))
        if unit and len(answer) - len(value) > 2:  # a single letter may be a variable
            answer = value
        percent = _PERCENT.search(answer)
        plain = answer[: percent.start()] if percent else answer
        # Without `$`, math-verify parses `2\sqrt{2}` as 2.
        found = ParsedAnswer(parse(f"${plain}$", parsing_timeout=0), plain, percent is not None)
    if not answer or not found.values or has_unknown_unit(answer, found.values[0]):
        raise ValueError(f"the reference answer {answer!r:.60} is not a mathematical expression")
    return found


def check_reference(text: str) -> str:
    """The error of a reference answer that cannot be parsed; empty if it can. Called in a child process."""
    try:
        parse_reference(text)
    except ValueError as error:
        return str(error)
    return ""


def _without_currency(text: str) -> str:
    """`\\$32,\\!348` as `32,348`; also removes a single `$` before a number."""
    text = _SPACING.sub("", text.replace(r"\$", ""))
    return re.sub(r"^\$(?=[\d.][^$]*$)", "", text)


def _parse_response(text: str) -> ParsedAnswer:
    values = parse(text, parsing_timeout=0)
    if not values:
        return ParsedAnswer([], "", False)
    read = str(values[-1])
    percent = _PERCENT.search(read)
    if percent:
        plain = read[: percent.start()]
        return ParsedAnswer(parse(f"${plain}$", parsing_timeout=0) or values, plain, True)
    number = _percent_value(values[0])
    return ParsedAnswer(values, read, False) if number is None else ParsedAnswer([number, str(number)], read, True)


def _percent_value(value: Any) -> Any:
    """p for the `p * 1/100` that math-verify returns for a percentage; None for other values."""
    if isinstance(value, Mul) and len(value.args) == 2:
        for number, factor in (value.args, value.args[::-1]):
            if isinstance(factor, UnevaluatedExpr) and factor.args[0] == Rational(1, 100):
                return number
    return None


def _is_equal(wanted: ParsedAnswer, answer: ParsedAnswer) -> bool:
    """Equality as in math-verify: a percentage equals its number with or without the sign, and its fraction."""
    bases = _base_and_digits(wanted.text), _base_and_digits(answer.text)
    if None not in bases:
        return bases[0] == bases[1]
    if _verify(wanted.values, answer.values):
        return True
    if wanted.is_percent == answer.is_percent:
        return False
    percentage, other = (wanted, answer) if wanted.is_percent else (answer, wanted)
    if not isinstance(percentage.values[0], Basic):
        return False
    fraction = percentage.values[0] * Rational(1, 100)
    return _verify([fraction, str(fraction)], other.values)


def _verify(wanted: list[Any], answer: list[Any]) -> bool:
    if not verify(wanted, answer, timeout_seconds=0):
        return False
    return not _values_differ(wanted[0], answer[0])


def _base_and_digits(text: str) -> tuple[int, str] | None:
    """`1234_5` as (5, "1234"); None for a text that is not a numeral with a base."""
    found = _NUMERAL_WITH_BASE.fullmatch(text.replace("(", "").replace(")", "").replace(" ", ""))
    if not found or not 2 <= int(found[2]) <= 36:
        return None
    digits, base = found[1].upper(), int(found[2])
    return (base, digits) if all(int(digit, 36) < base for digit in digits) else None


def _values_differ(a: Any, b: Any) -> bool:
    """Whether two values that are equal to six decimals are different numbers, or contain such a pair."""
    a, b = _right_side(a), _right_side(b)
    if not (isinstance(a, Basic) and isinstance(b, Basic)):
        return False
    if getattr(a, "is_number", False) and getattr(b, "is_number", False):
        return _numbers_differ(a, b)
    if a.func != b.func or len(a.args) != len(b.args):
        return False
    pairs = [list(a.args), list(b.args)]
    if isinstance(a, FiniteSet):
        if not all(part.is_number for part in (*a.args, *b.args)):
            return False
        pairs = [sorted(parts, key=_sort_key) for parts in pairs]
    return any(map(_values_differ, *pairs))


def _numbers_differ(a: Any, b: Any) -> bool:
    try:
        first, second = a.evalf(DIGITS), b.evalf(DIGITS)
        largest = max(abs(first), abs(second))
        tolerance = ROUNDED_TOLERANCE if a.has(Float) or b.has(Float) else EXACT_TOLERANCE
        return bool(largest > 0) and bool(abs(first - second) > tolerance * largest)
    except (TypeError, ValueError, ArithmeticError):  # infinities and other values without a difference
        return False


def _right_side(value: Any) -> Any:
    """5 for `x = 5`."""
    return value.rhs if isinstance(value, Eq) and not value.lhs.is_number else value


def _sort_key(number: Any) -> float:
    """The sort key of numbers in a set: the real part."""
    return complex(number.evalf()).real
