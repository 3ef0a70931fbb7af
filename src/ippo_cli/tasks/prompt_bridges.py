"""Find the text between a response and the next one in a rendered prompt, so that sampled tokens are kept."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ResponseEnd:
    """How a chat template ends responses, in parts: special tokens, white space, and other text."""

    inner: tuple[str, ...] = ()  # of a response before other messages
    last: tuple[str, ...] = ()  # of a response that is the last message
    special: frozenset[str] = frozenset()  # the parts that are special tokens

    @property
    def is_text(self) -> bool:
        """Whether only text shows the end, such as a `</s>` that is no token."""
        return bool(self.inner) and not self.special & set(self.inner)


@dataclass(frozen=True)
class SampledResponse:
    """The text of a response with its special tokens; it ends with `stop`, the stop token or ""."""

    text: str
    stop: str
    end: ResponseEnd

    def find_written(self, parts: Sequence[str]) -> list[str]:
        """The parts of a template's end that the response has at its end."""
        if self.stop and self.stop in parts:
            place = _last_index(parts, self.stop) + 1
            return next(run for begin in range(place) if self.text.endswith("".join(run := [*parts[begin:place]])))
        text = self.text.removesuffix(self.stop)
        sizes = range(len(parts), 0, -1)
        return next((run for size in sizes if text.endswith("".join(run := [*parts[:size]]))), [])

    def split_content(self, answer: str) -> str:
        """The response's text `answer` without the end; it may lack the special tokens."""
        parts = self.find_written(self.end.inner)
        for written in (parts, parts[:-1], [part for part in parts if part not in self.end.special]):
            if (text := "".join(written)) and answer.endswith(text):
                return answer.removesuffix(text)
        return answer

    def missing(self, parts: Sequence[str]) -> str | None:
        """The text of a template's end that the response lacks; None if it has another end, which is no text."""
        written = self.find_written(parts)
        if self.stop and self.stop in parts:
            return "".join(parts[_last_index(parts, self.stop) + 1 :])
        if self.stop and self.end.is_text and len(written) < len(parts):
            return None
        return "" if self.stop and self.stop in self.end.last else "".join(parts[len(written) :])


def read_response_end(inner: str, last: str, after_question: str, special: Collection[str]) -> ResponseEnd:
    """The end of responses in rendered chats.

    `inner`: the text between a response and the text of the next message. `last`: after a response that is the last
    message. `after_question`: after a user message that is the last message.
    """
    closed, of_question = (_cut_after_end(_split_parts(text, special), special) for text in (last, after_question))
    begin = inner.find("".join(closed))
    if begin >= 0:
        parts = _split_parts(inner[:begin], special) + closed if closed else closed
    else:  # other messages end in the same way
        parts = of_question if inner.startswith("".join(of_question)) else ()
    return ResponseEnd(inner=tuple(parts), last=tuple(closed), special=frozenset(special))


def find_bridge(before: str, now: str, answer: str, sampled: SampledResponse) -> str | None:
    """The text of the prompt `now` after the prompt `before` and a response, with what the response's end lacks.

    `answer`: the response without its end. None if `now` does not continue them, or would end the response twice.
    """
    if not now.startswith(before):
        return None
    rest = now[len(before) :]
    # Some templates strip white space from responses.
    forms = [form for form in _strip_variants(answer) if rest.startswith(form)]
    for parts in (sampled.end.inner, sampled.end.last):
        end = "".join(parts)
        for after in (rest[len(form) :] for form in forms):
            if end and after.startswith(end):
                missing = sampled.missing(parts)
                return None if missing is None else missing + after[len(end) :]
    if not forms:
        return None
    after = rest[len(forms[0]) :]
    if sampled.end.inner and sampled.stop and not after.startswith(sampled.stop):
        return None
    return after.removeprefix(sampled.stop)


def find_bridge_after(before: str, closed: str, now: str, stop: str, end_token: str) -> str | None:
    """The text of the prompt `now` after `closed`: the prompt `before` and a response in the template's own form, with
    its stop token (or ""). None if `closed` does not continue `before`, or `now` does not continue `closed`.

    `end_token`: with which templates end responses.
    """
    if not closed.startswith(before) or not now.startswith(closed):
        return None
    if stop and (end := closed.rfind(stop, len(before))) >= 0:
        return now[end + len(stop) :]
    # A truncated response, or one with another stop token than the template's.
    end = closed.rfind(end_token, len(before))
    return None if end < 0 else now[end:]


def _strip_variants(text: str) -> tuple[str, ...]:
    """A response and the variants that chat templates produce from it.

    Includes variants with a leading space: some tokenizers drop the first space when they decode.
    """
    forms = (text, text.rstrip(), text.lstrip(), text.strip(), text.lstrip("\n"), text.strip("\n"))
    return (*forms, f" {text}", f" {text.rstrip()}")


def _split_parts(text: str, special: Collection[str]) -> list[str]:
    """A text's special tokens, and the white space and other text between them."""
    spellings = "|".join(map(re.escape, sorted(special, key=len, reverse=True))) or r"(?!)"
    pieces = re.split(f"({spellings})", text)
    return [part for piece in pieces for part in ([piece] if piece in special else re.findall(r"\s+|\S+", piece))]


def _cut_after_end(parts: list[str], special: Collection[str]) -> list[str]:
    """The parts up to the last special token; without one up to the last text."""
    places = [place for place, part in enumerate(parts) if part in special]
    places = places or [place for place, part in enumerate(parts) if not part.isspace()]
    return parts[: places[-1] + 1] if places else []


def _last_index(parts: Sequence[str], part: str) -> int:
    return len(parts) - 1 - [*reversed(parts)].index(part)
