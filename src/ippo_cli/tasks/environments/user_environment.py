"""`task=environment`: a user's text environment with Gymnasium's `reset` and `step`, and optionally `close`."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from ippo_cli.config.errors import ConfigError, raise_interruption
from ippo_cli.config.schema import UserEnvironmentConfig
from ippo_cli.tasks.environment import Action, InvalidReturn, Step
from ippo_cli.types import Example
from ippo_cli.user_code.errors import format_user_error
from ippo_cli.user_code.load import load_function
from ippo_cli.user_code.part_names import part_name

REQUIRED_METHODS = ("reset", "step")


class UserEnvironment:
    """Adapter of the environment that a user's function returned.

    With one agent, observations and actions are texts, and the reward is a number:

        class Guess:
            def reset(self, seed):
                self.number = seed % 10
                return "a digit?", {}

            def step(self, action):
                right = action.strip() == str(self.number)
                return "yes" if right else "no", float(right), right, False, {"right": right}

    An optional `close` is called at the end of the run.

    With several agents, `reset` and `step` return observations as a dict from agent to text; its keys are the agents
    that act next. `step` receives a dict from these agents to their responses and returns rewards as a dict from agent
    to number (missing agents: 0). `terminated` and `truncated` may be dicts from agent to bool; then the episode ends
    when all agents have ended. After the end, the observations are final observations. Numbers in `info` are logged.

    An attribute `roles`, a dict from agent to text, gives agents separate baselines by role.

    If `step` has a parameter `finished`, it receives whether the response is complete (with several agents: a dict);
    the environment decides how to treat truncated ones.
    """

    def __init__(self, environment: Any, name: str, agents: Sequence[str], max_turns: int | None) -> None:
        self.environment = environment
        self.takes_finished = _has_parameter(environment.step, "finished")
        self.name = name
        self.agents = list(agents)
        self.max_turns = max_turns

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        """Begin an episode with the example's seed: equal actions for one example give equal episodes."""
        result = self.environment.reset(seed=example["seed"])
        if not isinstance(result, tuple) or len(result) != 2:
            raise InvalidReturn(f"{self.name}: reset must return (observation, info), not {_describe_type(result)}")
        self.turns: Counter[str] = Counter()
        self.terminated_agents: set[str] = set()  # terminated agents
        self.truncated_agents: set[str] = set()  # truncated agents
        observations = self._observations(result[0], "reset")
        if not observations:
            raise ValueError(f"{self.name}: reset must return an observation for at least one agent")
        return observations

    def step(self, actions: Mapping[str, Action]) -> Step:
        self.turns.update(list(actions))
        texts = self._to_user_format({agent: action.text for agent, action in actions.items()})
        finished = self._to_user_format({agent: action.finished for agent, action in actions.items()})
        result = self.environment.step(texts, **({"finished": finished} if self.takes_finished else {}))
        if not isinstance(result, tuple) or len(result) != 5:
            raise InvalidReturn(
                f"{self.name}: step must return (observation, reward, terminated, truncated, info), "
                f"not {_describe_type(result)}"
            )
        raw_observations, reward, terminated, truncated, info = result
        observations = self._observations(raw_observations, "step")
        self.terminated_agents |= self._agents_done(terminated) - self.truncated_agents
        self.truncated_agents |= self._agents_done(truncated) - self.terminated_agents
        over = self.terminated_agents | self.truncated_agents >= set(self.agents)
        if not (observations or over):
            raise ValueError(
                f"{self.name}: step must return an observation for at least one agent until the episode ends"
            )
        limited = self.max_turns is not None and max(self.turns.values()) >= self.max_turns
        terminated = over and bool(self.terminated_agents)
        return Step(
            observations=observations,
            rewards=self._rewards(reward),
            terminated=terminated,
            truncated=not terminated and (over or limited),
            unfinished=frozenset(self.truncated_agents if terminated else ()),
            ended=frozenset(self.terminated_agents),
            parts={part_name(name): float(value) for name, value in info.items() if isinstance(value, Real)},
        )

    @property
    def roles(self) -> Mapping[str, str]:
        """Each agent's role, if the environment has an attribute `roles`."""
        return getattr(self.environment, "roles", {})

    def actions(self) -> Mapping[str, Sequence[str]]:
        """Legal actions by agent, if the environment has a method `actions`."""
        offered = getattr(self.environment, "actions", None)
        if not callable(offered):
            return {}
        listed: Any = offered()
        return listed if isinstance(listed, Mapping) else {self.agents[0]: list(listed)}

    def chance_outcomes(self) -> Mapping[int, float]:
        """Seeds that stand for all outcomes of chance, if the environment has a method `chance_outcomes`."""
        outcomes = getattr(self.environment, "chance_outcomes", None)
        return dict(outcomes()) if callable(outcomes) else {}  # type: ignore[call-overload]

    def close(self) -> None:
        close = getattr(self.environment, "close", None)
        if callable(close):
            close()

    def _observations(self, value: Any, method: str) -> Mapping[str, str]:
        self.has_dict_observations = not isinstance(value, str)
        observations = {self.agents[0]: value} if isinstance(value, str) else value
        if isinstance(value, str) and len(self.agents) > 1:
            raise InvalidReturn(
                f"{self.name}: {method} must return a dict from agent to text: the task has several agents"
            )
        if not isinstance(observations, Mapping):
            raise InvalidReturn(f"{self.name}: {method} must return texts as observations, not {_describe_type(value)}")
        for agent, text in observations.items():
            self._check_agent(agent, method)
            if not isinstance(text, str):
                raise InvalidReturn(
                    f"{self.name}: {method} must return texts as observations, not {_describe_type(text)}"
                )
        return observations

    def _to_user_format(self, by_agent: Mapping[str, Any]) -> Any:
        """Return values as a dict by agent if the observations were a dict, or else the single agent's value."""
        return dict(by_agent) if self.has_dict_observations else by_agent[self.agents[0]]

    def _agents_done(self, over: Any) -> set[str]:
        """Return the agents that have ended: all for a true flag, or those with a true value in a dict."""
        if not isinstance(over, Mapping):
            return set(self.agents) if over else set()
        for agent in over:
            self._check_agent(agent, "step")
        return {agent for agent, own in over.items() if own}

    def _rewards(self, reward: Any) -> Mapping[str, float]:
        if not isinstance(reward, Mapping):
            if len(self.agents) > 1:
                raise InvalidReturn(f"{self.name}: step must return rewards by agent: the task has several agents")
            reward = {self.agents[0]: reward}
        for agent in reward:
            self._check_agent(agent, "step")
        return {agent: float(number) for agent, number in reward.items()}

    def _check_agent(self, agent: str, method: str) -> None:
        if agent not in self.agents:
            raise ValueError(f"{self.name}: {method} names {agent!r}, but task.agents are {', '.join(self.agents)}")


def make_user_environment_factory(config: UserEnvironmentConfig) -> Callable[[], UserEnvironment]:
    """Return a factory of environments; `ConfigError` if the first one cannot be created."""
    make = load_function(str(config.environment), "task.environment")

    def create() -> UserEnvironment:
        environment = make(**config.environment_args)
        if missing := [method for method in REQUIRED_METHODS if not callable(getattr(environment, method, None))]:
            raise InvalidReturn(
                f"{config.environment} returned a {type(environment).__name__}, which has no {', '.join(missing)}"
            )
        return UserEnvironment(environment, str(config.environment), [*config.agents], config.max_turns)

    try:
        spare = [create()]
    except BaseException as error:  # raised by user code
        raise_interruption(error)
        raise ConfigError(
            f"task.environment={config.environment} task.environment_args={config.environment_args}",
            f"cannot be created ({format_user_error(error)})",
            "fix the function or its arguments",
        ) from error
    return lambda: spare.pop() if spare else create()


def _has_parameter(method: Any, name: str) -> bool:
    try:
        return name in inspect.signature(method).parameters
    except (TypeError, ValueError):  # some functions written in C have no signature
        return False


def _describe_type(value: Any) -> str:
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, tuple) else "")
