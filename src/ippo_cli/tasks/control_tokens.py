"""Tokenising texts in which content may spell control tokens, such as `<|im_end|>`: these become ordinary tokens.

Only a chat template, or the literal text of an agent's own template, writes control tokens. Whatever comes from a row
or from another agent is content: otherwise an agent could end its turn and write another one's. Content without such a
spelling has the ids that the tokenizer gives it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

FIRST_GUARD = 0xF0000
"""The first of the private-use characters that stand for control tokens spelled in content, until it is tokenised."""
ANCHORS = ("\n", ".", "a")  # texts after which others are tokenised: the first that one does not grow together with


class ControlTokens:
    """The control tokens of a tokenizer: special ones, and `roles` that its chat template writes around messages."""

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
        last = FIRST_GUARD + max(len(self.spellings) - 1, 0)
        self._guards = re.compile(f"[{chr(FIRST_GUARD)}-{chr(last)}]")
        self._marks = {text: chr(FIRST_GUARD + place) for place, text in enumerate(self.spellings)}
        self._plain: dict[str, list[int]] = {}

    def guard(self, content: str) -> str:
        """Content with a private-use character in the place of each control token that it spells."""
        return self._pattern.sub(lambda found: self._marks[found[0]], content)

    def unguard(self, text: str) -> str:
        """The text with guarded spellings as they were."""
        return self._guards.sub(lambda found: self._spelling(found[0]), text)

    def has_guarded(self, text: str) -> bool:
        """Whether a text has guarded spellings."""
        return self._guards.search(text) is not None

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts, without what a tokenizer adds around them; guarded spellings are ordinary tokens."""
        if not texts:
            return []
        made = self.tokenizer([self.unguard(text) for text in texts], add_special_tokens=False).input_ids
        return [
            self._replace_guarded(text, list(ids)) if self.has_guarded(text) else list(ids)
            for text, ids in zip(texts, made, strict=True)
        ]

    def bridge_ids(self, bridges: Sequence[tuple[str, str]]) -> list[list[int]]:
        """The ids of texts as they are after something else: after the given stop token, or after other text.

        A tokenizer may begin a text with a token or a space of its own, and a special token may swallow the space
        after it. So each is tokenised after an anchor: the stop token, or else a text that does not grow together with
        it.
        """
        made: dict[int, list[int]] = {row: [] for row, (_, text) in enumerate(bridges) if not text}
        for anchor in (None, *ANCHORS, ""):
            waiting = [
                row for row in range(len(bridges)) if row not in made and (anchor is not None or bridges[row][0])
            ]
            anchors = [bridges[row][0] if anchor is None else anchor for row in waiting]
            texts = [before + bridges[row][1] for before, row in zip(anchors, waiting, strict=True)]
            heads = {before: self.token_ids([before])[0] if before else [] for before in set(anchors)}
            for row, before, ids in zip(waiting, anchors, self.token_ids(texts), strict=True):
                head = heads[before]
                if ids[: len(head)] == head:
                    made[row] = ids[len(head) :]
        return [made[row] for row in range(len(bridges))]

    def _replace_guarded(self, text: str, ids: list[int]) -> list[int]:
        """The ids with those of guarded spellings replaced: the k-th control token is the k-th that the text spells."""
        marks = re.compile(f"{self._pattern.pattern}|{self._guards.pattern}")
        spelled = [found[0] for found in marks.finditer(text)]
        places = [place for place, token in enumerate(ids) if token in self._ids]
        if len(spelled) != len(places):  # a tokenizer that reads them in another way: part by part
            return [token for part in self._split(text) for token in self._part_ids(part)]
        guarded = {place: one for place, one in zip(places, spelled, strict=True) if self._guards.fullmatch(one)}
        parts = (self._plain_ids(guarded[place]) if place in guarded else [token] for place, token in enumerate(ids))
        return [token for part in parts for token in part]

    def _split(self, text: str) -> Iterable[str]:
        return (part for part in re.split(f"({self._guards.pattern})", text) if part)

    def _part_ids(self, part: str) -> list[int]:
        if self._guards.fullmatch(part):
            return self._plain_ids(part)
        return list(self.tokenizer([part], add_special_tokens=False).input_ids[0])

    def _plain_ids(self, mark: str) -> list[int]:
        """The ids of a spelling as text: in two halves, and letter by letter where a half is a control token."""
        if mark not in self._plain:
            text = self._spelling(mark)
            for parts in ([text[:1], text[1:]], [text[:2], text[2:]], list(text)):
                ids = [token for part in self.bridge_ids([("", part) for part in parts]) for token in part]
                if not self._ids & set(ids):
                    break
            self._plain[mark] = [token for token in ids if token not in self._ids]
        return self._plain[mark]

    def _spelling(self, mark: str) -> str:
        return self.spellings[ord(mark) - FIRST_GUARD]
