"""How long an agent's part of an episode may get: arithmetic on turns and limits, before any model is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ippo_cli.config.schema import Config, ConversationConfig, History
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.protocols import PLACEHOLDER, dry_run
from ippo_cli.tasks.task import Task, most_turns
from ippo_cli.training.preview import first_messages


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLength:
    """The most that one agent may have in an episode. What worlds will say is estimated by what they say first."""

    turns: int | None  # None: no limit is known
    sequence: int  # tokens that are read and written as one sequence, at most the context
    row: int  # tokens of all its sequences: several where earlier turns are not part of what is read later


def episode_lengths(
    config: Config, task: Task, formats: Mapping[str, PromptFormat], contexts: Mapping[str, int]
) -> dict[str, EpisodeLength]:
    """By agent, of an episode about the first training example."""
    turns = most_turns(config.task)
    # One turn is as long as the limits say, whatever the example.
    told = _told(config, task, formats) if any(count != 1 for count in turns.values()) else {}
    return {name: _length(config, turns[name], told.get(name, []), context) for name, context in contexts.items()}


def too_long(config: Config, lengths: Mapping[str, EpisodeLength], contexts: Mapping[str, int]) -> dict[str, str]:
    """What is to be said where turns written to the limit do not fit into a context together."""
    if config.rollout.history is History.latest:
        return {}
    limit = config.rollout.max_new_tokens
    for name, length in lengths.items():
        if length.turns is not None and length.turns > 1 and length.turns * limit >= contexts[name]:
            return {
                "long_episodes": f"{length.turns} turns of rollout.max_new_tokens={limit} do not fit into {name}'s "
                f"context of {contexts[name]} tokens: an episode in which they are that long ends early, as truncated; "
                "lower either, or use rollout.history=latest where later turns need no earlier ones"
            }
    return {}


def _length(config: Config, turns: int | None, told: list[int], context: int) -> EpisodeLength:
    prompt, response = config.rollout.max_prompt_tokens, config.rollout.max_new_tokens
    once = min(context, prompt + response)
    if turns == 1 or not told:
        return EpisodeLength(turns=turns, sequence=once, row=once)
    later = [*told[1:], *[told[-1]] * (len(told) if turns is None else turns - len(told))]
    if config.rollout.history is History.latest:
        # Without a limit there are as many as a context would hold.
        count = turns or context // (told[-1] + response) + 1
        return EpisodeLength(turns=turns, sequence=once, row=max(once, count * min(context, max(told) + response)))
    whole = context if turns is None else min(context, prompt + response + sum(tokens + response for tokens in later))
    return EpisodeLength(turns=turns, sequence=whole, row=whole)


def _told(config: Config, task: Task, formats: Mapping[str, PromptFormat]) -> dict[str, list[int]]:
    """Tokens of what each agent is told before each of its turns, as far as it is known beforehand."""
    if not isinstance(config.task, ConversationConfig):
        messages = first_messages(config, task)
        longest = max(messages.values(), key=len, default="")  # for those who are told something later
        return {name: [_tokens(formats[name], messages.get(name, longest))] for name in formats}
    told: dict[str, list[int]] = {name: [] for name in formats}
    said = [PLACEHOLDER.format(agent=name) for name in formats]
    for name, text, _ in dry_run(config.task, task.train[0]):
        answers = sum(text.count(placeholder) for placeholder in said)  # each as long as an answer may be
        for placeholder in said:
            text = text.replace(placeholder, "")
        told[name].append(_tokens(formats[name], text) + answers * config.rollout.max_new_tokens)
    return told


def _tokens(prompt_format: PromptFormat, text: str) -> int:
    """Of a text with what a chat template writes around it."""
    return len(prompt_format.tokenizer(prompt_format.text(text), add_special_tokens=False).input_ids)
