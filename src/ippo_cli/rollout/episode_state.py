"""The state of a running episode: pending agents, observations, actions, and end status."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from ippo_cli.rewards.retry import as_failure
from ippo_cli.rollout.generator import Request, SamplingStream
from ippo_cli.tasks.conversation import Conversation, PromptFormat
from ippo_cli.tasks.environment import Action, Environment, EnvironmentPool, Step
from ippo_cli.tasks.model_call import ModelCall
from ippo_cli.tasks.observations import check_observations, check_step, check_text, cut_observation, describe_length
from ippo_cli.types import Completion, Episode, Example, Turn

TOO_LONG = "context_length_exceeded"  # OpenAI's code for messages without room for a response
MAX_STEPS = 10_000
"""Step limit of an episode: bounds environments that never end, far beyond any context length."""


@dataclass(slots=True, eq=False)
class EpisodeState:
    """A running episode, extended turn by turn."""

    place: int  # position among this rank's episodes
    example: Example
    index: int
    formats: Mapping[str, PromptFormat]  # of the agents that may receive observations
    limits: Mapping[str, int]  # exclusive limits on the tokens of their prompts
    environment: Environment | None = None
    conversations: dict[str, Conversation] = field(default_factory=dict)
    observations: Mapping[str, str] = field(default_factory=dict)  # observations that are in no prompt yet
    pending_agents: dict[str, str] = field(default_factory=dict)  # agents to act, and their observations
    actions: dict[str, Action] = field(default_factory=dict)  # of the current step
    turns: list[Turn] = field(default_factory=list)
    rewards: list[Mapping[str, float]] = field(default_factory=list)
    final: dict[str, list[int]] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)  # agents that terminated individually
    roles: Mapping[str, str] = field(default_factory=dict)
    last_step: Step | None = None
    truncation: str = ""
    failure: Exception | None = None
    is_busy: bool = False  # whether a thread is running its environment

    @property
    def is_over(self) -> bool:
        ended = self.last_step is not None and (self.last_step.terminated or self.last_step.truncated)
        return ended or bool(self.truncation) or self.failure is not None

    @property
    def is_waiting(self) -> bool:
        """Whether agents have to act, or the environment has to take a step."""
        return bool(self.pending_agents or self.actions)

    @property
    def has_all_actions(self) -> bool:
        """Whether all pending agents have acted."""
        return bool(self.actions) and not self.pending_agents

    def reset(self, environments: EnvironmentPool, draws: SamplingStream) -> None:
        """Reset the environment; an exception fails the episode."""
        self._run_environment(partial(self._reset, environments, draws))

    def _reset(self, environments: EnvironmentPool, draws: SamplingStream) -> None:
        self.environment = environments.acquire()
        observations = self.environment.reset(self.example, environment_seed(draws, self.index))
        check_observations(observations)
        self.observations = self._limit_observations(observations)
        roles = getattr(self.environment, "roles", {})
        self.roles = {agent: check_text(str(role), f"the role of {agent}") for agent, role in roles.items()}
        if not self.observations:
            raise RuntimeError("the environment returns no observation at reset, so that no agent can act")

    def request(self, agent: str) -> Request:
        """The generation request of an agent."""
        turn = sum(turn.agent == agent for turn in self.turns)
        prompt, observation = self.conversations[agent].ids, self.pending_agents[agent]
        request = Request(agent=agent, prompt=prompt, episode=self.place, index=self.index, turn=turn)
        if not isinstance(observation, ModelCall):
            return request
        return replace(
            request,
            max_new_tokens=observation.max_new_tokens,
            stop_strings=observation.stop_strings,
            seed=observation.seed,
        )

    def add_completion(self, agent: str, completion: Completion) -> None:
        """Accept an agent's completion; a completion already accepted during decoding is ignored."""
        if agent not in self.pending_agents:
            return
        action = Action(completion.text, completion.finished, self.formats[agent].parse_response(completion))
        turn = Turn(
            agent=agent,
            step=len(self.rewards),
            observation=self.pending_agents.pop(agent),
            prompt=list(self.conversations[agent].ids),
            completion=completion,
            answer=None if action.answer == completion.text else action.answer,
        )
        self.turns.append(turn)
        self.actions[agent] = replace(action, turn=turn, tokenizer=self.formats[agent].tokenizer)

    def step(self) -> None:
        """Step the environment; an exception fails the episode."""
        self._run_environment(self._step)

    def _step(self) -> None:
        assert self.environment is not None
        actions, self.actions = self.actions, {}
        step = self.environment.step(actions)
        check_step(step)
        observations = self._limit_observations(step.observations)
        self.rewards.append({agent: float(number) for agent, number in step.rewards.items()})
        self.parts |= step.parts
        self.last_step = step.with_observations(observations)
        self.ended |= step.ended
        if step.terminated or step.truncated:
            # Only truncated agents read final observations: their state needs a bootstrap value.
            cut = step.unfinished if step.terminated else observations.keys() - self.ended
            observations = {name: text for name, text in observations.items() if name in cut}
            if not step.terminated:
                self.truncation = "environment"
        elif len(self.rewards) >= MAX_STEPS:
            raise RuntimeError(f"the environment has not ended after {MAX_STEPS} steps")
        elif not observations:
            raise RuntimeError("the environment has not ended but returns no observation, so that no agent can act")
        self.observations = observations

    def last_completion(self, agent: str) -> Completion:
        """The agent's last completion."""
        return next(turn.completion for turn in reversed(self.turns) if turn.agent == agent)

    def fail(self, error: Exception) -> None:
        """End the episode without a reward."""
        self.failure, self.observations = error, {}

    def await_actions(self, room: Mapping[str, int]) -> None:
        """Make agents with new observations pending; truncate the episode if a prompt is not below its `room`.

        A program's request without a prompt or room is refused, and the program continues.
        """
        prompts = {agent: self.conversations[agent].ids for agent in self.observations}
        fits = {agent: 0 < len(ids) < room[agent] for agent, ids in prompts.items()}
        for agent in [agent for agent, call in self.observations.items() if isinstance(call, ModelCall)]:
            conversation = self.conversations[agent]
            if not self.is_over and not fits[agent]:
                if conversation.error:
                    self.actions[agent] = Action("", refusal=conversation.error)
                else:
                    conversation.error = describe_length(len(prompts[agent]), room[agent])
                    self.actions[agent] = Action("", refusal=conversation.error, refusal_code=TOO_LONG)
                del prompts[agent], fits[agent]
        if not self.is_over and not all(fits.values()):
            self.truncation = "context"
        if self.is_over:
            self.final = {agent: list(ids) for agent, ids in prompts.items() if fits[agent]}
        else:
            self.pending_agents = {agent: self.observations[agent] for agent in fits}
        self.observations = {}

    def release(self, environments: EnvironmentPool) -> None:
        """Return the environment to the pool; one that failed or is still busy is not reused."""
        if self.environment is not None and not self.is_busy:  # an abandoned thread keeps its environment
            environments.release(self.environment, usable=self.is_over and self.failure is None)
            self.environment = None

    def to_episode(self) -> Episode:
        """The collected episode."""
        return Episode(
            example=self.example,
            index=self.index,
            turns=self.turns,
            rewards=self.rewards,
            final=self.final,
            last_observations=dict(self.last_step.observations) if self.last_step is not None and self.is_over else {},
            terminated=self.last_step is not None and self.last_step.terminated and self.failure is None,
            unfinished=frozenset() if self.last_step is None else self.last_step.unfinished,
            ended=frozenset(self.ended),
            truncation=self.truncation,
            failure=self.failure,
            parts=self.parts,
            roles=self.roles,
        )

    def _run_environment(self, work: Callable[[], None]) -> None:
        """Run environment code; an exception fails the episode."""
        self.is_busy = True
        try:
            work()
        except BaseException as error:
            # A configuration error is raised: every episode would fail by it.
            self.fail(as_failure(error))
        finally:
            self.is_busy = False

    def _limit_observations(self, observations: Mapping[str, str]) -> dict[str, str]:
        for agent in observations:
            if agent not in self.formats:
                raise ValueError(
                    f"the environment returns an observation for {agent!r}; agents are {' '.join(self.formats)}"
                )
        return {
            agent: cut_observation(text, self.formats[agent].tokenizer, self.limits[agent])
            for agent, text in observations.items()
        }


def environment_seed(draws: SamplingStream, index: int) -> int:
    """The environment seed of an episode, below 2**31: a function of (seed, purpose, index)."""
    name = f"{draws.seed}/{draws.purpose}/environment/{index}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little") >> 1
