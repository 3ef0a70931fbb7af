r"""Reads quantities: a number with a unit, such as `5 \text{ m/s}`, `\$5`, `5 square feet` and `1 hour 30 minutes`."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from fractions import Fraction
from typing import NamedTuple

from ippo_cli.rewards.math_answers import strip_markup

_UNITS = {  # names and the scale of each unit, by dimension
    "time": "ms 1/1000; s sec second 1; min minute 60; h hr hour 3600; day 86400; week 604800",
    "calendar": "month 1; year yr 12; decade 120; century centuries 1200",  # months have no fixed number of days
    "length": "mm millimeter millimetre 1/1000; cm centimeter centimetre 1/100; m meter metre 1;"
    "km kilometer kilometre 1000; in inch inches 127/5000; ft foot feet 381/1250; yd yard 1143/1250;"
    "mi mile 201168/125",
    "length^2": "hectare 10000; acre 316160658/78125",
    "length^3": "ml milliliter millilitre 1/1000000; l liter litre 1/1000; gal gallon 473176473/125000000000;"
    "qt quart 473176473/500000000000; pt pint 473176473/1000000000000",
    "length time^-1": "mph 1397/3125; kph kmph kmh 5/18",
    "mass": "mg milligram 1/1000; g gram 1; kg kilogram 1000; oz ounce 45359237/1600000; lb pound 45359237/100000",
    "dollar": "dollar usd 1; cent 1/100",
    "euro": "euro eur 1; cent 1/100",
    "sterling": "pound gbp sterling 1; penny pence 1/100",
    "yen": "yen jpy 1",
    "rupee": "rupee inr 1",
    "angle": "degree deg 1",
    "celsius": "celsius 1",
    "fahrenheit": "fahrenheit 1",
    "percent": "percent 1",
}
_SIGNS = {"$": "dollars", "£": "sterling", "€": "euros", "¥": "yen", "\u20b9": "rupees"}
_CURRENCY = r"(?:US)?\\?\$|[£€¥\u20b9]|\\pounds\b|\\euro\b"
_NUMBER = r"(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)"
_BEFORE = re.compile(rf"({_CURRENCY})\s*(-?\s*{_NUMBER})")
_AFTER = re.compile(r"(?<=[0-9])\s*([£€¥\u20b9])")
_TEMPERATURE = re.compile(r"(?:\^\s*\{?\s*\\circ\s*\}?|\bdegrees?)\s*(?:(C|celsius)|(F|fahrenheit))\b", re.IGNORECASE)
_TERM = r"(?:(sq|square|cu|cubic)\.?\s+)?([A-Za-z]+)\.?(?:\s*\^\s*\{?\s*(-?[0-9])\s*\}?|\s+(squared|cubed))?"
_OPERATOR = r"(?:\s*/\s*|\s+per\s+(?:an?\s+)?|\s*(?:\\cdot|\*|·)\s*|\s+(?=[A-Za-z]+\s*\^))"
_PHRASE = re.compile(rf"{_TERM}(?:{_OPERATOR}{_TERM})*\s*", re.IGNORECASE)
_COMPOUND = re.compile(rf"({_NUMBER})\s*([A-Za-z]+)\.?")
_JOINT = re.compile(r"\s*(?:,|and|,\s*and)?\s*", re.IGNORECASE)
_FUNCTION = re.compile(r"\\(?:a(?:rc)?)?(?:sin|cos|tan|cot|sec|csc|log|ln|exp)(?![a-z])")
MAX_CHARACTERS, MAX_WORDS = 200, 8  # of a quantity, and of the words after its number
_POWERS = {"sq": 2, "square": 2, "cu": 3, "cubic": 3, "squared": 2, "cubed": 3}
_STOP_WORD = re.compile(
    "in|of|for|on|at|per|to|from|by|with|and|or|if|when|where|which|that|is|are|was|were|left|remaining|total|more|"
    "less|than|as|not|each|every|because|since|so"
)
_GENERAL_WORD = re.compile(
    "unit|way|people|person|item|piece|thing|time|solution|element|object|case|value|number|integer|arrangement|"
    "combination|possibility|different|distinct|square|cubic"
)


class Unit(NamedTuple):
    """A unit: its dimension, such as `length^2`, and its size in the base unit of the dimension."""

    dimension: str
    size: Fraction


class Quantity(NamedTuple):
    """A number before its unit. `units` has one entry per meaning of the name; `nouns` are words that are no units.

    `may_be_variable`: the unit is one letter directly after the number, as in `5m`.
    """

    value: str
    units: tuple[Unit, ...]
    nouns: frozenset[str]
    may_be_variable: bool


def _read_units() -> dict[str, tuple[Unit, ...]]:
    table: dict[str, tuple[Unit, ...]] = {}
    for dimension, rows in _UNITS.items():
        for *names, size in (row.split() for row in rows.split(";")):
            for name in itertools.chain(names, (f"{name}s" for name in names if len(name) > 1)):
                table[name] = (*table.get(name, ()), Unit(dimension, Fraction(size)))
    return table


UNITS = _read_units()


def write_units(text: str) -> str:
    r"""Write the signs of currencies, degrees and percentages as words: `\$5` as `5 dollars`."""
    text = text.replace(r"\!", "").replace("{,}", ",")
    is_currency = len(re.findall(r"(?<!\\)\$", text)) % 2 == 1  # of the last `$`; others are marks of mathematics
    text = re.sub(r"(?<!\\)\$(?!-?[0-9.][^$]*$)" if is_currency else r"(?<!\\)\$", " ", text)
    text = _BEFORE.sub(lambda found: f"{found[2]} {_SIGNS.get(found[1][-1]) or _currency_name(found[1])} ", text)
    text = _AFTER.sub(lambda found: f" {_SIGNS[found[1]]} ", text)
    text = re.sub(r"(?:¢|\\cents?(?![A-Za-z]))", " cents ", text)
    text = _TEMPERATURE.sub(lambda found: " celsius " if found[1] else " fahrenheit ", text)
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?", " degrees ", text)
    return re.sub(r"\\?%", " percent ", text)


def _currency_name(sign: str) -> str:
    return {r"\pounds": "sterling", r"\euro": "euros"}[sign]


def read_quantity(text: str) -> Quantity | None:
    """The quantity that is the whole text, with or without markup; None for other texts."""
    if len(text) > MAX_CHARACTERS:
        return None
    text = strip_markup(write_units(text)).rstrip(" .")
    if (compound := _read_compound(text)) is not None:
        return compound
    for found in re.finditer(r"(?<![A-Za-z\\])[A-Za-z]", text):
        value, phrase = text[: found.start()].strip(), text[found.start() :]
        plain = re.sub(r"\\[A-Za-z]+", "", value)
        if re.search("[A-Za-z]{2}", plain) or _FUNCTION.search(value):
            return None
        is_number = bool(re.search("[0-9]", value)) and not re.search("[A-Za-z]", plain)
        units = _read_phrase(phrase)
        if units and value and (is_number or len(phrase) > 1):
            letters = re.sub(r"\W|[0-9]", "", phrase)
            return Quantity(value, units, frozenset(), len(letters) == 1 and text[found.start() - 1] != " ")
        if is_number and text[found.start() - 1] == " " and re.fullmatch(r"[A-Za-z ]+", phrase):
            nouns = _read_nouns(phrase)
            return Quantity(value, (), nouns, may_be_variable=False) if nouns else None
    return None


def find_quantity_after(text: str, value: str) -> Quantity | None:
    """The quantity that begins at the last occurrence of a value in a text; None without a unit or another word."""
    text = strip_markup(write_units(text))
    place = text.rfind(value) if value else -1
    if place < 0:
        return None
    end = place + len(value)
    rest = re.match(r"\s*([A-Za-z][A-Za-z ^{}0-9/-]*)", text[end:])
    words = rest[1].split()[:MAX_WORDS] if rest else []
    for count in range(len(words), 0, -1):
        found = read_quantity(f"{value}{' ' * (text[end] == ' ')}{' '.join(words[:count])}")
        if found is not None and found.units:
            return found
    return None


def _read_compound(text: str) -> Quantity | None:
    """The sum of at least two quantities of one dimension, such as `1 hour 30 minutes`, in its base unit.

    Two numbers of one unit, such as `36 degrees, 54 degrees`, are a list.
    """
    parts: list[tuple[Fraction, Unit]] = []
    place = 0
    while found := _COMPOUND.match(text, place):
        units = UNITS.get(found[2].lower())
        if units is None:
            return None
        parts.append((Fraction(found[1].replace(",", "")), units[0]))
        joint = _JOINT.match(text, found.end())
        place = joint.end() if joint else found.end()
    if place < len(text) or len(parts) < 2 or len({unit.dimension for _, unit in parts}) > 1:
        return None
    if len({unit.size for _, unit in parts}) < len(parts):
        return None
    total = sum((number * unit.size for number, unit in parts), Fraction(0))
    return Quantity(str(total), (Unit(parts[0][1].dimension, Fraction(1)),), frozenset(), may_be_variable=False)


def _read_phrase(phrase: str) -> tuple[Unit, ...]:
    """The meanings of a unit such as `m/s`, `square feet` or `miles per hour`; empty if a name is unknown."""
    if _PHRASE.fullmatch(phrase) is None:
        return ()
    choices: list[list[Unit]] = []
    place = 0
    while place < len(phrase.rstrip()):
        operator = re.compile(_OPERATOR, re.IGNORECASE).match(phrase, place) if choices else None
        start = operator.end() if operator else place
        term = re.compile(_TERM, re.IGNORECASE).match(phrase, start)
        if term is None or (choices and operator is None) or (units := UNITS.get(term[2].lower())) is None:
            return ()
        power = int(term[3] or 1) * _POWERS.get((term[1] or term[4] or "").lower(), 1)
        divides = operator is not None and re.search("/|per", operator[0], re.IGNORECASE)
        choices.append([_raise_unit(unit, -power if divides else power) for unit in units])
        place = term.end()
    return tuple(itertools.starmap(_multiply_units, itertools.product(*choices)))


def _raise_unit(unit: Unit, power: int) -> Unit:
    return Unit(_write_dimension({name: own * power for name, own in _dimensions(unit).items()}), unit.size**power)


def _multiply_units(*units: Unit) -> Unit:
    dimensions: Counter[str] = Counter()
    size = Fraction(1)
    for unit in units:
        dimensions.update(_dimensions(unit))
        size *= unit.size
    return Unit(_write_dimension(dimensions), size)


def _dimensions(unit: Unit) -> dict[str, int]:
    return {name: int(power or 1) for name, _, power in (part.partition("^") for part in unit.dimension.split())}


def _write_dimension(powers: dict[str, int]) -> str:
    return " ".join(name if power == 1 else f"{name}^{power}" for name, power in sorted(powers.items()) if power)


def _read_nouns(phrase: str) -> frozenset[str]:
    """The words before the first function word, in the singular and without general ones such as `ways`."""
    words = itertools.takewhile(lambda word: not _STOP_WORD.fullmatch(word), phrase.lower().split())
    return frozenset(word for word in map(_singular, words) if len(word) > 2 and not _GENERAL_WORD.fullmatch(word))


def _singular(word: str) -> str:
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    if word.endswith(("ses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word
