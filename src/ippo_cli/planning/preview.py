"""An episode as agents will read it, before there is any model: placeholders, or random play, stand for answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from ippo_cli.tasks.conversation import Conversation, PromptFormat
from ippo_cli.tasks.task import Task
from ippo_cli.types import Completion

SHOWN_TURNS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewTurn:
    """What an agent reads in addition to what it has read and written, and what stands for its answer."""

    agent: str
    read: str
    written: str


@dataclass(slots=True, kw_only=True)
class Preview:
    """The beginning of an episode about the first training example."""

    turns: list[PreviewTurn] = field(default_factory=list)
    remaining_turns: int = 0  # turns that follow
    end: str = ""  # how it ended, if it has


def preview_episode(task: Task, formats: Mapping[str, PromptFormat]) -> Preview:
    """The task's dry run, as far as it is shown."""
    shown, reader = task.dry_run, _PreviewReader(formats)
    turns = [reader.turn(*turn) for turn in shown.turns[:SHOWN_TURNS]]
    end = "fails here with placeholders as answers" if shown.failure else shown.end or "not over after these turns"
    return Preview(turns=turns, remaining_turns=len(shown.turns) - len(turns), end=end)


class _PreviewReader:
    """Every agent's part of an episode, through its tokenizer."""

    def __init__(self, formats: Mapping[str, PromptFormat]) -> None:
        self._formats = formats
        self._conversations: dict[str, Conversation] = {}
        self._written: dict[str, str] = {}

    def turn(self, agent: str, observation: str, written: str) -> PreviewTurn:
        """What is new to an agent that is told something; all of it where it does not go on from what it has read."""
        prompt_format, before = self._formats[agent], ""
        if agent not in self._conversations:
            [conversation] = prompt_format.begin([observation])
            if not conversation.ids:
                prompt_format.refuse(conversation.text, 0, prompt_format.max_prompt_tokens)
            self._conversations[agent] = conversation
        else:
            conversation, said = self._conversations[agent], self._written[agent]
            before = conversation.text + said
            prompt_format.extend([conversation], [_truncated_completion(said)], [observation])
        self._written[agent] = written
        read = prompt_format.control.unguard(self._conversations[agent].text.removeprefix(before))
        return PreviewTurn(agent=agent, read=read, written=written)


def _truncated_completion(text: str) -> Completion:
    """An answer that was cut, so that no stop token is looked for in it."""
    nothing = torch.zeros(0)
    return Completion(ids=nothing.long(), logprobs=nothing, behavior_logprobs=nothing, text=text, finished=False)
