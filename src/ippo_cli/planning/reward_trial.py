"""What functions of the user's say of placeholders as answers: a plan tries them, and training does not."""

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

TRIAL_EPISODES = (
    2  # of one alone, a list that is too long or too short by the number of rows is not told from a right one
)
SKIPPED_REWARDS = (EnvironmentRewardConfig, HttpRewardConfig, JudgeRewardConfig, ModelRewardConfig)


def check_primary_metric(config: Config, task: Task) -> None:
    """Raise `ConfigError` where `task.primary_metric` is a part that the reward does not report.

    Rewards that need a server or a model, an environment's own parts, and functions that fail with placeholders are
    not tried here: the first evaluation checks them.
    """
    mode, _, metric = config.task.primary_metric.partition("/")
    part = metric.partition("/pass@")[0]
    if part in ("score", "failed_share") or "/" in part:
        return
    if any(isinstance(own.reward, SKIPPED_REWARDS) for _, own in rewards_with_prefixes(config)):
        return
    reward = build_reward(config.reward, config.task.agents)
    try:
        episodes = _placeholder_episodes(config, task)
        answer = validate_reward(reward(episodes), list(config.task.agents), episodes) if episodes else None
    except Exception:  # of a user's function, or of an example that has no score
        return
    finally:
        close_reward(reward)
    if answer is not None and not answer.failures and part not in answer.parts:
        raise ConfigError(
            f"task.primary_metric={config.task.primary_metric}",
            f"is not reported by reward={config.reward.kind.value}",
            "use one of " + " ".join(f"{mode}/{name}" for name in ("score", *sorted(answer.parts))),
        )


def _placeholder_episodes(config: Config, task: Task) -> list[Episode]:
    """Episodes about the first examples with placeholders as answers; none where a dry run fails."""
    examples = list(islice(task.train, TRIAL_EPISODES))
    runs = [dry_run_examples(config.task, [example], config.seed) for example in examples]
    if any(run.failure or not run.turns for run in runs):
        return []
    return [_placeholder_episode(index, *pair) for index, pair in enumerate(zip(examples, runs, strict=True))]


def reward_warnings(config: Config, task: Task) -> Iterator[str]:
    """What to warn of: functions that raise, break the contract, or give no number."""
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
                f"{where}.function={own.reward.function} fails with placeholders as answers ({wrong}); "
                "if it fails with others as well, nothing will be trained on"
            )


def _reward_problem(reward: RewardFunction, agents: Sequence[str], episodes: Sequence[Episode]) -> str:
    try:
        answer = validate_reward(reward(episodes), agents, episodes)
    except IppoError:
        raise
    except (Exception, SystemExit) as error:  # of the user's own code
        return format_user_error(error)
    if answer.failures:
        return format_user_error(answer.failures[min(answer.failures)])
    return "" if all(map(math.isfinite, _reward_values(answer))) else "a number is not finite"


def _reward_values(answer: Reward) -> Iterable[float]:
    nested = [answer.team_by_step or (), *answer.agent_by_turn.values()]
    return chain(answer.team or (), *answer.agent.values(), *(chain.from_iterable(rows) for rows in nested))


def _placeholder_episode(index: int, example: Example, run: DryRun) -> Episode:
    """One in which nobody is paid, and every turn is a step of its own."""
    nothing = torch.zeros(0)
    return Episode(
        example=example,
        index=index,
        turns=[
            Turn(
                agent=agent,
                step=step,
                observation=told,
                prompt=[],
                completion=Completion(
                    ids=nothing.long(), logprobs=nothing, behavior_logprobs=nothing, text=text, finished=True
                ),
            )
            for step, (agent, told, text) in enumerate(run.turns)
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
