"""Reference answers: rendered from examples, and checked by the reward's own reader before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ippo_cli.config.errors import ConfigError
from ippo_cli.tasks.templates import render_template
from ippo_cli.types import Example

MAX_SHOWN_CHARACTERS = 60  # characters of an answer in a message


def render_reference(answers: Mapping[str, str], agent: str, example: Example) -> str:
    """The reference answer of an agent, from its template in `answers`."""
    return render_template(answers[agent], example, f"task.agents.{agent}.answer")


def check_references(
    answers: Mapping[str, str],
    examples: Sequence[Example],
    find_unreadable: Callable[[list[str]], Sequence[bool]],
    *,
    rule: str,
    remedy: str,
) -> list[str]:
    """Warnings of reference answers that a reward cannot read. Raises `ConfigError` where it can read none.

    `find_unreadable` is given distinct reference answers. `rule` completes "... is not ...".
    """
    warnings: list[str] = []
    for agent, template in answers.items():
        rendered = [render_reference(answers, agent, example) for example in examples]
        distinct = list(dict.fromkeys(rendered))
        flags = dict(zip(distinct, find_unreadable(distinct), strict=True))
        unreadable = [text for text in rendered if flags[text]]
        if not unreadable:
            continue
        key, shown = f"task.agents.{agent}.answer={template}", f"{unreadable[0]!r:.{MAX_SHOWN_CHARACTERS}}"
        if len(unreadable) == len(rendered):
            raise ConfigError(key, f"gives {shown}, which is not {rule}", remedy)
        warnings.append(
            f"{key}: {len(unreadable)} of {len(rendered)} reference answers that were checked are not {rule}, such as "
            f"{shown}; their rows have no score and count as failed; {remedy}"
        )
    return warnings
