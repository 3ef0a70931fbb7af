"""`reward=judge`: a language model behind an OpenAI-compatible endpoint scores each response by a rubric."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ippo_cli.config.schema import AgentConfig, JudgeRewardConfig
from ippo_cli.engine import distributed
from ippo_cli.processes.pool import CallFailed
from ippo_cli.rewards.contract import Reward, RewardContext, Row, stack_rows
from ippo_cli.rewards.episodes import get_last_prompt, last_texts
from ippo_cli.rewards.patterns import MATCH_TIMEOUT_S, MAX_TIMEOUTS, PatternMatcher, find_last_matches
from ippo_cli.rewards.remote import RemoteClient, RequestFailed
from ippo_cli.tasks.templates import render_template
from ippo_cli.types import Episode, Example


class JudgeReward:
    """Each agent's number is the judge's score of its response, scaled from `min_score`..`max_score` to 0..1.

    The team's number is the mean over agents, the part `judged` the mean unscaled score. A row fails if the judge's
    answer has no number or one outside the bounds. Equal requests are sent once: a template with all agents' responses
    and without `{prompt}` and `{response}` causes one request per row.
    """

    def __init__(
        self, config: JudgeRewardConfig, agents: Mapping[str, AgentConfig], limit_s: float = MATCH_TIMEOUT_S
    ) -> None:
        assert config.url is not None
        self.config, self.agents = config, list(agents)
        self._remote = RemoteClient(config, f"{config.url.rstrip('/')}/chat/completions")
        self._cache = AnswerCache()
        self._parser = AnswerParser(config, limit_s)

    def prepare(self, context: RewardContext) -> None:
        """Open this rank's answer cache in the run's folder, with the answers of earlier processes."""
        if self.config.cache_answers and context.folder is not None:
            self._cache = AnswerCache(context.folder / f"answers_rank{distributed.rank()}.jsonl")

    def __call__(self, episodes: Sequence[Episode]) -> Reward:
        texts = last_texts(episodes, self.agents)
        responses = [{name: texts[name][row] for name in self.agents} for row in range(len(episodes))]
        requests = [
            {name: self._request_body(episode, name, responses[row]) for name in self.agents}
            for row, episode in enumerate(episodes)
        ]
        keys = [{name: _cache_key(self._remote.url, body) for name, body in bodies.items()} for bodies in requests]
        uncached = {
            keys[row][name]: body
            for row, bodies in enumerate(requests)
            for name, body in bodies.items()
            if keys[row][name] not in self._cache
        }
        self._parser.reset()
        failed: dict[str, Exception] = {}
        for key, text in zip(uncached, self._remote.post_all(list(uncached.values()), self._read_answer), strict=True):
            if isinstance(text, Exception):
                failed[key] = text
            else:
                self._cache.add(key, text)
        return replace(
            stack_rows([self._score_row(own, failed) for own in keys]), final=True
        )  # final: requests were retried

    def validate_examples(self, examples: Sequence[Example]) -> None:
        for example in examples:
            for agent in self.agents:
                self._render_prompt(example, "", agent, dict.fromkeys(self.agents, ""))

    def check_connection(self) -> None:
        self._remote.check_connection()

    def close(self) -> None:
        self._remote.close()
        self._cache.close()
        self._parser.close()

    def _request_body(self, episode: Episode, agent: str, responses: Mapping[str, str]) -> dict[str, Any]:
        content = self._render_prompt(episode.example, get_last_prompt(episode, agent), agent, responses)
        return {
            "model": self.config.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": self.config.max_tokens,
        }

    def _render_prompt(self, example: Example, prompt: str, agent: str, responses: Mapping[str, str]) -> str:
        placeholders = {"prompt": prompt, "response": responses[agent]}
        placeholders |= {f"agents.{name}": text for name, text in responses.items()}
        fields = {name: value for name, value in example.items() if name not in placeholders}
        return render_template(self.config.template, fields, "reward.template", placeholders)

    def _score_row(self, keys: Mapping[str, str], failed: Mapping[str, Exception]) -> Row | Exception:
        for key in keys.values():
            if key in failed:
                return failed[key]
        try:
            judged = {name: self._parser.parse(self._cache[key]) for name, key in keys.items()}
        except RequestFailed as failure:  # a cached answer that the current pattern cannot parse
            return failure
        low, width = self.config.min_score, self.config.max_score - self.config.min_score
        own = {name: (number - low) / width for name, number in judged.items()}
        return {
            "team": sum(own.values()) / len(own),
            "agent": own,
            "parts": {"judged": sum(judged.values()) / len(judged)},
        }

    def _read_answer(self, _: int, answer: Any) -> str:
        """The text of the endpoint's answer; raises `RequestFailed` if it has no valid number."""
        try:
            text = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            text = None
        if not isinstance(text, str):
            raise RequestFailed(f"the endpoint's response has no choices[0].message.content: {answer!r:.200}")
        self._parser.parse(text)
        return text


