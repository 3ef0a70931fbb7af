"""Conversation protocols: the order in which a task's agents act and what they observe.

A protocol is an environment in which actions are messages. It gives no rewards: a reward function scores the episode.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import PROTOCOLS, ConversationConfig, PromptConfig
from ippo_cli.tasks.environment import Action, Environment, InvalidReturn, Step, close_environment
from ippo_cli.tasks.templates import (
    CONVERSATION_FIELDS,
    LAST_PREFIX,
    NO_VALUES,
    OBSERVATION,
    ConversationValues,
    can_read_others,
    first_message,
    render_template,
)
from ippo_cli.types import Example
from ippo_cli.user_code.load import load_function

DEFAULT_TURN_TEMPLATE = "\n{heard}\n"
"""Observation after an agent's first turn, if it has no `turn_template`."""

Prompts = Mapping[str, PromptConfig]


@dataclass
class Transcript:
    """The messages of one episode."""

    agents: Sequence[str]
    messages: list[tuple[str, str]] = field(default_factory=list)  # agent and text, in order
    num_before: list[int] = field(default_factory=list)  # per message: number of messages before its simultaneous group

    def add(self, texts: Sequence[tuple[str, str]]) -> None:
        """Add simultaneous messages: their agents did not observe each other's."""
        self.num_before += [len(self.messages)] * len(texts)
        self.messages += texts

    def next_turn(self, agent: str) -> int:
        """The number of the agent's next turn, from 1."""
        return 1 + sum(speaker == agent for speaker, _ in self.messages)

    def template_values(self, agent: str, observation: str | None = None) -> ConversationValues:
        """The values that an agent's template can read; None for messages that do not exist yet."""
        return _TranscriptValues(self, agent, observation)

    def last_text(self, agent: str) -> str | None:
        """The last message of an agent, or None."""
        return next((text for speaker, text in reversed(self.messages) if speaker == agent), None)

    def new_messages(self, agent: str) -> list[tuple[str, str]]:
        """The messages of other agents since the agent's last turn, as (agent, text)."""
        own = [place for place, (speaker, _) in enumerate(self.messages) if speaker == agent]
        since = self.num_before[own[-1]] if own else 0
        return [(speaker, text) for speaker, text in self.messages[since:] if speaker != agent]


class _TranscriptValues(Mapping[str, str | None]):
    """The template values of a transcript, computed on access because most grow with every turn."""

    __slots__ = ("_agent", "_observation", "_transcript")

    def __init__(self, transcript: Transcript, agent: str, observation: str | None) -> None:
        self._transcript, self._agent, self._observation = transcript, agent, observation

    def __getitem__(self, word: str) -> str | None:
        if word == OBSERVATION and self._observation is not None:
            return self._observation
        if word not in self:
            raise KeyError(word)
        if word == "turn":
            return str(self._transcript.next_turn(self._agent))
        if word == "transcript":
            return _format_lines(self._transcript.messages)
        if word == "heard":
            return _format_lines(self._transcript.new_messages(self._agent))
        return self._transcript.last_text(word.removeprefix(LAST_PREFIX))

    def __contains__(self, word: object) -> bool:
        if word == OBSERVATION:
            return self._observation is not None
        if not isinstance(word, str) or not word.startswith(LAST_PREFIX):
            return word in CONVERSATION_FIELDS
        return word.removeprefix(LAST_PREFIX) in self._transcript.agents

    def __iter__(self) -> Iterator[str]:
        yield from (LAST_PREFIX + name for name in self._transcript.agents)
        yield from CONVERSATION_FIELDS
        if self._observation is not None:
            yield OBSERVATION

    def __len__(self) -> int:
        return sum(1 for _ in self)


