"""Token ids of prompts: chat templates, length limits, multi-turn histories."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from chats import FAMILIES, Family, tokenizer_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ippo_cli.compose.load import build_config, compose_node, resolve_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import AgentConfig
from ippo_cli.models.tiny import character_tokenizer
from ippo_cli.tasks.conversation import Conversation, PromptFormat
from ippo_cli.tasks.messages import MessagesText, read_messages
from ippo_cli.tasks.prompt_lengths import check_prompt_lengths
from ippo_cli.tasks.templates import first_message
from ippo_cli.types import Completion, Example

ROWS = [{"letters": "abcdefghij"[: row % 7 + 1], "n": row} for row in range(10)]
CHAT = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
Make = Callable[..., "Formats"]
TOKENIZERS = {name: tokenizer_of(family) for name, family in FAMILIES.items()}


@pytest.fixture(scope="module")
def agents() -> dict[str, AgentConfig]:
    return build_config(resolve_config(compose_node([]))).task.agents


@pytest.fixture
def formats(agents: dict[str, AgentConfig]) -> Make:
    """A factory of both agents' formats."""

    def make(**changes: Any) -> Formats:
        tokenizer = character_tokenizer([chr(code) for code in range(32, 127)])
        tokenizer.chat_template = changes.pop("template", None)
        asked = {name: replace(agent, **changes.pop(name, {})) for name, agent in agents.items()}
        settings = {"max_prompt_tokens": 60} | changes
        made = {name: PromptFormat(name, tokenizer, system=agent.system, **settings) for name, agent in asked.items()}
        return Formats(made, asked)

    return make


@dataclass(frozen=True)
class Formats:
    formats: dict[str, PromptFormat]
    agents: dict[str, AgentConfig]

    def message(self, agent: str, example: Example) -> str:
        return first_message(agent, self.agents[agent], example)

    def text(self, agent: str, example: Example) -> str:
        return self.formats[agent].text(self.message(agent, example))

    def begin(self, agent: str, *examples: Example) -> list[Conversation]:
        return self.formats[agent].start_conversations([self.message(agent, example) for example in examples])

    def refuse_too_long(self, examples: Iterable[Example], source: str, contexts: dict[str, int]) -> None:
        check_prompt_lengths(self.formats, self.message, enumerate(examples), source, contexts)

    def read(self, begun: Iterable[Conversation]) -> list[str]:
        tokenizer = self.formats["low"].tokenizer
        return [tokenizer.decode(conversation.ids) for conversation in begun]


def test_agents_have_their_own_prompts_for_the_same_examples(formats: Make) -> None:
    made = formats()
    for name, end in (("low", "<"), ("high", ">")):
        assert made.read(made.begin(name, *ROWS)) == [row["letters"] + end for row in ROWS]


def test_begin_without_examples(formats: Make) -> None:
    assert formats().begin("low") == []


def test_chat_template_wraps_prompt_and_system_message(formats: Make) -> None:
    made = formats(
        chat_template=True,
        template=CHAT,
        high={"system": "Be brief."},
        low={"template": "Sort {letters}"},
    )
    assert made.text("low", {"letters": "ba"}) == "<user>Sort ba<assistant>"
    assert made.text("high", {"letters": "ba"}) == "<system>Be brief.<user>ba><assistant>"
    assert made.read(made.begin("low", {"letters": "ba"})) == ["<user>Sort ba<assistant>"]


def test_missing_chat_template_is_rejected(formats: Make) -> None:
    with pytest.raises(ConfigError, match=r"^task\.chat_template=true needs a chat template, and agent low's .*; set"):
        formats(chat_template=True)


def test_auto_uses_chat_template_if_available(formats: Make) -> None:
    row = {"letters": "ba"}
    assert formats(chat_template="auto", template=CHAT).text("low", row) == "<user>ba<<assistant>"
    assert formats(chat_template="auto").text("low", row) == "ba<"
    assert formats(chat_template=False, template=CHAT).text("low", row) == "ba<"


