r"""Finds final answers, and reads kinds that math-verify misreads: letters of choices, words, sets in braces.

It parses `(B) 12` as the product of b and 12, `listen` as the product of its letters, and accepts the set `\{1,2\}` for
the pair `(1,2)`.
"""

from __future__ import annotations

import re

_FONT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|sf|it|tt)|mbox|boldsymbol|operatorname)\s*\{([^{}]*)\}"
)
_SPACING = re.compile(r"\\[,;:! ]|\\(?:quad|qquad|left|right|displaystyle)(?![A-Za-z])|\\[()\[\]]|\*\*|[~$]|\s+")
_ANSWER = re.compile(
    r"(?:\b(?:answer|choice|option)\b|答案|选|答え|解答|回答|정답)\s*(?:is|was|为|是|は|은|는)?\s*[:\uff1a]?",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"\n|[.!](?=\s|$)|。")
_SEPARATOR = r"\s*(?:[.,;:/|&、\u548c\u6216]|\band\b|\bor\b)+\s*(?:and\s+|or\s+)?"
_LETTER = r"\(?[A-J]\)?(?![A-Za-z0-9'])"
_CHOICES = re.compile(rf"{_LETTER}(?:\s*(?:[,;&、]|and\b|or\b)\s*(?:and\s+|or\s+)?{_LETTER})*[.:]?")
_FIRST_CHOICE = re.compile(r"(?i:(?:option|choice)\s*)?(?:\(([A-Ja-j])\)|([A-J])(?![A-Za-z0-9'])|([a-j])$)")
_NEXT_CHOICE = re.compile(
    rf"(?:{_SEPARATOR}|\s*(?=\())(?i:(?:option|choice)\s*)?"
    r"(?:\(([A-J])\)|([A-J])(?=\s*(?:$|[.,;:)/&|]|or\b|and\b)))"
)
_EXPLANATION = re.compile(r"$|\s*[.:),;]|\s+(?:because|since|as|is|which|with)\b")
_ALTERNATIVE = re.compile(r"(?:\bor|\band|[,;/])\s*(?:option\s*|choice\s*)?\(([A-J])\)")
_REASON = re.compile(r"\b(?:because|since|as|is|are|was|were|which|with|not|while|but)\b")
_JOINT = re.compile(r"[\s$,;]*(?:\\text\s*\{\s*)?(?:\b(?:and|or)\b)?(?:\s*\})?[\s$,;]*", re.IGNORECASE)
_FIGURE = re.compile(
    r"\\(?:triangle|angle|overline|overrightarrow|bigtriangleup|square|odot)(?![A-Za-z])\s*\{?([A-Z]+)\}?"
)
_WORDS = re.compile(r"[^\W\d_]+(?:[ '-][^\W\d_]+)*")
_FUNCTION = re.compile(r"\b(?:(?:arc)?(?:sin|cos|tan|sec|csc|cot)h?|sqrt|infty|frac)\b")
_SHORT_WORDS = frozenset({"yes", "no"})
_ARTICLE = re.compile(r"^(?:the|an?)\s+", re.IGNORECASE)


def remove_thoughts(text: str) -> str:
    """The text after the last thought; an unfinished thought has no text after it."""
    return re.split("<think(?:ing)?>", re.split("</think(?:ing)?>", text)[-1], maxsplit=1)[0]


def find_boxes(text: str) -> list[str]:
    r"""The contents of the last `\boxed{}`, and of those before it that only `and`, `or` or a comma separates."""
    group: list[str] = []
    begin, closing = -1, _match_braces(text)
    for start in reversed(list(re.finditer(r"\\boxed\s*\{", text))):
        end = closing.get(start.end() - 1)
        if end is None:
            continue
        if group and not (end < begin and _JOINT.fullmatch(text, end + 1, begin)):
            break
        group.insert(0, re.sub(r"(?<=[^\s.])\s*[.。]$", "", text[start.end() : end].strip()))
        begin = start.start()
    return list(dict.fromkeys(group))


