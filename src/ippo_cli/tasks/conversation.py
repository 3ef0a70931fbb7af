"""Build the token ids that a policy reads from an agent's observations and responses."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ippo_cli.config.errors import ConfigError, RowError
from ippo_cli.config.schema import RolloutConfig, TaskConfig
from ippo_cli.tasks.control_tokens import ControlTokens
from ippo_cli.tasks.filled_text import FilledText
from ippo_cli.tasks.messages import Message, MessagesText, has_tool_messages
from ippo_cli.tasks.observations import cut_observation, describe_num_tokens
from ippo_cli.tasks.prompt_bridges import (
    ResponseEnd,
    SampledResponse,
    find_bridge,
    find_bridge_after,
    read_response_end,
)
from ippo_cli.tasks.template_args import find_unread_keys, read_template_args
from ippo_cli.tasks.tools.formats import ParsedResponse
from ippo_cli.tasks.tools.load import load_agent_tools
from ippo_cli.tasks.tools.prompts import ToolPrompts, shows_tools
from ippo_cli.tasks.tools.tool import AgentTools, ToolResult, ToolResults
from ippo_cli.types import Completion

_log = logging.getLogger(__name__)

TOOLS = "tools"
SLACK = 16  # margin for tokens that a tokenizer adds to a text, such as a space before it

PROBE_ANSWERS = ("Yes.", "<think>\nLet me see.\n</think>\n\nYes.")  # answers used to test a chat template


@dataclass(slots=True)
class Conversation:
    """One agent's messages and token ids in an episode."""

    messages: list[Message]
    text: str  # the next prompt
    ids: list[int]  # token ids of the next prompt; earlier responses keep their sampled ids
    detached: bool = False  # whether the prompt does not extend the previous prompt and response
    error: str = ""  # why a request of a program has no prompt