def test_system_message_without_chat_template_is_rejected(formats: Make) -> None:
    briefly = {"system": "Be brief."}
    formats(chat_template="auto", template=CHAT, high=briefly)
    with pytest.raises(ConfigError, match=r"^task\.agents\.high\.system='Be brief\.' requires a chat .*; use"):
        formats(chat_template="auto", high=briefly)


def test_too_long_prompt_is_rejected_and_not_truncated(formats: Make) -> None:
    made = formats(max_prompt_tokens=6)
    fits, long = made.begin("low", {"letters": "abcde"}, {"letters": "abcdef"})
    made.formats["low"].check_length(fits.text, len(fits.ids), 99)
    with pytest.raises(ConfigError) as raised:
        made.formats["low"].check_length(long.text, len(long.ids), 99)
    message = str(raised.value)
    assert message.startswith("rollout.max_prompt_tokens=6 does not allow agent low's prompt of 7 tokens, 'abcdef<'; ")


WIDE = {"low": 99, "high": 99}


def test_too_long_prompts_are_found_before_training(formats: Make) -> None:
    made = formats(max_prompt_tokens=6)
    with pytest.raises(ConfigError) as raised:
        made.refuse_too_long(ROWS, "the training data", WIDE)
    result = "rollout.max_prompt_tokens=6 does not allow agent low's prompt of 7 tokens, row 5 of the training data, "
    assert str(raised.value).startswith(result + "'abcdef<'; ")
    made.refuse_too_long(ROWS[:5], "the training data", WIDE)
    with pytest.raises(ConfigError, match=r"^rollout\.max_prompt_tokens=60 allows .*, which leaves no room") as raised:
        formats().refuse_too_long(ROWS, "the data", WIDE | {"high": 6})
    assert "agent high's prompt of 6 tokens, row 4 of the data, 'abcde>'" in str(raised.value)
    assert "in its context of 6; " in str(raised.value)


def test_chat_template_tokens_count_towards_prompt_length(formats: Make) -> None:
    made = formats(chat_template=True, template="<" * 40 + CHAT, max_prompt_tokens=99)
    made.refuse_too_long(ROWS, "the data", {"low": 66, "high": 66})
    with pytest.raises(ConfigError, match="agent low's prompt of 65 tokens, row 6 of the data"):
        made.refuse_too_long(ROWS, "the data", {"low": 65, "high": 65})


def test_too_long_row_after_many_short_rows_is_found(formats: Make) -> None:
    many = [{"letters": "ab"}] * 1500 + [{"letters": "a" * 60}]
    with pytest.raises(ConfigError, match="prompt of 61 tokens, row 1500 of the data"):
        formats().refuse_too_long(many, "the data", WIDE)


def test_character_tokenizer_reads_newlines_as_characters() -> None:
    tokenizer = character_tokenizer("ab\n ")
    ids = tokenizer("a\n\n b\n").input_ids
    assert len(ids) == 6
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == "a\n\n b\n"


def test_empty_prompt_is_rejected(formats: Make) -> None:
    made = formats(low={"template": ""})
    (empty,) = made.begin("low", {"letters": "a"})
    with pytest.raises(ConfigError, match="prompt of 0 tokens, ''; prompts must have at least one token"):
        made.formats["low"].check_length(empty.text, len(empty.ids), 99)


def completion_of(tokenizer: Any, text: str, *, finished: bool) -> Completion:
    """A completion with separately tokenized text."""
    before = tokenizer("x", add_special_tokens=False).input_ids  # a tokenizer may add a mark before a text
    ids = tokenizer(f"x{text}", add_special_tokens=False).input_ids[len(before) :]
    tokens = torch.tensor(ids + [tokenizer.eos_token_id] * finished, dtype=torch.long)
    message = tokenizer.decode(tokens, skip_special_tokens=True)
    nothing = torch.zeros(len(tokens))
    return Completion(ids=tokens, logprobs=nothing, behavior_logprobs=nothing, text=message, finished=finished)