class ConversationProtocol:
    """Base class of the protocols: fills templates with the example and the transcript."""

    def __init__(self, agents: Prompts, num_turns: int) -> None:
        self.agents = agents
        self.num_turns = num_turns

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        self.example = example
        self.transcript = Transcript(list(self.agents))
        self.truncated_agents: set[str] = set()
        return self._build_prompts(self._next_speakers() or ())

    def step(self, actions: Mapping[str, Action]) -> Step:
        # Simultaneous messages are added in the order of the task's agents.
        self.transcript.add([(name, actions[name].text) for name in self.agents if name in actions])
        self.truncated_agents -= set(actions)
        self.truncated_agents |= {name for name, action in actions.items() if not action.finished}
        speakers = self._next_speakers()
        if speakers is None:
            return Step(observations={}, terminated=True, unfinished=frozenset(self.truncated_agents))
        return Step(observations=self._build_prompts(speakers))

    def close(self) -> None:
        pass

    def _next_speakers(self) -> Sequence[str] | None:
        """The agents that act next, simultaneously; None at the end."""
        raise NotImplementedError

    def _build_prompts(self, speakers: Sequence[str]) -> dict[str, str]:
        return {name: self._build_prompt(name) for name in speakers}

    def _build_prompt(self, name: str) -> str:
        config: PromptConfig = self.agents[name]
        words = self.transcript.template_values(name)
        if self.transcript.next_turn(name) == 1:
            return first_message(name, config, self.example, words)
        template = DEFAULT_TURN_TEMPLATE if config.turn_template is None else config.turn_template
        return render_template(template, self.example, f"task.agents.{name}.turn_template", words)


class Parallel(ConversationProtocol):
    """All agents act simultaneously in every turn and observe each other's messages between turns."""

    def _next_speakers(self) -> Sequence[str] | None:
        turns = len(self.transcript.messages) // len(self.agents)
        return list(self.agents) if turns < self.num_turns else None

    def _build_prompt(self, name: str) -> str:
        if self.num_turns == 1:  # no messages exist yet
            return first_message(name, self.agents[name], self.example, NO_VALUES)
        return super()._build_prompt(name)


class Dialogue(ConversationProtocol):
    """Agents act one after another, in the task's order, for `num_turns` rounds."""

    def _next_speakers(self) -> Sequence[str] | None:
        names, spoken = list(self.agents), len(self.transcript.messages)
        return [names[spoken % len(names)]] if spoken < self.num_turns * len(names) else None


class Sequential(Dialogue):
    """Agents act once each, in the task's order; templates can include earlier messages."""

    def __init__(self, agents: Prompts) -> None:
        super().__init__(agents, num_turns=1)


class Calls(ConversationProtocol):
    """The first agent acts up to `num_turns` times; between its turns it calls one other agent.

    `@NAME` in its message calls NAME, which observes the message through its template; the last call of a message
    counts. A message without a call ends the episode.
    """

    def __init__(self, agents: Prompts, num_turns: int) -> None:
        super().__init__(agents, num_turns)
        self.caller, *called = agents
        names = sorted(map(re.escape, called), key=len, reverse=True)
        self.call = re.compile(f"(?<![A-Za-z0-9_])@({'|'.join(names)})(?![A-Za-z0-9_-])")

    def _next_speakers(self) -> Sequence[str] | None:
        messages = self.transcript.messages
        if not messages or messages[-1][0] != self.caller:
            return [self.caller]
        calls = self.call.findall(messages[-1][1])
        return [calls[-1]] if calls and self.transcript.next_turn(self.caller) <= self.num_turns else None


