"""Compares two texts as mathematics; runs in a process that can be killed. Needs the extra `math`.

Computer algebra can take unbounded time, for example on a tower of powers. math-verify's own time limits are off: they
use alarms, which do not interrupt all of its code. This module checks what math-verify compares only to six decimals,
drops or cannot parse (exact numbers, numerals in bases, percentages, currency); `math_notation.py` rewrites what it
misparses, `math_answers.py` reads answers that are no expressions.
"""

from __future__ import annotations

import itertools
import logging
import re
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from math_verify import parse, verify  # pyright: ignore[reportMissingImports]
from sympy import (  # pyright: ignore[reportMissingImports]
    And,
    Basic,
    Eq,
    Expr,
    FiniteSet,
    Float,
    I,
    Interval,
    Mul,
    Or,
    Rational,
    UnevaluatedExpr,
    Union,
)
from sympy.core.relational import Relational  # pyright: ignore[reportMissingImports]

from ippo_cli.rewards.math_answers import (
    compare_choices,
    compare_words,
    find_boxes,
    find_final_answer,
    is_list,
    is_set,
    is_tuple,
    remove_thoughts,
    strip_markup,
)
from ippo_cli.rewards.math_notation import has_unknown_unit, mark_mathematics, rewrite_dashes, rewrite_notation
from ippo_cli.rewards.math_quantities import Quantity, find_quantity_after, read_quantity
from ippo_cli.rewards.math_times import compare_times

logging.getLogger("math_verify").setLevel(logging.ERROR)  # suppresses its warning that time limits are off

DIGITS = 50  # precision for evaluating exact numbers
EXACT_TOLERANCE = 1e-30  # relative tolerance for exact numbers
ROUNDED_TOLERANCE = 1e-3  # relative tolerance if a number has decimals, in addition to math-verify's six decimals
MAX_BARE_CHOICE = 20  # characters of a response that is only the letter of a choice
_NUMERAL_WITH_BASE = re.compile(r"([0-9A-Za-z]+)_\{?(?:\\text\{)?([0-9]+)\}*")
_ALTERNATIVES = re.compile(r"\s*\$?-?[0-9][0-9./]*\$?(?:\s+or\s+\$?-?[0-9][0-9./]*\$?)+[\s.]*")
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\{\s*\\?%\s*\})\s*$")
_DEGREES = re.compile(r"\^\s*\{?\\circ\s*\}?")
_MEMBER_OF = re.compile(r"^(\s*\$?)\s*[A-Za-z]\s*\\in(?![A-Za-z])\s*")  # math-verify compares only that of responses
_SPACING = re.compile(r"\\[!,;: ]|\\(?:dollar|quad)\b")


class ParsedAnswer(NamedTuple):
    """An answer parsed by math-verify (`values`) without its percent sign, and the parsed text."""

    values: list[Any]
    text: str
    is_percent: bool


def compare(reference: str, text: str) -> dict[str, float]:
    """Whether the text has an answer (`found`), and whether the answer equals the reference (`right`).

    Thoughts are not read. If the text has boxes, only the last ones are read.
    """
    text = rewrite_notation(remove_thoughts(text))
    if boxes := find_boxes(text):
        text = " and ".join(rf"\boxed{{{rewrite_dashes(content)}}}" for content in boxes)
    elif _ALTERNATIVES.fullmatch(final := find_final_answer(text)):  # math-verify reads only the first
        text = rf"\boxed{{{final.replace('or', ',').replace('$', '')}}}"
    right = _compare_special(reference, text)
    if right or (right is not None and find_final_answer(text)):
        return {"found": 1.0, "right": float(right)}
    answer = _parse_response(mark_mathematics(text))
    if right is None:
        wanted = parse_reference(reference)
        right = bool(answer.values) and _is_equal_quantity(reference, wanted, text, answer)
    return {"found": float(bool(answer.values)), "right": float(right)}


def _compare_special(reference: str, text: str) -> bool | None:
    """Compare choices, words, times, dates, ranges and ratios; None for other answers, and without an answer."""
    wanted, final = strip_markup(_last_part(reference)), find_final_answer(text)
    bare = text.strip() if len(text) <= MAX_BARE_CHOICE else ""
    answer = strip_markup(final or bare).rstrip(".")
    if not answer:
        return compare_times(wanted, strip_markup(text)) if text.strip() else None
    is_text = strip_markup(re.sub(r"\\text\s*\{[^{}]*\}", "", _last_part(reference))) == ""
    for right in (
        compare_choices(wanted, answer),
        compare_times(wanted, answer),  # before words: `noon` is a time
        compare_words(wanted, answer, is_text=is_text),
    ):
        if right is not None:
            return right
    return None


def _last_part(reference: str) -> str:
    return rewrite_dashes(rewrite_notation(reference.rsplit("####", 1)[-1].strip()))