def afresh(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    """The ids of the whole conversation, rendered and tokenized at once."""
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(whole, add_special_tokens=False).input_ids


WORDS = st.text("ab. \n", min_size=1, max_size=6)
TURNS = st.lists(st.tuples(WORDS, st.text("abc. ", max_size=6), st.booleans()), min_size=2, max_size=5)


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.keeps_history])
@given(turns=TURNS, system=st.booleans())
@settings(max_examples=40, deadline=None)
def test_incremental_ids_match_full_tokenization(name: str, turns: Any, system: bool) -> None:
    family, tokenizer = FAMILIES[name], TOKENIZERS[name]
    briefly = "Be brief." if system and family.system else None
    chat = PromptFormat("low", tokenizer, system=briefly, chat_template=True, max_prompt_tokens=99)
    chat.check_history_continues()
    messages = [{"role": "system", "content": "Be brief."}] if briefly else []
    (first, *_) = turns
    (conversation,) = chat.start_conversations([first[0]])
    messages.append({"role": "user", "content": first[0]})
    for (_, expected, finished), (result, _, _) in pairwise(turns):
        # White space that a template or special token strips cannot be part of the history.
        text = expected.strip() if "trim" in family.template or family.stripping else expected
        chat.extend([conversation], [completion_of(tokenizer, text, finished=finished)], [result])
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": result}]
        assert conversation.ids == afresh(tokenizer, messages)
        assert not conversation.detached


THINKING = "<think>\nHm.\n</think>\n\nYes."
REWRITING = ["qwen3", "mistral last"]


def rewriting(name: str, **settings: Any) -> PromptFormat:
    system = "Be brief." if FAMILIES[name].system else None
    return PromptFormat(
        "low", TOKENIZERS[name], system=system, chat_template=True, max_prompt_tokens=99, **settings
    )  # fmt: skip


@pytest.mark.parametrize("name", REWRITING)
def test_template_that_rewrites_history_is_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.context=append needs .* agent low's tokenizer writes") as raised:
        rewriting(name).check_history_continues()
    assert "; use rollout.context=retokenize" in str(raised.value)
    rewriting(name, context_mode="retokenize").check_history_continues()


def test_error_shows_where_history_was_rewritten() -> None:
    chat = rewriting("qwen3")
    conversations = chat.start_conversations(["Is it?"])
    with pytest.raises(ConfigError) as raised:
        chat.extend(conversations, [completion_of(chat.tokenizer, THINKING, finished=True)], ["Sure?"])
    text = str(raised.value)
    assert "tokenizer writes 'im_start|>assistant\\nYes.<|im_end|>" in text
    assert "where the context has 'im_start|>assistant\\n<think>\\nHm.\\n</think>\\n\\nYes.'; use" in text


@pytest.mark.parametrize("name", REWRITING)
def test_rewritten_history_is_retokenized_with_history_turns(name: str) -> None:
    chat = rewriting(name, context_mode="retokenize")
    conversations = chat.start_conversations(["Is it?", "Why?"])
    messages = [{"role": "system", "content": "Be brief."}]
    messages += [{"role": "user", "content": "Is it?"}]
    for result in ("Sure?", "Really?"):
        answers = [completion_of(chat.tokenizer, text, finished=True) for text in (THINKING, "No.")]
        chat.extend(conversations, answers, [result, result])
        messages += [{"role": "assistant", "content": THINKING}, {"role": "user", "content": result}]
        assert conversations[0].ids == afresh(chat.tokenizer, messages)
        assert [conversation.detached for conversation in conversations] == [True, name != "qwen3"]


