"""Chat with one agent or a team in a terminal. Control characters in generated text are escaped."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.escape import escape_lines
from ippo_cli.config.schema import Config, ContextMode
from ippo_cli.engine import distributed
from ippo_cli.evaluation.evaluate_run import EvaluatedWeights, load_policies
from ippo_cli.reporting.sample_table import ending_message
from ippo_cli.reporting.samples import sample_rows
from ippo_cli.rollout.collect import collect
from ippo_cli.rollout.combined_generator import build_with_served_agents
from ippo_cli.rollout.generator import Generator, HfGenerator, Request, SamplingStream, sampling_settings
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.tasks.conversation import Conversation, PromptFormat, prompt_formats
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.tasks.task import can_reuse_prefix, make_task_factory
from ippo_cli.tasks.templates import example_fields, first_message
from ippo_cli.tasks.tools.environment import ToolTurn
from ippo_cli.tasks.tools.load import load_agent_tools
from ippo_cli.tasks.tools.runner import ToolRunner
from ippo_cli.tasks.tools.tool import ToolResults
from ippo_cli.training.process import prepare_process
from ippo_cli.types import Batch, Completion, Example

EXITS, RESET, HELP = ("/exit", "/quit", "/bye", "/q"), "/reset", "/help"
COMMANDS = f"{RESET} starts a new conversation, {EXITS[0]} or Ctrl-D exits, // at the start of a line sends one /"
ReadLine = Callable[[str], str | None]
"""Prints a prompt and reads one line; None at the end of the input."""
PrintLine = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ChatSettings:
    """Sampling settings; `raw`: typed lines are used as prompts without the template."""

    seed: int
    greedy: bool
    raw: bool


class ExitRequested(Exception):
    """The user wants to exit."""


class ResetRequested(Exception):
    """The user wants a new conversation."""


def chat(
    config: Config, weights: EvaluatedWeights, agent: str | None, settings: ChatSettings, ask: ReadLine, say: PrintLine
) -> None:
    """Chat until the input ends: with one agent in a conversation, or with all agents in one episode per prompt.

    Raises `ConfigError` if the task or the settings do not allow this.
    """
    if agent is not None and agent not in config.task.agents:
        raise ConfigError(f"agent={agent}", "is an unknown agent", f"use one of {' '.join(config.task.agents)}")
    if agent is None and not config.task.is_conversation:
        raise ConfigError(
            f"task.kind={config.task.kind}",
            "is an environment, and a chat with a team needs a conversation task",
            "choose one agent with agent=NAME",
        )
    if agent is None and settings.raw:
        raise ConfigError("raw=true", "requires one agent", "choose it with agent=NAME")
    device = prepare_process(config)
    try:
        policies = load_policies(config, weights, device, {})
        if agent is None:
            _chat_with_team(config, policies, settings, ask, say)
        else:
            _chat_with_agent(config, policies[agent], settings, ask, say)
    except ExitRequested:
        return
    finally:
        distributed.shutdown()


def _chat_with_agent(
    config: Config, policy: GenerationPolicy, settings: ChatSettings, ask: ReadLine, say: PrintLine
) -> None:
    """Chat with one agent, which receives the whole conversation in each turn."""
    name = policy.name
    generator = _build_generator(config, {name: policy})
    rollout = replace(
        config.rollout,
        context=ContextMode.retokenize,  # no training, so that chat templates may rewrite earlier turns
        max_prompt_tokens=generator.context_limit(name),
    )
    prompt_format = prompt_formats(config.task, rollout, {name: policy.tokenizer})[name]
    template = config.task.agents[name]
    fields = [] if settings.raw else example_fields(template, f"task.agents.{name}")
    turns = 0
    say(f"{name}: {describe_sampling(config, [name], settings)}; {COMMANDS}")
    conversation: Conversation | None = None
    reply: Completion | None = None
    tools = load_agent_tools(name, template)
    runner = tools and ToolRunner(tools)
    turn = runner and ToolTurn(runner)
    results: ToolResults | None = None
    while True:
        try:
            if conversation is None or reply is None:
                message = (
                    read_line(ask, say, "you> ")
                    if not fields
                    else first_message(name, template, _read_example(fields, ask, say))
                )
                (conversation,) = prompt_format.start_conversations([message])
            else:
                prompt_format.extend(
                    [conversation], [reply], [read_line(ask, say, "you> ") if results is None else results]
                )
            limit = generator.context_limit(name)
            if not 0 < len(conversation.ids) < limit:
                say(f"{len(conversation.ids)} tokens, and the limit of {name} is {limit}; starting a new conversation")
                raise ResetRequested
            reply = _generate_reply(generator, name, conversation, settings, turns)
            turns += 1
            say(_format_reply(name, reply))
            results = None if turn is None else turn.respond(prompt_format.parse_response(reply), reply.finished)
            if results is not None:
                say(f"tool> {escape_lines(results)}")
            elif runner is not None:
                turn = ToolTurn(runner)
        except ResetRequested:
            conversation = reply = results = None
            turn = runner and ToolTurn(runner)


def describe_sampling(config: Config, agents: Sequence[str], settings: ChatSettings) -> str:
    """How responses are chosen, and the key that changes it."""
    if settings.greedy:
        return "greedy responses"
    warmth = {f"{config.task.agents[name].rollout.temperature:g}" for name in agents}
    return f"samples at temperature {' and '.join(sorted(warmth))} (greedy=true: the most likely tokens)"


def _generate_reply(
    generator: Generator, name: str, conversation: Conversation, settings: ChatSettings, turn: int
) -> Completion:
    request = Request(agent=name, prompt=conversation.ids, episode=0, index=turn, turn=0)
    generator.start_collection()
    draws = SamplingStream(seed=settings.seed, purpose="chat", greedy=settings.greedy)
    (completion,) = generator.generate((name,), [request], draws)
    return completion


def _chat_with_team(
    config: Config, policies: dict[str, GenerationPolicy], settings: ChatSettings, ask: ReadLine, say: PrintLine
) -> None:
    """Run one episode of the task's protocol with all agents for each typed example."""
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
    say(f"{' '.join(policies)}: {describe_sampling(config, list(policies), settings)}; {COMMANDS}")
    count = 0
    try:
        while True:
            try:
                example = _read_example(fields, ask, say)
            except ResetRequested:
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


