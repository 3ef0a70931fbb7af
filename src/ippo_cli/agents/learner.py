"""A learner: one engine, the agents that it trains, its batch sizes and its learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from ippo_cli.agents.critic_view import CriticLayout
from ippo_cli.agents.grad_norms import GradNorms
from ippo_cli.algorithms.losses import Loss
from ippo_cli.algorithms.objectives import PolicyObjective, TrainingObjective, ValueFunction
from ippo_cli.algorithms.return_moments import ReturnMoments
from ippo_cli.algorithms.user_objectives import UserLoss
from ippo_cli.config.schema import OptimizerConfig, Schedule
from ippo_cli.engine import distributed, progress
from ippo_cli.engine.rank_group import RankGroup
from ippo_cli.engine.zero import Engine
from ippo_cli.models.actor import Policy
from ippo_cli.models.layout import Sequences, build_sequences, row_token_counts, token_budget_batches
from ippo_cli.types import Minibatch, Rollout, StepContext, Targets, move_carrier


class MicroBatch(NamedTuple):
    """The rows of one forward and backward pass, and the model's input."""

    rows: Minibatch
    sequences: Sequences


@dataclass(frozen=True, slots=True)
class EnsembleMember:
    """The part of the prompts on which one of several critics is trained: every `size`-th one."""

    index: int
    size: int
    num_generations: int  # consecutive sample indices that are responses to one prompt

    def select_rows(self, targets: Targets, index: Tensor) -> Targets:
        """The targets without rows of other members; `index` `[B]`: global sample indices."""
        prompt = index.to(targets.sample_counts.device) // self.num_generations
        return replace(targets, sample_counts=targets.sample_counts * (prompt % self.size == self.index))