class AnswerCache:
    """The judge's answers by request, optionally also in a JSON Lines file. The first answer of a request is final.

    Each rank has its own file, so that a resumed run gets the same answers, independently of other ranks.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._texts: dict[str, str] = {}
        self._file = None
        if file is None:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        whole = 0  # bytes of complete lines; a killed process may have left a partial line
        if file.exists():
            for line in file.read_bytes().splitlines(keepends=True):
                try:
                    entry = json.loads(line) if line.endswith(b"\n") else None
                    self._texts.setdefault(entry["key"], entry["text"])  # type: ignore[index]
                except (KeyError, TypeError, ValueError):
                    break
                whole += len(line)
        self._file = file.open("ab")
        self._file.truncate(whole)

    def __contains__(self, key: str) -> bool:
        return key in self._texts

    def __getitem__(self, key: str) -> str:
        return self._texts[key]

    def add(self, key: str, text: str) -> None:
        self._texts[key] = text
        if self._file is not None:
            self._file.write(json.dumps({"key": key, "text": text}).encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class AnswerParser:
    """Parses the numbers of the judge's answers. Patterns run in a child process, once per distinct text.

    Not thread-safe: used by the request thread while requests run, else by the thread that calls the reward.
    """

    def __init__(self, config: JudgeRewardConfig, limit_s: float = MATCH_TIMEOUT_S) -> None:
        self.config = config
        self._pattern = None
        if config.pattern is not None:
            self._pattern = PatternMatcher(config.pattern, "reward.pattern", limit_s, find_last_matches)
        self._matches: dict[str, Any] = {}  # the pattern's match by text
        self._num_timeouts = 0

    def reset(self) -> None:
        """Clear the cache and start the process before requests are sent, so that they do not wait for it."""
        self._matches.clear()
        self._num_timeouts = 0
        if self._pattern is not None:
            self._pattern.match([""])

    def parse(self, text: str) -> float:
        """The number of a text; raises `RequestFailed` if it has none, or one outside the bounds."""
        config = self.config
        found = (
            _extract_json_field(text, str(config.field))
            if self._pattern is None
            else self._match_last(text, self._pattern)
        )
        try:
            number = float(found)
        except (OverflowError, TypeError, ValueError):
            where = f"pattern={config.pattern}" if config.pattern is not None else f"field={config.field}"
            raise RequestFailed(f"the judge's answer has no number for reward.{where}: {text!r:.200}") from None
        if not config.min_score <= number <= config.max_score:
            bounds = f"outside {config.min_score:g} to {config.max_score:g}"
            raise RequestFailed(f"the judge's score is {number:g}, {bounds}: {text!r:.200}")
        return number

    def close(self) -> None:
        """Kill the child process."""
        if self._pattern is not None:
            self._pattern.close()

    def _match_last(self, text: str, pattern: PatternMatcher) -> Any:
        if text not in self._matches:
            if self._num_timeouts >= MAX_TIMEOUTS:  # the pattern is the cause
                raise RequestFailed(
                    f"matching timed out for {self._num_timeouts} answers; the other answers are not matched",
                    can_retry=False,
                )
            [self._matches[text]] = pattern.match([text])
            self._num_timeouts += isinstance(self._matches[text], CallFailed)
        if isinstance(found := self._matches[text], CallFailed):
            raise RequestFailed(f"{found}: {text!r:.200}", can_retry=False)  # a retry would take as long
        return found


def _extract_json_field(text: str, field: str) -> Any:
    """The value of `field` in the last JSON object of the text that has it; None for booleans."""
    decoder, value, place = json.JSONDecoder(), None, text.find("{")
    while place >= 0:
        try:
            found, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            end = place + 1
        else:
            value = found[field] if isinstance(found, dict) and field in found else value
        place = text.find("{", end)
    return None if isinstance(value, bool) else value


def _cache_key(url: str, body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([url, body], sort_keys=True).encode(errors="replace")).hexdigest()
