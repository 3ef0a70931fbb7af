"""Tokenize texts so that control tokens spelled in content, such as `<|im_end|>`, become ordinary tokens.

Only a chat template, or the literal text of an agent's own template, writes control tokens. Text from a data row or
from another agent is content: otherwise an agent could end its turn and forge another agent's turn. Content without
such spellings has the tokenizer's usual ids.

Until tokenization a private-use character, a guard, replaces each spelling. Guards that a text contains itself are
escaped, so that every character of a text keeps its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

PRIVATE_USE = range(0xF0000, 0x10FFFE)
"""Characters among which guards are chosen: those that the chat template does not contain."""
ANCHORS = ("\n", ".", "a")  # texts are tokenized after the first anchor that does not merge with them


class ControlTokens:
    """Control tokens of a tokenizer: special tokens, and added tokens in `roles`, the chat template's role markers."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, roles: str = "") -> None:
        self.tokenizer = tokenizer
        added = {str(token): token.special or str(token) in roles for token in tokenizer.added_tokens_decoder.values()}
        named = {str(token) for token in tokenizer.all_special_tokens}
        control = named | {text for text, is_control in added.items() if is_control}
        if getattr(tokenizer, "split_special_tokens", False):  # no text of this tokenizer becomes a control token
            control = set()
        self.spellings = sorted((text for text in control if len(text) > 1), key=lambda text: (-len(text), text))
        self._ids: set[Any] = set(map(tokenizer.convert_tokens_to_ids, self.spellings))
        self._pattern = re.compile("|".join(map(re.escape, self.spellings)) or r"(?!)")
        first = _find_unused_characters(str(getattr(tokenizer, "chat_template", "")), len(self.spellings) + 1)
        escape, marks = chr(first), [chr(first + 1 + place) for place in range(len(self.spellings))]
        self._escape = escape
        self._marks = dict(zip(self.spellings, marks, strict=True))
        self._spelling_of = dict(zip(marks, self.spellings, strict=True))
        self._reserved = re.compile(f"[{escape}-{marks[-1] if marks else escape}]")
        self._guards = re.compile(f"{escape}.|{self._reserved.pattern}", re.DOTALL)
        self._spelled = re.compile(f"{self._guards.pattern}|{self._pattern.pattern}", re.DOTALL)
        self._plain_ids_cache: dict[str, list[int]] = {}

    def guard(self, content: str) -> str:
        """Replace each control token spelled in the content by its guard."""
        return self._pattern.sub(lambda found: self._marks[found[0]], self.escape(content))

    def guard_value(self, value: Any) -> Any:
        """Guard all texts of JSON data, keys of objects included: templates write tools and arguments as JSON."""
        if isinstance(value, str):
            return self.guard(value)
        if isinstance(value, Mapping):
            return {self.guard_value(key): self.guard_value(part) for key, part in value.items()}
        return [self.guard_value(part) for part in value] if isinstance(value, list | tuple) else value

    def guard_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Guard all texts of a message but its role: only templates and sampled responses write control tokens."""
        return {key: part if key == "role" else self.guard_value(part) for key, part in message.items()}

    def guard_args(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Guard the texts of a chat template's arguments; the names are those of the template's variables."""
        return {name: self.guard_value(value) for name, value in args.items()}

    def escape(self, text: str) -> str:
        """Escape guards in a text with control tokens of its own: a literal template or a response."""
        return self._reserved.sub(lambda found: self._escape + found[0], text)

    def unguard(self, text: str) -> str:
        """Restore the guarded spellings and the escaped characters."""
        return self._guards.sub(lambda found: self._restore(found[0]), text)

    def has_guarded(self, text: str) -> bool:
        """Whether a text has guarded spellings."""
        return any(found[0] in self._spelling_of for found in self._guards.finditer(text))

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts without added special tokens; guarded spellings become ordinary tokens."""
        if not texts:
            return []
        ids_by_text = self.tokenizer([self.unguard(text) for text in texts], add_special_tokens=False).input_ids
        return [
            self._replace_guarded(text, list(ids)) if self.has_guarded(text) else list(ids)
            for text, ids in zip(texts, ids_by_text, strict=True)
        ]

    def bridge_ids(self, bridges: Sequence[tuple[str, str]]) -> list[list[int]]:
        """Return the ids of texts that follow a stop token or other text; `bridges` holds (stop token or "", text).

        A tokenizer may put a token or a space before a text, and a special token may absorb the space after it. So each
        text is tokenized after an anchor: the stop token, or a text that does not merge with it.
        """
        ids_by_row: dict[int, list[int]] = {row: [] for row, (_, text) in enumerate(bridges) if not text}
        for anchor in (None, *ANCHORS, ""):
            waiting = [
                row for row in range(len(bridges)) if row not in ids_by_row and (anchor is not None or bridges[row][0])
            ]
            anchors = [bridges[row][0] if anchor is None else anchor for row in waiting]
            texts = [before + bridges[row][1] for before, row in zip(anchors, waiting, strict=True)]
            heads = {before: self.token_ids([before])[0] if before else [] for before in set(anchors)}
            for row, before, ids in zip(waiting, anchors, self.token_ids(texts), strict=True):
                head = heads[before]
                if ids[: len(head)] == head:
                    ids_by_row[row] = ids[len(head) :]
        return [ids_by_row[row] for row in range(len(bridges))]

    def _replace_guarded(self, text: str, ids: list[int]) -> list[int]:
        """Replace the ids of guarded spellings; the k-th control token in `ids` is the k-th that the text spells."""
        spelled = [found[0] for found in self._spelled.finditer(text) if not found[0].startswith(self._escape)]
        places = [place for place, token in enumerate(ids) if token in self._ids]
        if len(spelled) != len(places):  # the tokenizer splits spellings differently: tokenize part by part
            return [token for part in self._split_at_guards(text) for token in self._part_ids(part)]
        guarded = {place: mark for place, mark in zip(places, spelled, strict=True) if mark in self._spelling_of}
        parts = (self._plain_ids(guarded[place]) if place in guarded else [token] for place, token in enumerate(ids))
        return [token for part in parts for token in part]

    def _split_at_guards(self, text: str) -> Iterable[str]:
        """The guards of a text, and the texts between them with escaped characters restored."""
        begin = 0
        for found in self._guards.finditer(text):
            if found[0] in self._spelling_of:
                yield self.unguard(text[begin : found.start()])
                yield found[0]
                begin = found.end()
        yield self.unguard(text[begin:])

    def _part_ids(self, part: str) -> list[int]:
        if part in self._spelling_of:
            return self._plain_ids(part)
        return list(self.tokenizer([part], add_special_tokens=False).input_ids[0])

    def _plain_ids(self, mark: str) -> list[int]:
        """Return the ids of a spelling as text: tokenized in two parts, or by letter if a part is a control token."""
        if mark not in self._plain_ids_cache:
            text = self._spelling_of[mark]
            for parts in ([text[:1], text[1:]], [text[:2], text[2:]], list(text)):
                ids = [token for part in self.bridge_ids([("", part) for part in parts]) for token in part]
                if not self._ids & set(ids):
                    break
            self._plain_ids_cache[mark] = [token for token in ids if token not in self._ids]
        return self._plain_ids_cache[mark]

    def _restore(self, found: str) -> str:
        """The text that a guard or an escape replaced."""
        return found[1:] if found.startswith(self._escape) else self._spelling_of[found]


def _find_unused_characters(text: str, count: int) -> int:
    """The first of `count` adjacent private-use characters that a text does not contain."""
    for first in PRIVATE_USE[:-count:count]:
        if not any(chr(code) in text for code in range(first, first + count)):
            return first
    raise ValueError("the chat template contains every private-use character")
