"""`task=program`: an episode is a program that calls agents; each call is an observation, its response the action."""

from __future__ import annotations

import math
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ippo_cli.config.schema import ProgramConfig
from ippo_cli.engine import progress
from ippo_cli.tasks.environment import Action, InvalidReturn, Step
from ippo_cli.tasks.environments.examples import make_seed_examples
from ippo_cli.tasks.jsonl import jsonl_examples
from ippo_cli.tasks.programs.endpoint import Endpoint
from ippo_cli.tasks.programs.gateway import Gateway
from ippo_cli.tasks.programs.processes import MAX_OUTPUT_BYTES, Program, ProgramEnd, ProgramSpawner
from ippo_cli.tasks.programs.session import CallSession, PendingCall
from ippo_cli.types import Example
from ippo_cli.user_code.part_names import part_name

POLL_S = 0.5
"""How often a waiting environment looks at the program's time and output."""


class ProgramHost:
    """What all episodes of a process share: the server, and the process that starts programs."""

    def __init__(self, config: ProgramConfig) -> None:
        self.config = config
        self.name = f"task.program={config.program}" if config.program else f"task.command={config.command}"
        self.gateway = Gateway()
        self.spawner = ProgramSpawner(function=config.program, command=config.command)
        weakref.finalize(self, _close, self.spawner, self.gateway)  # with the last environment

    def start(self, session: CallSession, example: Example, seed: int) -> Program:
        """Start the program of an episode."""
        self.gateway.open(session)
        endpoint = Endpoint(base_url=self.gateway.base_url, api_key=session.key, agents=list(session.agents), seed=seed)
        return self.spawner.start(example, endpoint)


def _close(spawner: ProgramSpawner, gateway: Gateway) -> None:
    spawner.close()
    gateway.close()


