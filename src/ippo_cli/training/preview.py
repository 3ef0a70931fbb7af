"""An episode as agents will read it, before there is any model: placeholders, or random play, stand for answers."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import torch

from ippo_cli.config.errors import IppoError
from ippo_cli.config.schema import Config, ConversationConfig
from ippo_cli.rewards.located import located
from ippo_cli.tasks.conversation import Conversation, PromptFormat
from ippo_cli.tasks.environment import Action
from ippo_cli.tasks.protocols import TemplatedWorld, dry_run
from ippo_cli.tasks.task import Task, task_environments
from ippo_cli.types import Completion

SHOWN_TURNS = 6  # of a conversation
PLAYED_STEPS = 3  # of a world


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewTurn:
    """What an agent reads in addition to what it has read and written, and what stands for its answer."""

    agent: str
    read: str
    written: str | None  # None: what may be answered is not known


@dataclass(slots=True, kw_only=True)
class Preview:
    """The beginning of an episode about the first training example."""

    turns: list[PreviewTurn] = field(default_factory=list)
    more: int = 0  # turns that follow
    end: str = ""  # how it ended, where it has


def preview(config: Config, task: Task, formats: Mapping[str, PromptFormat]) -> Preview:
    """A dry run of a protocol, or the first steps of random play in a world that knows what may be answered."""
    if not isinstance(config.task, ConversationConfig):
        return _played(config, task, _Reader(formats))
    spoken, reader = dry_run(config.task, task.train[0]), _Reader(formats)
    shown = [reader.turn(*turn) for turn in spoken[:SHOWN_TURNS]]
    return Preview(turns=shown, more=len(spoken) - len(shown))


def first_messages(config: Config, task: Task) -> Mapping[str, str]:
    """What agents are told first about the first example; nothing where that fails, which is told where episodes do."""
    try:
        environment = task_environments(config.task)()
        with closing(environment):
            return environment.reset(task.train[0], config.seed)
    except IppoError:
        raise
    except (Exception, SystemExit):  # whatever the user's code raises
        return {}


class _Reader:
    """Every agent's part of an episode, through its tokenizer."""

    def __init__(self, formats: Mapping[str, PromptFormat]) -> None:
        self._formats = formats
        self._conversations: dict[str, Conversation] = {}
        self._written: dict[str, str] = {}

    def turn(self, agent: str, told: str, written: str | None) -> PreviewTurn:
        """What is new to an agent that is told something; all of it where it does not go on from what it has read."""
        prompt_format, before = self._formats[agent], ""
        if agent not in self._conversations:
            [conversation] = prompt_format.begin([told])
            if not conversation.ids:
                prompt_format.refuse(conversation.text, 0, prompt_format.max_prompt_tokens)
            self._conversations[agent] = conversation
        else:
            conversation, said = self._conversations[agent], self._written[agent]
            before = conversation.text + said
            prompt_format.extend([conversation], [_said(said)], [told])
        self._written[agent] = written or ""
        return PreviewTurn(agent=agent, read=self._conversations[agent].text.removeprefix(before), written=written)


def _played(config: Config, task: Task, reader: _Reader) -> Preview:
    shown = Preview()
    try:
        environment = task_environments(config.task)()
        assert isinstance(environment, TemplatedWorld)
        with closing(environment):
            for turn in _play(environment, config, task, reader, shown):
                shown.turns.append(turn)
    except IppoError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        shown.end = f"failed: {located(error)}"
    return shown


def _play(world: TemplatedWorld, config: Config, task: Task, reader: _Reader, shown: Preview) -> Iterator[PreviewTurn]:
    luck = random.Random(f"preview {config.seed}")
    told = world.reset(task.train[0], config.seed)
    for _ in range(PLAYED_STEPS):
        offered = world.actions()
        known = all(offered.get(agent) for agent in told)
        answers = {agent: luck.choice(offered[agent]) for agent in told} if known else {}
        for agent, text in told.items():
            yield reader.turn(agent, text, answers.get(agent))
        if not known:
            return
        step = world.step({agent: Action(text) for agent, text in answers.items()})
        told = step.observations
        if step.terminated or step.truncated:
            shown.end = "ended by itself" if step.terminated else "cut off by the environment's limit"
            return


def _said(text: str) -> Completion:
    """An answer that was cut, so that no stop token is looked for in it."""
    nothing = torch.zeros(0)
    return Completion(ids=nothing.long(), logprobs=nothing, behavior_logprobs=nothing, text=text, finished=False)
