"""What was said in an episode, as messages: what judges, reward models and remote scorers read."""

from __future__ import annotations

from collections.abc import Mapping

from ippo_cli.config.schema import AgentConfig
from ippo_cli.tasks.messages import Message, MessagesText
from ippo_cli.types import Episode


def get_chat_messages(episode: Episode, agent: str, agents: Mapping[str, AgentConfig]) -> list[Message]:
    """One agent's conversation: what it was told and what it said, its last answer included; rebuilt from texts.

    An agent that never spoke has no messages.
    """
    turns = episode.of(agent)
    system = agents[agent].system
    messages = [{"role": "system", "content": system}] if system is not None and turns else []
    for turn in turns:
        observation = turn.observation
        chat = observation.messages if isinstance(observation, MessagesText) else None
        messages += [{"role": "user", "content": observation}] if chat is None else chat
        messages.append({"role": "assistant", "content": turn.completion.text})
    return messages


def get_last_prompt(episode: Episode, agent: str) -> str:
    """What an agent was told before its last answer."""
    turns = episode.of(agent)
    return turns[-1].observation if turns else ""
