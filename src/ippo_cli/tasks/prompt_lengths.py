"""Check the lengths of first prompts over many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

from ippo_cli.config.errors import ConfigError, RowError
from ippo_cli.config.schema import JsonlConfig, OverlongPrompts, TaskConfig
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.data_files import file_suffix
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
            messages = [(row, _row_message(message, name, row, example, f" of {source}")) for row, example in suspects]
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
            messages = [(row, _row_message(message, name, row, example)) for row, example in part]
            too_long |= prompt_format.find_too_long_rows(messages, contexts[name])
    return [row for row in range(len(examples)) if row not in too_long]


def _row_message(message: FirstMessage, name: str, row: int, example: Example, source: str = "") -> str:
    try:
        return message(name, example)
    except ConfigError as error:
        raise RowError(error, row, f"row {row}{source}") from error


def describe_row(task: TaskConfig, part: str, row: int) -> str:
    """A row of `part`, train or eval: its file and line, or its number if rows are not the lines of one file."""
    place = f"row {row} of {'the training data' if part == 'train' else 'the held-out data'}"
    if not isinstance(task, JsonlConfig) or task.map or task.filter or task.eval_share:
        return place
    source = getattr(task, part)
    if task.overlong is OverlongPrompts.drop or not isinstance(source, str) or file_suffix(source) != ".jsonl":
        return place
    if not Path(source).is_file():
        return place
    with open(source, encoding="utf-8-sig") as lines:
        numbers = [number for number, line in enumerate(lines, start=1) if line.strip()]
    return f"{source}, line {numbers[row]}" if row < len(numbers) else place
