"""The prompt stream: which examples an iteration works on, and how each agent is asked about them."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice

import torch
from transformers import PreTrainedTokenizerBase

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import AgentConfig, JsonlConfig, TaskConfig
from ippo_cli.types import Example, PromptBatch

ROWS_AT_ONCE = 1024  # tokenised together while looking for prompts that are too long
SLACK = 16  # tokens that a tokenizer may add to a text in ways of its own, such as a space before it


def chat_template(task: TaskConfig) -> bool | str:
    """Whether a task's prompts go through the tokenizer's chat template: True, False or `auto`."""
    return task.chat_template if isinstance(task, JsonlConfig) else False


def share(total: int, rank: int, world_size: int) -> range:
    """The contiguous part of `range(total)` that a rank works on; parts differ by at most one."""
    return range(total * rank // world_size, total * (rank + 1) // world_size)


def render_template(template: str, example: Example, setting: str) -> str:
    """The template with each `{field}` replaced by that field of the example; `{{` and `}}` are braces."""
    parts: list[str] = []
    for literal, field, form, conversion in _pieces(template, setting):
        parts.append(literal)
        if form or conversion:
            raise ConfigError(
                f"{setting}={template!r}",
                f"formats the field {field!r}, and fields stay as they are",
                f"write {{{field}}}, or {{{{ and }}}} for braces",
            )
        if field is not None:
            if field not in example:
                raise ConfigError(
                    f"{setting}={template!r}",
                    f"names the field {field!r}, which examples do not have",
                    "they have: " + " ".join(example),
                )
            if example[field] is None:  # the word None is nothing that anybody meant to say
                raise ConfigError(
                    f"{setting}={template!r}",
                    f"names the field {field!r}, which is null in an example",
                    "fill it in, or leave such examples out",
                )
            parts.append(str(example[field]))
    return "".join(parts)


def fields_of(template: str, setting: str) -> set[str]:
    """The fields that a template names."""
    return {field for _, field, _, _ in _pieces(template, setting) if field is not None}


@cache  # every row is filled in, and reading the template is most of that
def _pieces(template: str, setting: str) -> tuple[tuple[str, str | None, str | None, str | None], ...]:
    """Literal text, the field after it, and how that is to be formatted."""
    try:
        return tuple(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(
            f"{setting}={template!r}", f"is no template ({error})", "write {{ and }} for braces"
        ) from error


class PromptStream:
    """Every agent's prompts of any iteration, as a function of (seed, global index) alone.

    One pass over the data after another, each in an order of its own; the world size only decides which rank gets
    which rows.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        agents: Mapping[str, AgentConfig],
        tokenizers: Mapping[str, PreTrainedTokenizerBase],
        *,
        seed: int,
        prompts_per_iteration: int,
        num_generations: int,
        max_prompt_tokens: int,
        chat_template: bool | str,
    ) -> None:
        self.examples = examples
        self.agents = agents
        self.tokenizers = tokenizers
        self.seed = seed
        self.prompts_per_iteration = prompts_per_iteration
        self.num_generations = num_generations
        self.max_prompt_tokens = max_prompt_tokens
        self._pass_order: tuple[int, list[int]] = (-1, [])
        self._chats = {name: self._has_chat(name, chat_template) for name in tokenizers}

    def _has_chat(self, agent: str, wanted: bool | str) -> bool:
        """Whether an agent is asked through its tokenizer's chat template; `auto` does so where there is one."""
        there = self.tokenizers[agent].chat_template is not None
        if wanted is True and not there:
            raise ConfigError(
                "task.chat_template=true",
                f"needs a chat template, and agent {agent}'s tokenizer has none",
                "set task.chat_template=auto, or use an instruction-tuned model",
            )
        chat = bool(wanted) and there
        system = self.agents[agent].system
        if system is not None and not chat:
            raise ConfigError(
                f"task.agents.{agent}.system={system!r}",
                "has an effect with a chat template only, and none is used for this agent",
                "use an instruction-tuned model, or put the text into the template",
            )
        return chat

    def batch(self, iteration: int, rank: int, world_size: int) -> dict[str, PromptBatch]:
        """This rank's prompts of an iteration (counted from 0), by agent; responses to one prompt lie together."""
        size = self.prompts_per_iteration * self.num_generations
        rows = share(size, rank, world_size)
        first = iteration * self.prompts_per_iteration
        examples = [self._example(first + row // self.num_generations) for row in rows]
        return self.tokenize_prompts(examples, torch.tensor([iteration * size + row for row in rows], dtype=torch.long))

    def tokenize_prompts(self, examples: Sequence[Example], index: torch.Tensor) -> dict[str, PromptBatch]:
        """Each agent's prompts about the given examples."""
        return {name: self._tokenize_agent_prompts(name, examples, index) for name in self.agents}

    def text(self, agent: str, example: Example) -> str:
        """What an agent reads about an example."""
        config = self.agents[agent]
        prompt = render_template(config.template, example, f"task.agents.{agent}.template")
        if not self._chats[agent]:
            return prompt
        messages = [{"role": "user", "content": prompt}]
        if config.system is not None:
            messages.insert(0, {"role": "system", "content": config.system})
        tokenizer = self.tokenizers[agent]
        try:
            return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template is a program of the model's, and raises what it likes
            said = (str(error) or repr(error)).splitlines()[0]
            rule = f"is refused by the chat template of {agent}'s tokenizer ({said})"
            if config.system is None:
                raise ConfigError("task.chat_template=true", rule, "set it to false") from error
            setting = f"task.agents.{agent}.system={config.system!r}"
            raise ConfigError(setting, rule, "set it to null, and put its text into the template") from error

    def scheduled_examples(self, num_iterations: int) -> Iterator[tuple[int, Example]]:
        """The training rows that so many iterations work on, each once, with their places in the data."""
        count = num_iterations * self.prompts_per_iteration
        if count >= len(self.examples):
            return enumerate(self.examples)
        return ((row, self.examples[row]) for row in self._order(0)[:count])

    def refuse_too_long(self, rows: Iterable[tuple[int, Example]], source: str, contexts: Mapping[str, int]) -> None:
        """Raise `ConfigError` for a row of `source` that an agent with a context of `contexts` tokens has no room for.

        A text has at most as many tokens as bytes, so that most rows need no tokenizer.
        """
        waiting = iter(rows)
        while part := list(islice(waiting, ROWS_AT_ONCE)):
            for agent in self.agents:
                suspects = [(row, self.text(agent, example)) for row, example in self._suspects(agent, part, contexts)]
                ids = self._ids(agent, [text for _, text in suspects])
                for (row, text), length in zip(suspects, map(len, ids), strict=True):
                    self._refuse(agent, text, length, f", row {row} of {source},")
                    if length >= contexts[agent]:
                        raise ConfigError(
                            f"rollout.max_prompt_tokens={self.max_prompt_tokens}",
                            f"lets in agent {agent}'s prompt of {length} tokens, row {row} of {source}, {text[:60]!r}, "
                            f"which leaves no room for a response in its context of {contexts[agent]}",
                            "shorten the prompts, or use a model with a longer context",
                        )

    def _suspects(
        self, agent: str, rows: Sequence[tuple[int, Example]], contexts: Mapping[str, int]
    ) -> Iterator[tuple[int, Example]]:
        """Rows whose bytes do not show that their prompts fit. What a chat template writes around them is constant."""
        template, setting = self.agents[agent].template, f"task.agents.{agent}.template"
        _, first = rows[0]
        around = SLACK + self.tokenizers[agent].num_special_tokens_to_add()
        around += len(self.text(agent, first).encode()) - len(render_template(template, first, setting).encode())
        room = min(self.max_prompt_tokens, contexts[agent] - 1) - around
        for row, example in rows:
            if not 0 < len(render_template(template, example, setting).encode()) <= room:
                yield row, example

    def _ids(self, agent: str, texts: Sequence[str]) -> list[list[int]]:
        # A chat template writes its own special tokens.
        special = not self._chats[agent]
        return self.tokenizers[agent](list(texts), add_special_tokens=special).input_ids if texts else []

    def _refuse(self, agent: str, text: str, length: int, place: str = ",") -> None:
        if not 0 < length <= self.max_prompt_tokens:
            raise ConfigError(
                f"rollout.max_prompt_tokens={self.max_prompt_tokens}",
                f"does not allow agent {agent}'s prompt of {length} tokens{place} {text[:60]!r}",
                "raise it, or shorten the prompts" if length else "prompts must have a token",
            )

    def _tokenize_agent_prompts(self, agent: str, examples: Sequence[Example], index: torch.Tensor) -> PromptBatch:
        texts = [self.text(agent, example) for example in examples]
        ids = self._ids(agent, texts)
        lengths = [len(row) for row in ids]
        for text, length in zip(texts, lengths, strict=True):
            self._refuse(agent, text, length)
        width = max(lengths, default=1)
        padded = torch.zeros(len(ids), width, dtype=torch.long)
        mask = torch.zeros(len(ids), width, dtype=torch.bool)
        for row, tokens in enumerate(ids):
            padded[row, width - len(tokens) :] = torch.tensor(tokens)
            mask[row, width - len(tokens) :] = True
        return PromptBatch(ids=padded, mask=mask, examples=list(examples), index=index)

    def _example(self, position: int) -> Example:
        number, offset = divmod(position, len(self.examples))
        return self.examples[self._order(number)[offset]]

    def _order(self, number: int) -> list[int]:
        """Rows in the order of one pass over the data."""
        if self._pass_order[0] != number:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
            self._pass_order = (number, torch.randperm(len(self.examples), generator=generator).tolist())
        return self._pass_order[1]
