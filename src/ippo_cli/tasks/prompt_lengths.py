"""Check the lengths of first prompts over many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.types import Example

TOKENIZE_BATCH = 1024  # prompts that are tokenized together

MessageSize = Callable[[Example], int] | None
"""Returns the bytes of a first message without rendering it; None for messages that must be rendered."""
FirstMessage = Callable[[str, Example], str]
"""Returns the first message of an agent (by name) for an example."""


def check_prompt_lengths(
    formats: Mapping[str, PromptFormat],
    message: FirstMessage,
    rows: Iterable[tuple[int, Example]],
    source: str,
    contexts: Mapping[str, int],
    sizes: Mapping[str, MessageSize] | None = None,
) -> None:
    """Raise `ConfigError` for a row of `source` that is too long for an agent; `contexts`: agent -> context length.

    `sizes`: by agent; rows that fit by their size are not rendered.
    """
    waiting = iter(rows)
    while part := list(islice(waiting, TOKENIZE_BATCH)):
        for name, prompt_format in formats.items():
            suspects, size = part, (sizes or {}).get(name)
            if size is not None:
                limit = prompt_format.count_fitting_bytes(message(name, part[0][1]), contexts[name])
                suspects = [(row, example) for row, example in part if not 0 < size(example) <= limit]
            messages = [(row, message(name, example)) for row, example in suspects]
            if messages:
                prompt_format.check_lengths(messages, source, contexts[name])


def fitting_rows(
    formats: Mapping[str, PromptFormat],
    message: FirstMessage,
    examples: Sequence[Example],
    contexts: Mapping[str, int],
) -> list[int]:
    """Return the indices of the examples that fit the context of every agent."""
    too_long: set[int] = set()
    waiting = iter(enumerate(examples))
    while part := list(islice(waiting, TOKENIZE_BATCH)):
        for name, prompt_format in formats.items():
            messages = [(row, message(name, example)) for row, example in part]
            too_long |= prompt_format.find_too_long_rows(messages, contexts[name])
    return [row for row in range(len(examples)) if row not in too_long]
