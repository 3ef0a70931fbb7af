"""Token ids of the prompts of a program's calls: sampled tokens are kept, other histories are new sequences."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from chats import CHATML, FAMILIES, Family, tokenizer_of
from tool_chats import TOOL_FAMILIES

from ippo_cli.models.tiny import character_tokenizer
from ippo_cli.tasks.call_history import CallConversation, append_call
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.environment import Action
from ippo_cli.tasks.model_call import ModelCall
from ippo_cli.tasks.programs.chat_completions import RequestError, build_message, parse_chat_request, parse_messages
from ippo_cli.types import Completion, Turn

ADD = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
CALLS = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>',
    "llama3": '{"name": "add", "parameters": {"a": 2}}',
    "mistral": '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 2}}]',
}
ROUNDS = {
    "hermes": "<|im_end|>\n<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    "llama3": '<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"3"<|eot_id|><|start_header_id|>assistant'
    "<|end_header_id|>\n\n",
    "mistral": "</s>[TOOL_RESULTS]",
}
LIMIT = 1000  # tokens of a context
LONG = "word " * 200_000
TOKENIZERS = {name: tokenizer_of(family) for name, family in FAMILIES.items()}
TOOL_TOKENIZERS = {name: tokenizer_of(family) for name, family in TOOL_FAMILIES.items()}


class Agent:
    """An agent with a scripted policy: `ask` gives it a call, `answer` a response, which the program receives."""

    def __init__(self, tokenizer: Any) -> None:
        self.format = PromptFormat("solo", tokenizer, chat_template="auto", max_prompt_tokens=9999)
        self.conversation: CallConversation | None = None
        self.completion: Completion | None = None
        self.call = ModelCall([{"role": "user", "content": ""}])
        self.known: list[int] = []  # ids of the newest prompt and its response

    def ask(self, messages: Sequence[Any], **settings: Any) -> list[int]:
        """The ids of the prompt."""
        self.call = ModelCall(parse_messages(messages), **settings)
        self.conversation = append_call(self.format, self.conversation, self.completion, self.call, LIMIT)
        return self.conversation.ids

    def answer(self, text: str, *, finished: bool = True, ends: bool = True) -> dict[str, Any]:
        """The message for the program. A token that is no text shows whether the sampled ids are kept."""
        assert self.conversation is not None
        tokenizer = self.format.tokenizer
        hidden = [] if self.call.tools or tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        ids = [*hidden, *tokenizer(text, add_special_tokens=False).input_ids]
        ids += [tokenizer.eos_token_id] * (finished and ends)
        self.completion = complete(tokenizer, ids, finished=finished)
        self.known = [*self.conversation.ids, *ids]
        turn = Turn(
            agent="solo", step=0, observation=self.call, prompt=self.conversation.ids, completion=self.completion
        )
        action = Action(self.completion.text, finished, turn=turn, tokenizer=tokenizer)
        self.call.response = build_message(action, self.call, ())
        return dict(self.call.response)

    def text(self, ids: list[int]) -> str:
        """The text of ids, with special tokens."""
        return str(self.format.tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def fresh(self, messages: Sequence[Any], **settings: Any) -> list[int]:
        """The ids of the same messages without a history."""
        return append_call(self.format, None, None, ModelCall(parse_messages(messages), **settings), LIMIT).ids


def complete(tokenizer: Any, ids: Sequence[int], *, finished: bool) -> Completion:
    zeros = torch.zeros(len(ids))
    return Completion(
        ids=torch.tensor(ids, dtype=torch.long),
        logprobs=zeros,
        behavior_logprobs=zeros,
        text=str(tokenizer.decode(ids, skip_special_tokens=True)),
        finished=finished,
    )


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.keeps_history])
@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("Yes.", True),
        (" Yes.\n", True),
        ("Yes", False),
        ("", True),
        ("  ", True),
        ("a<|im_end|>b", True),
        ("a\n", False),
    ],
)
def test_prompts_continue_the_sampled_tokens(name: str, text: str, finished: bool) -> None:
    agent = Agent(TOKENIZERS[name])
    messages: list[Any] = [user("One?")]
    agent.ask(messages)
    for _ in range(3):
        messages += [agent.answer(text, finished=finished), user("Two?")]
        found = agent.ask(messages)
        assert found[: len(agent.known)] == agent.known
        between = agent.text(found[len(agent.known) :])
        assert between.count("Two?") == 1
        assert between.count(FAMILIES[name].stop) == agent.text(agent.fresh([user("Two?")])).count(
            FAMILIES[name].stop
        ) + (not finished) - (name in ("qwen2", "smollm2")), "a truncated response is closed, and no other twice"


@pytest.mark.parametrize("name", TOOL_FAMILIES)
@pytest.mark.parametrize("finished", [True, False])
def test_tool_calls_and_results_continue_the_sampled_tokens(name: str, finished: bool) -> None:
    agent = Agent(TOOL_TOKENIZERS[name])
    messages: list[Any] = [user("What is 2 + 1?")]
    agent.ask(messages, tools=[ADD])
    for _ in range(3):
        message = agent.answer(CALLS[name], finished=finished)
        [call] = message["tool_calls"]
        # As clients send them: without empty fields, and the arguments in their own format.
        arguments = json.dumps(json.loads(call["function"]["arguments"]), indent=1)
        call = {**call, "function": {"name": "add", "arguments": arguments}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": "3"},
        ]
        found = agent.ask(messages, tools=[ADD])
        assert found[: len(agent.known)] == agent.known
        end = len(agent.known) - finished
        assert agent.text(found[end:]).startswith(ROUNDS[name])
        assert agent.text(found).count('"3"' if name != "hermes" else "\n3\n") == len(messages) // 2


def test_changed_tool_calls_are_a_new_sequence() -> None:
    agent = Agent(TOOL_TOKENIZERS["hermes"])
    messages: list[Any] = [user("What is 2 + 1?")]
    agent.ask(messages, tools=[ADD])
    message = agent.answer(CALLS["hermes"])
    [call] = message["tool_calls"]
    for change in ({"id": "other"}, {"function": {"name": "add", "arguments": '{"a": 3}'}}):
        changed = [
            *messages,
            {**message, "tool_calls": [{**call, **change}]},
            {"role": "tool", "tool_call_id": call["id"], "content": "3"},
        ]
        assert agent.ask(changed, tools=[ADD]) == agent.fresh(changed, tools=[ADD])
    other = [{**ADD, "function": {**ADD["function"], "description": "Sum."}}]
    messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "3"}]
    assert agent.ask(messages, tools=other) == agent.fresh(messages, tools=other)
    assert agent.ask(messages, tools=[ADD])[: len(agent.known)] == agent.known, "the first is still known"


@pytest.mark.parametrize("name", ["chatml", "llama3", "mistral"])
def test_rewritten_histories_are_new_sequences(name: str) -> None:
    agent = Agent(TOKENIZERS[name])
    agent.ask([user("One?")])
    first, known = agent.answer("Yes."), agent.known
    agent.ask([user("One?"), first, user("Two?")])
    second = agent.answer("No.")
    rewritten = [
        [user("One!"), first, user("Two?"), second, user("Three?")],
        [user("One?"), {**first, "content": "Yes"}, user("Two?"), second, user("Three?")],
        [user("A summary."), second, user("Three?")],
        [user("One?"), {**first, "reasoning_content": "Hm."}, user("Two?")],
    ]
    if FAMILIES[name].system:
        rewritten.append([{"role": "system", "content": "Be brief."}, user("One?"), first, user("Three?")])
    for messages in rewritten:
        assert agent.ask(messages) == agent.fresh(messages)
        agent.answer("Well.")
    dropped = [user("One?"), first, user("Three?")]
    assert agent.ask(dropped)[: len(known)] == known, "the first response is continued a second time"


def test_conversations_of_one_agent_alternate() -> None:
    agent = Agent(TOKENIZERS["chatml"])
    threads: list[list[Any]] = [[user(f"{number}?")] for number in range(3)]
    known: list[list[int]] = [[], [], []]
    for place in (0, 1, 2, 2, 0, 1, 0, 0, 2, 1):
        found = agent.ask(threads[place])
        assert found[: len(known[place])] == known[place]
        threads[place] += [agent.answer("Yes." * len(threads[place])), user("And?")]
        known[place] = agent.known


def test_stripped_responses_are_continued_with_their_white_space() -> None:
    agent = Agent(TOKENIZERS["chatml"])
    agent.ask([user("One?")])
    message = agent.answer("\n Yes. \n")
    assert message["content"] == "\n Yes. \n"
    found = agent.ask([user("One?"), {**message, "content": "Yes."}, user("Two?")])
    assert found[: len(agent.known)] == agent.known
    assert agent.ask([user("One?"), {**message, "content": "Ye s."}, user("Two?")])[: len(agent.known)] != agent.known


def test_response_after_a_response() -> None:
    """Teams send the messages of others as responses, and ask for another one."""
    agent = Agent(TOKENIZERS["chatml"])
    agent.ask([user("One?")])
    message = agent.answer("Yes.")
    found = agent.ask([user("One?"), message])
    assert found[: len(agent.known)] == agent.known
    assert agent.text(found[len(agent.known) :]) == "\n<|im_start|>assistant\n"
    other = [user("One?"), {"role": "assistant", "name": "other", "content": "Perhaps."}]
    assert agent.ask(other) == agent.fresh(other)
    assert str(agent.call) == "assistant: Perhaps."


def test_stop_strings_are_kept_in_the_prompt() -> None:
    """The program receives the text before a stop string; the tokens have it."""
    agent = Agent(TOKENIZERS["chatml"])
    agent.ask([user("One?")], stop_strings=["END"])
    message = agent.answer("Yes. END", ends=False)
    assert message["content"] == "Yes. "
    for known in ("Yes. ", "Yes.", "Yes. END"):  # some clients restore the stop string
        found = agent.ask([user("One?"), {**message, "content": known}, user("Two?")], stop_strings=["END"])
        assert found[: len(agent.known)] == agent.known
        assert agent.text(found[len(agent.known) :]).startswith("<|im_end|>\n<|im_start|>user\nTwo?")


def test_refused_calls_leave_no_trace() -> None:
    agent = Agent(TOKENIZERS["gemma"])
    agent.ask([user("One?")])
    first, known, completion = agent.answer("Yes."), agent.known, agent.completion
    agent.ask([user("One?"), first, user("Two?" * 900)])
    assert agent.conversation is not None
    agent.conversation.error = "the messages have too many tokens"  # no response
    assert agent.ask([user("One?"), first, user("Two?")])[: len(known)] == known
    agent.conversation.error = "the messages have too many tokens"
    assert agent.ask([user("One?"), first, user("a"), user("b")]) == []
    assert agent.conversation.error == "the chat template rejects the messages: roles must alternate"
    agent.completion = completion
    assert agent.ask([user("One?"), first, user("Three?")])[: len(known)] == known
    second = agent.answer("No.")
    assert agent.ask([user("One?"), first, user("Three?"), second, user("Four?")])[: len(agent.known)] == agent.known


@pytest.mark.parametrize("name", ["qwen3", "mistral last"])
def test_templates_that_rewrite_the_history_start_a_new_sequence(name: str) -> None:
    agent = Agent(TOKENIZERS[name])
    messages: list[Any] = [user("One?")]
    if name == "mistral last":
        messages = [{"role": "system", "content": "Be brief."}, *messages]
    agent.ask(messages)
    messages += [agent.answer("<think>\nI see.\n</think>\n\nYes."), user("Two?")]
    found = agent.ask(messages)
    assert found == agent.fresh(messages)
    assert ("I see" in agent.text(found)) == (name == "mistral last")


def test_empty_response_is_not_closed_twice() -> None:
    """Qwen3's template writes an empty thought before a response after the last question."""
    agent = Agent(TOKENIZERS["qwen3"])
    agent.ask([user("One?")])
    messages = [user("One?"), agent.answer(""), {"role": "tool", "tool_call_id": "a", "content": "3"}]
    found = agent.ask(messages)
    assert found[: len(agent.known)] == agent.known
    assert agent.text(found[len(agent.known) :]) == "\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n"


