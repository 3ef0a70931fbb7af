"""Token ids of the prompts of a program's chat requests: sampled tokens are kept as they are."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ippo_cli.tasks.conversation import Conversation, PromptFormat
from ippo_cli.tasks.model_call import ChatMessage, ModelCall
from ippo_cli.tasks.observations import cut_text
from ippo_cli.tasks.prompt_bridges import find_bridge, find_bridge_after
from ippo_cli.tasks.template_args import REASONING_EFFORT, reads_reasoning_effort
from ippo_cli.tasks.tools.formats import decode_with_markers
from ippo_cli.types import Completion


class UnusableContinuation(ValueError):
    """A chat template writes the last message in a form that a response cannot continue."""


@dataclass(slots=True)
class CallSequence:
    """One call with its prompt: later calls may continue it."""

    call: ModelCall
    rendered: list[ChatMessage]  # the messages in the form that was rendered: responses as they were sampled
    text: str  # the rendered prompt
    ids: list[int]  # token ids of the prompt
    completion: Completion | None = None


class CallHistory:
    """The calls of one agent in an episode, which later calls may continue. With `limit` only the newest are kept."""

    def __init__(self, limit: int | None = None) -> None:
        self._sequences: deque[CallSequence] = deque(maxlen=limit)

    def add(self, prompt_format: PromptFormat, call: ModelCall, limit: int) -> CallSequence:
        """The prompt of a call; its completion is set when it is known. Raises `ValueError` if it cannot be rendered.

        Of a prompt with far more tokens than `limit`, only the beginning is tokenized, which is too long as well.

        The prompt continues the newest call with messages and response that the call begins with: its ids are that
        prompt's ids, the sampled ids, and the ids of the text between the response and the next one. Without such a
        call, or if the chat template writes earlier messages in another way, the messages are a new sequence.
        """
        if call.reasoning_effort is not None and reads_reasoning_effort(prompt_format.tokenizer):
            call.template_args = {REASONING_EFFORT: call.reasoning_effort, **call.template_args}
        if unread := prompt_format.find_unread_args(call.template_args):
            raise ValueError(f"chat_template_kwargs.{unread[0]} is not read by the chat template of this agent")
        try:
            begun = _remove_final_message(call) if call.continues_final else call
            sequence = self._continue_sequence(prompt_format, begun, limit) or _start_sequence(
                prompt_format, begun, limit
            )
            if call.continues_final:
                sequence = _append_final_message(prompt_format, sequence, call, limit)
        except UnusableContinuation:
            raise
        except Exception as error:  # templates are code of the model, and messages those of the program
            reason = (str(error) or repr(error)).splitlines()[0]
            raise ValueError(f"the chat template rejects the messages: {reason}") from error
        prompt_format.report_unread_keys(call.messages, call.tools)
        self._sequences.append(sequence)
        return sequence

    def _continue_sequence(self, prompt_format: PromptFormat, call: ModelCall, limit: int) -> CallSequence | None:
        """The call as a continuation of an earlier one; None if there is none or the template rewrites it."""
        for earlier in reversed(self._sequences):
            new = _find_new_messages(earlier, call)
            if new is None:
                continue
            if (sequence := _extend_sequence(prompt_format, earlier, new, call, limit)) is not None:
                return sequence
        return None


@dataclass(slots=True)
class CallConversation(Conversation):
    """All calls of one agent in an episode; `ids` is the prompt of the newest one."""

    history: CallHistory = field(default_factory=CallHistory)
    newest: CallSequence | None = None


def append_call(
    prompt_format: PromptFormat,
    conversation: Conversation | None,
    completion: Completion | None,
    call: ModelCall,
    limit: int,
) -> CallConversation:
    """The agent's conversation with a call's prompt as the next one, or with an `error`. `completion`: the response to
    the call before. `limit`: as in `CallHistory.add`.
    """
    if not isinstance(conversation, CallConversation):
        conversation = CallConversation(messages=[], text="", ids=[])
    if conversation.newest is not None and not conversation.error:
        conversation.newest.completion = completion
    conversation.newest, conversation.error = None, ""
    try:
        sequence = conversation.history.add(prompt_format, call, limit)
    except ValueError as error:
        conversation.error, conversation.ids = str(error), []
        return conversation
    conversation.newest, conversation.text, conversation.ids = sequence, sequence.text, sequence.ids
    return conversation


def _start_sequence(prompt_format: PromptFormat, call: ModelCall, limit: int) -> CallSequence:
    rendered: list[ChatMessage] = [prompt_format.control.guard_message(part) for part in call.messages]
    text = prompt_format.render_chat(rendered, _guard_tools(prompt_format, call), template_args=call.template_args)
    text = cut_text(text, prompt_format.tokenizer, limit)
    return CallSequence(call=call, rendered=rendered, text=text, ids=prompt_format.tokenize_prompts([text])[0])


def _remove_final_message(call: ModelCall) -> ModelCall:
    return ModelCall(call.messages[:-1], tools=call.tools, template_args=call.template_args)


def _append_final_message(
    prompt_format: PromptFormat, begun: CallSequence, call: ModelCall, limit: int
) -> CallSequence:
    """The prompt of a call that continues its last message: the prompt before it, and its text.

    Raises `UnusableContinuation` if the chat template writes the message otherwise; white space at its end may differ.
    """
    rendered = [*begun.rendered, prompt_format.control.guard_message(call.messages[-1])]
    text = begun.text + rendered[-1]["content"]
    closed = prompt_format.render_chat(
        rendered, _guard_tools(prompt_format, call), opens_response=False, template_args=call.template_args
    )
    if not closed.startswith(text.rstrip()):
        place = next((place for place, (one, other) in enumerate(zip(text, closed, strict=False)) if one != other), 0)
        around, show = slice(max(place - 20, 0), place + 40), prompt_format.control.unguard
        raise UnusableContinuation(
            "continue_final_message: the chat template of this agent does not write the last message after the "
            f"beginning of a response: it writes {show(closed[around])!r} where the prompt has {show(text[around])!r}"
        )
    final = cut_text(rendered[-1]["content"], prompt_format.tokenizer, limit)
    ids = prompt_format.control.bridge_ids([("", final)])[0] if final else []
    return CallSequence(call=call, rendered=rendered, text=begun.text + final, ids=[*begun.ids, *ids])


def _extend_sequence(
    prompt_format: PromptFormat, earlier: CallSequence, new: Sequence[ChatMessage], call: ModelCall, limit: int
) -> CallSequence | None:
    """A call that continues an earlier one with new messages; None if the template rewrites earlier messages."""
    assert earlier.completion is not None
    guarded = [prompt_format.control.guard_message(part) for part in new]
    tools = _guard_tools(prompt_format, call)
    ids, tokenizer = earlier.completion.ids.tolist(), prompt_format.tokenizer
    answer = decode_with_markers(ids, tokenizer) if call.tools else earlier.completion.text
    response_text = prompt_format.sampled_response(earlier.completion)
    answer = response_text.split_content(prompt_format.control.escape(answer))
    sampled, stop = {"role": "assistant", "content": answer}, response_text.stop
    # Templates write a response with tool calls in their own form: the sampled text is the exact one, but some
    # templates accept tool results only after a message with tool calls. A blank text does not show where a template
    # ends it.
    structured = prompt_format.control.guard_message(call.messages[len(earlier.call.messages)])
    is_exact = bool(answer.strip()) or not prompt_format.uses_chat_template
    has_own_form = bool(structured.get("tool_calls")) or not is_exact
    for response in [*([sampled] if is_exact else []), *([structured] if has_own_form else [])]:
        rendered = [*earlier.rendered, response, *guarded]
        try:
            text = prompt_format.render_chat(rendered, tools, template_args=call.template_args)
        except Exception:
            if response is sampled and has_own_form:
                continue
            raise
        if response is sampled:
            bridge = find_bridge(earlier.text, text, answer, response_text)
        else:
            closed = prompt_format.render_chat(
                [*earlier.rendered, response], tools, opens_response=False, template_args=call.template_args
            )
            bridge = find_bridge_after(earlier.text, closed, text, stop, str(tokenizer.eos_token))
        if bridge is not None:
            between = prompt_format.control.bridge_ids([(stop, cut_text(bridge, tokenizer, limit))])[0]
            return CallSequence(call=call, rendered=rendered, text=text, ids=[*earlier.ids, *ids, *between])
    return None


def _find_new_messages(earlier: CallSequence, call: ModelCall) -> Sequence[ChatMessage] | None:
    """The call's messages after an earlier call and its response; None if it does not begin with these.

    There may be none: the agent is then to write another response.
    """
    if earlier.completion is None or earlier.call.response is None or list(earlier.call.tools) != list(call.tools):
        return None
    known, length = earlier.call.response, len(earlier.call.messages)
    if len(call.messages) <= length or earlier.call.template_args != call.template_args:
        return None
    begun = [_normalize(part) for part in call.messages[:length]] == [
        _normalize(part) for part in earlier.call.messages
    ]
    # A client may restore the stop string that its response lacks.
    whole = {**known, "content": earlier.completion.text}
    is_known = _normalize(call.messages[length]) in (_normalize(known), _normalize(whole))
    return call.messages[length + 1 :] if begun and is_known else None


def _normalize(message: ChatMessage) -> tuple[Any, ...]:
    """What distinguishes a message: clients drop empty fields, strip responses, and format arguments differently."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            with suppress(ValueError, RecursionError):
                arguments = json.loads(arguments)
        calls.append((call.get("id"), function.get("name"), json.dumps(arguments, sort_keys=True)))
    content = message["content"] or ""
    if message["role"] == "assistant":  # the sampled white space remains
        content = content.strip()
    texts = [message.get(key) or None for key in ("name", "tool_call_id", "reasoning_content")]
    return message["role"], content, *texts, calls


def _guard_tools(prompt_format: PromptFormat, call: ModelCall) -> list[Any]:
    return prompt_format.control.guard_value(list(call.tools))
