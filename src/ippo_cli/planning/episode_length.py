"""Estimates of sequence lengths in an episode, from turns and limits, before models are loaded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ippo_cli.config.errors import ConfigError, RowError
from ippo_cli.config.schema import Config, ContextMode
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.dry_run import PLACEHOLDER
from ippo_cli.tasks.messages import is_messages
from ippo_cli.tasks.prompt_lengths import describe_row
from ippo_cli.tasks.task import Task, example_only_agents, max_turns_by_agent
from ippo_cli.tasks.templates import first_message
from ippo_cli.tasks.warm_start import take_examples

MEASURED_EXAMPLES = 1024  # maximum number of training, and of held-out, examples whose prompts are measured
LONGEST_TEXTS = 16  # the longest of these texts, which are tokenised


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLength:
    """Maximum lengths of one agent's part of an episode.

    Estimated from the longest prompts of the first examples, and from the observations of the dry run.
    """

    turns: int | None  # None: no known limit
    sequence_tokens: int  # tokens of one sequence, prompt and responses; at most the context
    first_turn_tokens: int = 0  # tokens of the first prompt and its response without a context limit; 0: unknown prompt
    row_tokens: int  # tokens of all its sequences; several if later prompts do not include earlier turns


def episode_lengths(
    config: Config, task: Task, formats: Mapping[str, PromptFormat], contexts: Mapping[str, int]
) -> dict[str, EpisodeLength]:
    """Maximum lengths by agent; observations between turns are those of the dry run on the first training example."""
    turns = max_turns_by_agent(config.task)
    observation_tokens = _observation_tokens(config, task, formats)
    first = _first_prompt_tokens(config, task, formats)
    return {
        name: _estimate_length(
            config,
            name,
            turns[name],
            [first[name], *observation_tokens[name][1:]] if name in first else observation_tokens[name],
            context,
        )
        for name, context in contexts.items()
    }


def response_tokens(config: Config, name: str, length: EpisodeLength) -> int:
    """Maximum response tokens in one row."""
    limit = config.task.agents[name].rollout.max_new_tokens
    return length.row_tokens if length.turns is None else min(length.turns * limit, length.row_tokens)


def length_warnings(
    config: Config, lengths: Mapping[str, EpisodeLength], contexts: Mapping[str, int]
) -> dict[str, str]:
    """Warn if responses or turns at their limits exceed an agent's context."""
    for name, length in lengths.items():
        if length.turns == 1 and length.first_turn_tokens > contexts[name]:
            limit = config.task.agents[name].rollout.max_new_tokens
            return {
                "long_episodes": f"{name}: prompts of up to {length.first_turn_tokens - limit} tokens and "
                f"rollout.max_new_tokens={limit} exceed its context of {contexts[name]}, so responses are "
                "truncated; lower either"
            }
    if config.rollout.context is ContextMode.last_only:
        return {}
    for name, length in lengths.items():
        limit = config.task.agents[name].rollout.max_new_tokens
        if length.turns is not None and length.turns > 1 and length.turns * limit >= contexts[name]:
            return {
                "long_episodes": f"{length.turns} turns of rollout.max_new_tokens={limit} do not fit into {name}'s "
                f"context of {contexts[name]} tokens: an episode that exceeds it is truncated; lower either, or use "
                "rollout.context=last_only if later turns do not need earlier ones"
            }
    return {}


def max_critic_tokens(lengths: Mapping[str, EpisodeLength]) -> int:
    """Maximum input tokens of a centralised critic: all agents' rows, and two separators per turn."""
    return sum(length.row_tokens + 2 * (length.turns or 1) for length in lengths.values())


