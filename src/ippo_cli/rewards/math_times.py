"""Reads times of day, dates, ranges and ratios, which math-verify computes as quotients and differences."""

from __future__ import annotations

import re
from math import gcd
from typing import NamedTuple

_HALF = r"\s*([ap])\.?\s?m\b\.?"
_PART_OF_DAY = r"(?:\s*o'?clock)?(?:\s*,)?\s+(?:in\s+the\s+(morning|afternoon|evening)|at\s+(night))"
_TIME = re.compile(
    rf"(?<![\d:.])([0-9]{{1,2}})(?:(?::([0-5][0-9]))?(?:{_HALF}|{_PART_OF_DAY}|\s*o'?clock)|:([0-5][0-9])(?![\d:]))",
    re.IGNORECASE,
)
_NAMED_TIME = re.compile(r"(?:\b12(?::00)?(?:\s*[ap]\.?m\.?)?,?[ ]*\(?)?\b(noon|midday|midnight)\b\)?", re.IGNORECASE)
_MONTHS = "janfebmaraprmayjunjulaugsepoctnovdec"
_MONTH = (
    r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    r"|nov(?:ember)?|dec(?:ember)?)\.?"
)
_DAY = r"([0-9]{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?:,?\s*([0-9]{4}))?(?![0-9])"
_DATE = re.compile(
    rf"(?<![\w/-])(?:([0-9]{{4}})([-/.])([0-9]{{1,2}})\2([0-9]{{1,2}})(?![\d/-])"
    rf"|([0-9]{{1,2}}/[0-9]{{1,2}}/[0-9]{{4}})|\b{_MONTH}\s*{_DAY}{_YEAR}|{_DAY}\s+(?:of\s+)?{_MONTH}{_YEAR})",
    re.IGNORECASE,
)
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_RANGE = re.compile(rf"{_NUMBER}(?:(?:-|\s?\u2013\s?){_NUMBER})+")
_RANGE_IN_ANSWER = re.compile(rf"{_NUMBER}(?:\s*(?:--?|\u2013|\u2014|\bto\b)\s*{_NUMBER})+")
_RATIO = re.compile(r"[0-9]+(?:\s*:\s*[0-9]+)+")


class Time(NamedTuple):
    """A time of day in minutes; `has_half` is whether it has `a.m.`, `p.m.` or a part of the day."""

    minutes: int
    has_half: bool


def compare_times(reference: str, answer: str) -> bool | None:
    """Whether the answer is the reference's time, date, range or ratio; None if neither is one. Both without markup.

    Text around an answer's time or date is ignored. A ratio of two numbers in lowest terms, such as `3:4`, is also the
    fraction that math-verify computes, and None.
    """
    reference, answer = _write_named_times(reference), _write_named_times(answer)
    for pattern, compare in ((_DATE, _dates_match), (_TIME, _minutes_match)):
        wanted, found = pattern.fullmatch(reference), list(pattern.finditer(answer))
        if wanted is not None and found:
            return compare(wanted, found[-1])
        if wanted is not None or (pattern is _DATE and pattern.fullmatch(answer)):
            return _compare_ratios(reference, answer) if _RATIO.fullmatch(reference) else False
    if _RANGE.fullmatch(reference):
        found = _RANGE_IN_ANSWER.findall(answer)
        return bool(found) and re.findall(_NUMBER, reference) == re.findall(_NUMBER, found[-1])
    return _compare_ratios(reference, answer)


def _write_named_times(text: str) -> str:
    """Write noon and midnight, also after 12, as `12:00 p.m.` and `12:00 a.m.`."""
    return _NAMED_TIME.sub(lambda found: f"12:00 {'a' if found[1].lower() == 'midnight' else 'p'}.m.", text)


def _compare_ratios(reference: str, answer: str) -> bool | None:
    found = [answer] if _RATIO.fullmatch(answer) else []
    ratios = [reference, *_RATIO.findall(answer)[-1:]] if _RATIO.fullmatch(reference) else found
    if len(ratios) == 2:
        first, second = ([int(part) for part in re.findall("[0-9]+", text)] for text in ratios)
        return len(first) == len(second) and all(
            a * second[0] == b * first[0] for a, b in zip(first, second, strict=True)
        )
    return None if not ratios or _is_fraction(ratios[0]) else False


def _is_fraction(ratio: str) -> bool:
    """Whether a ratio has two numbers in lowest terms, without leading zeros."""
    parts = re.findall("[0-9]+", ratio)
    return len(parts) == 2 and gcd(*map(int, parts)) == 1 and all(str(int(part)) == part for part in parts)


def _minutes_match(wanted: re.Match[str], found: re.Match[str]) -> bool:
    """Equality of two times; a reference of up to 12 hours without `a.m.` may be either half of the day."""
    first, second = _read_time(wanted), _read_time(found)
    if not first.has_half and second.has_half and int(wanted[1]) <= 12:
        return (first.minutes - second.minutes) % 720 == 0
    return (first.minutes - second.minutes) % 1440 == 0  # 24:00 is 0:00


def _read_time(found: re.Match[str]) -> Time:
    hour, minute, half, part, night, plain_minute = found.groups()
    half = (half or "").lower()
    if part or night:
        half = "a" if (part or "").lower() == "morning" or (night and int(hour) in (12, 1, 2, 3, 4)) else "p"
    hours = int(hour) % 12 + 12 * (half == "p") if half and int(hour) <= 12 else int(hour)
    return Time(60 * hours + int(minute or plain_minute or 0), bool(half))


def _dates_match(wanted: re.Match[str], found: re.Match[str]) -> bool:
    """Equality of two dates; a reference without a year has the answer's year."""
    first, second = _read_date(wanted), _read_date(found)
    return first[1:] == second[1:] and (first[0] in ("", second[0]))


def _read_date(found: re.Match[str]) -> tuple[str, int | str, int]:
    """Year, month and day; a date such as 5/6/2024 is not split, since the order of month and day is unknown."""
    year, _, month, day, slashes, name, day_after, year_after, day_before, name_after, year_last = found.groups()
    if slashes:
        return "", slashes, 0
    if month:
        return year, int(month), int(day)
    number = 1 + _MONTHS.index((name or name_after)[:3].lower()) // 3
    return year_after or year_last or "", number, int(day_after or day_before)