def test_first_token_that_is_also_the_last_one() -> None:
    """Some tokenizers begin texts with their end token; a truncated tool call has none of its own."""
    tokenizer = tokenizer_of(TOOL_FAMILIES["mistral"])
    template = str(tokenizer.chat_template).replace("']' + eos_token", "']'")
    tokenizer.chat_template = template.replace("' ' + (m.content", "'Answer: ' + (m.content")
    tokenizer.bos_token = tokenizer.eos_token
    agent = Agent(tokenizer)
    agent.ask([user("What is 2 + 1?")], tools=[ADD])
    message = agent.answer(CALLS["mistral"], finished=False)
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "3"}
    found = agent.ask([user("What is 2 + 1?"), message, result], tools=[ADD])
    assert agent.text(found).count("What is") == 1


def test_without_chat_template_contents_are_joined() -> None:
    agent = Agent(character_tokenizer([chr(code) for code in range(32, 127)]))
    agent.ask([user("a")])
    message = agent.answer("bc", finished=False)
    assert agent.text(agent.ask([user("a"), message, user("d")])) == "abcd"
    agent.answer("e", finished=False)
    assert agent.text(agent.ask([user("a"), message, user("d"), {**message, "content": "e"}])) == "abcde"
    message = agent.answer("")
    messages = [user("a"), {**message, "content": "bc"}, user("d"), {**message, "content": "e"}, message, user("f")]
    assert agent.ask(messages)[: len(agent.known)] == agent.known


