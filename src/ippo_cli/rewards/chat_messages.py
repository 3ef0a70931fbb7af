"""Converts episodes to chat messages for judges, reward models and HTTP scorers."""

from __future__ import annotations

from collections.abc import Mapping

from ippo_cli.config.schema import AgentConfig
from ippo_cli.tasks.messages import Message, MessagesText
from ippo_cli.types import Episode


def get_chat_messages(episode: Episode, agent: str, agents: Mapping[str, AgentConfig]) -> list[Message]:
    """One agent's system prompt, observations and completions as messages, rebuilt from texts.

    Empty for an agent without turns.
    """
    turns = episode.turns_of_agent(agent)
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
