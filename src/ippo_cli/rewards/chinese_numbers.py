"""Rewrites answers that are Chinese numerals, such as 四十二, 三分之二 and 百分之五十."""

from __future__ import annotations

import re

_DIGITS = {character: value for value, character in enumerate("零一二三四五六七八九")} | {"\u3007": 0, "两": 2}
_SCALES = {"十": 10, "百": 100, "千": 1000}
_MYRIADS = {"万": 10**4, "亿": 10**8}
_WHOLE = f"[{''.join((*_DIGITS, *_SCALES, *_MYRIADS))}]+"
_NUMBER = rf"负?(?:百分之|{_WHOLE}分之)?{_WHOLE}(?:点[{''.join(_DIGITS)}]+)?"
_ANSWER = re.compile(rf"(\A\s*|\\boxed\{{\s*|答案\s*(?:是|为|:|\uff1a)\s*)({_NUMBER})(?=\s*(?:\Z|\}}|[.。,\uff0c\n]))")


def rewrite_chinese_numbers(text: str) -> str:
    r"""Write the numerals that are a whole text, the content of `\boxed{}` or the words after 答案是 in digits."""
    return _ANSWER.sub(lambda found: found[1] + _write_number(found[2]), text)


def _write_number(numeral: str) -> str:
    sign = "-" if numeral.startswith("负") else ""
    below, _, above = numeral.removeprefix("负").rpartition("分之")
    value = _write_decimal(above)
    if below == "百":
        return rf"{sign}{value}\%"
    return rf"{sign}\frac{{{value}}}{{{_read_whole(below)}}}" if below else f"{sign}{value}"


def _write_decimal(numeral: str) -> str:
    whole, _, decimals = numeral.partition("点")
    return f"{_read_whole(whole)}{'.' * bool(decimals)}{''.join(str(_DIGITS[digit]) for digit in decimals)}"


def _read_whole(numeral: str) -> int:
    """42 for 四十二, and 2024 for 二〇二四, which names digits only."""
    if all(character in _DIGITS for character in numeral):
        return int("".join(str(_DIGITS[character]) for character in numeral))
    total = section = digit = 0
    for character in numeral:
        if character in _DIGITS:
            digit = _DIGITS[character]
        elif character in _SCALES:
            section, digit = section + (digit or 1) * _SCALES[character], 0
        else:
            total, section, digit = (total + section + digit) * _MYRIADS[character], 0, 0
    return total + section + digit