def test_conversation_without_chat_template_concatenates_ids() -> None:
    tokenizer = TOKENIZERS["zephyr"]
    raw = PromptFormat("low", tokenizer, max_prompt_tokens=99)
    conversations = raw.start_conversations(["ab", "c"])
    before = [list(conversation.ids) for conversation in conversations]
    answers = [completion_of(tokenizer, "x", finished=True), completion_of(tokenizer, "y", finished=False)]
    raw.extend(conversations, answers, ["\nhi ", "a b"])
    letters = tokenizer.convert_tokens_to_ids
    assert conversations[0].ids == [*before[0], *letters(["x", "</s>", "\n", "h", "i", "\u2581"])]
    assert conversations[1].ids == [*before[1], *letters(["y", "a", "\u2581", "b"])], "no added space before it"
    raw.extend(conversations, answers, ["", ""])
    assert conversations[1].ids[-1] == letters("y")


@pytest.mark.parametrize("family", ["chatml", "llama3", "smollm2"])
def test_messages_of_examples_use_chat_template(family: str) -> None:
    tokenizer = TOKENIZERS[family]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yo"},
        {"role": "user", "content": "Bye"},
    ]
    made = PromptFormat("solo", tokenizer, chat_template="auto", max_prompt_tokens=500)
    wanted = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    [conversation] = made.start_conversations([MessagesText(messages)])
    assert conversation.text == wanted
    assert conversation.messages == messages
    made.check_lengths([(0, MessagesText(messages))], "train", 1000)
    with pytest.raises(ConfigError, match="does not allow agent solo's prompt of"):
        PromptFormat("solo", tokenizer, chat_template="auto", max_prompt_tokens=5).check_lengths(
            [(0, MessagesText(messages[-1:])), (1, MessagesText(messages))], "train", 1000
        )
    with pytest.raises(ConfigError, match="is a second system message"):
        PromptFormat("solo", tokenizer, system="x", chat_template="auto", max_prompt_tokens=500).start_conversations(
            [MessagesText(messages)]
        )
    with pytest.raises(ConfigError, match="needs a chat template"):
        PromptFormat("solo", tokenizer, chat_template=False, max_prompt_tokens=500).start_conversations(
            [MessagesText(messages)]
        )


CLOSED = (  # as Command R7B's: a marker before the end token, which the model writes as well
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ '<|closed|>' }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@pytest.mark.parametrize("end", ["<|closed|><|im_end|>", "<|closed|>", "<|im_end|>", ""])
def test_marker_that_closes_responses_is_not_doubled(end: str) -> None:
    tokenizer = tokenizer_of(Family(CLOSED, "<|im_end|>", ("<|im_start|>", "<|closed|>")))
    prompts = PromptFormat("solo", tokenizer, chat_template=True, max_prompt_tokens=400)
    prompts.check_history_continues()
    messages = [{"role": "user", "content": "One?"}]
    [conversation] = conversations = prompts.start_conversations(["One?"])
    for answer, following in (("Yes.", "Two?"), ("No.", "Three?"), ("So.", "Four?")):
        ids = tokenizer(answer + end, add_special_tokens=False).input_ids
        nothing = torch.zeros(len(ids))
        completion = Completion(
            ids=torch.tensor(ids),
            logprobs=nothing,
            behavior_logprobs=nothing,
            text=answer,
            finished=end.endswith("<|im_end|>"),
        )
        prompts.extend(conversations, [completion], [following])
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": following}]
    right = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    # Sampled tokens remain: a response without the marker has none.
    written = right.replace("<|closed|>", "") if end == "<|im_end|>" else right
    assert tokenizer.decode(conversation.ids) == written


OPENS = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
SPEAKS = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] }}"
OF_ASSISTANT = SPEAKS + "{% if m['role'] == 'assistant' %}{{ 'MARK' }}{% endif %}"
CHAT_END = "{{ '<|im_end|>\\n' }}{% endfor %}" + OPENS
INNER = OF_ASSISTANT.replace("'assistant' %}", "'assistant' and not loop.last %}") + CHAT_END
OTHER_AT_LAST = (
    SPEAKS + "{{ '<|return|>' if m['role'] == 'assistant' and loop.last else '<|end|>' }}{% endfor %}" + OPENS
)
TEXT_END = OF_ASSISTANT.replace("MARK", "</s>") + "{{ '\\n' }}{% endfor %}" + OPENS


