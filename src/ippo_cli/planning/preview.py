"""Preview of an episode as the agents' prompts, with placeholders or random actions as responses."""

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
    """The new part of an agent's prompt, and the placeholder of its response."""

    agent: str
    prompt: str
    action: str


@dataclass(slots=True, kw_only=True)
class Preview:
    """The first turns of an episode on the first training example."""

    turns: list[PreviewTurn] = field(default_factory=list)
    remaining_turns: int = 0  # turns after those shown
    ending: str = ""  # how it ended, if it did


def preview_episode(task: Task, formats: Mapping[str, PromptFormat]) -> Preview:
    """The first `SHOWN_TURNS` turns of the task's dry run, as the agents read them."""
    shown, reader = task.dry_run, _PreviewReader(formats)
    turns = [reader.read_turn(*turn) for turn in shown.turns[:SHOWN_TURNS]]
    end = (
        "fails here with placeholders as responses" if shown.failure else shown.outcome or "not over after these turns"
    )
    return Preview(turns=turns, remaining_turns=len(shown.turns) - len(turns), ending=end)


class _PreviewReader:
    """Builds each agent's conversation with its prompt format."""

    def __init__(self, formats: Mapping[str, PromptFormat]) -> None:
        self._formats = formats
        self._conversations: dict[str, Conversation] = {}
        self._written: dict[str, str] = {}

    def read_turn(self, agent: str, observation: str, written: str) -> PreviewTurn:
        """The new part of an agent's prompt; the whole prompt if it does not extend the previous one."""
        prompt_format, before = self._formats[agent], ""
        if agent not in self._conversations:
            [conversation] = prompt_format.start_conversations([observation])
            if not conversation.ids:
                prompt_format.check_length(conversation.text, 0, prompt_format.max_prompt_tokens)
            self._conversations[agent] = conversation
        else:
            conversation, response = self._conversations[agent], self._written[agent]
            before = conversation.text + response
            prompt_format.extend([conversation], [_truncated_completion(response)], [observation])
        self._written[agent] = written
        read = prompt_format.control.unguard(self._conversations[agent].text.removeprefix(before))
        return PreviewTurn(agent=agent, prompt=read, action=written)


def _truncated_completion(text: str) -> Completion:
    """A truncated completion, so that no stop token is expected."""
    nothing = torch.zeros(0)
    return Completion(ids=nothing.long(), logprobs=nothing, behavior_logprobs=nothing, text=text, finished=False)
