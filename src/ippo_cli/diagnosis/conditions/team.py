"""Conditions of teams: agents without influence on the score, and messages that no agent reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
ALWAYS_READ = 0.9  # fraction of messages that a later prompt contains if a template passes them
READ_BY_SOME = 0.25  # least excess of this fraction over chance


def find_deaf_agents(observations: Observations) -> Outcome:
    """An agent's responses influence neither the score nor any observation of a later agent."""
    if len(observations.config.task.agents) < 2:
        return None
    without_credit = [name for name in trained_agents(observations.config) if _has_no_influence(observations, name)]
    if without_credit:
        return _no_influence(observations, without_credit)
    if not observations.config.task.is_conversation:
        return NotChecked("agents act in an environment, and reward.measure_credit_every is 0")
    readings = count_readings(observations.episodes)
    unread = [name for name in observations.config.task.agents if name in readings and readings[name].is_unread]
    if unread:
        return _unread_messages(observations, unread, readings)
    measured = any("/credit/" in key for row in observations.rows for key in row)
    if measured or any(counts.total >= MIN_MESSAGES for counts in readings.values()):
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


@dataclass(frozen=True, slots=True)
class Readings:
    """How many messages of an agent later observations of other agents contain.

    `by_chance`: how many the later observations of the next sampled episode contain, which cannot have read them.
    """

    read: int
    by_chance: int
    total: int

    @property
    def is_unread(self) -> bool:
        """Whether the messages occur hardly more often than by chance."""
        return (
            self.total >= MIN_MESSAGES
            and self.read < ALWAYS_READ * self.total
            and self.read - self.by_chance < READ_BY_SOME * self.total
        )


def count_readings(episodes: Sequence[Mapping[str, Any]]) -> dict[str, Readings]:
    """By agent, how many of its messages a later agent reads, of those that one could read."""
    pairs = [list(_message_pairs(episode)) for episode in episodes]
    found: dict[str, Readings] = {}
    for own, other in zip(pairs, [*pairs[1:], *pairs[:1]], strict=True):
        for name, message, later in own:
            elsewhere = [text for sender, _, texts in other for text in texts if sender == name]
            counts = found.get(name, Readings(0, 0, 0))
            found[name] = Readings(
                counts.read + any(message in text for text in later),
                counts.by_chance + any(message in text for text in elsewhere),
                counts.total + 1,
            )
    return found


def _message_pairs(episode: Mapping[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    """Sender, message, and later observations of other agents; without those that no agent could read."""
    turns = episode.get("turns") or []
    for place, turn in enumerate(turns):
        message, name = str(turn.get("response") or "").strip(), str(turn.get("agent"))
        later = [
            str(other.get("observation") or "")
            for other in turns[place + 1 :]
            if other.get("agent") != name and other.get("step", 0) > turn.get("step", 0)
        ]
        if message and later:
            yield name, message, later


def _unread_messages(observations: Observations, names: Sequence[str], readings: Mapping[str, Readings]) -> Finding:
    return Finding(
        agents=tuple(names),
        text=f"agents that act after {join_names(names)} do not read its responses: later prompts contain them no more "
        "often than prompts of other episodes do",
        advice="pass the message in the template or in the protocol",
        evidence=tuple(
            Evidence(
                f"samples of {name}",
                f"of {readings[name].total} responses {readings[name].read} are in a later prompt of the episode, "
                f"{readings[name].by_chance} in one of another episode",
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
