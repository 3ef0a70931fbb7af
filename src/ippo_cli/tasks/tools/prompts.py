"""How one agent's prompts show tools and results, and how its responses name calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema.tools import ToolFormat
from ippo_cli.tasks.messages import Message
from ippo_cli.tasks.tools import call_markup
from ippo_cli.tasks.tools.formats import (
    HERMES_END,
    HERMES_START,
    MISTRAL_MARKER,
    THINK_END,
    THINK_START,
    ParsedResponse,
    ToolCall,
    chat_template_text,
    decode_with_markers,
    detect_tool_format,
    parse_tool_calls,
)
from ippo_cli.tasks.tools.tool import AgentTools, ToolResult, ToolResults
from ippo_cli.types import Completion

PROBE = [{"role": "user", "content": "One?"}]
THOUGHT = "<think>\nLet me see.\n</think>\n\n"


class ToolPrompts:
    """The tools of an agent with its tokenizer. Raises `ConfigError` if the chat template does not show them.

    With `tool_format=json` the agent's own prompt may describe the tools; then results are user messages, and plain
    text without a chat template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tools: AgentTools,
        *,
        uses_chat_template: bool,
        template_args: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.tools = tools
        self.uses_chat_template = uses_chat_template
        schemas = [dict(tool.schema) for tool in tools.tools]
        self.template_has_tools = uses_chat_template and shows_tools(tokenizer, schemas, template_args or {})
        self.schemas = schemas if self.template_has_tools else None  # for the chat template
        self.format = self._resolve_format()
        self._starts_in_thought = uses_chat_template and _opens_thought(tokenizer, self.schemas, template_args or {})

    def parse(self, completion: Completion) -> ParsedResponse:
        """Separate a completion into its text and its calls."""
        schemas = [tool.schema for tool in self.tools.tools]
        text = self.text_with_markers(completion)
        return parse_tool_calls(text, self.format, schemas, starts_in_thought=self._starts_in_thought)

    def text_with_markers(self, completion: Completion) -> str:
        """The text of a completion, with markers that are special tokens."""
        return decode_with_markers(completion.ids.tolist(), self.tokenizer) if len(completion.ids) else completion.text

    def result_messages(self, results: ToolResults, guard: Callable[[str], str]) -> list[Message]:
        """The messages that show results; `guard` protects control tokens that they spell."""
        if not self.uses_chat_template:
            return [{"role": "user", "content": f"\n{guard(results)}\n"}]
        if not self.template_has_tools:
            return [{"role": "user", "content": guard(results)}]
        return [
            {"role": "tool", "name": guard(result.name) or "unknown", "tool_call_id": _call_id(place)}
            | {"content": guard(result.text)}
            for place, result in enumerate(results.results)
        ]

    def call_message(self, completion: Completion) -> Message:
        """A completion as a message with structured calls, for templates that reject its text."""
        parsed = self.parse(completion)
        calls = [
            {
                "type": "function",
                "id": _call_id(place),
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for place, call in enumerate(parsed.calls)
        ]
        return {"role": "assistant", "content": parsed.content, "tool_calls": calls}

    def probe_turns(self) -> list[tuple[str, ToolResults]]:
        """Responses with a call and their results, with and without a thought, which test a chat template."""
        call = ToolCall(self.tools.tools[0].name, {})
        results = ToolResults([ToolResult(call.name, "7")])
        return [(thought + format_call(call, self.format), results) for thought in ("", THOUGHT)]

    def _resolve_format(self) -> ToolFormat:
        """The format of calls. Raises `ConfigError` if the model does not learn of its tools from the template."""
        requested, setting = self.tools.format, self.tools.setting
        key = setting.removesuffix("tools") + "tool_format"
        if requested is ToolFormat.json:
            return requested
        if not self.template_has_tools:
            reason = "ignores tools" if self.uses_chat_template else "is not used"
            raise ConfigError(
                f"{key}={requested.value}",
                f"needs a chat template that shows tools to the model, and that of agent {self.tools.agent} {reason}",
                f"use a model with tools in its chat template, or {key}=json with a prompt that describes the tools",
            )
        if requested is not ToolFormat.auto:
            return requested
        detected = detect_tool_format(chat_template_text(self.tokenizer))
        if detected is ToolFormat.json:
            raise ConfigError(
                f"{key}=auto",
                f"does not know the format in which the chat template of agent {self.tools.agent} asks for calls",
                f"set it to {' '.join(kind.value for kind in ToolFormat if kind is not ToolFormat.auto)}",
            )
        return detected


def format_call(call: ToolCall, format: ToolFormat) -> str:
    """A call as a model writes it."""
    if format is ToolFormat.lfm2:
        return call_markup.write_python_call(call.name, call.arguments)
    if format is ToolFormat.gpt_oss:
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        return (
            f"<|channel|>commentary{call_markup.HARMONY_RECIPIENT}{call.name} <|constrain|>json<|message|>{arguments}"
        )
    values = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in call.arguments.items()
    }
    if format is ToolFormat.qwen3_coder:
        parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
        return f"{HERMES_START}\n<function={call.name}>\n{parameters}</function>\n{HERMES_END}"
    if format is ToolFormat.glm:
        pairs = "".join(f"\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>" for key, value in values.items())
        return f"{HERMES_START}{call.name}{pairs}\n{HERMES_END}"
    key = "parameters" if format is ToolFormat.llama3 else "arguments"
    text = json.dumps({"name": call.name, key: call.arguments}, ensure_ascii=False)
    if format is ToolFormat.hermes:
        return f"{HERMES_START}\n{text}\n{HERMES_END}"
    return f"{MISTRAL_MARKER}[{text}]" if format is ToolFormat.mistral else text


def _opens_thought(
    tokenizer: PreTrainedTokenizerBase, schemas: list[Any] | None, template_args: Mapping[str, Any]
) -> bool:
    """Whether the prompt ends within a thought: the template writes `<think>` and the model its end."""
    try:
        text = _render_probe(tokenizer, schemas, template_args)
    except Exception:  # reported where prompts are rendered
        return False
    return text.rfind(THINK_START) > text.rfind(THINK_END)


def _render_probe(
    tokenizer: PreTrainedTokenizerBase, schemas: list[Any] | None, template_args: Mapping[str, Any]
) -> str:
    return str(
        tokenizer.apply_chat_template(
            PROBE, tools=schemas, tokenize=False, add_generation_prompt=True, **dict(template_args)
        )
    )


def shows_tools(tokenizer: PreTrainedTokenizerBase, schemas: list[Any], template_args: Mapping[str, Any]) -> bool:
    """Whether a chat template renders tools. A template that raises on tools does not."""
    try:
        plain, with_tools = (_render_probe(tokenizer, tools, template_args) for tools in (None, schemas))
    except Exception:  # templates are code of the model; an error without tools is reported where prompts are rendered
        return False
    return plain != with_tools


def _call_id(place: int) -> str:
    """The id of a response's call: nine letters and digits, as Mistral's templates require."""
    return f"call{place:05d}"
