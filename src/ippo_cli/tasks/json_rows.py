"""Read rows of JSON files, and describe the first line that cannot be read."""

from __future__ import annotations

import gzip
import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from json import JSONDecodeError
from typing import Any, BinaryIO

from ippo_cli.config.text_files import ENCODING_REMEDY, locate_undecodable_byte

ONE_PER_LINE = "write one object per line, or one list [...] of all objects"
ESCAPED_SURROGATE = "\\ud"


class UnreadableFile(ValueError):
    """A data file that cannot be read; the message names the line and the rule."""


def open_binary(file: str) -> BinaryIO:
    """Open a file as bytes; `.gz` files are decompressed."""
    return gzip.open(file, "rb") if file.endswith(".gz") else open(file, "rb")  # type: ignore[return-value]


def json_rows(file: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a JSON file: one object per line, one list, or multi-line objects. Raises `UnreadableFile`."""
    first = True
    with open_binary(file) as lines:
        for number, line in enumerate(lines, 1):
            text = _decode(line.removeprefix(BOM_UTF8) if number == 1 else line, number, file)
            if not text.strip():
                continue
            if first and text.lstrip().startswith("["):
                yield from _rows_of_list(text + _decode(lines.read(), number + 1, file), number, file)
                return
            try:
                value = json.loads(text, object_pairs_hook=_build_object)
            except JSONDecodeError as error:
                if _ends_early(text, error) or error.msg == "Extra data":
                    yield from _rows_of_stream(text + _decode(lines.read(), number + 1, file), number, file)
                    return
                raise UnreadableFile(_describe_error(error, text, number, file)) from error
            except ValueError as error:
                raise UnreadableFile(f"line {number} of {file}: {error}") from error
            first = False
            yield _check_row(value, text, number, file)


def count_json_rows(file: str) -> int:
    """Count the rows. Raises `UnreadableFile` for a line that is not an object (pyarrow can crash on these)."""
    count = 0
    with open_binary(file) as lines:
        for number, line in enumerate(lines, 1):
            if text := _decode(line.removeprefix(BOM_UTF8), number, file).strip():
                if not (text.startswith("{") and text.endswith("}")):
                    return sum(1 for _ in json_rows(file))
                count += 1
    return count


def check_single_object(file: str, row: Mapping[str, Any]) -> None:
    """Raise `UnreadableFile` if the only object of a file contains a list of rows or columns."""
    lists = {key: value for key, value in row.items() if isinstance(value, list) and len(value) > 1}
    if any(isinstance(part, Mapping) and "role" in part for value in lists.values() for part in value):
        return  # a conversation
    nested = [key for key, value in lists.items() if all(isinstance(part, Mapping) for part in value)]
    if nested:
        raise UnreadableFile(
            f"{file} is one object, and its {nested[0]!r} is a list of {len(lists[nested[0]])} objects; "
            f"write only these objects: {ONE_PER_LINE}"
        )
    sizes = {_column_size(value) for value in row.values()}
    if len(row) > 1 and len(sizes) == 1 and None not in sizes:
        raise UnreadableFile(f"{file} is one object of columns ({' '.join(row)}), not of rows; {ONE_PER_LINE}")


def _column_size(value: Any) -> Any:
    """The size of a column: a list's length, or an object's keys; None if the value is not a column."""
    if isinstance(value, list) and len(value) > 1:
        return len(value)
    return tuple(value) if isinstance(value, Mapping) and value and all(key.isdigit() for key in value) else None


def _rows_of_list(text: str, line: int, file: str) -> Iterator[Mapping[str, Any]]:
    try:
        values = json.loads(text, object_pairs_hook=_build_object)
    except JSONDecodeError as error:
        shown = text.splitlines()[error.lineno - 1] if error.lineno <= len(text.splitlines()) else ""
        raise UnreadableFile(_describe_error(error, shown, line + error.lineno - 1, file)) from error
    except ValueError as error:
        raise UnreadableFile(f"{file}: {error}") from error
    for place, value in enumerate(values, 1):
        yield _check_row(value, ESCAPED_SURROGATE if ESCAPED_SURROGATE in text else "", f"item {place}", file)


def _rows_of_stream(text: str, line: int, file: str) -> Iterator[Mapping[str, Any]]:
    """Yield concatenated objects; one may span several lines, and a line may hold several."""
    decoder, place = json.JSONDecoder(object_pairs_hook=_build_object), 0
    while place < len(text):
        start = len(text) - len(text[place:].lstrip())
        if start == len(text):
            return
        number = line + text.count("\n", 0, start)
        try:
            value, place = decoder.raw_decode(text, start)
        except JSONDecodeError as error:
            begins = text[start:].splitlines()[0]
            if line + error.lineno - 1 != number:
                rule = f"begins an object that does not end; {ONE_PER_LINE}: {begins[:60]!r}"
                raise UnreadableFile(f"line {number} of {file} {rule}") from error
            at = text.splitlines()[error.lineno - 1]
            raise UnreadableFile(_describe_error(error, at, number, file)) from error
        except ValueError as error:
            raise UnreadableFile(f"line {number} of {file}: {error}") from error
        yield _check_row(value, text[start:place], number, file)


def _check_row(value: Any, text: str, line: int | str, file: str) -> Mapping[str, Any]:
    place = f"line {line}" if isinstance(line, int) else line
    if not isinstance(value, dict | str):
        raise UnreadableFile(f"{place} of {file} is {json.dumps(value)[:40]}, but a row must be an object")
    row = {"text": value} if isinstance(value, str) else value
    if ESCAPED_SURROGATE in text.lower():
        try:
            str(row).encode()
            json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise UnreadableFile(f"{place} of {file} has an unpaired surrogate ({error.reason})") from error
    return row


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has the key {duplicate!r} twice")
    return built


def _decode(data: bytes, line: int, file: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"{file}: {locate_undecodable_byte(data, error, line)}; {ENCODING_REMEDY}") from error


def _ends_early(text: str, error: JSONDecodeError) -> bool:
    return error.pos >= len(text.rstrip()) or error.msg.startswith(("Unterminated", "Invalid control"))


def _describe_error(error: JSONDecodeError, text: str, line: int, file: str) -> str:
    """Describe the line and the JSON rule that it breaks."""
    before, rest = error.doc[: error.pos].rstrip(), error.doc[error.pos :].strip()
    if rest.startswith(",") and before.endswith("}"):
        rule = f"has a comma after the object; {ONE_PER_LINE}"
    elif error.msg == "Extra data":
        rule = f"has more than one JSON value; {ONE_PER_LINE}"
    elif rest[:1] in ("}", "]") and before.endswith(","):
        rule = f"has a comma before {rest[0]!r}; delete it"
    elif error.msg.startswith("Illegal trailing comma"):
        rule = "has a comma before a closing bracket; delete it"
    elif not rest or error.msg.startswith("Unterminated"):
        rule = f"ends within an object; {ONE_PER_LINE}"
    elif "',' delimiter" in error.msg:
        rule = f"has no comma before character {error.colno}"
    elif rest[:1] == "'":
        rule = "has single quotes; JSON requires double quotes"
    elif rest.startswith(("True", "False", "None")):
        rule = "has a Python literal; JSON has true, false and null"
    elif rest.startswith(("//", "#", "/*")):
        rule = "has a comment; JSON does not allow comments"
    else:
        rule = f"is not JSON at character {error.colno} ({error.msg})"
    return f"line {line} of {file} {rule}: {text.strip()[:60]!r}"