def _build_generator(config: Config, policies: dict[str, GenerationPolicy]) -> Generator:
    """Always with the models themselves: an inference engine takes longer to start than a reply."""
    settings = sampling_settings(config.task)

    def build_local(own: Mapping[str, GenerationPolicy]) -> Generator:
        return HfGenerator(own, config.rollout, settings, continues=can_reuse_prefix(config))

    return build_with_served_agents(policies, config.rollout, settings, build_local)


def _read_example(fields: Sequence[str], ask: ReadLine, say: PrintLine) -> Example:
    """Read a value for each field; the prompt names the field only if there are several. Raises `ConfigError`."""
    if not fields:
        raise ConfigError(
            "task.agents", "have prompts without fields, so that there is nothing to type", "use agent=NAME"
        )
    if len(fields) == 1:
        return {fields[0]: read_line(ask, say, "you> ")}
    example: dict[str, str] = {}
    for field in fields:
        example[field] = read_line(ask, say, f"{field}> ", missing_field=field if example else "")
    return example


def read_line(ask: ReadLine, say: PrintLine, prompt: str, *, missing_field: str = "") -> str:
    """Read a non-empty line and handle commands. Raises `ConfigError` if input ends before `missing_field` is read."""
    while True:
        typed = ask(prompt)
        if typed is None and missing_field:
            raise ConfigError(
                "input", f"ended before the field {missing_field!r}", "give one line per field of the task"
            )
        if typed is None or (command := typed.strip().lower()) in EXITS:
            raise ExitRequested
        if command == RESET:
            raise ResetRequested
        if re.fullmatch(r"/[a-z]+", command):  # text that looks like a command is not sent to a model
            say(COMMANDS if command == HELP else f"{typed.strip()} is an unknown command; {COMMANDS}")
        elif command:
            return typed.replace("//", "/", 1) if typed.lstrip().startswith("//") else typed


def _format_reply(name: str, completion: Completion) -> str:
    return f"{name}> {escape_lines(completion.text)}" + ("" if completion.finished else " (cut)")


def terminal_reader() -> ReadLine:
    """Read lines from a terminal with a prompt, or from a pipe without one."""
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    piped: Iterator[str] = iter(sys.stdin)

    def ask(prompt: str) -> str | None:
        try:
            return input(prompt) if at_terminal else next(piped).rstrip("\r\n")
        except (EOFError, StopIteration):
            return None

    return ask
