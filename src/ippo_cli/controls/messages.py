"""The same team without messages: its protocol, and templates without fields for messages of other agents."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from ippo_cli.config.commands import hydra_override
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, TaskConfig
from ippo_cli.tasks.protocols import DEFAULT_TURN_TEMPLATE
from ippo_cli.tasks.templates import can_read_others, is_conversation_field, template_fields

KEY = "controls.no_messages"
REMEDY = f"give overrides: {KEY}='KEY=VALUE KEY=VALUE'"


def overrides_without_messages(config: Config) -> list[str]:
    """Overrides with which no agent observes another one's messages; agents then act simultaneously.

    Raises `ConfigError` if agents exchange none, or if something else than the task's templates decides what they
    observe.
    """
    task = config.task
    protocol, turns = task.built_in_protocol, task.max_answers or 1
    if not task.is_conversation or protocol is None:
        raise ConfigError(f"task.kind={task.kind}", "decides what agents observe, not their templates", REMEDY)
    if protocol == "calls":
        raise ConfigError("task.protocol=calls", "begins every turn with a message", REMEDY)
    if len(task.agents) < 2 or (protocol == "parallel" and turns == 1):
        raise ConfigError(f"task.protocol={protocol} task.num_turns={turns}", "has no messages", "leave this arm out")
    found = ["task.protocol=parallel", *_changed_templates(task, turns)]
    if len(found) == 1:
        raise ConfigError(f"task.protocol={protocol}", "has messages that no template reads", REMEDY)
    return found


def _changed_templates(task: TaskConfig, turns: int) -> Iterator[str]:
    for name, agent in task.agents.items():
        texts = {"template": agent.template}
        if turns > 1:
            texts["turn_template"] = DEFAULT_TURN_TEMPLATE if agent.turn_template is None else agent.turn_template
        for leaf, text in texts.items():
            key = f"task.agents.{name}.{leaf}"
            if can_read_others(text, key, [f"agents.{name}", "turn"]):
                yield hydra_override(key, _remove_messages(text, key, {f"agents.{name}", "turn"}))


def _remove_messages(template: str, key: str, own: Collection[str]) -> str:
    """Remove the fields with messages of others from a template. Raises `ConfigError` for templates that are code."""
    fields = template_fields(template, key)
    removed = {field for field in fields if is_conversation_field(field)} - set(own)
    names = "|".join(map(re.escape, removed))
    changed = re.sub(rf"\{{\{{|\}}\}}|\{{({names})\}}", lambda found: "" if found[1] else found[0], template)
    if not names or template_fields(changed, key) != fields - removed:
        raise ConfigError(f"{key}={template!r:.60}", "is code that reads messages", REMEDY)
    return changed