@dataclass(kw_only=True)
class Learner:
    """An engine, its training objective, and the sizes of its update."""

    name: str  # of the agent or group with these weights: names its metrics and checkpoint folder
    agent_names: tuple[str, ...]  # the agents with its weights, which provide its rows, in the task's order
    group: RankGroup  # the ranks that hold its engine
    local_engine: Engine[Any] | None  # None on other ranks
    objective: TrainingObjective
    optimizer: OptimizerConfig
    mini_batch_size: int  # rows per optimizer step, over all its agents, authors and ranks
    ppo_epochs: int
    micro_batch_tokens: int  # tokens per forward and backward pass, per model-parallel group
    forward_batch_tokens: int  # tokens per forward without gradients
    share_prefixes: bool  # whether shared prefixes of packed rows are computed once
    splits_rows: bool = False  # whether the ranks of a model-parallel group share the tokens of a training pass
    policy_groups: int = 0  # parameter groups of the engine that hold the policy, for a policy with a value head
    layout: CriticLayout | None = None  # layout of a centralised critic's rows; None: the critic reads its agents' rows
    consecutive_skips: int = 0  # optimizer steps skipped since the last applied one
    grad_norms: GradNorms = field(default_factory=GradNorms)
    remote_config: PretrainedConfig | None = None  # its model's configuration, on ranks without the engine
    popart_beta: float | None = None  # weight of earlier buffers in `return_moments`; None: no normalisation
    return_moments: ReturnMoments | None = None  # by which its values are normalised
    member: EnsembleMember | None = None  # its part of the prompts, for one of several critics
    has_new_head: bool = True  # whether its value head started at zero
    shared_authors: tuple[str, ...] = ()  # other agents with responses that its policy is trained on
    reads_packed_rows: bool = False  # whether a reference on ranks without the engine reads packed rows

    @property
    def engine(self) -> Engine[Any]:
        """Its engine, on the ranks that hold it."""
        if self.local_engine is None:
            raise RuntimeError(f"the {self.stage} of {self.name} is on ranks {self.group.ranks} only")
        return self.local_engine

    @property
    def model_config(self) -> PretrainedConfig:
        """The configuration of its language model, or of its critic's backbone; on every rank."""
        if self.local_engine is None:
            assert self.remote_config is not None
            return self.remote_config
        module = self.local_engine.module
        return module.lm.config if isinstance(module, Policy) else module.backbone.config

    def set_learning_rate(self, iteration: int, num_iterations: int) -> float:
        """Set the learning rate of an iteration (counted from 0) and return it as a fraction of the peak.

        While only a value head is trained (`algorithm.critic_warmup`), the policy's weights have rate 0.
        """
        factor = schedule_factor(self.optimizer, iteration, num_iterations)
        held = range(self.policy_groups) if self.objective.freezes_policy(iteration) else ()
        self.engine.set_learning_rate(factor, held)
        return factor

    def set_return_moments(self, moments: ReturnMoments) -> None:
        """Set the moments by which its values are normalised. Its weights remain, so that values change."""
        self.return_moments = moments
        if self.local_engine is not None:
            self.engine.module.value_head.set_moments(moments.mean, moments.std)

    @property
    def stage(self) -> str:
        """Name of its metrics and checkpoint folder, below the name of the learner."""
        return self.objective.stage

    @property
    def is_policy(self) -> bool:
        """Whether it trains a policy."""
        return isinstance(self.objective, PolicyObjective)

    @property
    def packs(self) -> bool:
        """Whether its module reads packed rows."""
        return self.reads_packed_rows if self.local_engine is None else bool(self.local_engine.module.packs)

    def split_batches(self, rollout: Rollout, tokens: int) -> list[Tensor]:
        """Split rows into batches of that many tokens; responses to one prompt may share it within a batch."""
        prompts = None
        if self.packs and self.share_prefixes:
            prompts = [row.tobytes() for row in rollout.prompt_ids.cpu().numpy()]
        return token_budget_batches(
            row_token_counts(rollout, packed=self.packs), tokens, packed=self.packs, group_keys=prompts
        )

    def iterate_sequences(self, rollout: Rollout, *, final: bool) -> Iterator[tuple[Tensor, Sequences]]:
        """Iterate over all rows in forward batches, equally many on every rank: a rank with fewer repeats its first."""
        device, host = rollout.response_ids.device, move_carrier(rollout, "cpu")
        batches = self.split_batches(host, self.forward_batch_tokens)
        for number in range(_max_over_ranks(len(batches), device)):
            rows = batches[number] if number < len(batches) else batches[0]
            progress.heartbeat()
            yield rows.to(device), self._build_sequences(host, rows, device, final=final)

    @torch.no_grad()
    def compute_values(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Values of the states before action tokens `[B, R]` (0 elsewhere) and after the last action token `[B]`; on
        the ranks that hold the engine.
        """
        assert isinstance(self.objective, ValueFunction)
        before = torch.zeros_like(rollout.logprobs)
        after = before.new_zeros(len(before))
        with self.engine.scoring():
            for rows, sequences in self.iterate_sequences(rollout, final=True):
                new, final = self.objective.values(self.engine, sequences)
                before[rows, : new.shape[1]] = new
                after[rows] = final
        return before, after

    def iterate_micro_batches(self, batch: Minibatch) -> Iterator[MicroBatch]:
        """Iterate over a mini-batch in micro-batches, equally many on every rank: a rank with fewer adds masked rows.

        Collective. A micro-batch is built when it is read, and no reference to it is kept. It is built on the host, so
        that a GPU is read once for all micro-batches.
        """
        device, host = batch.agent.device, move_carrier(batch, "cpu")
        batches = self.split_batches(host.rollout, self.micro_batch_tokens)
        num_micro_batches = _max_over_ranks(len(batches), device)
        for rows in batches:
            yield self._build_micro_batch(host.select_rows(rows), device)
        for _ in range(num_micro_batches - len(batches)):
            yield self._build_micro_batch(host.select_rows(batches[0][:1]).mask_all(), device)

    def _build_micro_batch(self, batch: Minibatch, device: torch.device) -> MicroBatch:
        rows, final = torch.arange(len(batch.rollout.texts)), self.objective.needs_final_state
        sequences = self._build_sequences(batch.rollout, rows, device, final=final, split=self.splits_rows)
        return MicroBatch(move_carrier(batch, device), sequences)

    def losses(self, micro_batch: MicroBatch, context: StepContext) -> dict[str, Loss]:
        """The losses of one micro-batch, by the stage that names their metrics."""
        return self.objective.losses(self.engine, micro_batch.sequences, micro_batch.rows, context)

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Give the metrics of an iteration, by full name and the same on all ranks, to a user's loss."""
        if self._user_loss is not None:
            prefix = f"{self.name}/policy/"
            own = {name.removeprefix(prefix): value for name, value in metrics.items() if name.startswith(prefix)}
            self._user_loss.observe(own)

    def loss_state(self) -> dict[str, Any] | None:
        """The state of a user's loss; None without one."""
        return None if self._user_loss is None else self._user_loss.state_dict()

    def load_loss_state(self, stored: Mapping[str, Any]) -> None:
        """Restore the state of a user's loss."""
        if self._user_loss is not None:
            self._user_loss.load_state_dict(stored)

    @property
    def _user_loss(self) -> UserLoss | None:
        return self.objective.user_loss if isinstance(self.objective, PolicyObjective) else None

    def backward(self, losses: Mapping[str, Loss], weight: float = 1.0) -> None:
        """Add the gradients of a micro-batch's losses, times `weight`."""
        total = torch.stack([loss.total for loss in losses.values()]).sum()
        self.engine.backward(total if weight == 1.0 else weight * total)

    def compute_gradient(self, batch: Minibatch, context: StepContext) -> list[Tensor]:
        """The gradient of a mini-batch's losses by trained parameter, see `Engine.compute_gradient`. Collective.

        The gradients of the next optimizer step, weights and metrics are unaffected.
        """

        def totals() -> Iterator[Tensor]:
            for micro_batch in self.iterate_micro_batches(batch):
                progress.heartbeat()
                yield torch.stack([loss.total for loss in self.losses(micro_batch, context).values()]).sum()

        return self.engine.compute_gradient(totals())

    def _build_sequences(
        self, rollout: Rollout, rows: Tensor, device: torch.device, *, final: bool, split: bool = False
    ) -> Sequences:
        share = self.share_prefixes
        return build_sequences(
            rollout, rows, packed=self.packs, share_prefixes=share, final=final, split=split, device=device
        )

    def save_pretrained(
        self, folder: Path, weights: dict[str, Tensor] | None, tokenizer: PreTrainedTokenizerBase, *, merged: bool
    ) -> list[Path]:
        """Write `actor/` or `critic/` in Hugging Face format, both for a policy with a value head; return the files.

        Written on the rank that has the weights. `merged`: adapters are merged into their base.
        """
        if weights is None:
            return []
        folders = self.engine.module.save(folder, weights, tokenizer, merged=merged)
        return [file for part in folders for file in part.rglob("*") if file.is_file()]


def _max_over_ranks(count: int, device: torch.device) -> int:
    """The largest count of any rank. Collective, on the device."""
    return int(distributed.all_max(torch.tensor(count, device=device)))


def schedule_factor(config: OptimizerConfig, iteration: int, num_iterations: int) -> float:
    """Fraction of the peak learning rate in an iteration (counted from 0): linear warm-up, then the schedule."""
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
    """AdamW's parameter groups: matrices with weight decay, everything else without."""
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
