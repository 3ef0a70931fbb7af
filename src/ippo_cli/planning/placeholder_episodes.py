"""Episodes with placeholders as responses: shown as a preview of prompts, and scored to try reward functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import torch

from ippo_cli.config.errors import ConfigError, raise_interruption
from ippo_cli.config.rewards import rewards_with_prefixes
from ippo_cli.config.schema import (
    Config,
    EnvironmentRewardConfig,
    HttpRewardConfig,
    JudgeRewardConfig,
    ModelRewardConfig,
)
from ippo_cli.rewards.build import build_reward
from ippo_cli.rewards.contract import Reward, RewardFunction, close_reward, validate_reward
from ippo_cli.tasks.conversation import Conversation, PromptFormat
from ippo_cli.tasks.dry_run import DryRun
from ippo_cli.tasks.task import Task, dry_run_examples
from ippo_cli.types import Completion, Episode, Example, Turn
from ippo_cli.user_code.errors import format_user_error

SHOWN_TURNS = 6
TRIAL_EPISODES = 2  # with a single episode, some lists of a wrong length would look right
SKIPPED_REWARDS = (EnvironmentRewardConfig, HttpRewardConfig, JudgeRewardConfig, ModelRewardConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewTurn:
    """The new part of an agent's prompt, and the placeholder of its response."""

    agent: str
    prompt: str
    action: str


@dataclass(slots=True, kw_only=True)
class Preview:
    """The first turns of an episode on the first training example."""

    turns: list[PreviewTurn] = field(default_factory=list)
    remaining_turns: int = 0  # turns after those shown
    ending: str = ""  # how it ended, if it did


def preview_episode(task: Task, formats: Mapping[str, PromptFormat]) -> Preview:
    """The first `SHOWN_TURNS` turns of the task's dry run, as the agents read them."""
    shown, reader = task.dry_run, _PreviewReader(formats)
    turns = [reader.read_turn(*turn) for turn in shown.turns[:SHOWN_TURNS]]
    end = (
        "fails here with placeholders as responses" if shown.failure else shown.outcome or "not over after these turns"
    )
    return Preview(turns=turns, remaining_turns=len(shown.turns) - len(turns), ending=end)


class _PreviewReader:
    """Builds each agent's conversation with its prompt format."""

    def __init__(self, formats: Mapping[str, PromptFormat]) -> None:
        self._formats = formats
        self._conversations: dict[str, Conversation] = {}
        self._written: dict[str, str] = {}

    def read_turn(self, agent: str, observation: str, written: str) -> PreviewTurn:
        """The new part of an agent's prompt; the whole prompt if it does not extend the previous one."""
        prompt_format, before = self._formats[agent], ""
        if agent not in self._conversations:
            [conversation] = prompt_format.start_conversations([observation])
            if not conversation.ids:
                prompt_format.check_length(conversation.text, 0, prompt_format.max_prompt_tokens)
            self._conversations[agent] = conversation
        else:
            conversation, response = self._conversations[agent], self._written[agent]
            before = conversation.text + response
            prompt_format.extend([conversation], [_truncated_completion(response)], [observation])
        self._written[agent] = written
        read = prompt_format.control.unguard(self._conversations[agent].text.removeprefix(before))
        return PreviewTurn(agent=agent, prompt=read, action=written)


def _truncated_completion(text: str) -> Completion:
    """A truncated completion, so that no stop token is expected."""
    nothing = torch.zeros(0)
    return Completion(ids=nothing.long(), logprobs=nothing, behavior_logprobs=nothing, text=text, finished=False)


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
    functions = [(where, own) for where, own in rewards_with_prefixes(config) if own.reward.user_function is not None]
    episodes = _placeholder_episodes(config, task) if functions else []
    if not episodes:
        return
    for where, own in functions:
        reward = build_reward(own.reward, config.task.agents)
        try:
            wrong = _reward_problem(reward, list(config.task.agents), episodes)
        finally:
            close_reward(reward)
        if wrong:
            yield (
                f"{where}.function={own.reward.user_function} fails with placeholders as responses ({wrong}); "
                "if it also fails with real responses, no row is trained on"
            )


def _reward_problem(reward: RewardFunction, agents: Sequence[str], episodes: Sequence[Episode]) -> str:
    try:
        answer = validate_reward(reward(episodes), agents, episodes)
    except BaseException as error:  # from the user's code
        raise_interruption(error)
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