@pytest.mark.parametrize(
    ("template", "written", "expected"),
    [
        (SPEAKS + "{{ '\\n' }}" + CHAT_END, "Yes.\n<|im_end|>", "Yes.\n<|im_end|>\n"),
        (SPEAKS + "{{ '\\n' }}" + CHAT_END, "Yes.<|im_end|>", "Yes.<|im_end|>\n"),
        (SPEAKS + "{{ '\\n' }}" + CHAT_END, "Yes.\n", "Yes.\n<|im_end|>\n"),
        (INNER.replace("MARK", "<|closed|>"), "Yes.<|closed|><|im_end|>", "Yes.<|closed|><|im_end|>\n"),
        (INNER.replace("MARK", "<|closed|>"), "Yes.<|im_end|>", "Yes.<|im_end|>\n"),
        (INNER.replace("MARK", "<|closed|>"), "Yes.", "Yes.<|closed|><|im_end|>\n"),
        (OF_ASSISTANT.replace("MARK", "\\n[END]") + CHAT_END, "Yes.\n[END]<|im_end|>", "Yes.\n[END]<|im_end|>\n"),
        (OF_ASSISTANT.replace("MARK", "\\n[END]") + CHAT_END, "Yes.\n", "Yes.\n[END]<|im_end|>\n"),
        (OF_ASSISTANT.replace("MARK", " END ") + CHAT_END, "Yes. END <|im_end|>", "Yes. END <|im_end|>\n"),
        (OF_ASSISTANT.replace("MARK", " END ") + CHAT_END, "Yes. E", "Yes. E END <|im_end|>\n"),
        (
            OF_ASSISTANT.replace("MARK", "<|closed|><|end|>") + CHAT_END,
            "Yes.<|closed|><|end|>",
            "Yes.<|closed|><|end|><|im_end|>\n",
        ),
        (OTHER_AT_LAST, "Yes.<|return|>", "Yes.<|return|>"),
        (OTHER_AT_LAST, "Yes.<|end|>", "Yes.<|end|>"),
        (TEXT_END, "Yes.</s>", "Yes.</s>\n"),
        (TEXT_END, "Yes.", "Yes.</s>\n"),
    ],
)
def test_end_of_a_response_is_written_once(template: str, written: str, expected: str) -> None:
    """The context has the sampled tokens and what the template's end lacks, with white space or text in the end too."""
    tokenizer = tokenizer_of(Family(template, "<|im_end|>", ("<|im_start|>", "<|closed|>", "<|end|>", "<|return|>")))
    prompts = PromptFormat("solo", tokenizer, chat_template=True, max_prompt_tokens=400)
    [conversation] = conversations = prompts.start_conversations(["One?"])
    right = conversation.text
    ids = tokenizer(written, add_special_tokens=False).input_ids
    nothing = torch.zeros(len(ids))
    completion = Completion(
        ids=torch.tensor(ids),
        logprobs=nothing,
        behavior_logprobs=nothing,
        text=tokenizer.decode(ids, skip_special_tokens=True),
        finished=written.endswith(">"),
    )
    for _ in range(3):
        prompts.extend(conversations, [completion], ["One?"])
        right = f"{right}{expected}{prompts.text('One?')}"
        assert tokenizer.decode(conversation.ids) == right


def test_end_token_beside_a_text_that_ends_responses_is_refused() -> None:
    tokenizer = tokenizer_of(Family(TEXT_END, "<|im_end|>", ("<|im_start|>",)))

    def prompts(context_mode: str) -> PromptFormat:
        return PromptFormat("solo", tokenizer, chat_template=True, max_prompt_tokens=400, context_mode=context_mode)

    with pytest.raises(ConfigError, match=r"rollout\.context=append needs .* writes '.*</s>.*; use .*=retokenize"):
        prompts("append").check_history_continues()
    retokenized = prompts("retokenize")
    retokenized.check_history_continues()
    conversations = retokenized.start_conversations(["One?"])
    retokenized.extend(conversations, [completion_of(tokenizer, "Yes.", finished=True)], ["Two?"])
    assert tokenizer.decode(conversations[0].ids).count("Yes.</s>\n<|im_start|>user\nTwo?") == 1


