"""`reward=model`: a trained reward model scores each agent's conversation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.config.schema import AgentConfig, ModelRewardConfig, Overlong
from ippo_cli.models.reward_model import (
    ConversationTokenizer,
    RewardModel,
    context_length,
    load_reward_model,
    read_config,
    read_tokenizer,
)
from ippo_cli.rewards.contract import Reward, RewardContext, Row, stack_rows
from ippo_cli.rewards.episodes import get_chat_messages
from ippo_cli.tasks.messages import Message
from ippo_cli.types import Episode


class ModelReward:
    """Each agent's number is the model's score of its conversation, rebuilt from texts.

    The team's number is the mean over agents with turns. The part `cut` is the fraction of conversations that were too
    long and truncated on the left, except for the first token. Weights are loaded by `prepare` or the first call.
    """

    def __init__(self, config: ModelRewardConfig, agents: Mapping[str, AgentConfig]) -> None:
        assert config.model is not None
        self.config, self.source, self.agents = config, config.model, agents
        tokenizer = read_tokenizer(self.source, config.revision)
        self._writer = ConversationTokenizer(tokenizer)
        for conversation in _sample_conversations(agents):
            self._writer.check_writable(conversation, f"reward.model={self.source}")
        context = context_length(read_config(self.source, config.revision), tokenizer)
        if config.max_tokens is not None and context is not None and config.max_tokens > context:
            raise ConfigError(
                f"reward.max_tokens={config.max_tokens}",
                f"exceeds the reward model's context length of {context}",
                "set a smaller value or null",
            )
        self._limit = config.max_tokens or context
        self._model: RewardModel | None = None

    def prepare(self, context: RewardContext) -> None:
        """Load the weights."""
        device = context.device if self.config.device == "auto" else _resolve_device(self.config.device)
        self._model = load_reward_model(
            self.source, self.config.revision, self.config.dtype, device, self.config.batch_tokens
        )

    def __call__(self, episodes: Sequence[Episode]) -> Reward:
        if self._model is None:
            self.prepare(
                RewardContext(device=torch.device("cuda" if torch.cuda.is_available() else "cpu"), folder=None)
            )
        assert self._model is not None
        spoken = [
            (row, name) for row, episode in enumerate(episodes) for name in self.agents if episode.turns_of_agent(name)
        ]
        ids = self._writer.token_ids([get_chat_messages(episodes[row], name, self.agents) for row, name in spoken])
        readable = [place for place, tokens in enumerate(ids) if tokens]
        scores = dict(
            zip(readable, self._model.scores([self._truncate(ids[place]) for place in readable]), strict=True)
        )
        rows: list[dict[str, tuple[float, int]]] = [{} for _ in episodes]
        for place, (row, name) in enumerate(spoken):
            rows[row][name] = scores.get(place, math.nan), len(ids[place])
        # final: a retry would fail again
        return replace(stack_rows([self._score_row(row_scores) for row_scores in rows]), final=True)

    def close(self) -> None:
        """Release the weights."""
        self._model = None

    def _truncate(self, ids: list[int]) -> list[int]:
        limit = self._limit
        if limit is None or len(ids) <= limit:
            return ids
        return [ids[0], *ids[len(ids) - limit + 1 :]] if limit > 1 else ids[:1]

    def _score_row(self, scored: Mapping[str, tuple[float, int]]) -> Row | Exception:
        overlong = [length for _, length in scored.values() if self._limit is not None and length > self._limit]
        if overlong and self.config.overlong is Overlong.fail:
            return ValueError(f"a conversation has {overlong[0]} tokens; the reward model's limit is {self._limit}")
        if any(length == 0 for _, length in scored.values()):
            return ValueError("a conversation has no tokens after encoding by the reward model's tokenizer")
        if bad := [score for score, _ in scored.values() if not math.isfinite(score)]:
            return ValueError(f"the reward model returned {bad[0]}")
        numbers = [score for score, _ in scored.values()]
        return {
            "team": sum(numbers) / len(numbers) if numbers else 0.0,
            "agent": {name: scored[name][0] if name in scored else 0.0 for name in self.agents},
            "parts": {"cut": len(overlong) / max(len(scored), 1)},
        }


def _sample_conversations(agents: Mapping[str, AgentConfig]) -> list[list[Message]]:
    """Example conversations for checking the chat template: with each agent's system message, or without one."""
    exchange = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "It is a trial."}]
    systems = dict.fromkeys(agent.system for agent in agents.values())
    return [exchange if text is None else [{"role": "system", "content": text}, *exchange] for text in systems]


def _resolve_device(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise PreflightError(
            f"reward.device={name}: no such device; this machine has {torch.cuda.device_count()} CUDA devices"
        )
    return device
