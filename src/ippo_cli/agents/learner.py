"""A learner: one engine, whose rows it learns from, how it is stepped, and its learning rate over a run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from ippo_cli.agents.critic_view import CriticLayout
from ippo_cli.algorithms.losses import Loss
from ippo_cli.algorithms.objectives import Objective
from ippo_cli.config.schema import OptimizerConfig, Schedule
from ippo_cli.engine import distributed, progress
from ippo_cli.engine.zero import Engine
from ippo_cli.models.actor import Policy
from ippo_cli.models.layout import Sequences, build_sequences, row_token_counts, token_budget_batches
from ippo_cli.types import Minibatch, Rollout, StepContext


@dataclass(kw_only=True)
class Learner:
    """An engine, what it is trained for, and the numbers of its update."""

    name: str  # of the agent or group whose weights it trains: names its metrics and its checkpoint's folder
    trains: tuple[str, ...]  # the agents whose rows it learns from, in the task's order
    engine: Engine[Any]
    objective: Objective
    optimizer: OptimizerConfig
    mini_batch_size: int  # rows per optimizer step, of all its agents together and over all ranks
    ppo_epochs: int
    micro_batch_tokens: int  # tokens per forward and backward pass, per rank
    forward_batch_tokens: int  # tokens per forward without gradients
    share_prefixes: bool  # whether what packed rows begin with alike is read once
    policy_groups: int = (
        0  # how many of the engine's parameter groups hold the policy that a value head is trained with
    )
    layout: CriticLayout | None = (
        None  # of the views that it reads in place of its agents' rows; None: it reads the rows
    )
    consecutive_skips: int = 0  # optimizer steps not applied since the last applied one

    def set_learning_rate(self, iteration: int, num_iterations: int) -> float:
        """Set the rate of an iteration (counted from 0) and return it as a share of the peak.

        While a value head is trained alone (`algorithm.critic_warmup`), the policy's own weights have a rate of 0.
        """
        factor = schedule_factor(self.optimizer, iteration, num_iterations)
        held = range(self.policy_groups) if self.objective.freezes_policy(iteration) else ()
        self.engine.set_learning_rate(factor, held)
        return factor

    @property
    def stage(self) -> str:
        """What its metrics and its checkpoint's folder are named after, below its name."""
        return self.objective.stage

    @property
    def is_policy(self) -> bool:
        """Whether agents speak with what it trains."""
        return isinstance(self.engine.module, Policy)

    @property
    def packs(self) -> bool:
        """Whether its module reads packed rows."""
        return bool(self.engine.module.packs)

    def split_batches(self, rollout: Rollout, tokens: int) -> list[Tensor]:
        """Row numbers of the rollout in batches of that many tokens; responses to one prompt may share it there."""
        prompts = None
        if self.packs and self.share_prefixes:
            prompts = [row.tobytes() for row in rollout.prompt_ids.cpu().numpy()]
        return token_budget_batches(
            row_token_counts(rollout, packed=self.packs), tokens, packed=self.packs, group_keys=prompts
        )

    def iterate_sequences(self, rollout: Rollout, *, final: bool) -> Iterator[tuple[Tensor, Sequences]]:
        """All rows in batches to be scored, as many on every rank: a rank short of batches repeats its first."""
        batches = self.split_batches(rollout, self.forward_batch_tokens)
        wanted = int(distributed.all_max(torch.tensor(len(batches), device=rollout.response_ids.device)))
        for number in range(wanted):
            rows = batches[number] if number < len(batches) else batches[0]
            progress.heartbeat()
            yield rows, self._build_sequences(rollout, rows, final=final)

    def losses(self, batch: Minibatch, context: StepContext) -> dict[str, Loss]:
        """The losses of one micro-batch, by the stage that their metrics are named after."""
        rows = torch.arange(len(batch.rollout.texts), device=batch.rollout.response_ids.device)
        sequences = self._build_sequences(batch.rollout, rows, final=self.objective.needs_final_state)
        return self.objective.losses(self.engine, sequences, batch, context)

    def _build_sequences(self, rollout: Rollout, rows: Tensor, *, final: bool) -> Sequences:
        return build_sequences(rollout, rows, packed=self.packs, share_prefixes=self.share_prefixes, final=final)

    def save_pretrained(
        self, folder: Path, weights: dict[str, Tensor] | None, tokenizer: PreTrainedTokenizerBase, *, merged: bool
    ) -> list[Path]:
        """`actor/` or `critic/` as libraries read them, both of a policy with a value head; the files of them.

        Written on the rank that has the weights. `merged`: adapters with their base, as one model.
        """
        if weights is None:
            return []
        folders = self.engine.module.save(folder, weights, tokenizer, merged=merged)
        return [file for part in folders for file in part.rglob("*") if file.is_file()]


def schedule_factor(config: OptimizerConfig, iteration: int, num_iterations: int) -> float:
    """Share of the peak learning rate in an iteration (counted from 0): linear warm-up, then the schedule."""
    if iteration < config.warmup_iterations:
        return (iteration + 1) / config.warmup_iterations
    progress = (iteration - config.warmup_iterations) / max(num_iterations - config.warmup_iterations, 1)
    decay = {
        Schedule.constant: 1.0,
        Schedule.linear: 1.0 - progress,
        Schedule.cosine: 0.5 * (1.0 + math.cos(math.pi * progress)),
    }[config.lr_schedule]
    return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * decay


def param_groups(
    module: nn.Module, config: OptimizerConfig, learning_rate: float | None = None
) -> list[dict[str, Any]]:
    """AdamW's groups: matrices with weight decay, everything else without."""
    settings = {
        "lr": config.learning_rate if learning_rate is None else learning_rate,
        "betas": (config.adam_beta1, config.adam_beta2),
        "eps": config.adam_epsilon,
    }
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": config.weight_decay, **settings},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0, **settings},
    ]
    return [group for group in groups if group["params"]]