class ProgramEnvironment:
    """One episode at a time: the program runs in a process, and waits for the responses of its calls.

    The agents of open calls act next: the oldest call of each agent is its observation.
    """

    def __init__(self, host: ProgramHost) -> None:
        self.host, self.config = host, host.config
        self._session: CallSession | None = None
        self._program: Program | None = None

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        self.close()
        try:
            return self._reset(example, seed)
        except BaseException:
            self.close()  # a failed program may compute, or print, without end
            raise

    def step(self, actions: Mapping[str, Action]) -> Step:
        try:
            return self._step(actions)
        except BaseException:
            self.close()
            raise

    def _reset(self, example: Example, seed: int) -> Mapping[str, str]:
        agents = self.config.agents
        self._session = CallSession(
            agents=list(agents),
            stop_strings={name: tuple(agent.rollout.stop_strings) for name, agent in agents.items()},
            max_new_tokens={name: agent.rollout.max_new_tokens for name, agent in agents.items()},
        )
        self._open_calls: dict[str, PendingCall] = {}
        self._turns: Counter[str] = Counter()
        self._truncated: set[str] = set()  # agents with a last response that was truncated
        self._own_seconds = 0.0  # of the program: without the time of its calls
        self._program = self.host.start(self._session, example, seed)
        self.host.gateway.loop.call_soon_threadsafe(self._watch, self._session, self._program)
        step = self._advance()
        if step.terminated:
            path = self._session.refused_path
            reason = f"; its request to {path} was refused: only /v1/chat/completions is served" if path else ""
            raise ValueError(f"{self.host.name} ended without a call of an agent{reason}")
        return step.observations

    def _step(self, actions: Mapping[str, Action]) -> Step:
        answered = {agent: action for agent, action in actions.items() if not action.refusal}
        self._truncated -= answered.keys()
        self._truncated |= {
            agent
            for agent, action in answered.items()
            if not (action.finished or self._is_cut_by_request(agent, action))
        }
        self._turns.update(answered.keys())
        for agent, action in actions.items():
            self._open_calls.pop(agent).respond(action)
        return self._advance()

    def _is_cut_by_request(self, agent: str, action: Action) -> bool:
        """Whether a response ended at the program's own limit of tokens: the program expects such responses."""
        limit = self._open_calls[agent].request.call.max_new_tokens
        most = self.config.agents[agent].rollout.max_new_tokens
        return action.turn is not None and limit is not None and len(action.turn.completion.ids) == limit < most

    def close(self) -> None:
        """End the program."""
        if self._session is not None:
            self.host.gateway.close_session(self._session)
            for call in self._open_calls.values():
                call.respond(Action("", refusal="the episode is over"))
            self._session = None
        if self._program is not None:
            self.host.spawner.kill(self._program)
            self._program = None  # `_watch` closes it when its process has ended

    def _watch(self, session: CallSession, program: Program) -> None:
        """Let the server's thread wait for the program's end."""
        loop = self.host.gateway.loop

        def read() -> None:
            try:
                end = program.read_report()
            except Exception as error:  # the server's thread would not report it
                end = ProgramEnd(failure=f"its report cannot be read ({error!r})")
            if end is not None:
                loop.remove_reader(program.report)
                program.close()
                session.end(end)

        loop.add_reader(program.report, read)

    def _advance(self) -> Step:
        """Wait for the program's next calls, or its end. Raises `RuntimeError` if it fails."""
        session, program = self._session, self._program
        assert session is not None
        assert program is not None
        began = time.monotonic()
        with progress.grant_time(self.config.timeout_s + POLL_S):
            while not session.wait(POLL_S):
                self._check_limits(program, self._own_seconds + time.monotonic() - began)
        self._own_seconds += time.monotonic() - began
        if session.failure:
            raise RuntimeError(f"{self.host.name}: {session.failure}")
        if session.program_end is not None:
            if not session.program_end.failure and (left := session.take_all()):
                agent = left[0].request.agent
                raise RuntimeError(f"{self.host.name} ended before it had the response to a call of {agent}")
            return self._finish(session.program_end)
        self._open_calls |= session.take()
        observations = {agent: call.request.call for agent, call in self._open_calls.items()}
        limit = self.config.max_turns
        if limit is not None and any(self._turns[agent] >= limit for agent in observations):
            parts = self._parts()
            self.close()  # an idle environment has no program
            return Step(observations=observations, truncated=True, parts=parts)
        return Step(observations=observations, parts=self._parts())

    def _check_limits(self, program: Program, seconds: float) -> None:
        if seconds > self.config.timeout_s:
            raise TimeoutError(
                f"{self.host.name} took more than task.timeout_s={self.config.timeout_s:g} seconds without calling an "
                "agent"
            )
        if program.is_running and program.output_bytes() > MAX_OUTPUT_BYTES:
            raise RuntimeError(f"{self.host.name} printed more than {MAX_OUTPUT_BYTES} bytes")

    def _finish(self, end: ProgramEnd) -> Step:
        if end.failure:
            raise RuntimeError(f"{self.host.name} failed: {end.failure}")
        rewards, parts = self._parse_result(end.value)
        parts = self._parts() | parts
        self.close()
        return Step(
            observations={},
            rewards=rewards,
            terminated=True,
            unfinished=frozenset(self._truncated),
            parts=parts,
        )

    def _parts(self) -> dict[str, float]:
        assert self._session is not None
        return {"calls": float(sum(self._turns.values())), "refused_calls": float(self._session.num_refused)}

    def _parse_result(self, value: Any) -> tuple[dict[str, float], dict[str, float]]:
        """Rewards by agent and logged numbers, from what the program returned."""
        is_pair = isinstance(value, list) and len(value) == 2 and isinstance(value[1], Mapping)
        rewards, parts = value if is_pair else (value, {})
        if rewards is None:
            rewards = {}
        elif isinstance(rewards, int | float):
            rewards = dict.fromkeys(self.config.agents, float(rewards))
        if not isinstance(rewards, Mapping):
            raise InvalidReturn(
                f"{self.host.name} must return a number, a dict from agent to number, one of these and a dict of "
                f"numbers to log, or None, not {rewards!r:.60}"
            )
        if unknown := [agent for agent in rewards if agent not in self.config.agents]:
            raise ValueError(
                f"{self.host.name} returned a reward for {unknown[0]!r}; agents are {' '.join(self.config.agents)}"
            )
        return _read_numbers(rewards), {part_name(name): number for name, number in _read_numbers(parts).items()}


def _read_numbers(named: Mapping[str, Any]) -> dict[str, float]:
    for name, value in named.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidReturn(f"the program returned {value!r:.60} for {name}, which is not a finite number")
    return {name: float(value) for name, value in named.items()}


def make_program_factory(config: ProgramConfig) -> Callable[[], ProgramEnvironment]:
    """Return a factory of environments, which share a server. Raises `ConfigError` for an unusable program."""
    host = ProgramHost(config)

    def create() -> ProgramEnvironment:
        return ProgramEnvironment(host)

    return create


NUM_TRAINING_SEEDS = 65536
NUM_HELD_OUT_SEEDS = 256


def program_examples(config: ProgramConfig, seed: int) -> tuple[Sequence[Example], Sequence[Example]]:
    """Return training and held-out examples."""
    if config.train is not None:
        return jsonl_examples(config, seed)
    return make_seed_examples(config.train_size or NUM_TRAINING_SEEDS, config.eval_size or NUM_HELD_OUT_SEEDS, seed)
