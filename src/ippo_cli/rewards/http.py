"""`reward=http`: scores of an HTTP server, requested in batches of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ippo_cli.config.schema import AgentConfig, HttpRewardConfig
from ippo_cli.rewards.contract import Reward, Row, stack_rows
from ippo_cli.rewards.episodes import get_chat_messages, last_texts
from ippo_cli.rewards.remote import RemoteClient, RequestFailed
from ippo_cli.types import Episode
from ippo_cli.user_code.part_names import part_name

ROW_KEYS = ("team", "agent", "parts", "error")


class HttpReward:
    """POSTs `{"rows": [...]}`; the server answers `{"rows": [...]}` with one entry per row.

    A row has `example`, `responses` with each agent's last text, and `prompts` with the messages before it, each with
    `role` and `content`. An entry is a number or `{"team": NUMBER, "agent": {NAME: NUMBER}, "parts": {...}}`; null or
    `{"error": TEXT}` if the row cannot be scored.

    Rows without a number, and rows of a request that the server rejected, are sent again one by one.
    """

    def __init__(self, config: HttpRewardConfig, agents: Mapping[str, AgentConfig]) -> None:
        assert config.url is not None
        self.agents, self.batch_size = agents, config.batch_size
        self._remote = RemoteClient(config, config.url)

    def __call__(self, episodes: Sequence[Episode]) -> Reward:
        rows = self._build_rows(episodes)
        results: list[Row | Exception] = [RuntimeError("no request was sent")] * len(rows)
        places = list(range(len(rows)))
        parts = [places[first : first + self.batch_size] for first in range(0, len(rows), self.batch_size)]
        self._request_rows(rows, parts, results)
        # Not after a connection failure: single rows would fail as well.
        single_rows = [
            [place]
            for part in parts
            for place in part
            if len(part) > 1 and isinstance(results[place], Exception) and getattr(results[place], "answered", True)
        ]
        self._request_rows(rows, single_rows, results)
        return replace(stack_rows(results), final=True)  # failed requests were already retried

    def check_connection(self) -> None:
        self._remote.check_connection()

    def close(self) -> None:
        self._remote.close()

    def _build_rows(self, episodes: Sequence[Episode]) -> list[dict[str, Any]]:
        texts = last_texts(episodes, list(self.agents))
        return [
            {
                "example": dict(episode.example),
                "prompts": {name: get_chat_messages(episode, name, self.agents)[:-1] for name in self.agents},
                "responses": {name: texts[name][row] for name in self.agents},
            }
            for row, episode in enumerate(episodes)
        ]

    def _request_rows(
        self, rows: Sequence[Mapping[str, Any]], parts: Sequence[Sequence[int]], results: list[Row | Exception]
    ) -> None:
        def read(place: int, answer: Any) -> list[Row | Exception]:
            answers = _parse_answer(answer, len(parts[place]), list(self.agents))
            if len(answers) == 1 and isinstance(answers[0], RequestFailed):
                raise answers[0]
            return answers

        bodies = [{"rows": [rows[place] for place in part]} for part in parts]
        for part, answers in zip(parts, self._remote.post_all(bodies, read), strict=True):
            each = [answers] * len(part) if isinstance(answers, Exception) else answers
            for place, answer in zip(part, each, strict=True):
                results[place] = answer


def _parse_answer(answer: Any, rows: int, agents: Sequence[str]) -> list[Row | Exception]:
    entries = answer.get("rows") if isinstance(answer, dict) else None
    if not isinstance(entries, list) or len(entries) != rows:
        summary = f"{len(entries)} entries" if isinstance(entries, list) else f"{answer!r:.80}"
        raise RequestFailed(
            f'the response must be {{"rows": [...]}} with one entry for each of the {rows} rows, not {summary}'
        )
    return [_parse_row(entry, agents) for entry in entries]


def _parse_row(entry: Any, agents: Sequence[str]) -> Row | Exception:
    try:
        return _parse_entry(entry, agents)
    except RequestFailed as failure:
        return failure
    except (OverflowError, TypeError, ValueError) as error:
        return RequestFailed(f"invalid entry of a row: {entry!r:.80}: {error}")


def _parse_entry(entry: Any, agents: Sequence[str]) -> Row:
    if isinstance(entry, Mapping) and entry.get("error") is not None:
        raise RequestFailed(f"the server reports: {entry['error']!s:.200}")
    if not isinstance(entry, Mapping):
        return {"team": _parse_number(entry)}
    if (unknown := sorted(set(entry) - set(ROW_KEYS))) or not ("team" in entry or "agent" in entry):
        raise ValueError(
            f"it must have team or agent, and no keys except {', '.join(ROW_KEYS)}"
            f"{f'; unknown keys: {unknown}' if unknown else ''}"
        )
    row: dict[str, Any] = {}
    if "team" in entry:
        row["team"] = _parse_number(entry["team"])
    if "agent" in entry:
        if set(entry["agent"]) != set(agents):
            raise ValueError(f"agent must have a number for each of {', '.join(agents)}")
        row["agent"] = {name: _parse_number(entry["agent"][name]) for name in agents}
    parts = entry.get("parts") or {}
    row["parts"] = {part_name(name): _parse_number(parts[name]) for name in parts}
    return row


def _parse_number(value: Any) -> float:
    if isinstance(value, bool | int | float) and math.isfinite(number := float(value)):
        return number
    raise ValueError("a finite number is required")
