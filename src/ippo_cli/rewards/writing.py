"""A joint reward for two agents that write about one subject: a short text and a longer text.

`reward=function reward.function=ippo_cli.rewards.writing:score`. The criteria and most bounds are those of CoMLRL's
writing experiments (OpenMLRL/LLM_Collab_Writing, rewards/tldr_rewards.py): four levels of at most 0.5, 1, 0.5 and 1
points; a level counts only if all earlier levels score above 0. Differences: the sum is divided by its maximum, 3, and
linking words match only as whole words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

FEWEST_WORDS, MOST_WORDS = 8, 256
LENGTH_RATIO = (1.1, 1.6, 3.2, 5.0)  # of characters: 0 outside the outer bounds, 1 between the inner bounds
VOCABULARY_RATIO = (1.3, 2.0)  # of distinct words: 0 up to the first bound, 1 from the second bound
FIRST_KIND, NEXT_KIND = 0.4, 0.05  # score of the first kind of linking words, and of each additional kind
ENOUGH_OVERLAP = 0.03  # overlap of content words with full score
MAX_POINTS = 3.0

# Function words, which are excluded from the overlap.
_STOP_WORDS = """
a about all also an and any are as at be been but by can do does each for from had has have he her his how i if in
into is it its like many may more most my no not of on one or other our out she should so some such than that the
their them then there these they this those to up use used very was we were what when which who will with would you
your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
# Linking words by kind.
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
    """The team's reward and its parts, each from 0 to 1.

    Levels: both texts have an allowed number of `words` (0.5 points); the ratio of lengths, second to first, is in
    range (`length_ratio`, 1); the second has more distinct words (`vocabulary_ratio`, 0.5); the second has several
    kinds of linking words (`links`, 0.4) and the texts share content words (`overlap`, 0.6). A level with score 0 sets
    all later levels to 0; `links` and `overlap` form one level.
    """
    if len(responses) != 2:
        raise ValueError(f"rewards.writing requires two agents; the task has {len(responses)}: {list(responses)}")
    brief, long = responses.values()
    rows = [score_parts(*pair) for pair in zip(brief, long, strict=True)]
    weights = (0.5, 1.0, 0.5, 0.4, 0.6)
    team = [sum(weight * row[part] for weight, part in zip(weights, PARTS, strict=True)) / MAX_POINTS for row in rows]
    return {"team": team, "parts": {part: [row[part] for row in rows] for part in PARTS}}


def score_parts(brief: str, long: str) -> dict[str, float]:
    """The score of each part; 0 for parts after a level with score 0."""
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
    """The Jaccard similarity of the two texts' content words."""
    first, second = set(_words(brief)) - STOP_WORDS, set(_words(long)) - STOP_WORDS
    return len(first & second) / len(first | second) if first | second else 0.0


def _score_length_ratio(ratio: float) -> float:
    lowest, low, high, highest = LENGTH_RATIO
    return max(min((ratio - lowest) / (low - lowest), 1.0, (highest - ratio) / (highest - high)), 0.0)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
