"""Trial of user reward functions with placeholder responses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

import torch

from ippo_cli.config.errors import ConfigError, IppoError
from ippo_cli.config.rewards import rewards_with_prefixes
from ippo_cli.config.schema import (
    Config,
    EnvironmentRewardConfig,
    FunctionRewardConfig,
    HttpRewardConfig,
    JudgeRewardConfig,
    ModelRewardConfig,
)
from ippo_cli.rewards.build import build_reward
from ippo_cli.rewards.contract import Reward, RewardFunction, close_reward, validate_reward
from ippo_cli.tasks.dry_run import DryRun
from ippo_cli.tasks.task import Task, dry_run_examples
from ippo_cli.types import Completion, Episode, Example, Turn
from ippo_cli.user_code.errors import format_user_error

TRIAL_EPISODES = 2  # with a single episode, some lists of a wrong length would look right
SKIPPED_REWARDS = (EnvironmentRewardConfig, HttpRewardConfig, JudgeRewardConfig, ModelRewardConfig)


def check_primary_metric(config: Config, task: Task) -> None:
    """Raise `ConfigError` if `task.primary_metric` is a part that the reward does not report.

    Skips rewards that need a server, a model or an environment, and functions that fail with placeholders: the first
    evaluation checks these.
    """
    mode, _, metric = config.task.primary_metric.partition("/")
    part = metric.partition("/pass@")[0]
    if part in ("score", "failed_fraction") or "/" in part:
        return
    if any(isinstance(own.reward, SKIPPED_REWARDS) for _, own in rewards_with_prefixes(config)):
        return
    reward = build_reward(config.reward, config.task.agents)
    try:
        episodes = _placeholder_episodes(config, task)
        answer = validate_reward(reward(episodes), list(config.task.agents), episodes) if episodes else None
    except Exception:  # from a user's function, or an example without a score
        return
    finally:
        close_reward(reward)
    if answer is not None and not answer.failures and part not in answer.parts:
        raise ConfigError(
            f"task.primary_metric={config.task.primary_metric}",
            f"is not reported by reward={config.reward.kind}",
            "use one of " + " ".join(f"{mode}/{name}" for name in ("score", *sorted(answer.parts))),
        )


def _placeholder_episodes(config: Config, task: Task) -> list[Episode]:
    """Episodes on the first examples with placeholders as responses; empty if a dry run fails."""
    examples = list(islice(task.train, TRIAL_EPISODES))
    runs = [dry_run_examples(config.task, [example], config.seed) for example in examples]
    if any(run.failure or not run.turns for run in runs):
        return []
    return [_placeholder_episode(index, *pair) for index, pair in enumerate(zip(examples, runs, strict=True))]


def reward_warnings(config: Config, task: Task) -> Iterator[str]:
    """Warnings about reward functions that raise, violate the contract, or return non-finite numbers."""
    functions = [
        (where, own) for where, own in rewards_with_prefixes(config) if isinstance(own.reward, FunctionRewardConfig)
    ]
    episodes = _placeholder_episodes(config, task) if functions else []
    if not episodes:
        return
    for where, own in functions:
        assert isinstance(own.reward, FunctionRewardConfig)
        reward = build_reward(own.reward, config.task.agents)
        try:
            wrong = _reward_problem(reward, list(config.task.agents), episodes)
        finally:
            close_reward(reward)
        if wrong:
            yield (
                f"{where}.function={own.reward.function} fails with placeholders as responses ({wrong}); "
                "if it also fails with real responses, no row is trained on"
            )


def _reward_problem(reward: RewardFunction, agents: Sequence[str], episodes: Sequence[Episode]) -> str:
    try:
        answer = validate_reward(reward(episodes), agents, episodes)
    except IppoError:
        raise
    except (Exception, SystemExit) as error:  # from the user's code
        return format_user_error(error)
    if answer.failures:
        return format_user_error(answer.failures[min(answer.failures)])
    return "" if all(map(math.isfinite, _reward_values(answer))) else "a number is not finite"


def _reward_values(answer: Reward) -> Iterable[float]:
    nested = [answer.team_by_step or (), *answer.agent_by_turn.values()]
    return chain(answer.team or (), *answer.agent.values(), *(chain.from_iterable(rows) for rows in nested))


def _placeholder_episode(index: int, example: Example, run: DryRun) -> Episode:
    """An episode without rewards, in which each turn is a separate step."""
    nothing = torch.zeros(0)
    return Episode(
        example=example,
        index=index,
        turns=[
            Turn(
                agent=agent,
                step=step,
                observation=observation,
                prompt=[],
                completion=Completion(
                    ids=nothing.long(), logprobs=nothing, behavior_logprobs=nothing, text=text, finished=True
                ),
            )
            for step, (agent, observation, text) in enumerate(run.turns)
        ],
        rewards=[{} for _ in run.turns],
        final={},
        last_observations={},
        terminated=True,
        unfinished=frozenset(),
        ended=frozenset(),
        truncation="",
        failure=None,
        parts={},
    )
