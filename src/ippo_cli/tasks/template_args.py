"""The arguments that a chat template reads in addition to messages and tools."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, TemplateError, meta

from ippo_cli.tasks.tools.formats import chat_template_text

SET_ELSEWHERE = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
FUNCTIONS = {"raise_exception", "strftime_now", "range", "namespace", "tojson"}


def read_template_args(tokenizer: Any) -> frozenset[str] | None:
    """The names of the arguments; None for a template that cannot be analysed."""
    return _find_variables(chat_template_text(tokenizer))


@cache
def _find_variables(template: str) -> frozenset[str] | None:
    try:
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template)
    except TemplateError:  # a tag of transformers, such as `generation`
        return None
    names = meta.find_undeclared_variables(tree) - SET_ELSEWHERE - FUNCTIONS
    return frozenset(name for name in names if not name.endswith("_token"))
