"""One rank of test_ranks.py, with an unequal share of the rows; the test checks the results."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import torch

from ippo_cli.algorithms.inputs import AdvantageInputs
from ippo_cli.algorithms.resampling import draw_sample_counts
from ippo_cli.compose.load import load_config
from ippo_cli.engine import distributed
from ippo_cli.training.methods.registry import build_estimator
from ippo_cli.training.minibatches import iterate_minibatches
from ippo_cli.types import Rollout, StepContext, Targets, concatenate_rows

SCORES = torch.tensor([0.0, 1.0, 5.0, 2.0, 2.0, 7.0, 3.0, -4.0])
COUNTS = torch.tensor([1, 2, 0, 1, 1, 3, 0, 0])
HELD = [slice(0, 6), slice(6, 8)]  # by rank
MASK = torch.ones(8, 1).bool()


def group_advantages(rows: slice) -> list[float]:
    """Advantages of each response against the other three to its prompt; the second group is on both ranks."""
    scores = SCORES[rows, None]
    inputs = AdvantageInputs(
        rewards=scores,
        values=torch.zeros_like(scores),
        mask=MASK[rows],
        turn=torch.zeros_like(scores).long(),
        is_by_turn=False,
        group=torch.arange(8)[rows] // 4,
        baseline=torch.zeros(len(scores)),
        valid=torch.ones(len(scores)).bool(),
    )
    found = build_estimator(load_config(["algorithm=rloo"]).algorithm).estimate_rows(inputs)
    return found.advantages[:, 0].tolist()


def counts(rows: slice) -> list[int]:
    settings = load_config(["algorithm=pf_ppo"]).algorithm.reweight
    valid = torch.ones(8).bool()[rows]
    return draw_sample_counts(SCORES[rows], valid, torch.arange(8)[rows], settings, stream="some").tolist()


def buffer(rows: slice) -> tuple[Rollout, Targets]:
    numbers, mask = torch.zeros(8, 1)[rows], MASK[rows]
    ids = torch.arange(8)[rows, None]
    rollout = Rollout(
        prompt_ids=ids,
        prompt_mask=mask,
        response_ids=ids,
        response_mask=mask,
        turn=torch.zeros_like(ids),
        length=torch.ones(len(ids)).long(),
        logprobs=numbers,
        behavior_logprobs=numbers,
        finished=mask[:, 0],
        texts=[str(int(row)) for row in ids],
    )
    targets = Targets(
        rewards=numbers,
        values=numbers,
        final_values=numbers[:, 0],
        ref_logprobs=numbers,
        advantages=numbers,
        returns=numbers,
        loss_mask=mask,
        value_mask=mask,
        behavior_weights=mask.float(),
        sample_counts=COUNTS[rows],
        positive=torch.zeros_like(COUNTS[rows], dtype=torch.bool),
    )
    return rollout, targets


def steps(rows: slice, agents: int = 1) -> list[Any]:
    """The rows that this rank trains on, and the global counts, by optimizer step.

    With several agents each has these rows, with its number appended to their texts; then rows of both ranks are
    sampled.
    """
    rollout, targets = buffer(rows)
    if agents > 1:
        named = [replace(rollout, texts=[f"{text} of {agent}" for text in rollout.texts]) for agent in range(agents)]
        rollout, targets = (
            concatenate_rows(named),
            concatenate_rows([replace(targets, sample_counts=COUNTS.flip(0)[rows])] * agents),
        )
    context = StepContext(seed=3, iteration=1, num_iterations=2)
    return [
        [
            [text for text, mask in zip(batch.rollout.texts, batch.targets.loss_mask, strict=True) if mask.any()],
            [batch.num_tokens, batch.num_sequences, batch.num_values],
        ]
        for batch in iterate_minibatches(rollout, targets, context, mini_batch_size=3, epoch=0, agents=agents)
    ]


def results(rows: slice) -> dict[str, Any]:
    return {
        "advantages": group_advantages(rows),
        "counts": counts(rows),
        "steps": steps(rows),
        "joint steps": steps(rows, agents=2),
    }


if __name__ == "__main__":
    distributed.init(device="cpu", timeout_s=60)
    found = results(HELD[distributed.rank()])
    distributed.shutdown()
    print(json.dumps(found))
