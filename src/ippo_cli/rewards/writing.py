"""A joint reward for two agents who write about one subject: the first briefly, the second at length.

`reward=function reward.function=ippo_cli.rewards.writing:score`. What it looks at, and most of its bounds, are those of
CoMLRL's writing experiments (OpenMLRL/LLM_Collab_Writing, rewards/tldr_rewards.py): four levels that open one after
another, of at most 0.5, 1, 0.5 and 1 points. Here the sum is divided by its largest value, 3, and linking words are
found as whole words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

FEWEST_WORDS, MOST_WORDS = 8, 256
LENGTH_RATIO = (1.1, 1.6, 3.2, 5.0)  # of characters: nothing outside the outer bounds, all between the inner ones
VOCABULARY_RATIO = (1.3, 2.0)  # of different words: nothing below, all from the second on
FIRST_KIND, NEXT_KIND = 0.4, 0.05  # for linking words of one kind, and of each further one
ENOUGH_OVERLAP = 0.03  # of the words of both texts that say something
MAX_POINTS = 3.0

# Words that say nothing about a subject.
_STOP_WORDS = """
a about all also an and any are as at be been but by can do does each for from had has have he her his how i if in
into is it its like many may more most my no not of on one or other our out she should so some such than that the
their them then there these they this those to up use used very was we were what when which who will with would you
your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
# Words that link one sentence with another, by what they say.
LINKS: Mapping[str, Sequence[str]] = {
    "addition": ("additionally", "also", "besides", "furthermore", "in addition", "moreover"),
    "example": ("especially", "for example", "for instance", "in particular", "such as"),
    "explanation": ("in fact", "in other words", "indeed", "that is"),
    "consequence": ("as a result", "because of this", "consequently", "hence", "therefore", "thus"),
    "contrast": ("but", "however", "in contrast", "instead", "on the other hand", "whereas", "yet"),
    "concession": ("although", "despite", "even though", "nevertheless", "still", "though"),
    "condition": ("as long as", "if", "otherwise", "provided that", "unless"),
    "order": ("afterwards", "finally", "first", "next", "second", "then"),
    "time": ("before", "meanwhile", "since", "until", "when", "while"),
    "comparison": ("in the same way", "just as", "likewise", "similarly"),
    "emphasis": ("certainly", "clearly", "of course", "undoubtedly"),
    "summary": ("in conclusion", "in short", "in summary", "overall"),
}
_LINKS = {
    kind: re.compile(r"\b(?:" + "|".join(map(re.escape, words)) + r")\b", re.IGNORECASE)
    for kind, words in LINKS.items()
}
PARTS: tuple[str, ...] = ("words", "length_ratio", "vocabulary_ratio", "links", "overlap")


def score(examples: Sequence[Mapping[str, Any]], responses: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The team's reward, from 0 to 1, with its parts, each from 0 to 1 as well.

    Level by level: both texts have enough `words` (0.5 points); the second one is longer than the first by the right
    `length_ratio` (1); it has more different words (`vocabulary_ratio`, 0.5); it has `links` of several kinds (0.4) and
    its words are partly the first one's (`overlap`, 0.6). A level that earns nothing ends the sum, the first without
    points; both parts of the last level open together.
    """
    if len(responses) != 2:
        raise ValueError(f"this reward compares two agents' texts, and there are {len(responses)}: {list(responses)}")
    brief, long = responses.values()
    rows = [score_parts(*pair) for pair in zip(brief, long, strict=True)]
    weights = (0.5, 1.0, 0.5, 0.4, 0.6)
    team = [sum(weight * row[part] for weight, part in zip(weights, PARTS, strict=True)) / MAX_POINTS for row in rows]
    return {"team": team, "parts": {part: [row[part] for row in rows] for part in PARTS}}


def score_parts(brief: str, long: str) -> dict[str, float]:
    """What two texts earn of each part; 0 for parts behind a level that earned nothing."""
    parts = dict.fromkeys(PARTS, 0.0)
    if not all(FEWEST_WORDS <= len(text.split()) <= MOST_WORDS for text in (brief, long)):
        return parts
    parts["words"] = 1.0
    parts["length_ratio"] = _score_length_ratio(len(long) / len(brief))
    if not parts["length_ratio"]:
        return parts
    few, enough = VOCABULARY_RATIO
    ratio = len(set(_words(long))) / max(len(set(_words(brief))), 1)
    parts["vocabulary_ratio"] = min(max((ratio - few) / (enough - few), 0.0), 1.0)
    if not parts["vocabulary_ratio"]:
        return parts
    kinds = sum(pattern.search(long) is not None for pattern in _LINKS.values())
    parts["links"] = min(FIRST_KIND + NEXT_KIND * (kinds - 1), 1.0) if kinds else 0.0
    parts["overlap"] = min(overlap(brief, long) / ENOUGH_OVERLAP, 1.0)
    return parts


def overlap(brief: str, long: str) -> float:
    """The share of the words of two texts that both have, of those that say something."""
    first, second = set(_words(brief)) - STOP_WORDS, set(_words(long)) - STOP_WORDS
    return len(first & second) / len(first | second) if first | second else 0.0


def _score_length_ratio(ratio: float) -> float:
    lowest, low, high, highest = LENGTH_RATIO
    return max(min((ratio - lowest) / (low - lowest), 1.0, (highest - ratio) / (highest - high)), 0.0)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
