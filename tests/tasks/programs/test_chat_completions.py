"""Requests as agent frameworks send them, and responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ippo_cli.tasks.environment import Action
from ippo_cli.tasks.programs.chat_completions import (
    RequestError,
    build_completion,
    build_message,
    find_ignored_settings,
    parse_chat_request,
    stream_events,
)

USER = {"role": "user", "content": "Hello"}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}, "strict": True}}
STRICT = {"tools.function.strict": True}
OBFUSCATION = {"stream_options.include_obfuscation": True}
SWITCHES = ("stream", "logprobs", "return_token_ids")
CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
SURROGATE = {**CALL, "function": {"name": "add", "arguments": '{"\\ud800": 2}'}}


def body(*messages: Any, **settings: Any) -> dict[str, Any]:
    return {"model": "low", "messages": list(messages) or [USER], **settings}


@pytest.mark.parametrize(
    ("settings", "ignored"),
    [
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"tool_choice": "required", "tools": [ADD]}, {"tool_choice": "required", **STRICT}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "add"}}, "tools": [ADD]},
            {"tool_choice": "function", **STRICT},
        ),
        ({"tool_choice": "auto", "tools": [ADD]}, STRICT),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"max_tokens": 9}, {"max_tokens": "9 above rollout.max_new_tokens=8"}),
        ({"max_completion_tokens": 8, "max_tokens": 1}, {}),
        ({"stream_options": {"include_usage": True, "include_obfuscation": True}}, OBFUSCATION),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"response_format": "json_object"}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}},
            {"response_format": "json_schema"},
        ),
        ({"logit_bias": {"5": -100}, "top_p": 1}, {"logit_bias": {"5": -100}, "top_p": 1}),
        ({"store": False, "metadata": {"a": "b"}, "user": "me", "n": 1, "logprobs": False, "tools": []}, {}),
        (
            {"min_tokens": 4, "stop_token_ids": [1], "guided_regex": "[0-9]+", "any": 1},
            {"min_tokens": 4, "stop_token_ids": [1], "guided_regex": "[0-9]+", "any": 1},
        ),
        ({"chat_template_kwargs": {"enable_thinking": False}, "parallel_tool_calls": True}, {}),
        ({"reasoning_effort": "low", "continue_final_message": False}, {}),
        ({"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "stop_token_ids": []}, {}),
        ({"presence_penalty": 0.5, "add_generation_prompt": True}, {"presence_penalty": 0.5}),
        ({"add_generation_prompt": False}, {"add_generation_prompt": False}),
        ({"stream": False, "stream_options": None, "stop": None, "seed": None, "tools": None}, {}),
    ],
)
def test_settings_of_frameworks_are_accepted(settings: dict[str, Any], ignored: dict[str, Any]) -> None:
    request = parse_chat_request(body(**settings), ["low"])
    assert request.call.tools == (settings.get("tools") or [])
    assert not request.streams
    assert find_ignored_settings(body(**settings), 8) == ignored


@pytest.mark.parametrize("choice", ["none", {"type": "none"}])
def test_tools_are_not_shown_if_none_may_be_called(choice: Any) -> None:
    assert parse_chat_request(body(tools=[ADD], tool_choice=choice), ["low"]).call.tools == []


def test_smaller_limit_of_tokens_is_obeyed() -> None:
    for limits in ((2, 3), (3, 2)):
        settings = dict(zip(("max_tokens", "max_completion_tokens"), limits, strict=True))
        assert parse_chat_request(body(**settings), ["low"]).call.max_new_tokens == 2


@pytest.mark.parametrize(
    ("message", "ignored"),
    [
        ({"weight": 0, "cache_control": {"type": "ephemeral"}}, ("weight", "cache_control")),
        (
            {"content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
            ("content.cache_control",),
        ),
        ({"role": "assistant", "tool_calls": [{**CALL, "extra": 1, "index": 0}]}, ("tool_calls.extra",)),
        ({"refusal": None, "annotations": [], "prefix": False, "audio": None, "function_call": None}, ()),
    ],
)
def test_keys_of_messages_that_have_no_effect_are_found(message: Any, ignored: Sequence[str]) -> None:
    invalid = body({**USER, **message})
    parse_chat_request(invalid, ["low"])
    assert [*find_ignored_settings(invalid)] == [f"messages.{key}" for key in ignored]


@pytest.mark.parametrize(
    ("message", "parsed"),
    [
        ({"role": "developer", "content": "Be brief."}, {"role": "system", "content": "Be brief."}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "ab"},
        ),
        ({"role": "user", "content": "a", "name": "Ann"}, {"role": "user", "content": "a", "name": "Ann"}),
        ({"role": "assistant", "content": "a"}, {"role": "assistant", "content": "a"}),
        (
            {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{**CALL, "function": {"name": "add", "arguments": {"a": 2}}}],
            },
        ),
        (
            {"role": "assistant", "content": "a", "reasoning": "why"},
            {"role": "assistant", "content": "a", "reasoning_content": "why"},
        ),
        (
            {"role": "tool", "content": None, "tool_call_id": "a"},
            {"role": "tool", "content": "", "tool_call_id": "a"},
        ),
    ],
)
def test_messages_of_frameworks_are_accepted(message: Any, parsed: Any) -> None:
    assert parse_chat_request(body(USER, message), ["low"]).call.messages == [USER, parsed]


@pytest.mark.parametrize(
    ("invalid", "error"),
    [
        ([], "JSON object"),
        (body(model="gpt-4o"), "the agents are low"),
        (body(model=["low"]), "the agents are low"),
        (body(messages=[]), "at least one message"),
        (body(messages="Hello"), "must be a list"),
        (body({"role": "user", "content": None}), "must be text"),
        (body({"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]}), "must be text"),
        (body({"role": "function", "name": "add", "content": "3"}), "a role among"),
        (body({"role": "user", "content": "\ud800"}), "surrogate"),
        (body(USER, {"role": "assistant", "content": None, "tool_calls": 1}), "tool_calls must be a list"),
        (body(USER, {"role": "assistant", "content": None, "tool_calls": [1]}), "a function with a name"),
        (body(n=2), "n must be 1"),
        (body(logprobs=True, top_logprobs=3), "top_logprobs must be 0"),
        (body(functions=[{"name": "add"}]), "use tools"),
        (body(tools={"add": {}}), "tools must be a list"),
        (body(tools=[{"type": "custom", "custom": {"name": "add"}}]), "a function with a name"),
        (body(response_format="json"), "response_format must be an object"),
        (body(stream=True, stream_options=True), "stream_options must be an object"),
        *[(body(**{key: value}), f"{key} must be true or false") for key in SWITCHES for value in ("true", 1, 0)],
        (body(stream_options={"include_usage": "yes"}), "include_usage must be true or false"),
        (body(stop=0), "stop must be"),
        (body(stop=False), "stop must be"),
        (body(tools=0), "tools must be a list"),
        (body(max_tokens="a", max_completion_tokens=1), "positive integer"),
        (body({**USER, "name": 5}), "name of a message must be text"),
        (
            body({**USER, "function_call": {"name": "add"}}),
            "function_call of a message is not supported: use tool_calls",
        ),
        (body({**USER, "refusal": "No."}), "refusal of a message is not supported: send its text"),
        (body({**USER, "prefix": True}), "prefix of a message is not supported"),
        (
            body({**USER, "reasoning": "a", "reasoning_content": "b"}),
            "reasoning and reasoning_content of a message differ",
        ),
        (body({**USER, "name": "\ud800"}), "a message has an unpaired surrogate"),
        (body({**USER, "reasoning_content": "\ud800"}), "a message has an unpaired surrogate"),
        (body(USER, {"role": "assistant", "tool_calls": [SURROGATE]}), "a message has an unpaired surrogate"),
        (body(tools=[{**ADD, "\ud800": 1}]), "a tool has an unpaired surrogate"),
        (body(chat_template_kwargs={"style": ["\ud800"]}), "chat_template_kwargs has an unpaired surrogate"),
        (body(max_tokens=0), "positive integer"),
        (body(max_completion_tokens=0), "positive integer"),
        (body(seed="a"), "seed must be an integer"),
        (body(stop=[""]), "stop must be"),
        (body(stop=["a" * 1001]), "stop must be a text of up to 1000 characters"),
        (body(*[USER] * 10_001), "messages must be at most 10000, not 10001"),
        (body({"role": "user", "content": "\ud800"}), "unpaired surrogate"),
    ],
)
def test_requests_that_cannot_be_served_are_refused(invalid: Any, error: str) -> None:
    with pytest.raises(RequestError, match=error):
        parse_chat_request(invalid, ["low"])


def test_responses_before_training_count_their_tokens() -> None:
    """Frameworks read the usage of every response, also of those without a model."""
    request = parse_chat_request(body(stream=True, stream_options={"include_usage": True}), ["low"])
    action = Action("Yes.", True)
    completion = build_completion(request, action, build_message(action, request.call, ()), "key")
    assert completion["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    assert sum('"usage"' in event for event in stream_events(completion, includes_usage=True)) == 1
