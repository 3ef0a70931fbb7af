"""`reward=math`: whether a response's answer equals the reference answer as mathematics, told by math-verify."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from ippo_cli.config.errors import PreflightError
from ippo_cli.engine import distributed
from ippo_cli.engine.launchers import cores_per_rank
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.processes import ProcessPool
from ippo_cli.rewards.references import check_references, render_reference
from ippo_cli.rewards.response_adapter import Responses
from ippo_cli.rewards.rows import Row, stack_rows
from ippo_cli.types import Example

COMPARE = "ippo_cli.rewards.math_verify_call:compare"
CHECK = "ippo_cli.rewards.math_verify_call:check_reference"


class MathReward:
    """1 where a response's answer equals the agent's reference answer, else 0; the team's reward is the mean.

    The part `found` is whether there is an answer at all, in `\\boxed{}`, between `$`, or as a number. A row whose
    comparison takes longer than `timeout_s` has failed: it is asked about again, then counted, and never 0. Agents
    without a reference answer share the team's reward.
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
            rule="an expression that math-verify reads",
            remedy="write it in LaTeX or as a number, or leave such rows out with task.filter",
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
        return stack_rows([_score_row(said, list(responses)) for said in rows])

    def close(self) -> None:
        """End the processes."""
        self._processes.close()


def _score_row(results: Mapping[str, Any], agents: Sequence[str]) -> Row | Exception:
    for one in results.values():
        if isinstance(one, Exception):
            return one
    right = sum(one["right"] for one in results.values()) / len(results)
    own = {name: results[name]["right"] if name in results else right for name in agents}
    return {
        "team": right,
        "agent": own,
        "parts": {"found": sum(one["found"] for one in results.values()) / len(results)},
    }