THINKS = (  # as Qwen3's: an argument closes the thought before the response, and earlier thoughts are kept
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}"
    "{{ m['content'] + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think></think>' }}{% endif %}{% endif %}"
)


def test_arguments_of_the_chat_template() -> None:
    tokenizer = tokenizer_of(Family(THINKS, "<|im_end|>", ("<|im_start|>",)))

    def prompts(**args: Any) -> PromptFormat:
        return PromptFormat("solo", tokenizer, chat_template="auto", max_prompt_tokens=99, template_args=args)

    assert not prompts().text("One?").endswith("<think></think>")
    assert not prompts(enable_thinking=True).text("One?").endswith("<think></think>")
    assert prompts(enable_thinking=False).text("One?").endswith("<think></think>")
    with pytest.raises(ConfigError, match=r"chat_template_args\.thinking=1 has no effect.* it reads enable_thinking"):
        prompts(thinking=1)
    with pytest.raises(ConfigError, match="unpaired surrogate, which no tokenizer encodes; remove it"):
        prompts(enable_thinking=["\ud800"])
    with pytest.raises(ConfigError, match="needs a chat template"):
        PromptFormat("solo", tokenizer, chat_template=False, max_prompt_tokens=9, template_args={"enable_thinking": 1})


def test_keys_of_messages_in_rows(caplog: pytest.LogCaptureFixture) -> None:
    """Names and thoughts reach the template, and keys without an effect are reported once."""
    template = THINKS.replace("m['role'] + '", "m['role'] + ' ' + (m.name or '') + '")
    row = [
        {"role": "user", "content": "Is it?", "name": "Ann", "weight": 0, "id": None},
        {"role": "assistant", "content": "Yes.", "reasoning": "I see."},
        {"role": "user", "content": "Sure?"},
    ]
    with caplog.at_level(logging.WARNING):
        for text in (template, CHAT, CHAT):
            tokenizer = tokenizer_of(Family(text, "<|im_end|>", ("<|im_start|>",)))
            prompts = PromptFormat("solo", tokenizer, chat_template=True, max_prompt_tokens=99)
            for _ in range(2):
                shown = prompts.text(read_messages(row, "task.agents.solo.template=messages:keys"))
                assert ("Ann" in shown, "<think>I see.</think>Yes." in shown) == (text == template,) * 2
    found = [record.getMessage() for record in caplog.records]
    assert found[0] == "task.agents.solo.template=messages:keys has messages with weight, which has no effect"
    unread = [
        f"the chat template of solo's tokenizer does not read {key} of messages"
        for key in ("name", "reasoning_content")
    ]
    assert sorted(found[1:]) == sorted(unread * 2)
    for key in ("name", "reasoning"):
        with pytest.raises(ConfigError, match=f"has a message with {key}=5, which is no text; convert it"):
            read_messages([{**row[0], key: 5}], "task.agents.solo.template=messages:keys")


def test_thoughts_of_earlier_answers_in_rows() -> None:
    tokenizer = tokenizer_of(Family(THINKS, "<|im_end|>", ("<|im_start|>",)))
    prompts = PromptFormat("solo", tokenizer, chat_template=True, max_prompt_tokens=99)
    row = [
        {"role": "user", "content": "Is it 6?"},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "2 * 3 <|im_end|>"},
        {"role": "user", "content": "Sure?"},
    ]
    conversation = read_messages(row, "task.agents.solo.template=messages:prompt")
    assert "<think>2 * 3 <|im_end|></think>Yes." in prompts.text(conversation)
    ids = prompts.prompt_ids(conversation)
    assert ids.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 3  # that of the thought is text
