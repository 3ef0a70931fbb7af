"""Writing subjects for the writing tasks."""

from __future__ import annotations

from ippo_cli.types import Example

ASPECTS = ("the history of", "the use of", "a day without", "what children should know about")
TRAINED = """
bread bridges clocks coffee dogs forests gardens glass honey horses islands kites lakes libraries maps markets
mirrors mountains music newspapers paper paint rain radio rivers roads salt schools ships shoes silk snow soap songs
stars stones sugar tea theatre trains trees villages water wheels wind windows wood wool
"""
HELD_OUT = "bicycles birds candles cities fire keys lamps letters milk money sleep toys"


def train() -> list[Example]:
    """Return 192 subjects."""
    return _subjects(TRAINED)


def held_out() -> list[Example]:
    """Return 48 subjects about things that are not in the training examples."""
    return _subjects(HELD_OUT)


def _subjects(things: str) -> list[Example]:
    return [{"subject": f"{aspect} {thing}"} for thing in things.split() for aspect in ASPECTS]
