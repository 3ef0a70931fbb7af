"""OpenAI's chat completions: parse and check requests, and write responses, complete or as a stream."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ippo_cli.tasks.environment import Action
from ippo_cli.tasks.model_call import ChatMessage, ModelCall
from ippo_cli.tasks.observations import check_text
from ippo_cli.tasks.tools.formats import chat_template_text, decode_with_markers, detect_tool_format, parse_tool_calls

ROLES = ("system", "developer", "user", "assistant", "tool")
OBEYED = (
    *("model", "messages", "tools", "tool_choice", "n", "seed", "stop", "stream", "stream_options", "logprobs"),
    *(
        "parallel_tool_calls",
        "max_tokens",
        "max_completion_tokens",
        "top_logprobs",
        "functions",
        "response_format",
        "return_token_ids",
    ),
    *("chat_template_kwargs", "reasoning_effort", "continue_final_message"),
)
"""Settings that are read, refused, or in `UNCONSTRAINED`."""
MESSAGE_KEYS = ("role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "reasoning")
"""Keys of messages that are read. All others but those in `REFUSED_KEYS` are reported."""
REFUSED_KEYS = {
    "function_call": "use tool_calls",
    "refusal": "send its text as content",
    "audio": "only text is read",
    "prefix": "responses begin after the messages",
}
ABOUT_REQUESTS = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("request_id", "priority", "cache_salt"),
)
"""Settings without an effect on the response. All others are reported: the configuration fixes how responses are
sampled, since the policy is trained on the distribution that it samples from."""
NEUTRAL = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "logit_bias": {},
    "best_of": 1,
    "stop_token_ids": [],
    "bad_words": [],
    "ignore_eos": False,
    "echo": False,
}
"""Values that clients send for settings that are not used, and that no key of the configuration contradicts."""
UNCONSTRAINED = {"tool_choice": ("auto", "none"), "response_format": ("text",), "parallel_tool_calls": (True,)}
"""Values without constraints on responses. Others have no effect, for the same reason: agent frameworks check responses
themselves, and ask again."""
TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")
SWITCHES = ("stream", "logprobs", "return_token_ids")
MAX_STOP_STRINGS, MAX_STOP_CHARACTERS = 16, 1000
MAX_MESSAGES = 10_000
MAX_TOKENS = 1 << 30  # larger limits have no effect


class RequestError(ValueError):
    """A request that cannot be served; `status` is that of HTTP, `code` OpenAI's."""

    def __init__(self, message: str, *, status: int = 400, code: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status, self.code = status, code

    def to_body(self) -> dict[str, Any]:
        """The body of the response."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": None, "code": self.code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request of a program to an agent."""

    agent: str
    call: ModelCall
    streams: bool
    includes_usage: bool  # whether a stream ends with the numbers of tokens
    wants_logprobs: bool
    wants_token_ids: bool  # `return_token_ids`, as in vLLM


def parse_chat_request(body: Any, agents: Collection[str]) -> ChatRequest:
    """Check a request's JSON. Raises `RequestError`."""
    if not isinstance(body, Mapping):
        raise RequestError("the body must be a JSON object")
    agent = body.get("model")
    if agent not in agents:
        raise RequestError(
            f"model={agent!r:.100} is not an agent; the agents are {', '.join(agents)}",
            status=404,
            code="model_not_found",
        )
    if body.get("n") not in (None, 1):
        raise RequestError("n must be 1: call several times for several responses")
    if body.get("top_logprobs"):
        raise RequestError("top_logprobs must be 0: only the log-probabilities of sampled tokens are known")
    if body.get("functions"):
        raise RequestError("functions is not supported: use tools")
    options = _parse_options(body)
    limits, seed = _parse_limits(body), body.get("seed")
    if seed is not None and not _is_integer(seed):
        raise RequestError("seed must be an integer")
    template_args = body.get("chat_template_kwargs")
    _check_texts(template_args, "chat_template_kwargs")
    effort = body.get("reasoning_effort")
    if not isinstance(effort, str | None):
        raise RequestError("reasoning_effort must be a text")
    _check_texts(effort, "reasoning_effort")
    messages = parse_messages(body.get("messages"))
    continues_final = body.get("continue_final_message")
    if not isinstance(continues_final, bool | None):
        raise RequestError("continue_final_message must be true or false")
    if continues_final and (messages[-1]["role"] != "assistant" or messages[-1].get("tool_calls")):
        raise RequestError("continue_final_message needs a last message of the role assistant, without tool_calls")
    tools = _parse_tools([] if body.get("tools") is None else body["tools"])
    call = ModelCall(
        messages,
        tools=[] if _kind(body.get("tool_choice")) == "none" else tools,
        max_new_tokens=min(*limits, MAX_TOKENS) if limits else None,
        stop_strings=_parse_stop_strings(body.get("stop")),
        template_args=template_args,
        reasoning_effort=effort,
        continues_final=bool(continues_final),
        seed=seed,
    )
    return ChatRequest(
        agent=str(agent),
        call=call,
        streams=body.get("stream") is True,
        includes_usage=options.get("include_usage") is True,
        wants_logprobs=body.get("logprobs") is True,
        wants_token_ids=body.get("return_token_ids") is True,
    )


def _parse_options(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a stream. Raises `RequestError` for objects and switches of another type."""
    for key in ("response_format", "stream_options", "chat_template_kwargs"):
        if not isinstance(body.get(key), Mapping | None):
            raise RequestError(f"{key} must be an object")
    options: Mapping[str, Any] = body.get("stream_options") or {}
    for name, value in [(key, body.get(key)) for key in SWITCHES] + [("include_usage", options.get("include_usage"))]:
        if not isinstance(value, bool | None):
            raise RequestError(f"{name} must be true or false")
    return options


def _parse_limits(body: Mapping[str, Any]) -> list[int]:
    """The limits of the response's tokens. Raises `RequestError`."""
    limits = [body[name] for name in TOKEN_LIMITS if body.get(name) is not None]
    if not all(_is_integer(limit) and limit > 0 for limit in limits):
        raise RequestError("max_tokens must be a positive integer")
    return limits


def find_ignored_settings(body: Mapping[str, Any], max_new_tokens: int | None = None) -> dict[str, Any]:
    """Settings of a valid request, and keys of its messages, that have no effect, and their values; of objects their
    type. `max_new_tokens`: the agent's limit.
    """
    ignored = {
        str(name): value
        for name, value in body.items()
        if value is not None and name not in OBEYED and name not in ABOUT_REQUESTS and NEUTRAL.get(name) != value
    }
    if ignored.get("add_generation_prompt") is not bool(body.get("continue_final_message")):
        ignored.pop("add_generation_prompt", None)  # a response is begun or continued, as it says
    for name, allowed in UNCONSTRAINED.items():
        kind = _kind(body.get(name))
        if kind is not None and kind not in allowed:
            ignored[name] = kind
    for name in TOKEN_LIMITS:
        if max_new_tokens is not None and (body.get(name) or 0) > max_new_tokens:
            ignored[name] = f"{body[name]} above rollout.max_new_tokens={max_new_tokens}"
    for name, value in (body.get("stream_options") or {}).items():
        if name != "include_usage" and not _is_empty(value):
            ignored[f"stream_options.{name}"] = value
    if any(tool["function"].get("strict") for tool in body.get("tools") or ()):
        ignored["tools.function.strict"] = True
    for message in body["messages"]:
        ignored |= _find_ignored_keys(message)
    return ignored


def _find_ignored_keys(message: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a message that have no effect, and their values."""
    parts: list[tuple[str, Mapping[str, Any], tuple[str, ...]]] = [("messages", message, MESSAGE_KEYS)]
    content = message.get("content") or []
    if not isinstance(content, str):
        texts = content if isinstance(content, Sequence) else [content]
        parts += [("messages.content", part, ("type", "text")) for part in texts]
    for call in message.get("tool_calls") or ():
        parts.append(("messages.tool_calls", call, ("id", "type", "function", "index")))
        parts.append(("messages.tool_calls.function", call["function"], ("name", "arguments")))
    return {
        f"{place}.{key}": value
        for place, part, known in parts
        for key, value in part.items()
        if key not in known and not _is_empty(value)
    }


def _kind(value: Any) -> Any:
    """The type of an object, such as of `response_format`; other values themselves."""
    return value.get("type") if isinstance(value, Mapping) else value


def _is_empty(value: Any) -> bool:
    """Whether a value is what clients send for keys that are not used."""
    return value is None or value is False or value in ("", [], {})


def parse_messages(messages: Any) -> list[ChatMessage]:
    """The messages with text as content. Raises `RequestError`."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise RequestError("messages must be a list with at least one message")
    if len(messages) > MAX_MESSAGES:
        raise RequestError(f"messages must be at most {MAX_MESSAGES}, not {len(messages)}")
    return [_parse_message(message) for message in messages]


def _parse_message(message: Any) -> ChatMessage:
    if not isinstance(message, Mapping) or message.get("role") not in ROLES:
        raise RequestError(f"each message must be an object with a role among {', '.join(ROLES)}")
    role = "system" if message["role"] == "developer" else message["role"]
    parsed: dict[str, Any] = {"role": role, "content": _parse_content(message.get("content"), role)}
    if calls := message.get("tool_calls"):
        if not isinstance(calls, Sequence):
            raise RequestError("tool_calls must be a list")
        parsed["tool_calls"] = [_parse_tool_call(call) for call in calls]
    for key, remedy in REFUSED_KEYS.items():
        if not _is_empty(message.get(key)):
            raise RequestError(f"{key} of a message is not supported: {remedy}")
    for key in ("tool_call_id", "name", "reasoning_content", "reasoning"):
        value = message.get(key)
        if not isinstance(value, str | None):
            raise RequestError(f"{key} of a message must be text")
        if value is not None:
            parsed[key] = value
    thought = parsed.pop("reasoning", "")  # two names of one text
    if thought and parsed.setdefault("reasoning_content", thought) != thought:
        raise RequestError("reasoning and reasoning_content of a message differ: send one of them")
    _check_texts(parsed, "a message")
    return parsed


def _parse_content(content: Any, role: str) -> str:
    """The text of a message; text parts are joined."""
    if content is None and role in ("assistant", "tool"):
        return ""
    if isinstance(content, str):
        return _check_text(content)
    parts = content if isinstance(content, Sequence) else [content]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise RequestError(f"the content of a message of {role} must be text")
    return _check_text("".join(map(str, texts)))


def _check_texts(value: Any, source: str) -> None:
    """Raise `RequestError` if a text of JSON data, such as a key, cannot be encoded."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            _check_text(part, source)
        elif isinstance(part, Mapping):
            waiting += [*part, *part.values()]
        elif isinstance(part, list):
            waiting += part


def _check_text(text: str, source: str = "a text") -> str:
    try:
        return check_text(text, source)
    except ValueError as error:
        raise RequestError(str(error)) from error


def _parse_tool_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError("each of tool_calls must have a function with a name")
    arguments = function.get("arguments", "{}")
    with suppress(ValueError, RecursionError):  # templates write arguments as JSON objects
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _parse_tools(tools: Any) -> list[Mapping[str, Any]]:
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise RequestError("tools must be a list")
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError("each of tools must have a function with a name")
    _check_texts(tools, "a tool")
    return list(tools)


def _parse_stop_strings(stop: Any) -> list[str]:
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    is_list = isinstance(stops, Sequence) and len(stops) <= MAX_STOP_STRINGS
    if not is_list or not all(isinstance(text, str) and 0 < len(text) <= MAX_STOP_CHARACTERS for text in stops):
        rule = f"of up to {MAX_STOP_CHARACTERS} characters"
        raise RequestError(f"stop must be a text {rule}, or a list of up to {MAX_STOP_STRINGS} such texts")
    return [_check_text(text) for text in stops]


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def build_message(action: Action, call: ModelCall, stop_strings: Sequence[str]) -> dict[str, Any]:
    """The message of a response: the sampled text up to the first stop string, and the tool calls in it."""
    text = action.text
    if call.tools and action.turn is not None and action.tokenizer is not None:
        text = decode_with_markers(action.turn.completion.ids.tolist(), action.tokenizer)
    ends = [place for stop in (*stop_strings, *call.stop_strings) if (place := text.find(stop)) >= 0]
    text = text[: min(ends)] if ends else text
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if call.tools:
        parsed = parse_tool_calls(text, detect_tool_format(chat_template_text(action.tokenizer)), call.tools)
        message["content"] = parsed.content
        if parsed.calls:
            message["tool_calls"] = [
                {
                    "id": _make_call_id(action, place),
                    "type": "function",
                    "function": {"name": part.name, "arguments": json.dumps(part.arguments)},
                }
                for place, part in enumerate(parsed.calls)
            ]
    return message


def _make_call_id(action: Action, place: int) -> str:
    """An id of nine letters and digits, as some templates demand; a function of the tokens, because templates write it
    into later prompts.
    """
    tokens = [] if action.turn is None else [*action.turn.prompt, *action.turn.completion.ids.tolist()]
    return hashlib.blake2b(f"{place}/{tokens}".encode()).hexdigest()[:9]


def build_completion(request: ChatRequest, action: Action, message: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The JSON of a chat completion with the tokens, log-probabilities and version of weights of an action."""
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": _finish_reason(action, message)}
    completion = {
        "id": f"chatcmpl-{key}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.agent,
        "choices": [choice],
    }
    num_prompt = 0 if action.turn is None else len(action.turn.prompt)
    num_sampled = 0 if action.turn is None else len(action.turn.completion.ids)
    completion["usage"] = {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_sampled,
        "total_tokens": num_prompt + num_sampled,
    }
    if action.turn is None:  # a response without a model, before training
        return completion
    sampled = action.turn.completion
    if request.wants_logprobs:
        choice["logprobs"] = {"content": _token_logprobs(action), "refusal": None}
    if request.wants_token_ids:
        completion["prompt_token_ids"] = list(action.turn.prompt)
        choice["token_ids"] = sampled.ids.tolist()
        if sampled.versions is not None:
            choice["weight_versions"] = sampled.versions.tolist()
    return completion


def stream_events(completion: Mapping[str, Any], *, includes_usage: bool) -> Iterator[str]:
    """The events of a stream that sends a completion: the message, the reason of its end, and the end."""
    base = {key: completion[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    choice = completion["choices"][0]
    message = choice["message"]
    delta = {"role": "assistant", "content": message["content"]}
    if calls := message.get("tool_calls"):
        delta["tool_calls"] = [{"index": place, **call} for place, call in enumerate(calls)]
    first = {"index": 0, "delta": delta, "finish_reason": None}
    first |= {key: choice[key] for key in ("logprobs", "token_ids", "weight_versions") if key in choice}
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    for part in (first, last):
        yield _format_event({**base, "choices": [part]})
    if includes_usage:
        yield _format_event({**base, "choices": [], "usage": completion["usage"]})
    yield "data: [DONE]\n\n"


def _format_event(event: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(event)}\n\n"


def _finish_reason(action: Action, message: Mapping[str, Any]) -> str:
    if message.get("tool_calls"):
        return "tool_calls"
    return "stop" if action.finished else "length"


def _token_logprobs(action: Action) -> list[dict[str, Any]]:
    """Text and log-probability of each sampled token, under the distribution that it was sampled from."""
    assert action.turn is not None
    sampled = action.turn.completion
    entries = []
    for token, logprob in zip(sampled.ids.tolist(), sampled.behavior_logprobs.tolist(), strict=True):
        text = f"token_id:{token}" if action.tokenizer is None else str(action.tokenizer.decode([token]))
        number = logprob if math.isfinite(logprob) else -9999.0
        entries.append({"token": text, "logprob": number, "bytes": list(text.encode()), "top_logprobs": []})
    return entries
