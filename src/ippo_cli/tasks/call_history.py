"""Token ids of the prompts of a program's chat requests: sampled tokens are kept as they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ippo_cli.tasks.conversation import Conversation, PromptFormat
from ippo_cli.tasks.model_call import ChatMessage, ModelCall
from ippo_cli.tasks.tools.formats import decode_with_markers
from ippo_cli.types import Completion


@dataclass(slots=True)
class CallSequence:
    """One call with its prompt: later calls may continue it."""

    call: ModelCall
    rendered: list[ChatMessage]  # the messages in the form that was rendered: responses as they were sampled
    text: str  # the rendered prompt
    ids: list[int]  # token ids of the prompt
    completion: Completion | None = None


@dataclass(slots=True)
class CallConversation(Conversation):
    """All calls of one agent in an episode; `ids` is the prompt of the newest one."""

    sequences: list[CallSequence] = field(default_factory=list)
    newest: CallSequence | None = None


def append_call(
    prompt_format: PromptFormat, conversation: Conversation | None, completion: Completion | None, call: ModelCall
) -> CallConversation:
    """The agent's conversation with a call's prompt as the next one. `completion`: the response to the call before.

    The prompt continues the newest call with messages and response that the call begins with: its ids are that prompt's
    ids, the sampled ids, and the ids of the text between the response and the next one. Without such a call, or if the
    chat template writes earlier messages in another way, the messages are tokenized as a new sequence.
    """
    if not isinstance(conversation, CallConversation):
        conversation = CallConversation(messages=[], text="", ids=[])
    if conversation.newest is not None and not conversation.error:
        conversation.newest.completion = completion
    conversation.newest, conversation.error = None, ""
    try:
        sequence = _continue_sequence(prompt_format, conversation, call) or _start_sequence(prompt_format, call)
    except Exception as error:  # templates are code of the model, and messages those of the program
        conversation.error = f"the chat template rejects the messages: {(str(error) or repr(error)).splitlines()[0]}"
        conversation.ids = []
        return conversation
    conversation.newest = sequence
    conversation.sequences.append(sequence)
    conversation.text, conversation.ids = sequence.text, sequence.ids
    return conversation


def _start_sequence(prompt_format: PromptFormat, call: ModelCall) -> CallSequence:
    rendered = [_guard_message(prompt_format, part) for part in call.messages]
    text = prompt_format.render_chat(rendered, call.tools)
    return CallSequence(call=call, rendered=rendered, text=text, ids=prompt_format.tokenize_prompts([text])[0])


def _continue_sequence(
    prompt_format: PromptFormat, conversation: CallConversation, call: ModelCall
) -> CallSequence | None:
    """The call as a continuation of an earlier one; None if there is none or the template rewrites it."""
    for earlier in reversed(conversation.sequences):
        new = _find_new_messages(earlier, call)
        if new is None:
            continue
        assert earlier.completion is not None
        assert earlier.call.response is not None
        guarded = [_guard_message(prompt_format, part) for part in new]
        ids, tokenizer = earlier.completion.ids.tolist(), prompt_format.tokenizer
        answer = decode_with_markers(ids, tokenizer) if call.tools else earlier.completion.text
        sampled = {"role": "assistant", "content": answer}
        # Templates write a response with tool calls in their own form: the sampled text is the exact one, but some
        # templates accept tool results only after a message with tool calls.
        structured = call.messages[len(earlier.call.messages)]
        for response in (sampled, structured):
            rendered = [*earlier.rendered, response, *guarded]
            try:
                text = prompt_format.render_chat(rendered, call.tools)
            except Exception:
                if response is sampled:
                    continue
                raise
            bridge = prompt_format.find_bridge(earlier.text, text, response["content"], earlier.completion)
            if bridge is None and response is structured:
                whole = prompt_format.render_chat([*earlier.rendered, response], call.tools, opens_response=False)
                bridge = prompt_format.find_bridge_after(whole, text, earlier.completion)
            if bridge is not None:
                stop = prompt_format.stop_token(earlier.completion)
                between = prompt_format.control.bridge_ids([(stop, bridge)])[0]
                return CallSequence(call=call, rendered=rendered, text=text, ids=[*earlier.ids, *ids, *between])
    return None


def _find_new_messages(earlier: CallSequence, call: ModelCall) -> Sequence[ChatMessage] | None:
    """The call's messages after an earlier call and its response; None if it does not begin with these."""
    if earlier.completion is None or earlier.call.response is None or list(earlier.call.tools) != list(call.tools):
        return None
    known = [*earlier.call.messages, earlier.call.response]
    if len(call.messages) <= len(known):
        return None
    begun = [_normalize(part) for part in call.messages[: len(known)]] == [_normalize(part) for part in known]
    return call.messages[len(known) :] if begun else None


def _normalize(message: ChatMessage) -> tuple[Any, ...]:
    """What distinguishes a message: clients leave out empty fields and format the JSON of arguments anew."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            with suppress(ValueError, RecursionError):
                arguments = json.loads(arguments)
        calls.append((call.get("id"), function.get("name"), json.dumps(arguments, sort_keys=True)))
    return message["role"], message["content"] or "", message.get("tool_call_id"), calls


def _guard_message(prompt_format: PromptFormat, message: ChatMessage) -> ChatMessage:
    """The message with guarded control tokens: only templates and sampled responses write them."""
    return {**message, "content": prompt_format.control.guard(message["content"])}
