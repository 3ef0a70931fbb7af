"""Talking to an agent, or to a team, in a terminal. What models write is data: it is shown escaped."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from ippo_cli.agents.agent import FrozenAgent
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, ConversationConfig, History
from ippo_cli.engine import distributed
from ippo_cli.evaluation.evaluate_run import Subject, load_policies
from ippo_cli.reporting.sample_table import harmless, how_it_ended
from ippo_cli.reporting.samples import sample_rows
from ippo_cli.rollout.collect import collect
from ippo_cli.rollout.generator import GENERATORS, Draws, Generator, Request, sampling_settings
from ippo_cli.tasks.conversation import Conversation, PromptFormat, prompt_formats
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.tasks.task import goes_on, task_environments
from ippo_cli.tasks.templates import example_fields, first_message
from ippo_cli.training.process import prepare_process
from ippo_cli.types import Batch, Completion, Example

EXITS, RESET, HELP = ("/exit", "/quit", "/bye", "/q"), "/reset", "/help"
COMMANDS = f"{RESET} begins a new conversation, {EXITS[0]} or Ctrl-D leaves, // at the start of a line sends one /"
Ask = Callable[[str], str | None]
"""A line that is typed after a prompt; None at the end of the input."""
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Talk:
    """How answers are sampled, and whether what is typed goes into templates."""

    seed: int
    greedy: bool
    raw: bool


class _Left(Exception):
    """Whoever types wants to leave."""


class _Again(Exception):
    """Whoever types wants to begin anew."""


def chat(config: Config, subject: Subject, agent: str | None, talk: Talk, ask: Ask, say: Say) -> None:
    """Ask and answer until the input ends: one agent in a conversation, or all of them about one prompt after another.

    Raises `ConfigError` where the agents cannot be asked this way.
    """
    if agent is not None and agent not in config.task.agents:
        raise ConfigError(f"agent={agent}", "is nobody here", f"name one of {' '.join(config.task.agents)}")
    if agent is None and not isinstance(config.task, ConversationConfig):
        raise ConfigError(
            f"task.kind={config.task.kind.value}",
            "is a world, which answers agents itself",
            "name an agent, agent=NAME",
        )
    if agent is None and talk.raw:
        raise ConfigError("raw=true", "is for one agent", "name it, agent=NAME")
    device = prepare_process(config)
    try:
        policies = load_policies(config, subject, device, {})
        if agent is None:
            _team(config, policies, talk, ask, say)
        else:
            _alone(config, policies[agent], talk, ask, say)
    except _Left:
        return
    finally:
        distributed.shutdown()


def _alone(config: Config, policy: FrozenAgent, talk: Talk, ask: Ask, say: Say) -> None:
    """One agent, which reads all that was said before."""
    name = policy.name
    rollout = replace(config.rollout, history=History.turns)  # nothing is trained: templates may rewrite what was said
    form = prompt_formats(config.task, rollout, {name: policy.tokenizer})[name]
    generator = _generator(config, {name: policy})
    template = config.task.agents[name]
    fields = [] if talk.raw else example_fields(template, f"task.agents.{name}")
    turns = 0
    say(f"{name}: {COMMANDS}")
    conversation: Conversation | None = None
    said: Completion | None = None
    while True:
        try:
            if conversation is None or said is None:
                told = (
                    _line(ask, say, "you> ")
                    if not fields
                    else first_message(name, template, _example(fields, ask, say))
                )
                (conversation,) = form.begin([told])
            else:
                form.extend([conversation], [said], [_line(ask, say, "you> ")])
            limit = generator.context_limit(name)
            if not 0 < len(conversation.ids) < limit:
                say(f"no room: {len(conversation.ids)} tokens, and {name} reads {limit}; begun anew")
                raise _Again
            said = _answer(generator, name, conversation, talk, turns)
            turns += 1
            say(_shown(name, said))
        except _Again:
            conversation = said = None


def _answer(generator: Generator, name: str, conversation: Conversation, talk: Talk, turn: int) -> Completion:
    request = Request(agent=name, prompt=conversation.ids, episode=0, index=turn, turn=0)
    generator.forget()
    draws = Draws(seed=talk.seed, purpose="chat", greedy=talk.greedy)
    (completion,) = generator.generate((name,), [request], draws)
    return completion


def _team(config: Config, policies: dict[str, FrozenAgent], talk: Talk, ask: Ask, say: Say) -> None:
    """All agents, in episodes of the task's protocol about what is typed."""
    formats: dict[str, PromptFormat] = prompt_formats(
        config.task, config.rollout, {name: policy.tokenizer for name, policy in policies.items()}
    )
    generator = _generator(config, policies)
    fields = list(
        dict.fromkeys(
            field
            for name, agent in config.task.agents.items()
            for field in example_fields(agent, f"task.agents.{name}")
        )
    )
    environments = EnvironmentPool(task_environments(config.task), workers=1)
    say(f"{' '.join(policies)}: {COMMANDS}")
    count = 0
    try:
        while True:
            try:
                example = _example(fields, ask, say)
            except _Again:
                continue
            batch = Batch(examples=[example], index=torch.tensor([count]))
            draws = Draws(seed=talk.seed, purpose="chat", greedy=talk.greedy)
            (episode,) = collect(environments, formats, batch, generator, draws)
            count += 1
            for turn in episode.turns:
                say(_shown(turn.agent, turn.completion))
            (row,) = sample_rows("chat", [episode], {name: torch.zeros(1, len(episode.turns)) for name in policies}, 1)
            if row["failure"] or row["truncation"]:
                say(how_it_ended(row))
    finally:
        environments.close()


def _generator(config: Config, policies: dict[str, FrozenAgent]) -> Generator:
    settings = sampling_settings(config.task)
    return GENERATORS[config.rollout.kind](policies, config.rollout, settings, continues=goes_on(config))


def _example(fields: Sequence[str], ask: Ask, say: Say) -> Example:
    """A value for each field; the name of a single one is not asked with."""
    if not fields:
        raise ConfigError(
            "task.agents", "are told nothing of an example, so that there is nothing to type", "say agent="
        )
    if len(fields) == 1:
        return {fields[0]: _line(ask, say, "you> ")}
    example: dict[str, str] = {}
    for field in fields:
        example[field] = _line(ask, say, f"{field}> ", lacking=field if example else "")
    return example


def _line(ask: Ask, say: Say, prompt: str, *, lacking: str = "") -> str:
    """A line that is not empty. Raises `ConfigError` where lines end and one is `lacking` to those before it."""
    while True:
        typed = ask(prompt)
        if typed is None and lacking:
            raise ConfigError("input", f"ended before a line for {lacking!r}", "a line for every field of the task")
        if typed is None or (command := typed.strip().lower()) in EXITS:
            raise _Left
        if command == RESET:
            raise _Again
        if re.fullmatch(r"/[a-z]+", command):  # what looks like a command is none of a model's business
            say(COMMANDS if command == HELP else f"{typed.strip()} is no command; {COMMANDS}")
        elif command:
            return typed.replace("//", "/", 1) if typed.lstrip().startswith("//") else typed


def _shown(name: str, completion: Completion) -> str:
    return f"{name}> {harmless(completion.text)}" + ("" if completion.finished else " (cut)")


def typed_lines() -> Ask:
    """Lines from a terminal, with a prompt before each; from a pipe without."""
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    piped: Iterator[str] = iter(sys.stdin)

    def ask(prompt: str) -> str | None:
        try:
            return input(prompt) if at_terminal else next(piped).rstrip("\r\n")
        except (EOFError, StopIteration):
            return None

    return ask
