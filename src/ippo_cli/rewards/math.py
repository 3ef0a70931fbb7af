"""`reward=math`: whether a response is mathematically equal to the reference answer, checked by math-verify."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from ippo_cli.config.errors import PreflightError
from ippo_cli.config.schema import MathRewardConfig
from ippo_cli.engine import distributed
from ippo_cli.engine.launchers import cores_per_rank
from ippo_cli.processes.pool import ProcessPool
from ippo_cli.rewards.contract import Reward, Row, stack_rows
from ippo_cli.rewards.episodes import Responses
from ippo_cli.rewards.references import check_references, reference_answers, render_reference
from ippo_cli.rewards.response_adapter import Agents, ResponseRewardAdapter, adapt_response_reward
from ippo_cli.types import Example

COMPARE = "ippo_cli.rewards.math_verify_call:compare"
CHECK = "ippo_cli.rewards.math_verify_call:check_reference"


class MathReward:
    """1 if a response's answer equals the agent's reference answer, else 0; the team's reward is the mean.

    The part `found` is whether the response has an answer: in `\\boxed{}`, between `$`, or a number. A row fails if its
    comparison takes longer than `timeout_s`: it is retried, then counted as failed, and never scored 0. Agents without
    a reference answer receive the team's reward.
    """

    def __init__(self, answers: Mapping[str, str], workers: int | None, timeout_s: float) -> None:
        if find_spec("math_verify") is None:
            raise PreflightError("reward.kind=math needs math-verify; pip install 'ippo-cli[math]'")
        self.answers = answers
        size = workers or cores_per_rank(os.environ, distributed.world_size())
        self._processes = ProcessPool(COMPARE, "reward.kind", size, timeout_s)
        self._timeout_s = timeout_s

    def validate_examples(self, examples: Sequence[Example]) -> list[str]:
        return check_references(
            self.answers,
            examples,
            self._find_unreadable,
            rule="an expression that math-verify can parse",
            remedy="write it in LaTeX or as a number, or exclude such rows with task.filter",
        )

    def _find_unreadable(self, texts: list[str]) -> list[bool]:
        checks = ProcessPool(CHECK, "reward.kind", 1, self._timeout_s)
        try:
            return [result != "" for result in checks.call([((text,), {}) for text in texts])]
        finally:
            checks.close()

    def __call__(self, examples: Sequence[Example], responses: Responses) -> Reward:
        calls = [
            ((render_reference(self.answers, name, example), text), {})
            for name in self.answers
            for example, text in zip(examples, responses[name], strict=True)
        ]
        found = self._processes.call(calls)
        rows = [dict(zip(self.answers, found[row :: len(examples)], strict=True)) for row in range(len(examples))]
        return stack_rows([_score_row(row, list(responses)) for row in rows])

    def close(self) -> None:
        """Kill the child processes."""
        self._processes.close()


def _score_row(results: Mapping[str, Any], agents: Sequence[str]) -> Row | Exception:
    for result in results.values():
        if isinstance(result, Exception):
            return result
    right = sum(result["right"] for result in results.values()) / len(results)
    own = {name: results[name]["right"] if name in results else right for name in agents}
    return {
        "team": right,
        "agent": own,
        "parts": {"found": sum(result["found"] for result in results.values()) / len(results)},
    }


def build_math_reward(config: MathRewardConfig, agents: Agents) -> ResponseRewardAdapter:
    """Build the reward of the configuration."""
    reward = MathReward(reference_answers(agents), config.workers, config.timeout_s)
    return adapt_response_reward(reward, agents)