class UserProtocol:
    r"""A user-defined protocol: a generator function, or a class with `reset` and `step`; observations are strings.

        def debate(example, agents):
            answers = yield {"pro": f"For {example['claim']}:\n", "contra": f"Against {example['claim']}:\n"}
            answers = yield {"judge": f"{answers['pro']}\n{answers['contra']}\nWho is right?\n"}
            return {"judge": float(answers["judge"] == example["answer"])}  # or no rewards: a reward function scores

        class Debate:  # one object per episode
            def reset(self, example, agents): ...  # observations of the agents that act next
            def step(self, answers): ...  # same; None or {} at the end

    Keys are the agents that act next, values their observations. The dict returned by the generator, or the second item
    of `(observations, rewards)` from `step`, holds rewards by agent. They are the score with `reward=environment`;
    other reward functions ignore them (with a warning), except functions with a parameter `episodes`.
    """

    def __init__(self, factory: Callable[..., Any], name: str, agents: Sequence[str]) -> None:
        self.factory, self.name, self.agents = factory, name, list(agents)
        self.instance: Any = None

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        close_environment(self)  # an exception belongs to the episode before
        self.truncated_agents: set[str] = set()
        own = dict(example)  # user code may change its copy
        if inspect.isclass(self.factory):
            self.instance = self.factory()
            observations, _ = self._parse_result(self.instance.reset(own, list(self.agents)))
        else:
            self.instance = self.factory(own, list(self.agents))
            if not isinstance(self.instance, Generator):
                raise InvalidReturn(
                    f"{self.name} must yield the agents that act next, but it returns a {type(self.instance).__name__}"
                )
            observations, _ = self._resume(lambda: next(self.instance))
        if not observations:
            raise ValueError(f"{self.name} has no first observations; it must begin with at least one agent")
        return observations

    def step(self, actions: Mapping[str, Action]) -> Step:
        self.truncated_agents -= set(actions)
        self.truncated_agents |= {name for name, action in actions.items() if not action.finished}
        answers = {name: action.text for name, action in actions.items()}
        if isinstance(self.instance, Generator):
            observations, rewards = self._resume(lambda: self.instance.send(answers))
        else:
            observations, rewards = self._parse_result(self.instance.step(answers))
        ended = not observations
        unfinished = frozenset(self.truncated_agents if ended else ())
        return Step(observations=observations, rewards=rewards, terminated=ended, unfinished=unfinished)

    def close(self) -> None:
        if isinstance(self.instance, Generator) or hasattr(self.instance, "close"):
            self.instance.close()
        self.instance = None

    def _resume(self, advance: Callable[[], Any]) -> tuple[dict[str, str], dict[str, float]]:
        try:
            return self._parse_result(advance())
        except StopIteration as end:
            return {}, self._rewards({} if end.value is None else end.value)

    def _parse_result(self, result: Any) -> tuple[dict[str, str], dict[str, float]]:
        observations, rewards = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        observations = {} if observations is None else observations
        if not isinstance(observations, Mapping) or not all(isinstance(text, str) for text in observations.values()):
            raise InvalidReturn(
                f"{self.name} must give observations as a dict from agent to text, not {observations!r:.80}"
            )
        self._check_agents(observations)
        return dict(observations), self._rewards(rewards)

    def _rewards(self, rewards: Any) -> dict[str, float]:
        if not isinstance(rewards, Mapping):
            raise InvalidReturn(f"{self.name} must give rewards as a dict from agent to number, not {rewards!r:.80}")
        self._check_agents(rewards)
        return {name: float(number) for name, number in rewards.items()}

    def _check_agents(self, named: Mapping[str, Any]) -> None:
        if unknown := [name for name in named if name not in self.agents]:
            raise ValueError(
                f"{self.name} names {unknown[0]!r}, which is not an agent; agents are {' '.join(self.agents)}"
            )


class TemplatedEnvironment:
    """An environment with observations rendered by the agents' templates, as `{observation}`.

    Without a `turn_template`, later observations are rendered by `template`, too.
    """

    def __init__(self, environment: Environment, agents: Prompts) -> None:
        self.environment = environment
        self.agents = agents

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        self.example = example
        self.transcript = Transcript(list(self.agents))
        self.agents_with_turns: set[str] = set()
        return self._build_prompts(self.environment.reset(example, seed))

    def step(self, actions: Mapping[str, Action]) -> Step:
        self.transcript.add([(name, action.text) for name, action in actions.items()])
        self.agents_with_turns.update(actions)
        step = self.environment.step(actions)
        return step.with_observations(self._build_prompts(step.observations))

    @property
    def roles(self) -> Mapping[str, str]:
        """The role of each agent in this episode; empty if the environment has none."""
        return getattr(self.environment, "roles", {})

    def actions(self) -> Mapping[str, Sequence[str]]:
        """Legal actions of the agents that act next; empty if the environment does not list them."""
        return self.environment.actions() if hasattr(self.environment, "actions") else {}  # pyright: ignore

    def chance_outcomes(self) -> Mapping[int, float]:
        """Seeds that stand for all outcomes of chance, with their probabilities; empty if they are not known."""
        return self.environment.chance_outcomes() if hasattr(self.environment, "chance_outcomes") else {}  # pyright: ignore

    def close(self) -> None:
        self.environment.close()

    def _build_prompts(self, observations: Mapping[str, str]) -> dict[str, str]:
        # Unknown agents pass unchanged; the rollout reports them.
        return {
            name: self._build_prompt(name, text) if name in self.agents else text for name, text in observations.items()
        }

    def _build_prompt(self, name: str, observation: str) -> str:
        config: PromptConfig = self.agents[name]
        words = self.transcript.template_values(name, observation)
        if config.turn_template is None or name not in self.agents_with_turns:
            return first_message(name, config, self.example, words)
        return render_template(config.turn_template, self.example, f"task.agents.{name}.turn_template", words)


