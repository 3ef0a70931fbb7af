"""From what an agent is told and says to the token ids that its policy reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from transformers import PreTrainedTokenizerBase

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import JsonlConfig, PromptConfig, RolloutConfig, TaskConfig
from ippo_cli.tasks.templates import first_message
from ippo_cli.types import Batch, Completion, Example, PromptBatch

ROWS_AT_ONCE = 1024  # tokenised together while looking for prompts that are too long
SLACK = 16  # tokens that a tokenizer may add to a text in ways of its own, such as a space before it

Message = dict[str, str]  # role and content
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
        self.chat = self._has_chat(chat_template)

    def _has_chat(self, wanted: bool | str) -> bool:
        """Whether the agent is asked through its tokenizer's chat template; `auto` does so where there is one."""
        there = self.tokenizer.chat_template is not None
        if wanted is True and not there:
            raise ConfigError(
                "task.chat_template=true",
                f"needs a chat template, and agent {self.agent}'s tokenizer has none",
                "set task.chat_template=auto, or use an instruction-tuned model",
            )
        chat = bool(wanted) and there
        if self.system is not None and not chat:
            raise ConfigError(
                f"task.agents.{self.agent}.system={self.system!r}",
                "has an effect with a chat template only, and none is used for this agent",
                "use an instruction-tuned model, or put the text into the template",
            )
        return chat

    def begin(self, observations: Sequence[str]) -> list[Conversation]:
        """Conversations in which the agent was told one thing each, and is to answer."""
        begun = [self._first_messages(observation) for observation in observations]
        texts = [self._written(messages) for messages in begun]
        made = [
            Conversation(messages=messages, text=text, ids=ids)
            for messages, text, ids in zip(begun, texts, self._ids(texts), strict=True)
        ]
        for conversation in made:
            if not conversation.ids:
                self.refuse(conversation.text, 0)
        return made

    def extend(
        self, conversations: Sequence[Conversation], completions: Sequence[Completion], observations: Sequence[str]
    ) -> None:
        """Add what the agent answered and what it is told then."""
        raise NotImplementedError

    def text(self, observation: str) -> str:
        """What the agent reads where it is told one thing."""
        return self._written(self._first_messages(observation))

    def refuse(self, text: str, length: int, place: str = ",") -> None:
        """Raise `ConfigError` for a prompt of no tokens, or of more than are allowed."""
        if not 0 < length <= self.max_prompt_tokens:
            raise ConfigError(
                f"rollout.max_prompt_tokens={self.max_prompt_tokens}",
                f"does not allow agent {self.agent}'s prompt of {length} tokens{place} {text[:60]!r}",
                "raise it, or shorten the prompts" if length else "prompts must have a token",
            )

    def refuse_too_long(self, rows: Sequence[tuple[int, str]], source: str, context: int) -> None:
        """Raise `ConfigError` for a first message, of the given row of `source`, that there is no room for.

        A text has at most as many tokens as bytes, so that most rows need no tokenizer.
        """
        # What a chat template writes around them is constant.
        _, first = rows[0]
        around = SLACK + self.tokenizer.num_special_tokens_to_add()
        around += len(self.text(first).encode()) - len(first.encode())
        room = min(self.max_prompt_tokens, context - 1) - around
        suspects = [(row, self.text(told)) for row, told in rows if not 0 < len(told.encode()) <= room]
        ids = self._ids([text for _, text in suspects])
        for (row, text), length in zip(suspects, map(len, ids), strict=True):
            self.refuse(text, length, f", row {row} of {source},")
            if length >= context:
                raise ConfigError(
                    f"rollout.max_prompt_tokens={self.max_prompt_tokens}",
                    f"lets in agent {self.agent}'s prompt of {length} tokens, row {row} of {source}, {text[:60]!r}, "
                    f"which leaves no room for a response in its context of {context}",
                    "shorten the prompts, or use a model with a longer context",
                )

    def _first_messages(self, observation: str) -> list[Message]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": observation}]

    def _written(self, messages: Sequence[Message]) -> str:
        """The messages as the policy reads them before it writes the next one."""
        if not self.chat:
            return "".join(message["content"] for message in messages)
        try:
            return str(self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template is a program of the model's, and raises what it likes
            said = (str(error) or repr(error)).splitlines()[0]
            rule = f"is refused by the chat template of {self.agent}'s tokenizer ({said})"
            if self.system is None:
                raise ConfigError("task.chat_template=true", rule, "set it to false") from error
            setting = f"task.agents.{self.agent}.system={self.system!r}"
            raise ConfigError(setting, rule, "set it to null, and put its text into the template") from error

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        # A chat template writes its own special tokens.
        return self.tokenizer(list(texts), add_special_tokens=not self.chat).input_ids if texts else []


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
        )
        for name, tokenizer in tokenizers.items()
    }


def refuse_too_long(
    formats: Mapping[str, PromptFormat],
    message: FirstMessage,
    rows: Iterable[tuple[int, Example]],
    source: str,
    contexts: Mapping[str, int],
) -> None:
    """Raise `ConfigError` for a row of `source` that an agent with a context of `contexts` tokens has no room for."""
    waiting = iter(rows)
    while part := list(islice(waiting, ROWS_AT_ONCE)):
        for name, prompt_format in formats.items():
            told = [(row, message(name, example)) for row, example in part]
            prompt_format.refuse_too_long(told, source, contexts[name])


def tokenize_prompts(
    formats: Mapping[str, PromptFormat], agents: Mapping[str, PromptConfig], batch: Batch
) -> dict[str, PromptBatch]:
    """What each agent is asked first about the examples of a batch."""
    return {
        name: _prompt_batch(
            prompt_format, [first_message(name, agents[name], example) for example in batch.examples], batch
        )
        for name, prompt_format in formats.items()
    }


def _prompt_batch(prompt_format: PromptFormat, told: Sequence[str], batch: Batch) -> PromptBatch:
    begun = prompt_format.begin(told)
    for conversation in begun:
        prompt_format.refuse(conversation.text, len(conversation.ids))
    width = max((len(conversation.ids) for conversation in begun), default=1)
    padded = torch.zeros(len(begun), width, dtype=torch.long)
    mask = torch.zeros(len(begun), width, dtype=torch.bool)
    for row, conversation in enumerate(begun):
        padded[row, width - len(conversation.ids) :] = torch.tensor(conversation.ids)
        mask[row, width - len(conversation.ids) :] = True
    return PromptBatch(ids=padded, mask=mask, examples=batch.examples, index=batch.index)
