"""Renders reference answers from examples, and checks before training that a reward can parse them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import AgentConfig, RewardConfig
from ippo_cli.tasks.templates import render_template
from ippo_cli.types import Example

MAX_SHOWN_CHARACTERS = 60  # of an answer in a message


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
    """Warnings about reference answers that a reward cannot parse; `ConfigError` if it can parse none of an agent's.

    `find_unreadable` receives distinct reference answers. `rule` completes the sentence "... is not ...".
    """
    warnings: list[str] = []
    for agent, template in answers.items():
        rendered = [render_reference(answers, agent, example) for example in examples]
        distinct = list(dict.fromkeys(rendered))
        flags = dict(zip(distinct, find_unreadable(distinct), strict=True))
        unreadable = [text for text in rendered if flags[text]]
        if not unreadable:
            continue
        key, excerpt = f"task.agents.{agent}.answer={template}", f"{unreadable[0]!r:.{MAX_SHOWN_CHARACTERS}}"
        if len(unreadable) == len(rendered):
            raise ConfigError(key, f"renders as {excerpt}, which is not {rule}", remedy)
        warnings.append(
            f"{key}: {len(unreadable)} of {len(rendered)} checked reference answers are not {rule}, such as "
            f"{excerpt}; their rows have no score and count as failed; {remedy}"
        )
    return warnings


def reference_answers(config: RewardConfig, agents: Mapping[str, AgentConfig]) -> dict[str, str]:
    """The templates of the reference answers by agent; `ConfigError` if no agent has one."""
    answers = {name: agent.answer for name, agent in agents.items() if agent.answer is not None}
    if not answers:
        raise ConfigError(
            f"task.agents.{next(iter(agents))}.answer=null",
            f"is not a reference answer, and reward={config.kind} needs one",
            "set a template such as '{answer}'",
        )
    return answers
