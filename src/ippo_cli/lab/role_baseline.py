"""`algorithm.advantage=role_baseline` (RAE): the baseline is a running mean of an agent's returns in its role."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from ippo_cli.algorithms.advantage_method import AdvantageMethod
from ippo_cli.algorithms.advantages import broadcast_rows, row_scores
from ippo_cli.algorithms.estimator import State
from ippo_cli.algorithms.inputs import AdvantageInputs, AdvantageOutputs, Source
from ippo_cli.config.constraints import Range
from ippo_cli.config.needs import Need
from ippo_cli.engine import distributed
from ippo_cli.formulas import role_baseline
from ippo_cli.types import Experience


@dataclass
class Keys:
    """Keys of the running mean."""

    decay: Annotated[float, Range(0.0, 1.0, open_high=True)] = 0.95
    # weight of earlier episodes in the running mean of an agent's returns


class RoleBaseline(AdvantageMethod):
    """The score of each response minus the mean of the agent's role; the state has the means by `baseline_key`."""

    name = "role_baseline"
    Keys = Keys
    needs = (Need.own_rows, Need.equal_scores, Need.row_scores, Need.no_critic)
    METRICS = {  # noqa: RUF012
        "<agent>/targets/role_baseline": "algorithm.advantage=role_baseline: running mean of the agent's returns "
        "after this iteration",
        "<agent>/<role>/targets/role_baseline": "several roles: of the returns in that role",
    }

    def estimate(
        self, inputs: Mapping[Source, AdvantageInputs], experience: Experience, state: State
    ) -> tuple[dict[Source, AdvantageOutputs], State]:
        outputs: dict[Source, AdvantageOutputs] = {}
        after: dict[str, float] = {}
        for source, own in inputs.items():
            roles = [episode.roles.get(source.agent, "") for episode in experience.episodes]
            score = row_scores(own)
            baseline, baselines = compute_role_baselines(
                source.agent, roles, score, own.valid, state or {}, self.keys.decay
            )
            outputs[source] = broadcast_rows(own, score - baseline, score, own.valid)
            after |= baselines
        return outputs, after

    def metrics(self, state: State) -> dict[str, float]:
        return {f"{name}/targets/role_baseline": mean for name, mean in (state or {}).items()}


def compute_role_baselines(
    agent: str,
    roles: Sequence[str],
    returns: Tensor,
    valid: Tensor,
    known: Mapping[str, float],
    decay: float,
) -> tuple[Tensor, dict[str, float]]:
    """The baseline of each of an agent's rows on this rank, `[B]`, and the agent's baselines after the buffer.

    Rows are read in the order of the global buffer. `roles` are those of the rows, empty without roles; `known` are the
    baselines before the buffer by `baseline_key`, 0 for a new role. Rows that are not `valid` change no baseline.
    Collective.
    """
    keys = [baseline_key(agent, role) for role in roles]
    everywhere = [key for part in distributed.gather_objects(keys) for key in part]
    scores, usable = (distributed.all_gather_rows(part) for part in (returns, valid))
    baselines = torch.zeros_like(scores)
    after = {key: value for key, value in known.items() if key.split("/")[0] == agent}
    for key in dict.fromkeys(everywhere):
        own = torch.tensor([other == key for other in everywhere], device=scores.device) & usable
        baselines[own], after[key] = role_baseline(scores[own], start=known.get(key, 0.0), decay=decay)
    return baselines[distributed.local_row_slice(returns)], after


def baseline_key(agent: str, role: str) -> str:
    """The name of a baseline in checkpoints and metrics: the agent, and its role if it has several."""
    return f"{agent}/{role}" if role else agent
