"""Tools that are no plain functions, and tools with unusual results."""

import datetime
from functools import cache, lru_cache, partial, wraps
from inspect import signature
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
