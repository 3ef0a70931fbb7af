"""From what an agent is told and says to the token ids that its policy reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, zip_longest

import torch
from transformers import PreTrainedTokenizerBase

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import JsonlConfig, RolloutConfig, TaskConfig
from ippo_cli.tasks.control_tokens import ControlTokens
from ippo_cli.tasks.filled_text import FilledText
from ippo_cli.tasks.messages import Message, MessagesText
from ippo_cli.types import Completion, Example

TOKENIZE_BATCH = 1024  # tokenised together while looking for prompts that are too long
SLACK = 16  # tokens that a tokenizer may add to a text in ways of its own, such as a space before it

PROBE_ANSWERS = ("Yes.", "<think>\nLet me see.\n</think>\n\nYes.")  # answers that a chat template is tried on

FirstMessage = Callable[[str, Example], str]
"""What an agent is told first about an example."""


@dataclass(slots=True)
class Conversation:
    """One agent's part of an episode: grows with every turn."""

    messages: list[Message]
    text: str  # what the policy reads next
    ids: list[int]  # that text's tokens; after the first turn, the tokens that were written and not their text's
    detached: bool = False  # whether this prompt is no extension of what was read and written before


class PromptFormat:
    """How one agent's tokenizer writes what it is told: through its chat template, or as it is."""

    def __init__(
        self,
        agent: str,
        tokenizer: PreTrainedTokenizerBase,
        *,
        system: str | None = None,
        chat_template: bool | str = False,
        max_prompt_tokens: int,
        history: str = "prefix",
    ) -> None:
        self.agent = agent
        self.tokenizer = tokenizer
        self.system = system
        self.max_prompt_tokens = max_prompt_tokens
        self.history = history
        self.chat = self._resolve_chat_template(chat_template)
        self.control = ControlTokens(tokenizer, self._role_markers() if self.chat else "")

    def _resolve_chat_template(self, requested: bool | str) -> bool:
        """Whether the agent is asked through its tokenizer's chat template; `auto` does so where there is one."""
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
                "has an effect with a chat template only, and none is used for this agent",
                "use an instruction-tuned model, or put the text into the template",
            )
        return chat

    def begin(self, observations: Sequence[str]) -> list[Conversation]:
        """Conversations in which the agent was told one thing each, and is to answer."""
        first_messages = [self._first_messages(observation) for observation in observations]
        texts = [self._written(messages) for messages in first_messages]
        return [
            Conversation(messages=messages, text=text, ids=ids)
            for messages, text, ids in zip(first_messages, texts, self._ids(texts), strict=True)
        ]

    def extend(
        self, conversations: Sequence[Conversation], completions: Sequence[Completion], observations: Sequence[str]
    ) -> None:
        """Add what the agent answered and what it is told then, to be answered next.

        The ids that the policy reads next are those it read before, those it wrote, and the ids of what stands between
        that and its next answer, which are tokenised by themselves. Where a chat template writes the history in
        another way than it was read, there are no such ids: `ConfigError`, or with history="turns" the whole
        conversation is tokenised anew, and the conversation is `detached`. With history="latest" nothing but the
        observation is read.
        """
        if self.history == "latest":
            for conversation, begun in zip(conversations, self.begin(observations), strict=True):
                conversation.messages, conversation.text, conversation.ids = begun.messages, begun.text, begun.ids
                conversation.detached = True
            return
        bridges: list[tuple[Conversation, Completion, str]] = []
        rewritten: list[Conversation] = []
        for conversation, completion, observation in zip(conversations, completions, observations, strict=True):
            bridge = self._answer(conversation, completion, observation)
            conversation.detached = bridge is None
            if bridge is None:
                rewritten.append(conversation)
            else:
                bridges.append((conversation, completion, bridge))
        stops = [self._stop_token(completion) for _, completion, _ in bridges]
        ids = self.control.bridge_ids([(stop, bridge) for stop, (_, _, bridge) in zip(stops, bridges, strict=True)])
        for (conversation, completion, _), between in zip(bridges, ids, strict=True):
            conversation.ids = [*conversation.ids, *completion.ids.tolist(), *between]
        fresh = self._ids([conversation.text for conversation in rewritten])
        for conversation, whole in zip(rewritten, fresh, strict=True):
            conversation.ids = whole

    def check_history_continues(self) -> None:
        """Raise `ConfigError` for a chat template under which a history cannot be continued token by token.

        Tried on two rounds of a made-up conversation, with and without thinking in the answers: a template that drops
        it would fail in the midst of a run.
        """
        if not self.chat or self.history != "prefix":
            return
        for answer in PROBE_ANSWERS:
            messages = self._first_messages("One?")
            probe = Conversation(messages=messages, text=self._written(messages), ids=[])
            for told in ("Two?", "Three?"):
                self._answer(probe, _make_completion(answer), told)

    def _answer(self, conversation: Conversation, completion: Completion, observation: str) -> str | None:
        """Add an answer and the next message to the texts of a conversation.

        Returns what stands between the tokens that were written and the next answer; None for a rewritten history.
        """
        answer, before = completion.text, conversation.text
        user = self._user_message(observation)
        observation = user["content"]
        conversation.messages += [{"role": "assistant", "content": answer}, user]
        if not self.chat:
            conversation.text = before + answer + self._stop_token(completion) + observation
            return observation
        conversation.text = now = self._written(conversation.messages)
        if not now.startswith(before):
            return self._check_rewrite_allowed(before, now)
        rest = now[len(before) :]
        # Some templates strip what was said.
        written = next((form for form in _strip_variants(answer) if rest.startswith(form)), None)
        if written is None:
            return self._check_rewrite_allowed(before + answer, now)
        return rest[len(written) :].removeprefix(self._stop_token(completion))

    def _check_rewrite_allowed(self, expected: str, now: str) -> None:
        """Raise `ConfigError` where histories must be continued as they are."""
        if self.history != "prefix":
            return
        pairs = zip_longest(expected, now)
        place = next(place for place, (wanted, there) in enumerate(pairs) if wanted != there)
        around = slice(max(place - 20, 0), place + 40)
        raise ConfigError(
            f"rollout.history={self.history}",
            f"needs a chat template that keeps what was said, and that of agent {self.agent}'s tokenizer writes "
            f"{now[around]!r} where {expected[around]!r} was read and written",
            "use rollout.history=turns, which trains each turn after the prompt that it was written to",
        )

    def _stop_token(self, completion: Completion) -> str:
        """The special token that a completion ends in; empty where it was cut, or ended by a stop string."""
        if not completion.finished or not len(completion.ids):
            return ""
        last = int(completion.ids[-1])
        return str(self.tokenizer.convert_ids_to_tokens(last)) if last in self.tokenizer.all_special_ids else ""

    def _role_markers(self) -> str:
        """What the chat template writes around messages of both roles; empty where it takes no such messages."""
        messages = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False))
        except Exception:  # a template is a program of the model's; what it refuses is reported where it is used
            return ""

    def text(self, observation: str) -> str:
        """What the agent reads where it is told one thing."""
        return self.control.unguard(self._text(observation))

    def _text(self, observation: str) -> str:
        return self._written(self._first_messages(observation))

    def prompt_ids(self, observation: str) -> list[int]:
        """The ids of what the agent reads where it is told one thing."""
        return self._ids([self._text(observation)])[0]

    def has_hidden_tokens(self, observation: str) -> bool:
        """Whether the ids of a prompt are others than its text shows: it begins or ends in a special token, or content
        spells one."""
        text, ids = self._text(observation), self.prompt_ids(observation)
        return self.control.has_guarded(text) or str(self.tokenizer.decode(ids)) != text

    def prompt_limit(self, context: int) -> int:
        """Tokens that a prompt must stay below which is not the first of its episode.

        What was said before may fill the context; where nothing but the latest is read, every prompt is a whole one.
        """
        return min(context, self.max_prompt_tokens + 1) if self.history == "latest" else context

    def refuse(self, text: str, length: int, context: int, place: str = ",") -> None:
        """Raise `ConfigError` for a first prompt of no tokens, of more than are allowed, or that leaves no room."""
        setting, prompt = f"rollout.max_prompt_tokens={self.max_prompt_tokens}", f"agent {self.agent}'s prompt"
        if not 0 < length <= self.max_prompt_tokens:
            raise ConfigError(
                setting,
                f"does not allow {prompt} of {length} tokens{place} {self.control.unguard(text)[:60]!r}",
                "raise it, or shorten the prompts" if length else "prompts must have a token",
            )
        if length >= context:
            raise ConfigError(
                setting,
                f"lets in {prompt} of {length} tokens{place} {text[:60]!r}, which leaves no room for a response in its "
                f"context of {context}",
                "shorten the prompts, or use a model with a longer context",
            )

    def refuse_too_long(self, rows: Sequence[tuple[int, str]], source: str, context: int) -> None:
        """Raise `ConfigError` for a first message, of the given row of `source`, that there is no room for."""
        for row, text, length in self._possibly_too_long(rows, context):
            self.refuse(text, length, context, f", row {row} of {source},")

    def find_too_long_rows(self, rows: Sequence[tuple[int, str]], context: int) -> set[int]:
        """The rows whose first message there is no room for."""
        limit = min(self.max_prompt_tokens, context - 1)
        return {row for row, _, length in self._possibly_too_long(rows, context) if not 0 < length <= limit}

    def _possibly_too_long(self, rows: Sequence[tuple[int, str]], context: int) -> list[tuple[int, str, int]]:
        """Rows for which there may be no room, what is read of them, and how many tokens that is.

        A text has at most as many tokens as bytes, so that most rows need no tokenizer.
        """
        # What a chat template writes around them is constant.
        _, first = rows[0]
        around = SLACK + self.tokenizer.num_special_tokens_to_add()
        around += len(self.text(first).encode()) - len(first.encode())
        limit = min(self.max_prompt_tokens, context - 1) - around
        suspects = [
            (row, self._text(told))
            for row, told in rows
            if isinstance(told, MessagesText) or not 0 < len(told.encode()) <= limit
        ]
        ids = self._ids([text for _, text in suspects])
        return [(row, text, length) for (row, text), length in zip(suspects, map(len, ids), strict=True)]

    def _first_messages(self, observation: str) -> list[Message]:
        system = [] if self.system is None else [{"role": "system", "content": self.control.guard(self.system)}]
        if not isinstance(observation, MessagesText):
            return [*system, self._user_message(observation)]
        self._check_messages(observation.messages)
        return [*system, *(part | {"content": self.control.guard(part["content"])} for part in observation.messages)]

    def _user_message(self, observation: str) -> Message:
        """What the agent is told as a message, in which content spells no control tokens.

        Without a chat template the literal text of a plain template may write them, and its fields may not.
        """
        if self.chat:
            return {"role": "user", "content": self.control.guard(observation)}
        parts = observation.parts if isinstance(observation, FilledText) else [(observation, False)]
        return {"role": "user", "content": "".join(self.control.guard(text) if own else text for text, own in parts)}

    def _check_messages(self, messages: Sequence[Message]) -> None:
        """Raise `ConfigError` for messages that are not written by a chat template, or have two system messages."""
        setting = f"task.agents.{self.agent}.template=messages:..."
        if not self.chat:
            raise ConfigError(
                setting,
                "needs a chat template, and none is used for this agent",
                "use an instruction-tuned model with task.chat_template=auto, or write the text by a jinja: template",
            )
        if self.system is not None and any(message["role"] == "system" for message in messages):
            raise ConfigError(
                f"task.agents.{self.agent}.system={self.system!r}",
                "is a second system message beside that of the examples",
                "set it to null, or remove theirs by task.map",
            )

    def _written(self, messages: Sequence[Message]) -> str:
        """The messages as the policy reads them before it writes the next one."""
        if not self.chat:
            return "".join(message["content"] for message in messages)
        try:
            return str(self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template is a program of the model's, and raises what it likes
            reason = (str(error) or repr(error)).splitlines()[0]
            rule = f"is refused by the chat template of {self.agent}'s tokenizer ({reason})"
            if self.system is None:
                raise ConfigError("task.chat_template=true", rule, "set it to false") from error
            setting = f"task.agents.{self.agent}.system={self.system!r}"
            raise ConfigError(setting, rule, "set it to null, and put its text into the template") from error

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """A chat template writes its own special tokens. Otherwise a tokenizer may begin a text with its own; what it
        puts after a text, such as the token that ends responses, has no place in a prompt."""
        ids = self.control.token_ids(texts)
        begins = [] if self.chat else self._prefix_ids
        return [[*begins, *own] for own in ids]

    @cached_property
    def _prefix_ids(self) -> list[int]:
        """The ids that the tokenizer puts before a text."""
        whole, own = (self.tokenizer("a", add_special_tokens=adds).input_ids for adds in (True, False))
        starts = range(len(whole) - len(own) + 1)
        start = next((start for start in starts if whole[start : start + len(own)] == own), 0)
        return list(whole[:start])


def _strip_variants(text: str) -> tuple[str, ...]:
    """A text, and what chat templates make of one.

    With a space before it, too: tokenizers whose words begin with theirs leave the first one out of a text.
    """
    forms = (text, text.rstrip(), text.lstrip(), text.strip(), text.lstrip("\n"), text.strip("\n"))
    return (*forms, f" {text}", f" {text.rstrip()}")


def _make_completion(text: str) -> Completion:
    empty = torch.zeros(0)
    return Completion(ids=empty.long(), logprobs=empty, behavior_logprobs=empty, text=text, finished=False)


def prompt_formats(
    task: TaskConfig, rollout: RolloutConfig, tokenizers: Mapping[str, PreTrainedTokenizerBase]
) -> dict[str, PromptFormat]:
    """Every agent's format. Raises `ConfigError` where a chat template or system message cannot be used."""
    chat = task.chat_template if isinstance(task, JsonlConfig) else False
    return {
        name: PromptFormat(
            name,
            tokenizer,
            system=task.agents[name].system,
            chat_template=chat,
            max_prompt_tokens=rollout.max_prompt_tokens,
            history=rollout.history.value,
        )
        for name, tokenizer in tokenizers.items()
    }


def check_prompt_lengths(
    formats: Mapping[str, PromptFormat],
    message: FirstMessage,
    rows: Iterable[tuple[int, Example]],
    source: str,
    contexts: Mapping[str, int],
) -> None:
    """Raise `ConfigError` for a row of `source` that an agent with a context of `contexts` tokens has no room for."""
    waiting = iter(rows)
    while part := list(islice(waiting, TOKENIZE_BATCH)):
        for name, prompt_format in formats.items():
            messages = [(row, message(name, example)) for row, example in part]
            prompt_format.refuse_too_long(messages, source, contexts[name])


def fitting_rows(
    formats: Mapping[str, PromptFormat],
    message: FirstMessage,
    examples: Sequence[Example],
    contexts: Mapping[str, int],
) -> list[int]:
    """The places of examples that every one of these agents has room for."""
    too_long: set[int] = set()
    waiting = iter(enumerate(examples))
    while part := list(islice(waiting, TOKENIZE_BATCH)):
        for name, prompt_format in formats.items():
            messages = [(row, message(name, example)) for row, example in part]
            too_long |= prompt_format.find_too_long_rows(messages, contexts[name])
    return [row for row in range(len(examples)) if row not in too_long]