def _match_braces(text: str) -> dict[int, int]:
    """The place of the closing brace of each opening one that has one."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for place, character in enumerate(text):
        if character == "{":
            opened.append(place)
        elif character == "}" and opened:
            closing[opened.pop()] = place
    return closing


def find_final_answer(text: str) -> str:
    r"""The contents of the last `\boxed{}`, else the sentence after the last "answer is"; empty if there is neither."""
    if boxes := find_boxes(text):
        return ", ".join(boxes)
    found = list(_ANSWER.finditer(text))
    return _SENTENCE_END.split(text[found[-1].end() :], maxsplit=1)[0].strip() if found else ""


def strip_markup(answer: str) -> str:
    r"""An answer without fonts, spacing and dollar signs: `\textbf{(B)}\ 12` as `(B) 12`."""
    while (plain := _FONT.sub(r" \1 ", answer)) != answer:
        answer = plain
    return re.sub(r"\s+", " ", _SPACING.sub(" ", answer)).strip()


def compare_choices(reference: str, answer: str) -> bool | None:
    """Whether the answer names the choices of the reference, and no others; None if one of them has no choice.

    Both without markup. A reference such as `AC` may also be a name of points: the same letters are right.
    """
    reference, answer = (re.sub(r"^\\?\{\s*(.*?)\s*\\?\}$", r"\1", text) for text in (reference, answer))
    if _CHOICES.fullmatch(reference):
        wanted = set(re.findall(r"[A-J](?![A-Za-z])", reference))
    elif re.fullmatch("[A-J]{2,}", reference) and sorted(set(reference)) == list(reference):
        wanted = set(reference)
    else:
        return None
    if len(wanted) > 1 and re.fullmatch("[A-J]{2,}", answer):
        return answer == "".join(sorted(wanted))
    chosen = _read_choices(answer)
    if chosen is None:
        return False if _CHOICES.fullmatch(reference) and set(re.findall(r"\b[A-J]\b", answer)) - wanted else None
    return chosen == wanted


def _read_choices(answer: str) -> set[str] | None:
    """The letters at the beginning of an answer, before any explanation."""
    first = _FIRST_CHOICE.match(answer)
    if first is None:
        return None
    chosen = {(first[1] or first[2] or first[3]).upper()}
    place = first.end()
    while found := _NEXT_CHOICE.match(answer, place):
        chosen.add(found[1] or found[2])
        place = found.end()
    if first[1] is None and not _EXPLANATION.match(answer, place):
        return None
    return chosen | set(_ALTERNATIVE.findall(_REASON.split(answer[place:], maxsplit=1)[0]))


def compare_words(reference: str, answer: str, *, is_text: bool) -> bool | None:
    r"""Whether the answer is the words of the reference, in any case; None if the reference is no words, such as `xy`.

    Both without markup, except that `\triangle ABC` is also the name of points `ABC`. `is_text`: the reference is in
    `\text{}`, so that short ones are words as well.
    """
    reference, answer = (_FIGURE.sub(r"\1", text).strip(" .!,") for text in (reference, answer))
    if not _WORDS.fullmatch(reference) or _FUNCTION.search(reference) or not (is_text or _has_word(reference)):
        return None
    reference, answer = (_ARTICLE.sub("", text) for text in (reference, answer))
    if reference.isupper() and len(reference) < 4:
        return answer == reference
    pattern = rf"{re.escape(reference)}(?:\s*,?\s*(?:because|since|as|which|with)\b.*)?"
    return re.fullmatch(pattern, answer, re.IGNORECASE | re.DOTALL) is not None


def _has_word(text: str) -> bool:
    """Whether a text has a word, not only factors such as `xy` and `abc`."""
    words = re.split(r"[ '-]", text)
    return any(
        len(word) > 3 or word.lower() in _SHORT_WORDS or (word[:1].isupper() and len(word) > 1) for word in words
    )


def is_set(answer: str) -> bool:
    r"""Whether an answer without markup is a set in braces."""
    return answer.startswith((r"\{", r"\lbrace")) and answer.endswith((r"\}", r"\rbrace"))


def is_tuple(answer: str) -> bool:
    """Whether an answer without markup is a pair, a longer tuple or an interval."""
    return answer.startswith(("(", "[")) and answer.endswith((")", "]")) and "," in answer


def is_list(answer: str) -> bool:
    """Whether an answer without markup is a list without brackets and equations, such as `1, 2`."""
    return "," in answer and not re.search(r"[()\[\]{}=<>]|\\(?:le|ge|leq|geq|ne|in|cup|cap)(?![A-Za-z])", answer)