class PromptFormat:
    """Renders one agent's prompts, with its tokenizer's chat template or as plain text."""

    def __init__(
        self,
        agent: str,
        tokenizer: PreTrainedTokenizerBase,
        *,
        system: str | None = None,
        chat_template: bool | str = False,
        max_prompt_tokens: int,
        context_mode: str = "append",
        tools: AgentTools | None = None,
        template_args: Mapping[str, Any] | None = None,
    ) -> None:
        self.agent = agent
        self.tokenizer = tokenizer
        self.system = system
        self.max_prompt_tokens = max_prompt_tokens
        self.context_mode = context_mode
        self.uses_chat_template = self._resolve_chat_template(chat_template)
        self.template_args = dict(template_args or {})
        self._check_template_args()
        self._reported_keys: set[str] = set()
        self.tools = tools and ToolPrompts(
            tokenizer, tools, uses_chat_template=self.uses_chat_template, template_args=self.template_args
        )
        self._tool_schemas: Any = None if self.tools is None else self.tools.schemas
        self.control = ControlTokens(tokenizer, self._role_markers() if self.uses_chat_template else "")
        self._tool_schemas = self._tool_schemas and self.control.guard_value(self._tool_schemas)
        self.template_args = self.control.guard_args(self.template_args)

    def _resolve_chat_template(self, requested: bool | str) -> bool:
        """Whether to use the tokenizer's chat template; `auto` uses it if there is one."""
        has_template = self.tokenizer.chat_template is not None
        if requested is True and not has_template:
            raise ConfigError(
                "task.chat_template=true",
                f"needs a chat template, and agent {self.agent}'s tokenizer has none",
                "set task.chat_template=auto, or use an instruction-tuned model",
            )
        chat = bool(requested) and has_template
        if self.system is not None and not chat:
            raise ConfigError(
                f"task.agents.{self.agent}.system={self.system!r}",
                "requires a chat template, and none is used for this agent",
                "use an instruction-tuned model, or put the text into the template",
            )
        return chat

    def _check_template_args(self) -> None:
        """Raise `ConfigError` for an argument that the chat template does not read."""
        key = f"task.agents.{self.agent}.chat_template_args"
        if self.template_args and not self.uses_chat_template:
            raise ConfigError(
                f"{key}={self.template_args}", "needs a chat template, and none is used for this agent", "remove it"
            )
        try:
            json.dumps(self.template_args, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:
            rule = "has an unpaired surrogate, which no tokenizer encodes"
            raise ConfigError(f"{key}={self.template_args!a}", rule, "remove it") from error
        for name in self.find_unread_args(self.template_args):
            known = sorted(read_template_args(self.tokenizer) or ())
            raise ConfigError(
                f"{key}.{name}={self.template_args[name]}",
                f"has no effect: the chat template of agent {self.agent}'s tokenizer does not read it",
                f"it reads {' '.join(known)}" if known else "remove it",
            )

    def find_unread_args(self, args: Mapping[str, Any]) -> list[str]:
        """The names of arguments that the chat template does not read."""
        known = read_template_args(self.tokenizer) if args else None
        return [] if known is None else [name for name in args if name not in known]

    def report_unread_keys(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """Warn once of each key of messages, and of tools of a program's call, that the chat template does not read."""
        for key in find_unread_keys(self.tokenizer, messages) - self._reported_keys:
            self._reported_keys.add(key)
            _log.warning("the chat template of %s's tokenizer does not read %s of messages", self.agent, key)
        if tools and TOOLS not in self._reported_keys:
            self._reported_keys.add(TOOLS)  # rendered once: all tools of a template are shown, or none
            if not (self.uses_chat_template and shows_tools(self.tokenizer, list(tools), self.template_args)):
                rule = "does not show the tools of calls: describe them in the messages"
                _log.warning("the chat template of %s's tokenizer %s", self.agent, rule)

    def start_conversations(self, observations: Sequence[str]) -> list[Conversation]:
        """Start one conversation per observation."""
        first_messages = [self._first_messages(observation) for observation in observations]
        texts = [self._render_messages(messages) for messages in first_messages]
        return [
            Conversation(messages=messages, text=text, ids=ids)
            for messages, text, ids in zip(first_messages, texts, self.tokenize_prompts(texts), strict=True)
        ]

    def extend(
        self, conversations: Sequence[Conversation], completions: Sequence[Completion], observations: Sequence[str]
    ) -> None:
        """Append the agent's completions and next observations to its conversations.

        The next prompt ids are the previous prompt ids, the sampled ids, and the separately tokenized ids of the text
        between the completion and the next response. This fails if a chat template renders the history differently from
        the text so far: `ConfigError`, or with context_mode="retokenize" the whole conversation is tokenized again and
        becomes `detached`. With context_mode="last_only" the prompt contains only the observation.
        """
        if self.context_mode == "last_only":
            for conversation, begun in zip(conversations, self.start_conversations(observations), strict=True):
                conversation.messages, conversation.text, conversation.ids = begun.messages, begun.text, begun.ids
                conversation.detached = True
            return
        bridges: list[tuple[Conversation, Completion, str]] = []
        rewritten: list[Conversation] = []
        for conversation, completion, observation in zip(conversations, completions, observations, strict=True):
            bridge = self._append_turn(conversation, completion, observation)
            conversation.detached = bridge is None
            if bridge is None:
                rewritten.append(conversation)
            else:
                bridges.append((conversation, completion, bridge))
        stops = [self.stop_token(completion) for _, completion, _ in bridges]
        ids = self.control.bridge_ids([(stop, bridge) for stop, (_, _, bridge) in zip(stops, bridges, strict=True)])
        for (conversation, completion, _), between in zip(bridges, ids, strict=True):
            conversation.ids = [*conversation.ids, *completion.ids.tolist(), *between]
        fresh = self.tokenize_prompts([conversation.text for conversation in rewritten])
        for conversation, whole in zip(rewritten, fresh, strict=True):
            conversation.ids = whole

    def parse_response(self, completion: Completion) -> ParsedResponse | None:
        """The text and the tool calls of a completion; None for an agent without tools."""
        return None if self.tools is None else self.tools.parse(completion)

    def check_history_continues(self, *, several_answers: bool = True) -> None:
        """Raise `ConfigError` for a chat template that changes earlier messages.

        Checks two rounds of a sample conversation, with and without thinking in the answers: a template that drops
        thinking would fail during a run. Answers are truncated, or end with the end token, which must be the template's
        end. Without `several_answers` only results of tools follow responses.
        """
        if not self.uses_chat_template or self.context_mode != "append":
            return
        rounds: list[tuple[str, Sequence[str]]] = (
            [] if self.tools is None else [(answer, (results, results)) for answer, results in self.tools.probe_turns()]
        )
        if several_answers:
            rounds += [(answer, ("Two?", "Three?")) for answer in PROBE_ANSWERS]
        for answer, observations in rounds:
            completions = [_make_completion(answer)]
            if isinstance(end := self.tokenizer.eos_token_id, int):
                completions.append(_make_completion(answer, [*self.control.token_ids([answer])[0], end]))
            for completion in completions:
                messages = self._first_messages("One?")
                probe = Conversation(messages=messages, text=self._render_messages(messages), ids=[])
                for observation in observations:
                    self._append_turn(probe, completion, observation)

    def _append_turn(self, conversation: Conversation, completion: Completion, observation: str) -> str | None:
        """Append a response and the next message to a conversation's text.

        Returns the text between the sampled tokens and the next response; None if the history was rewritten.
        """
        if self.tools is not None and isinstance(observation, ToolResults):
            return self._append_results(self.tools, conversation, completion, observation)
        answer, user = self.control.escape(completion.text), self._user_message(observation)
        if not self.uses_chat_template:
            return self._append_text(conversation, completion, answer, user)
        return self._append_messages(conversation, completion, {"role": "assistant", "content": answer}, [user])

    def _append_results(
        self, tools: ToolPrompts, conversation: Conversation, completion: Completion, results: ToolResults
    ) -> str | None:
        """Append a response with tool calls and their results, as `_append_turn` does."""
        answer = self.control.escape(tools.text_with_markers(completion))
        added = tools.result_messages(results, self.control.guard)
        if not self.uses_chat_template:
            return self._append_text(conversation, completion, answer, added[0])
        message = {"role": "assistant", "content": answer}
        if not tools.template_has_tools:
            return self._append_messages(conversation, completion, message, added)
        text, num_messages = conversation.text, len(conversation.messages)
        try:
            return self._append_messages(conversation, completion, message, added)
        except ConfigError:  # rejected or rewritten as text
            conversation.text = text
            del conversation.messages[num_messages:]
        message = tools.call_message(completion)
        message |= {
            "content": self.control.escape(message["content"]),
            "tool_calls": self.control.guard_value(message["tool_calls"]),
        }
        return self._append_messages(conversation, completion, message, added)

    def _append_text(self, conversation: Conversation, completion: Completion, answer: str, message: Message) -> str:
        """Append a response and a message without a chat template."""
        conversation.messages += [{"role": "assistant", "content": answer}, message]
        conversation.text += answer + self.stop_token(completion) + message["content"]
        return message["content"]

    def _append_messages(
        self, conversation: Conversation, completion: Completion, response: Message, added: Sequence[Message]
    ) -> str | None:
        """Append a response and the next messages with the chat template, as `_append_turn` does."""
        before, stop = conversation.text, self.stop_token(completion)
        sampled = self.sampled_response(completion)
        response = {**response, "content": sampled.split_content(response["content"])}
        conversation.messages += [response]
        closed = self._render_messages(conversation.messages, opens_response=False) if "tool_calls" in response else ""
        conversation.messages += added
        conversation.text = now = self._render_messages(conversation.messages)
        answer = response["content"]
        if closed:  # the template writes the calls in its own way, so that only the end of the message is known
            bridge, expected = find_bridge_after(before, closed, now, stop, str(self.tokenizer.eos_token)), closed
        else:
            bridge = find_bridge(before, now, answer, sampled)
            expected = before + answer + (stop if now.startswith(before + answer) else "")
        if bridge is None:
            self._check_rewrite_allowed(expected if now.startswith(before) else before, now)
        return bridge

    def _check_rewrite_allowed(self, expected: str, now: str) -> None:
        """Raise `ConfigError` if the history setting requires an unchanged history."""
        if self.context_mode != "append":
            return
        pairs = zip_longest(expected, now)
        place = next(place for place, (wanted, found) in enumerate(pairs) if wanted != found)
        around = slice(max(place - 20, 0), place + 40)
        raise ConfigError(
            f"rollout.context={self.context_mode}",
            f"needs a chat template that keeps earlier messages unchanged, and that of agent {self.agent}'s tokenizer "
            f"writes {now[around]!r} where the context has {expected[around]!r}",
            "use rollout.context=retokenize, which trains each turn on the prompt that was used to sample it",
        )

    def stop_token(self, completion: Completion) -> str:
        """The special token at the end of a completion; empty if it was truncated or ended by a stop string."""
        if not completion.finished or not len(completion.ids):
            return ""
        last = int(completion.ids[-1])
        return str(self.tokenizer.convert_ids_to_tokens(last)) if last in self.tokenizer.all_special_ids else ""

    @cached_property
    def response_end(self) -> ResponseEnd:
        """How the chat template ends responses, such as Command R7B's with a marker before the end token."""
        question, answer, other = "One?", "Yes.", "Two?"
        messages: list[Message] = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        messages += [{"role": "user", "content": other}]
        try:
            asked, closed, continued = (
                self.render_chat(messages[:count], self._tool_schemas, opens_response=False) for count in (1, 2, 3)
            )
        except Exception:  # reported where prompts are rendered
            return ResponseEnd()
        if not self.uses_chat_template or answer not in closed or answer not in continued:
            return ResponseEnd()
        inner = continued.rpartition(answer)[2].partition(other)[0]
        special = {*map(str, self.tokenizer.all_special_tokens), *self.control.spellings}
        return read_response_end(inner, closed.rpartition(answer)[2], asked.rpartition(question)[2], special)

    def sampled_response(self, completion: Completion) -> SampledResponse:
        """A completion's text with its special tokens."""
        text = completion.text
        if len(completion.ids):
            decoding = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
            ids = completion.ids.tolist()
            text = str(self.tokenizer.decode(ids, spaces_between_special_tokens=False, **decoding))
        return SampledResponse(text, self.stop_token(completion), self.response_end)

    def _role_markers(self) -> str:
        """A rendered chat that shows the role markers; empty if the template rejects the sample messages."""
        messages: list[Message] = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
        if self.tools is not None:
            messages[2:] = self.tools.result_messages(ToolResults([ToolResult("x", "x")]), str)
        try:
            return str(self.render_chat(messages, self._tool_schemas, opens_response=False))
        except Exception:  # templates are code of the model; their errors are reported where they are used
            return ""

    def text(self, observation: str) -> str:
        """The rendered first prompt for an observation."""
        return self.control.unguard(self._text(observation))

    def _text(self, observation: str) -> str:
        return self._render_messages(self._first_messages(observation))

    def prompt_ids(self, observation: str) -> list[int]:
        """The token ids of the first prompt for an observation."""
        return self.tokenize_prompts([self._text(observation)])[0]

    def has_hidden_tokens(self, observation: str) -> bool:
        """Whether a prompt's ids differ from its visible text: added special tokens, or control tokens in content."""
        text, ids = self._text(observation), self.prompt_ids(observation)
        return self.control.has_guarded(text) or str(self.tokenizer.decode(ids)) != text

    def prompt_limit(self, context: int) -> int:
        """Exclusive upper limit on the tokens of a prompt after the first turn.

        Earlier turns may fill the context; with context_mode="last_only", `max_prompt_tokens` applies to every prompt.
        """
        return min(context, self.max_prompt_tokens + 1) if self.context_mode == "last_only" else context

    def check_length(self, text: str, length: int, context: int, place: str = ",") -> None:
        """Raise `ConfigError` for a first prompt that is empty, too long, or leaves no room for a response."""
        setting, prompt = f"rollout.max_prompt_tokens={self.max_prompt_tokens}", f"agent {self.agent}'s prompt"
        number = describe_num_tokens(length, self.max_prompt_tokens)
        if not 0 < length <= self.max_prompt_tokens:
            raise ConfigError(
                setting,
                f"does not allow {prompt} of {number} tokens{place} {self.control.unguard(text)[:60]!r}",
                "raise it, or shorten the prompts" if length else "prompts must have at least one token",
            )
        if length >= context:
            raise ConfigError(
                setting,
                f"allows {prompt} of {length} tokens{place} {text[:60]!r}, which leaves no room for a response in its "
                f"context of {context}",
                "shorten the prompts, or use a model with a longer context",
            )

    def check_lengths(self, rows: Sequence[tuple[int, str]], source: str, context: int) -> None:
        """Raise `ConfigError` for the first of these (row of `source`, first message) that is too long."""
        for row, text, length in self._possibly_too_long(rows, context, f" of {source}"):
            self.check_length(text, length, context, f", row {row} of {source},")

    def find_too_long_rows(self, rows: Sequence[tuple[int, str]], context: int) -> set[int]:
        """The rows with a first message that is too long or empty."""
        limit = min(self.max_prompt_tokens, context - 1)
        return {row for row, _, length in self._possibly_too_long(rows, context) if not 0 < length <= limit}

    def count_fitting_bytes(self, message: str, context: int) -> int:
        """The bytes up to which every first message fits; `message` is one of them.

        The chat template adds a constant number of bytes, and a token has at least one byte.
        """
        around = SLACK + self.tokenizer.num_special_tokens_to_add()
        around += len(self.text(message).encode()) - len(message.encode())
        return min(self.max_prompt_tokens, context - 1) - around

    def _possibly_too_long(
        self, rows: Sequence[tuple[int, str]], context: int, source: str = ""
    ) -> list[tuple[int, str, int]]:
        """Rows that may be too long or empty, as (row, prompt, number of tokens).

        A text has at most as many tokens as bytes, so most rows need no tokenization.
        """
        _, first = rows[0]
        limit = self.count_fitting_bytes(first, context)
        suspects = [
            (row, self._row_text(message, row, f"row {row}{source}"))
            for row, message in rows
            if isinstance(message, MessagesText) or not 0 < len(message.encode()) <= limit
        ]
        ids = self.tokenize_prompts([text for _, text in suspects])
        return [(row, text, length) for (row, text), length in zip(suspects, map(len, ids), strict=True)]

    def _row_text(self, message: str, row: int, place: str) -> str:
        try:
            return self._text(message)
        except ConfigError as error:
            if isinstance(message, MessagesText):  # texts of rows differ, but not in what a template can do with them
                raise RowError(error, row, place) from error
            raise

    def _first_messages(self, observation: str) -> list[Message]:
        observation = cut_observation(observation, self.tokenizer, self.max_prompt_tokens)
        system = [] if self.system is None else [{"role": "system", "content": self.control.guard(self.system)}]
        if not isinstance(observation, MessagesText):
            return [*system, self._user_message(observation)]
        self._check_messages(observation.messages)
        self.report_unread_keys(observation.messages)
        return [*system, *map(self.control.guard_message, observation.messages)]

    def _user_message(self, observation: str) -> Message:
        """The observation as a user message with guarded control tokens.

        Without a chat template, the literal text of a plain template may contain control tokens; its fields may not.
        """
        if self.uses_chat_template:
            return {"role": "user", "content": self.control.guard(observation)}
        parts = observation.parts if isinstance(observation, FilledText) else [(observation, False)]
        return {"role": "user", "content": "".join(map(self._guard_part, parts))}

    def _guard_part(self, part: tuple[str, bool]) -> str:
        text, is_content = part
        return self.control.guard(text) if is_content else self.control.escape(text)

    def _check_messages(self, messages: Sequence[Message]) -> None:
        """Raise `ConfigError` for messages without a chat template, or with two system messages."""
        setting = f"task.agents.{self.agent}.template=messages:..."
        if not self.uses_chat_template:
            raise ConfigError(
                setting,
                "needs a chat template, and none is used for this agent",
                "use an instruction-tuned model with task.chat_template=auto, or use a jinja: template",
            )
        if has_tool_messages(messages) and not self._shows_tool_messages:
            raise ConfigError(
                setting,
                f"has calls of tools or results, and the chat template of agent {self.agent}'s tokenizer does not show "
                "them",
                "use a model with tools in its chat template, set actor.chat_template=FILE, or convert them to text "
                "with task.map",
            )
        if self.system is not None and any(message["role"] == "system" for message in messages):
            raise ConfigError(
                f"task.agents.{self.agent}.system={self.system!r}",
                "is a second system message in addition to that of the examples",
                "set it to null, or remove that of the examples with task.map",
            )

    @cached_property
    def _shows_tool_messages(self) -> bool:
        """Whether the chat template writes calls of tools, their arguments and their results."""
        name, value, result = "probe_name", "probe_value", "probe_result"
        call = {"id": "call00000", "type": "function", "function": {"name": name, "arguments": {"probe_key": value}}}
        messages: list[Message] = [
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": name, "tool_call_id": "call00000", "content": result},
        ]
        try:
            text = self.render_chat(messages, self._tool_schemas)
        except Exception:  # templates are code of the model
            return False
        return all(part in text for part in (name, value, result))

    def _render_messages(self, messages: Sequence[Message], *, opens_response: bool = True) -> str:
        """The messages as the text of the next prompt; without `opens_response` not as far as the next response."""
        try:
            return self.render_chat(messages, self._tool_schemas, opens_response=opens_response)
        except Exception as error:  # templates are code of the model and can raise anything
            reason = (str(error) or repr(error)).splitlines()[0]
            rule = f"is rejected by the chat template of {self.agent}'s tokenizer ({reason})"
            if self.system is None:
                raise ConfigError("task.chat_template=true", rule, "set it to false") from error
            setting = f"task.agents.{self.agent}.system={self.system!r}"
            raise ConfigError(setting, rule, "set it to null and put its text into the template") from error

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        *,
        opens_response: bool = True,
        template_args: Mapping[str, Any] | None = None,
    ) -> str:
        """The messages as text; `opens_response`: as far as the beginning of the response. `template_args`: of a call,
        in addition to the agent's.

        Raises what the chat template raises.
        """
        if not self.uses_chat_template:
            return "".join(message["content"] for message in messages)
        return str(
            self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=list(tools) if tools else None,
                tokenize=False,
                add_generation_prompt=opens_response,
                **{**self.template_args, **(self.control.guard_args(template_args) if template_args else {})},
            )
        )

    def tokenize_prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of prompts. Chat templates contain their special tokens; otherwise the tokenizer's prefix is added,
        but not its suffix: an end token does not belong into a prompt."""
        ids = self.control.token_ids(texts)
        begins = [] if self.uses_chat_template else self._prefix_ids
        return [[*begins, *own] for own in ids]

    @cached_property
    def _prefix_ids(self) -> list[int]:
        """The ids that the tokenizer adds before a text."""
        whole, own = (self.tokenizer("a", add_special_tokens=adds).input_ids for adds in (True, False))
        starts = range(len(whole) - len(own) + 1)
        start = next((start for start in starts if whole[start : start + len(own)] == own), 0)
        return list(whole[:start])


def _make_completion(text: str, ids: Sequence[int] = ()) -> Completion:
    """A response for a check: with the `ids` of a finished one, or truncated without any."""
    empty = torch.zeros(len(ids))
    return Completion(
        ids=torch.tensor(ids, dtype=torch.long),
        logprobs=empty,
        behavior_logprobs=empty,
        text=text,
        finished=bool(ids),
    )


def prompt_formats(
    task: TaskConfig, rollout: RolloutConfig, tokenizers: Mapping[str, PreTrainedTokenizerBase]
) -> dict[str, PromptFormat]:
    """Return every agent's format. Raises `ConfigError` if a chat template or system message cannot be used."""
    return {
        name: PromptFormat(
            name,
            tokenizer,
            system=task.agents[name].system,
            chat_template=task.chat_template_choice,
            max_prompt_tokens=rollout.max_prompt_tokens,
            context_mode=rollout.context.value,
            tools=load_agent_tools(name, task.agents[name]),
            template_args=task.agents[name].chat_template_args,
        )
        for name, tokenizer in tokenizers.items()
    }
