"""Adapts reward functions of examples and response texts to the reward contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ippo_cli.config.schema import AgentConfig
from ippo_cli.rewards.contract import Reward
from ippo_cli.types import Episode, Example

Responses = Mapping[str, Sequence[str]]
"""The text of each agent's last turn in each episode."""
ResponseReward = Callable[..., Reward]
"""`function(examples, responses)`, or `function(examples, responses, episodes=episodes)`."""
Agents = Mapping[str, AgentConfig]


class ResponseRewardAdapter:
    """Calls `function(examples, responses)` for episodes.

    `responses` has the text of each agent's last turn, and an empty text for an agent without turns. The function may
    modify its arguments.
    """

    def __init__(self, function: ResponseReward, agents: Sequence[str], *, with_episodes: bool = False) -> None:
        self.function, self.agents, self.with_episodes = function, list(agents), with_episodes

    def __call__(self, episodes: Sequence[Episode]) -> Reward:
        examples: list[Example] = [episode.example for episode in episodes]
        kwargs: dict[str, list[Episode]] = (
            {"episodes": [_copy_episode(episode) for episode in episodes]} if self.with_episodes else {}
        )
        return self.function(examples, last_texts(episodes, self.agents), **kwargs)

    def validate_examples(self, examples: Sequence[Example]) -> list[str]:
        validate = getattr(self.function, "validate_examples", None)
        return [] if validate is None else list(validate(examples) or ())

    def close(self) -> None:
        close = getattr(self.function, "close", None)
        if close is not None:
            close()


def adapt_response_reward(
    function: ResponseReward, agents: Agents, *, with_episodes: bool = False
) -> ResponseRewardAdapter:
    """Adapt a function of examples and response texts for the agents of a task."""
    return ResponseRewardAdapter(function, list(agents), with_episodes=with_episodes)


def last_texts(episodes: Sequence[Episode], agents: Sequence[str]) -> dict[str, list[str]]:
    """The text of each agent's last turn in each episode; empty for an agent without turns."""
    texts = {name: [""] * len(episodes) for name in agents}
    for row, episode in enumerate(episodes):
        for turn in episode.turns:
            texts[turn.agent][row] = turn.completion.text
    return texts


def _copy_episode(episode: Episode) -> Episode:
    return replace(
        episode, turns=list(episode.turns), rewards=[dict(paid) for paid in episode.rewards], parts=dict(episode.parts)
    )
