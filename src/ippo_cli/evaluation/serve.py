"""Serve the agents of a run at an OpenAI-compatible address, for the programs that trained them and others."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config
from ippo_cli.engine import distributed
from ippo_cli.evaluation.evaluate_run import EvaluatedWeights, load_policies
from ippo_cli.rollout.combined_generator import build_with_served_agents
from ippo_cli.rollout.episode_state import TOO_LONG
from ippo_cli.rollout.generator import (
    Generator,
    Request,
    SamplingStream,
    StreamingGenerator,
    build_generator,
    sampling_settings,
)
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.tasks.call_history import CallHistory, CallSequence
from ippo_cli.tasks.conversation import PromptFormat, prompt_formats
from ippo_cli.tasks.environment import Action
from ippo_cli.tasks.observations import describe_length
from ippo_cli.tasks.programs.gateway import Gateway
from ippo_cli.tasks.programs.session import CallSession, PendingCall
from ippo_cli.training.process import prepare_process
from ippo_cli.types import Completion, Turn

POLL_S = 0.5
IDLE_POLL_S = 0.001  # between the steps of an engine
MAX_HISTORY = 256
"""Calls of an agent that later ones can continue with the sampled tokens."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Where and how to serve."""

    host: str
    port: int
    api_key: str | None  # None: a new one
    seed: int
    greedy: bool


def serve(
    config: Config,
    weights: EvaluatedWeights,
    agent: str | None,
    settings: ServerSettings,
    say: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Answer chat completions until `should_stop` or an interruption. `agent`: only this one.

    Raises `ConfigError` for an unknown agent or a port that is in use.
    """
    if agent is not None and agent not in config.task.agents:
        raise ConfigError(f"agent={agent}", "is an unknown agent", f"use one of {' '.join(config.task.agents)}")
    names = [agent] if agent is not None else list(config.task.agents)
    session = CallSession(
        agents=names,
        stop_strings={name: tuple(config.task.agents[name].rollout.stop_strings) for name in names},
        max_new_tokens={name: config.task.agents[name].rollout.max_new_tokens for name in names},
        key=settings.api_key or secrets.token_urlsafe(24),
        is_shared=True,
    )
    try:
        gateway = Gateway(settings.host, settings.port)
    except OSError as error:
        rule = f"cannot be listened at ({error.strerror or error})"
        raise ConfigError(f"host={settings.host} port={settings.port}", rule, "use another port") from error
    device = prepare_process(config)
    try:
        loaded = load_policies(config, weights, device, {})
        policies = {name: loaded[name] for name in names}
        settings_by_agent = sampling_settings(config.task)
        generator = build_with_served_agents(
            policies,
            config.rollout,
            settings_by_agent,
            lambda own: build_generator(own, config.rollout, settings_by_agent),
        )
        server = _Server(config, policies, generator, settings)
        try:
            generator.start_collection()
            gateway.open(session)
            key = session.key if settings.api_key is None else "$IPPO_API_KEY"  # a log may be read by others
            say(f"serving {' '.join(names)} at OPENAI_BASE_URL={gateway.base_url} OPENAI_API_KEY={key}")
            while not should_stop():
                server.answer(session)
        except KeyboardInterrupt:
            say("stopped")
        finally:
            gateway.close()
            generator.finish_collection()
            generator.close()
    finally:
        gateway.close()
        distributed.shutdown()


class _Server:
    """Generates responses; calls that wait at the same time are one batch."""

    def __init__(
        self, config: Config, policies: Mapping[str, GenerationPolicy], generator: Generator, settings: ServerSettings
    ) -> None:
        tokenizers = {name: policy.tokenizer for name, policy in policies.items()}
        self._formats: dict[str, PromptFormat] = prompt_formats(config.task, config.rollout, tokenizers)
        self._generator, self._settings = generator, settings
        self._histories = {name: CallHistory(MAX_HISTORY) for name in policies}
        self._count = 0
        self._running: dict[int, tuple[PendingCall, CallSequence]] = {}  # in an engine, by key

    def answer(self, session: CallSession) -> None:
        """Answer the calls that wait, and the engine's that have ended."""
        if not session.wait(IDLE_POLL_S if self._running else POLL_S) and not self._running:
            return
        accepted = [(call, sequence) for call in session.take_all() if (sequence := self._accept(call)) is not None]
        requests = [self._request(call, sequence) for call, sequence in accepted]
        draws = SamplingStream(seed=self._settings.seed, purpose="serve", greedy=self._settings.greedy)
        if isinstance(self._generator, StreamingGenerator):
            for request, pair in zip(requests, accepted, strict=True):
                self._running[self._generator.submit(request, draws)] = pair
            for key, completion in self._generator.step() if self._running else ():
                self._respond(*self._running.pop(key), completion)
            return
        for agents in self._generator.batch_groups(self._formats):
            places = [place for place, request in enumerate(requests) if request.agent in agents]
            if places:
                completions = self._generator.generate(agents, [requests[place] for place in places], draws)
                for place, completion in zip(places, completions, strict=True):
                    self._respond(*accepted[place], completion)

    def _accept(self, call: PendingCall) -> CallSequence | None:
        """The call's prompt; None if the call was answered by an error."""
        name = call.request.agent
        limit = self._generator.context_limit(name)
        try:
            sequence = self._histories[name].add(self._formats[name], call.request.call, limit)
        except ValueError as error:
            call.respond(Action("", refusal=str(error)))
            return None
        if not 0 < len(sequence.ids) < limit:
            rule = describe_length(len(sequence.ids), limit)
            call.respond(Action("", refusal=rule, refusal_code=TOO_LONG))
            return None
        return sequence

    def _request(self, call: PendingCall, sequence: CallSequence) -> Request:
        chat, self._count = call.request.call, self._count + 1
        return Request(
            agent=call.request.agent,
            prompt=sequence.ids,
            episode=self._count,
            index=self._count if chat.seed is None else 0,
            turn=0,
            max_new_tokens=chat.max_new_tokens,
            stop_strings=chat.stop_strings,
            seed=chat.seed,
        )

    def _respond(self, call: PendingCall, sequence: CallSequence, completion: Completion) -> None:
        name, sequence.completion = call.request.agent, completion
        turn = Turn(agent=name, step=0, observation=call.request.call, prompt=sequence.ids, completion=completion)
        tokenizer = self._formats[name].tokenizer
        call.respond(Action(completion.text, completion.finished, turn=turn, tokenizer=tokenizer))