@pytest.mark.parametrize("kind", ["content", "many messages", "tools", "arguments"])
@pytest.mark.parametrize("continues", [False, True])
def test_only_the_beginning_of_a_prompt_that_is_far_too_long_is_tokenized(kind: str, continues: bool) -> None:
    agent = Agent(TOOL_TOKENIZERS["hermes"])
    messages: list[Any] = [{"role": "user", "content": "One?"}]
    tools: list[Any] = [ADD]
    if continues:
        agent.ask(messages, tools=tools)
        messages += [agent.answer("Yes.")]
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": json.dumps({"a": LONG})}}
    match kind:
        case "content":
            messages += [{"role": "user", "content": LONG}]
        case "many messages":
            messages += [{"role": "user", "content": "Two?"}] * 9_000
        case "tools":
            tools = [{"type": "function", "function": {**ADD["function"], "description": LONG}}]
        case "arguments":
            messages += [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "3", "tool_call_id": "a"},
            ]
    assert LIMIT < len(agent.ask(messages, tools=tools)) < 50_000
    assert len(agent.ask([{"role": "user", "content": "Two?"}], tools=[ADD])) < LIMIT


THINKS = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% if not enable_thinking %}{{ 'SHORT' }}{% endif %}"
    "{% endif %}"
)


def test_arguments_of_the_chat_template_in_a_call() -> None:
    tokenizer = tokenizer_of(Family(THINKS, "<|im_end|>", ("<|im_start|>",)))
    agent = Agent(tokenizer)
    thinking = agent.fresh([user("One?")], template_args={"enable_thinking": True})
    assert "SHORT" in agent.text(agent.fresh([user("One?")]))
    assert "SHORT" not in agent.text(thinking)
    refused = append_call(agent.format, None, None, ModelCall([user("x")], template_args={"think": 1}), LIMIT)
    assert refused.error == "chat_template_kwargs.think is not read by the chat template of this agent"


