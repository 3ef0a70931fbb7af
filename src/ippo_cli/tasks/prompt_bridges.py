"""Find the text between a response and the next one in a rendered prompt, so that sampled tokens are kept."""

from __future__ import annotations


def find_bridge(before: str, now: str, answer: str, stop: str, closing: str = "") -> str | None:
    """The text of the prompt `now` after the prompt `before`, a response and its stop token (or ""); None if `now` does
    not continue them.

    `closing`: the marker with which the template closes a response before the stop token. Without a stop token, pass it
    only if the response ends with it.
    """
    if not now.startswith(before):
        return None
    rest = now[len(before) :]
    # Some templates strip whitespace from responses.
    rendered = next((form for form in _strip_variants(answer) if rest.startswith(form)), None)
    if rendered is None:
        return None
    after = rest[len(rendered) :]
    return after.removeprefix(closing + stop) if after.startswith(closing + stop) else after.removeprefix(stop)


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
