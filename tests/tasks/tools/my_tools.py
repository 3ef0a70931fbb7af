"""Tools of the tests."""

import os
import time


def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def fail(text: str) -> str:
    """Raise an exception.

    Args:
        text: Its message.
    """
    raise ValueError(text)


def hang() -> str:
    """Wait for a long time."""
    time.sleep(600)
    return "late"


def end() -> str:
    """End the process."""
    os._exit(3)


async def think() -> dict[str, int]:
    """Return a JSON object."""
    return {"pid": os.getpid()}


def write(count: int) -> str:
    """Write a long text.

    Args:
        count: Its number of characters.
    """
    return "x" * count


def search(query: str) -> str:
    return f"results of {query}"


search.schema = {
    "name": "search",
    "description": "Search.",
    "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
}


def _helper() -> None:
    pass
