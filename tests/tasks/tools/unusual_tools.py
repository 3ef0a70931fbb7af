"""Tools that are no plain functions, and tools with unusual results."""

import datetime
from collections import deque
from decimal import Decimal
from enum import Enum
from functools import cache, lru_cache, partial, singledispatch, wraps
from inspect import signature
from itertools import count
from os.path import exists  # noqa: F401  # imported functions are no tools

import numpy as np


def _without_wraps(f):
    def inner(*args, **kwargs):
        return f(*args, **kwargs)

    inner.__doc__, inner.__annotations__, inner.__signature__ = f.__doc__, f.__annotations__, signature(f)
    return inner


def _with_wraps(f):
    @wraps(f)
    def inner(*a, **k):
        return f(*a, **k)

    return inner


@lru_cache(maxsize=3)
def cached(word: str) -> str:
    """C.

    Args:
        word: W.
    """
    return word


def _power(base: float, exponent: float, note: str = "x") -> float:
    """Power.

    Args:
        base: B.
        exponent: E.
        note: N.
    """
    return base**exponent


square = partial(_power, exponent=2.0)
two = partial(_power, 2.0)


@_without_wraps
def decorated(word: str) -> str:
    """B.

    Args:
        word: W.
    """
    return word


@_with_wraps
@cache
def wrapped(word: str) -> str:
    """B.

    Args:
        word: W.
    """
    return word


class _Search:
    """Search."""

    def __call__(self, q: str) -> list:
        """Search the web.

        Args:
            q: query
        """
        return [q, np.float32(1.5), np.int64(3), np.arange(3), datetime.date(2020, 1, 1), {3, 1}]


search = _Search()


def generate(n: int):
    """G.

    Args:
        n: N.
    """
    yield n


def make_object(n: int) -> object:
    """G.

    Args:
        n: N.
    """
    return {"a": [object()]}


async def read_later(n: int) -> int:
    """G.

    Args:
        n: N.
    """
    return np.float64(n)


class Color(Enum):
    RED = "red"
    TWO = 2


def paint(color: Color, more: list[Color | None], /, other: Color | None = None, *, shade: str = "x") -> list:
    """P.

    Args:
        color: C.
        more: M.
        other: O.
        shade: S.
    """
    return [color.name, *(part and part.name for part in more), other and other.name, shade]


@singledispatch
def choose(k: int, other: int = 1) -> list:
    """C.

    Args:
        k: K.
        other: O.
    """
    return [k, other]


def make(kind: str):
    """M.

    Args:
        kind: K.
    """
    values = {"deque": deque([1, 2]), "range": range(3), "keys": {"b": 1, "a": 2}.keys(), "enum": Color.RED}
    values |= {"decimal": Decimal("1.50"), "bytes": b"abc", "function": print, "class": Color, "iterator": count()}
    values["keyed"] = {np.int64(3): [{Color.RED: 1}], datetime.date(2020, 1, 1): 2}
    return values[kind]