def _estimate_length(
    config: Config, name: str, turns: int | None, observation_tokens: Sequence[int], context: int
) -> EpisodeLength:
    response = config.task.agents[name].rollout.max_new_tokens
    prompt = min(
        observation_tokens[0] if observation_tokens else config.rollout.max_prompt_tokens,
        config.rollout.max_prompt_tokens,
    )
    first = prompt + response if observation_tokens else 0
    first_turn = min(context, prompt + response)
    if turns == 1 or not observation_tokens:
        return EpisodeLength(turns=turns, sequence_tokens=first_turn, row_tokens=first_turn, first_turn_tokens=first)
    later = [
        *observation_tokens[1:],
        *[observation_tokens[-1]] * (len(observation_tokens) if turns is None else turns - len(observation_tokens)),
    ]
    if config.rollout.context is ContextMode.last_only:
        longest = min(context, max(observation_tokens) + response)
        # Without a limit on turns, assume as many as fit into the context.
        count = turns or context // (observation_tokens[-1] + response) + 1
        return EpisodeLength(
            turns=turns, sequence_tokens=longest, row_tokens=max(first_turn, count * longest), first_turn_tokens=first
        )
    whole = context if turns is None else min(context, prompt + response + sum(tokens + response for tokens in later))
    return EpisodeLength(turns=turns, sequence_tokens=whole, row_tokens=whole, first_turn_tokens=first)


def _first_prompt_tokens(config: Config, task: Task, formats: Mapping[str, PromptFormat]) -> dict[str, int]:
    """Tokens of the longest first prompt over the first examples, for agents that observe only the example."""
    longest: dict[str, int] = {}
    for name in example_only_agents(config.task):
        agent = config.task.agents[name]
        messages: list[tuple[str, str, int]] = []
        for part, rows in (("train", task.train), ("eval", task.held_out)):
            for row, example in enumerate(take_examples(rows, MEASURED_EXAMPLES)):
                with _name_row(config, name, part, row):
                    messages.append((first_message(name, agent, example), part, row))
        counts: list[int] = []
        for text, part, row in sorted(messages, key=lambda message: len(message[0]))[-LONGEST_TEXTS:]:
            with _name_row(config, name, part, row):
                counts.append(_count_prompt_tokens(formats[name], text))
        longest[name] = max(counts)
    return longest


@contextmanager
def _name_row(config: Config, name: str, part: str, row: int) -> Iterator[None]:
    """Add the row to errors of an agent with messages of rows as prompts."""
    try:
        yield
    except ConfigError as error:
        if not is_messages(config.task.agents[name].template):
            raise
        raise RowError(error, row, describe_row(config.task, part, row)) from error


def _observation_tokens(config: Config, task: Task, formats: Mapping[str, PromptFormat]) -> dict[str, list[int]]:
    """Tokens of each agent's observation before each of its turns, as far as the dry run shows them."""
    observation_tokens: dict[str, list[int]] = {name: [] for name in formats}
    placeholders = {speaker: PLACEHOLDER.format(agent=speaker) for speaker in formats}
    for name, text, _ in task.dry_run.turns:
        answers = 0.0  # of maximum length, in tokens of the reading agent
        for speaker, placeholder in placeholders.items():
            longest = config.task.agents[speaker].rollout.max_new_tokens
            answers += text.count(placeholder) * longest * _token_ratio(formats[name], formats[speaker], task)
            text = text.replace(placeholder, "")
        observation_tokens[name].append(_count_prompt_tokens(formats[name], text) + math.ceil(answers))
    known = max((lengths[0] for lengths in observation_tokens.values() if lengths), default=None)
    # Agents without an observation in the dry run of an environment: assume the length of the first observation.
    return (
        observation_tokens
        if known is None
        else {name: lengths or [known] for name, lengths in observation_tokens.items()}
    )


def _token_ratio(reader: PromptFormat, writer: PromptFormat, task: Task) -> float:
    """Reader tokens per writer token, at least 1; above 1 if their tokenizers differ.

    Measured on the texts of the first example, because responses are not known yet.
    """
    if reader.tokenizer is writer.tokenizer:
        return 1.0
    text = " ".join(str(value) for value in task.train[0].values())
    read, written = (len(side.tokenizer(text, add_special_tokens=False).input_ids) for side in (reader, writer))
    return max(1.0, read / written) if written else 1.0


def _count_prompt_tokens(prompt_format: PromptFormat, text: str) -> int:
    """Tokens of a text, including those of the chat template or special tokens."""
    return len(prompt_format.prompt_ids(text))
