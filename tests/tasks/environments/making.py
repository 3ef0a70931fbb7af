"""Environment configurations for tests, and seeded play."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from no_curriculum import NO_CURRICULUM

from ippo_cli.config.schema import (
    AgentConfig,
    EnvironmentTaskConfig,
    GymnasiumConfig,
    IllegalMove,
    ObservationForm,
    OpenEnvConfig,
    Opponent,
    PettingzooConfig,
    ReasoningGymConfig,
    TextArenaConfig,
    UserEnvironmentConfig,
)
from ippo_cli.tasks.environment import Action, Step
from ippo_cli.tasks.environments.build import make_environment_factory
from ippo_cli.tasks.environments.examples import seed_examples
from ippo_cli.tasks.warm_start import SupportsActions, play_lessons, take_examples

INVALID = -0.25


def common(kind: str, agents: str, **values: Any) -> dict[str, Any]:
    named = {name: AgentConfig(template="{observation}") for name in agents.split()}
    return {
        "kind": kind,
        "agents": named,
        "primary_metric": "sampled/score",
        "curriculum": NO_CURRICULUM,
        "train_size": 1000,
        "eval_size": 10,
        "num_workers": 1,
        **values,
    }


def gymnasium(
    env_id: str | None, form: str = "short", *, max_turns: int | None = 32, agents: str = "solo", **arguments: Any
) -> GymnasiumConfig:
    return GymnasiumConfig(
        **common("gymnasium", agents, environment_args=arguments, max_turns=max_turns),
        env_id=env_id,
        observation=ObservationForm(form),
        invalid_reward=INVALID,
    )


def pettingzoo(
    env_id: str | None,
    agents: str = "solo",
    form: str = "short",
    *,
    seat: int | str = 0,
    illegal: str = "retry",
    max_turns: int | None = 50,
    **arguments: Any,
) -> PettingzooConfig:
    return PettingzooConfig(
        **common("pettingzoo", agents, environment_args=arguments, max_turns=max_turns),
        env_id=env_id,
        observation=ObservationForm(form),
        invalid_reward=INVALID,
        illegal_move=IllegalMove(illegal),
        opponent=Opponent.random,
        seat=seat,
    )


def reasoning_gym(
    dataset: str | None, num_turns: int = 1, *, tag: str | None = None, agents: str = "solo", **arguments: Any
) -> ReasoningGymConfig:
    return ReasoningGymConfig(
        **common("reasoning_gym", agents), dataset=dataset, dataset_args=arguments, num_turns=num_turns, answer_tag=tag
    )


def textarena(
    env_id: str | None,
    agents: str = "first second",
    *,
    payoff: str | None = None,
    max_turns: int | None = 32,
    **arguments: Any,
) -> TextArenaConfig:
    return TextArenaConfig(
        **common("textarena", agents, environment_args=arguments, max_turns=max_turns), env_id=env_id, payoff=payoff
    )


def own(
    environment: str | None, agents: str = "solo", *, max_turns: int | None = 32, **arguments: Any
) -> UserEnvironmentConfig:
    return UserEnvironmentConfig(
        **common("environment", agents, environment_args=arguments, max_turns=max_turns), environment=environment
    )


def openenv(url: str | None, agents: str = "solo", *, max_turns: int | None = 32, **values: Any) -> OpenEnvConfig:
    unset = ("token_env", "action_field", "action_function", "observation_field", "observation_function")
    defaults = dict.fromkeys((*unset, "max_sessions")) | {"reset_args": {}, "timeout_s": 5.0}
    return OpenEnvConfig(
        **common("openenv", agents, max_turns=max_turns), url=url, invalid_reward=INVALID, **(defaults | values)
    )


def row(seed: int, index: int = 0) -> dict[str, int]:
    return {"seed": seed, "dataset_seed": seed, "index": index}


def act(world: SupportsActions, **texts: str) -> Step:
    return world.step({agent: Action(text=text) for agent, text in texts.items()})


def random_turns(config: EnvironmentTaskConfig, seed: int, episodes: int) -> list[tuple[str, str]]:
    """The (observation, answer) pairs of random-play lessons of all agents."""
    examples, _ = seed_examples(config, seed)
    world = make_environment_factory(config)()
    lessons = play_lessons(world, config.agents, take_examples(examples, episodes), seed)
    return [turn for taught in lessons.values() for lesson in taught for turn in lesson]


def play(world: SupportsActions, example: Mapping[str, int], seed: int, choices: int) -> list[Any]:
    """All observations and rewards of an episode with answers drawn by the seed `choices`, some of them invalid."""
    rng = random.Random(choices)
    observations = world.reset(example, seed)
    story: list[Any] = [dict(observations)]
    for _ in range(200):
        offered = world.actions()
        answers = {agent: rng.choice([*offered[agent], "?"]) for agent in observations}
        step = act(world, **answers)
        observations = step.observations
        story.append(
            (
                answers,
                dict(observations),
                dict(step.rewards),
                step.terminated,
                step.truncated,
                sorted(step.unfinished),
                dict(step.parts),
            )
        )
        if step.terminated or step.truncated:
            return story
    raise AssertionError("the episode does not end")