def test_tools_that_the_chat_template_does_not_show_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    with caplog.at_level("WARNING"):
        for template in (CHATML, CHATML + "{{ tools }}"):
            agent = Agent(tokenizer_of(Family(template, "<|im_end|>", ("<|im_start|>",))))
            for _ in range(2):
                append_call(agent.format, None, None, ModelCall([user("One?")], tools=tools), LIMIT)
    rule = "the chat template of solo's tokenizer does not show the tools of calls: describe them in the messages"
    assert [record.getMessage() for record in caplog.records] == [rule]


@pytest.mark.parametrize("effort", [None, "low"])
def test_reasoning_effort_is_an_argument_of_templates_that_read_it(effort: str | None) -> None:
    tokenizer = tokenizer_of(FAMILIES["chatml"])
    plain, agent = Agent(tokenizer), Agent(tokenizer_of(FAMILIES["chatml"]))
    agent.format.tokenizer.chat_template = "{{ reasoning_effort or 'none' }}|" + FAMILIES["chatml"].template
    question = [{"role": "user", "content": "Hi"}]
    ids = agent.ask(question, reasoning_effort=effort)
    begin = f"{effort or 'none'}|"
    assert tokenizer.decode(ids) == begin + tokenizer.decode(plain.ask(question, reasoning_effort=effort))
    ids = agent.ask(question, reasoning_effort=effort, template_args={"reasoning_effort": "high"})
    assert tokenizer.decode(ids).startswith("high|"), "the more specific setting"


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_final_message_is_continued(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    begin = "Sure, <s> I" if name == "chatml" else "Sure, I"
    question, final = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": begin}
    agent = Agent(tokenizer)
    prompt = agent.ask([question])
    ids = agent.ask([question, final], continues_final=True)
    if name == "qwen3":  # it writes an empty thought before the last response
        assert not ids
        assert agent.conversation is not None
        assert agent.conversation.error.startswith("continue_final_message: the chat template of this agent does not")
        return
    assert ids[: len(prompt)] == prompt
    assert tokenizer.decode(ids[len(prompt) :]).strip() == begin
    assert not set(ids[len(prompt) :]) & set(tokenizer.all_special_ids), "content has no control tokens"


def test_final_message_after_an_earlier_response_keeps_its_tokens() -> None:
    agent = Agent(TOKENIZERS["chatml"])
    messages: list[Any] = [{"role": "user", "content": "Hi"}]
    agent.ask(messages)
    messages += [agent.answer("Hello."), {"role": "user", "content": "And?"}]
    agent.ask([*messages, {"role": "assistant", "content": "Well"}], continues_final=True)
    assert agent.conversation is not None
    known = agent.known
    assert agent.conversation.ids[: len(known)] == known
    assert agent.conversation.text.endswith("assistant\nWell")


def test_request_to_continue_needs_a_message_to_continue() -> None:
    body = {"model": "solo", "continue_final_message": True, "messages": [{"role": "user", "content": "Hi"}]}
    with pytest.raises(RequestError, match="continue_final_message needs a last message of the role assistant"):
        parse_chat_request(body, ["solo"])
    call = parse_chat_request(
        body | {"messages": [*body["messages"], {"role": "assistant", "content": "A"}], "reasoning_effort": "low"},
        ["solo"],
    ).call
    copied = pickle.loads(pickle.dumps(call))
    assert (copied.continues_final, copied.reasoning_effort) == (True, "low")
