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
from ippo_cli.evaluation.evaluate_run import EvaluatedWeights, load_policies
from ippo_cli.reporting.sample_table import ending_message, escape_lines
from ippo_cli.reporting.samples import sample_rows
from ippo_cli.rollout.collect import collect
from ippo_cli.rollout.generator import GENERATORS, Generator, Request, SamplingStream, sampling_settings
from ippo_cli.tasks.conversation import Conversation, PromptFormat, prompt_formats
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.tasks.task import can_reuse_prefix, make_task_factory
from ippo_cli.tasks.templates import example_fields, first_message
from ippo_cli.training.process import prepare_process
from ippo_cli.types import Batch, Completion, Example

EXITS, RESET, HELP = ("/exit", "/quit", "/bye", "/q"), "/reset", "/help"
COMMANDS = f"{RESET} begins a new conversation, {EXITS[0]} or Ctrl-D leaves, // at the start of a line sends one /"
ReadLine = Callable[[str], str | None]
"""A line that is typed after a prompt; None at the end of the input."""
PrintLine = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ChatSettings:
    """How answers are sampled, and whether what is typed goes into templates."""

    seed: int
    greedy: bool
    raw: bool


class _ExitRequested(Exception):
    """Whoever types wants to leave."""


class _ResetRequested(Exception):
    """Whoever types wants to begin anew."""


def chat(
    config: Config, weights: EvaluatedWeights, agent: str | None, settings: ChatSettings, ask: ReadLine, say: PrintLine
) -> None:
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
    if agent is None and settings.raw:
        raise ConfigError("raw=true", "is for one agent", "name it, agent=NAME")
    device = prepare_process(config)
    try:
        policies = load_policies(config, weights, device, {})
        if agent is None:
            _chat_with_team(config, policies, settings, ask, say)
        else:
            _chat_with_agent(config, policies[agent], settings, ask, say)
    except _ExitRequested:
        return
    finally:
        distributed.shutdown()


def _chat_with_agent(
    config: Config, policy: FrozenAgent, settings: ChatSettings, ask: ReadLine, say: PrintLine
) -> None:
    """One agent, which reads all that was said before."""
    name = policy.name
    rollout = replace(config.rollout, history=History.turns)  # nothing is trained: templates may rewrite what was said
    prompt_format = prompt_formats(config.task, rollout, {name: policy.tokenizer})[name]
    generator = _build_generator(config, {name: policy})
    template = config.task.agents[name]
    fields = [] if settings.raw else example_fields(template, f"task.agents.{name}")
    turns = 0
    say(f"{name}: {COMMANDS}")
    conversation: Conversation | None = None
    reply: Completion | None = None
    while True:
        try:
            if conversation is None or reply is None:
                message = (
                    _read_line(ask, say, "you> ")
                    if not fields
                    else first_message(name, template, _read_example(fields, ask, say))
                )
                (conversation,) = prompt_format.begin([message])
            else:
                prompt_format.extend([conversation], [reply], [_read_line(ask, say, "you> ")])
            limit = generator.context_limit(name)
            if not 0 < len(conversation.ids) < limit:
                say(f"no room: {len(conversation.ids)} tokens, and {name} reads {limit}; begun anew")
                raise _ResetRequested
            reply = _generate_reply(generator, name, conversation, settings, turns)
            turns += 1
            say(_format_reply(name, reply))
        except _ResetRequested:
            conversation = reply = None


def _generate_reply(
    generator: Generator, name: str, conversation: Conversation, settings: ChatSettings, turn: int
) -> Completion:
    request = Request(agent=name, prompt=conversation.ids, episode=0, index=turn, turn=0)
    generator.forget()
    draws = SamplingStream(seed=settings.seed, purpose="chat", greedy=settings.greedy)
    (completion,) = generator.generate((name,), [request], draws)
    return completion


def _chat_with_team(
    config: Config, policies: dict[str, FrozenAgent], settings: ChatSettings, ask: ReadLine, say: PrintLine
) -> None:
    """All agents, in episodes of the task's protocol about what is typed."""
    formats: dict[str, PromptFormat] = prompt_formats(
        config.task, config.rollout, {name: policy.tokenizer for name, policy in policies.items()}
    )
    generator = _build_generator(config, policies)
    fields = list(
        dict.fromkeys(
            field
            for name, agent in config.task.agents.items()
            for field in example_fields(agent, f"task.agents.{name}")
        )
    )
    environments = EnvironmentPool(make_task_factory(config.task), workers=1)
    say(f"{' '.join(policies)}: {COMMANDS}")
    count = 0
    try:
        while True:
            try:
                example = _read_example(fields, ask, say)
            except _ResetRequested:
                continue
            batch = Batch(examples=[example], index=torch.tensor([count]))
            draws = SamplingStream(seed=settings.seed, purpose="chat", greedy=settings.greedy)
            (episode,) = collect(environments, formats, batch, generator, draws)
            count += 1
            for turn in episode.turns:
                say(_format_reply(turn.agent, turn.completion))
            (row,) = sample_rows("chat", [episode], {name: torch.zeros(1, len(episode.turns)) for name in policies}, 1)
            if row["failure"] or row["truncation"]:
                say(ending_message(row))
    finally:
        environments.close()


def _build_generator(config: Config, policies: dict[str, FrozenAgent]) -> Generator:
    settings = sampling_settings(config.task)
    return GENERATORS[config.rollout.kind](policies, config.rollout, settings, continues=can_reuse_prefix(config))


def _read_example(fields: Sequence[str], ask: ReadLine, say: PrintLine) -> Example:
    """A value for each field; the name of a single one is not asked with."""
    if not fields:
        raise ConfigError(
            "task.agents", "are told nothing of an example, so that there is nothing to type", "say agent="
        )
    if len(fields) == 1:
        return {fields[0]: _read_line(ask, say, "you> ")}
    example: dict[str, str] = {}
    for field in fields:
        example[field] = _read_line(ask, say, f"{field}> ", missing_field=field if example else "")
    return example


def _read_line(ask: ReadLine, say: PrintLine, prompt: str, *, missing_field: str = "") -> str:
    """A line that is not empty. Raises `ConfigError` where lines end and one is `lacking` to those before it."""
    while True:
        typed = ask(prompt)
        if typed is None and missing_field:
            raise ConfigError(
                "input", f"ended before a line for {missing_field!r}", "a line for every field of the task"
            )
        if typed is None or (command := typed.strip().lower()) in EXITS:
            raise _ExitRequested
        if command == RESET:
            raise _ResetRequested
        if re.fullmatch(r"/[a-z]+", command):  # what looks like a command is none of a model's business
            say(COMMANDS if command == HELP else f"{typed.strip()} is no command; {COMMANDS}")
        elif command:
            return typed.replace("//", "/", 1) if typed.lstrip().startswith("//") else typed


def _format_reply(name: str, completion: Completion) -> str:
    return f"{name}> {escape_lines(completion.text)}" + ("" if completion.finished else " (cut)")


def terminal_reader() -> ReadLine:
    """Lines from a terminal, with a prompt before each; from a pipe without."""
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    piped: Iterator[str] = iter(sys.stdin)

    def ask(prompt: str) -> str | None:
        try:
            return input(prompt) if at_terminal else next(piped).rstrip("\r\n")
        except (EOFError, StopIteration):
            return None

    return ask
