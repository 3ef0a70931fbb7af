"""Conditions of teams: agents without influence on the score, and messages that no agent reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ippo_cli.config.schema import ConversationConfig
from ippo_cli.config.text import join_names
from ippo_cli.diagnosis.finding import (
    Certainty,
    Evidence,
    Finding,
    NotChecked,
    Observations,
    Outcome,
    Row,
    metric_evidence,
)
from ippo_cli.diagnosis.series import column, trained_agents

NEARLY_ALL = 0.99  # a fraction of episodes that counts as all
MIN_MEASUREMENTS = 2  # iterations with measured credit
MIN_MESSAGES = 8  # sampled messages of an agent that a later agent could read
MIN_LENGTH = 1  # characters of a message


def find_deaf_agents(observations: Observations) -> Outcome:
    """An agent's responses influence neither the score nor any observation of a later agent."""
    if len(observations.config.task.agents) < 2:
        return None
    without_credit = [name for name in trained_agents(observations.config) if _has_no_influence(observations, name)]
    if without_credit:
        return _no_influence(observations, without_credit)
    if not isinstance(observations.config.task, ConversationConfig):
        return NotChecked("agents act in an environment, and reward.measure_credit_every is 0")
    readings = count_readings(observations.episodes)
    unread = [
        name
        for name in observations.config.task.agents
        if readings.get(name, (0, 0))[1] >= MIN_MESSAGES and readings[name][0] == 0
    ]
    if unread:
        return _unread_messages(observations, unread, readings)
    measured = any("/credit/" in key for row in observations.rows for key in row)
    if measured or any(total >= MIN_MESSAGES for _, total in readings.values()):
        return None
    return NotChecked("no agent acts after another in the samples; reward.measure_credit_every=10 measures influence")


def _credit_keys(rows: Sequence[Row], name: str) -> list[str]:
    keys = dict.fromkeys(key for row in rows for key in row)
    return [key for key in keys if key.startswith(f"{name}/credit/") and key.endswith("/zero_fraction")]


def _has_no_influence(observations: Observations, name: str) -> bool:
    """Whether replacing the agent's responses left the score equal in every measurement, while scores differ."""
    rows = observations.rows
    varies = any(value > 0 for value in column(rows, f"{name}/score/std"))
    for key in _credit_keys(rows, name):
        values = column(rows, key)
        if varies and len(values) >= MIN_MEASUREMENTS and min(values) >= NEARLY_ALL:
            return True
    return False


def _no_influence(observations: Observations, names: Sequence[str]) -> Finding:
    rows = observations.rows
    return Finding(
        agents=tuple(names),
        text=f"other responses of {join_names(names)} would not change the score: no agent and no reward uses them",
        advice="let the reward score them, or let another agent read them",
        evidence=tuple(metric_evidence(rows, key) for name in names for key in _credit_keys(rows, name)),
        overrides=_reading_overrides(observations, names[0]),
        certainty=Certainty.certain,
    )


def count_readings(episodes: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """By agent, messages that a later observation of another agent contains, and messages that one could contain."""
    counts: dict[str, tuple[int, int]] = {}
    for episode in episodes:
        turns = episode.get("turns") or []
        for place, turn in enumerate(turns):
            message, name = str(turn.get("response") or "").strip(), str(turn.get("agent"))
            later = [
                str(other.get("observation") or "")
                for other in turns[place + 1 :]
                if other.get("agent") != name and other.get("step", 0) > turn.get("step", 0)
            ]
            if len(message) < MIN_LENGTH or not later:
                continue
            found, total = counts.get(name, (0, 0))
            counts[name] = (found + any(message in text for text in later), total + 1)
    return counts


def _unread_messages(
    observations: Observations, names: Sequence[str], readings: Mapping[str, tuple[int, int]]
) -> Finding:
    return Finding(
        agents=tuple(names),
        text=f"agents that act after {join_names(names)} never read its responses: no later observation contains one",
        advice="pass the message in the template or in the protocol",
        evidence=tuple(
            Evidence(
                f"samples of {name}", f"{readings[name][0]} of {readings[name][1]} responses are in a later prompt"
            )
            for name in names
        ),
        overrides=_reading_overrides(observations, names[0]),
    )


def _reading_overrides(observations: Observations, name: str) -> tuple[str, ...]:
    """Overrides that let the last other agent read this one."""
    agents = observations.config.task.agents
    other = next(agent for agent in reversed(agents) if agent != name)
    template = f"{agents[other].template}{{agents.{name}}}"
    return ("task.protocol=sequential", f"task.agents.{other}.template={template!r}")