def _is_equal_quantity(reference: str, wanted: ParsedAnswer, text: str, answer: ParsedAnswer) -> bool:
    """Equality of values, and of units and brackets where both sides have them."""
    brackets = strip_markup(wanted.text), strip_markup(answer.text)
    if any(is_set(one) and is_tuple(other) for one, other in (brackets, brackets[::-1])):
        return False
    if is_tuple(brackets[0]) and is_list(brackets[1]):
        answer = _parse_value(f"({brackets[1]})") or answer
    elif is_tuple(brackets[1]) and is_list(brackets[0]):
        wanted = _parse_value(f"({brackets[0]})") or wanted
    if all(map(is_list, brackets)) and any(map(_DEGREES.search, brackets)):  # angles, with and without the sign
        angles = [_parse_value(_DEGREES.sub("", one)) for one in brackets]
        wanted, answer = angles[0] or wanted, angles[1] or answer
    final = find_final_answer(text)
    first = read_quantity(_last_part(reference))
    second = read_quantity(final) if final else find_quantity_after(text, brackets[1])
    if first is None or second is None:
        known = [one for one in (first, second) if one is not None and one.units and not one.may_be_variable]
        if second is not None and second in known and not _has_unit(second, "percent"):
            answer = _parse_value(second.value) or answer
        return _is_equal(wanted, answer)
    if not first.units or not second.units:
        return not (first.units or second.units or first.nouns.isdisjoint(second.nouns)) and _is_equal(wanted, answer)
    return _is_equal_in_units(first, second, wanted, answer)


def _is_equal_in_units(first: Quantity, second: Quantity, wanted: ParsedAnswer, answer: ParsedAnswer) -> bool:
    """Equality of two quantities in some common meaning of their units."""
    if _has_unit(first, "percent") and _has_unit(second, "percent"):
        return _is_equal(wanted, answer)
    values = [value for quantity in (first, second) if (value := _parse_value(quantity.value)) is not None]
    if len(values) < 2 or not all(isinstance(value.values[0], Basic) for value in values):
        return False
    for unit, other in itertools.product(first.units, second.units):
        if unit.dimension != other.dimension:
            continue
        if unit.size == other.size:
            return _is_equal(values[0], values[1])
        sizes = [Rational(one.size.numerator, one.size.denominator) for one in (unit, other)]
        a, b = (_right_side(value.values[0]) * size for value, size in zip(values, sizes, strict=True))
        return _verify([a, str(a)], [b, str(b)])
    return False


def _has_unit(quantity: Quantity, dimension: str) -> bool:
    return any(unit.dimension == dimension for unit in quantity.units)


def _parse_value(value: str) -> ParsedAnswer | None:
    values = parse(f"${value}$", parsing_timeout=0)
    return ParsedAnswer(values, value, False) if values else None


@cache
def parse_reference(text: str) -> ParsedAnswer:
    """Parse a reference answer: the text after the last `####`, in LaTeX with or without `$`.

    Raises `ValueError` if math-verify cannot parse it.
    """
    answer = _last_part(text)
    quantity = read_quantity(answer)
    if quantity and quantity.units and not quantity.may_be_variable and not _has_unit(quantity, "percent"):
        answer = quantity.value
    answer = re.sub(r"(?<=[^\s.])\s*\.$", "", _without_currency(answer))
    answer = _MEMBER_OF.sub(r"\1", answer)
    marked = any(mark in answer for mark in ("$", r"\boxed", r"\(", r"\["))
    if marked:
        found = _parse_response(answer)
    else:
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
    wanted, answer = _write_imaginary_unit(*_write_intervals(wanted, answer))
    if not verify(wanted, answer, timeout_seconds=0):
        return False
    return not _values_differ(wanted[0], answer[0])


def _write_intervals(wanted: list[Any], answer: list[Any]) -> tuple[list[Any], list[Any]]:
    """An inequality as its set of solutions, if the other value is a set of numbers such as an interval."""
    kinds = (Relational, And, Or)
    pair = [wanted, answer]
    for place, other in ((0, 1), (1, 0)):
        value, beside = pair[place][0], pair[other][0]
        if isinstance(value, kinds) and isinstance(beside, Interval | Union) and len(value.free_symbols) == 1:
            with suppress(NotImplementedError, ValueError, TypeError):
                solutions = value.as_set()
                pair[place] = [solutions, str(solutions)]
    return pair[0], pair[1]


def _write_imaginary_unit(wanted: list[Any], answer: list[Any]) -> tuple[list[Any], list[Any]]:
    r"""Two values with `i` as the imaginary unit, if one is a number of `i` and the other of `\sqrt{-1}` or real."""
    values = wanted[0], answer[0]
    if not all(isinstance(value, Expr) for value in values) or values[0].free_symbols == values[1].free_symbols:
        return wanted, answer
    symbols = values[0].free_symbols | values[1].free_symbols
    if {symbol.name for symbol in symbols} != {"i"}:
        return wanted, answer
    first, second = (value.subs(dict.fromkeys(symbols, I)).doit() for value in values)
    return [first, str(first)], [second, str(second)]


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
