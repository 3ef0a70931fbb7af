"""What rewards read of episodes: last responses, chat messages, and the steps of an agent's turns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from ippo_cli.config.schema import AgentConfig
from ippo_cli.tasks.messages import Message, MessagesText
from ippo_cli.tasks.model_call import ModelCall
from ippo_cli.types import Episode

Responses = Mapping[str, Sequence[str]]
"""The text of each agent's last turn in each episode."""


def last_texts(episodes: Sequence[Episode], agents: Sequence[str]) -> dict[str, list[str]]:
    """The text of each agent's last turn in each episode; empty for an agent without turns."""
    texts = {name: [""] * len(episodes) for name in agents}
    for row, episode in enumerate(episodes):
        for turn in episode.turns:
            texts[turn.agent][row] = turn.text
    return texts


def get_chat_messages(episode: Episode, agent: str, agents: Mapping[str, AgentConfig]) -> list[Message]:
    """One agent's system prompt, observations and completions as messages, rebuilt from texts.

    Of an agent that a program calls, the messages of the last call and the response.

    Empty for an agent without turns.
    """
    turns = episode.turns_of_agent(agent)
    if turns and isinstance(call := turns[-1].observation, ModelCall):  # a program sends whole conversations
        return [
            *({"role": part["role"], "content": part["content"]} for part in call.messages),
            {"role": "assistant", "content": turns[-1].completion.text},
        ]
    system = agents[agent].system
    messages = [{"role": "system", "content": system}] if system is not None and turns else []
    for turn in turns:
        observation = turn.observation
        chat = observation.messages if isinstance(observation, MessagesText) else None
        messages += [{"role": "user", "content": observation}] if chat is None else chat
        messages.append({"role": "assistant", "content": turn.completion.text})
    return messages


def get_last_prompt(episode: Episode, agent: str) -> str:
    """The agent's observation before its last completion; empty if the agent has no turns."""
    turns = episode.turns_of_agent(agent)
    return turns[-1].observation if turns else ""


def num_steps(episode: Episode) -> int:
    """The number of steps of an episode, with a last step that the environment did not process."""
    return max([len(episode.rewards), *(turn.step + 1 for turn in episode.turns)])


def turn_steps(episode: Episode, agent: str) -> list[int]:
    """The step of each of an agent's turns."""
    return [turn.step for turn in episode.turns if turn.agent == agent]


def turn_for_step(steps: Sequence[int], step: int) -> int:
    """Index of the turn that receives the reward of `step`: the last turn up to `step`, else the first turn.

    `steps` are the steps of the turns. With turns at steps 1 and 3, rewards of steps 0, 1 and 2 belong to turn 0,
    those of step 3 and later to turn 1.
    """
    return max(bisect_right(steps, step) - 1, 0)