def make_protocol_factory(config: ConversationConfig) -> Callable[[], Environment]:
    """Return a factory of environments for the task's protocol; an environment is reused across episodes.

    Raises `ConfigError` for an unknown protocol, and for templates without other agents' messages.
    """
    agents, turns = config.agents, config.num_turns
    if config.protocol == "parallel":
        if turns > 1 and len(agents) == 1:
            _check_turn_template(config)
        return lambda: Parallel(agents, turns)
    if config.protocol == "sequential":
        if turns != 1:
            raise ConfigError(
                f"task.num_turns={turns}", "has no effect with task.protocol=sequential", "use task.protocol=dialogue"
            )
        _check_agents_can_read(config)
        return lambda: Sequential(agents)
    if config.protocol == "dialogue":
        if len(agents) == 1:
            _check_turn_template(config)
        else:
            _check_agents_can_read(config)
        return lambda: Dialogue(agents, turns)
    if config.protocol == "calls":
        _check_agents_can_read(config)
        return lambda: Calls(agents, turns)
    if ":" not in config.protocol:
        raise ConfigError(
            f"task.protocol={config.protocol}",
            "is not known",
            f"use {', '.join(PROTOCOLS)}, or your own path/to/file.py:name",
        )
    if turns != 1:
        raise ConfigError(
            f"task.num_turns={turns}",
            "has no effect with a user-defined protocol, which decides its own end",
            "set it to 1",
        )
    factory = load_function(config.protocol, "task.protocol")
    return lambda: UserProtocol(factory, config.protocol, list(agents))


def _check_agents_can_read(config: ConversationConfig) -> None:
    """Raise `ConfigError` if agents act one after another and a later agent's template has no earlier messages."""
    later = list(config.agents)[1:]
    uninformed = [name for name in later if not _can_read_others(name, config.agents[name])]
    none_informed = len(uninformed) == len(later)
    if none_informed if config.protocol == "sequential" else uninformed:
        names = list(config.agents)
        rule = (
            f"lets {' '.join(uninformed)} act after others, but task.agents.{uninformed[0]}.template has no field with "
            "their messages"
            if uninformed
            else "needs several agents, and there is one"
        )
        raise ConfigError(
            f"task.protocol={config.protocol}",
            rule,
            f"add {{transcript}}, {{heard}} or {{agents.{names[0]}}} to it, or use task.protocol=parallel",
        )


def _check_turn_template(config: ConversationConfig) -> None:
    """Raise `ConfigError` if a single agent has several turns and no `turn_template`."""
    ((name, agent),) = config.agents.items()
    if config.num_turns > 1 and agent.turn_template is None:
        raise ConfigError(
            f"task.num_turns={config.num_turns}",
            f"gives {name} several turns, but no other agent acts between them",
            f"set its later observations with task.agents.{name}.turn_template",
        )


def _can_read_others(name: str, agent: PromptConfig) -> bool:
    return can_read_others(agent.template, f"task.agents.{name}.template", {"turn", f"agents.{name}"})


def _format_lines(messages: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"{speaker}: {text}" for speaker, text in messages)
