"""Comparisons with TRL; loss methods are called with stubs of their trainer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from published.cases import EPSILON, SINGLE, Case, Comparison, Result, Side, graded, joined
from published.ours import (
    NORM,
    aggregated,
    chosen,
    cispo,
    gmpo,
    overlong,
    overlong_limits,
    per_row,
    per_token,
    policy,
)
from torch import Tensor
from trl.experimental.gkd import GKDTrainer
from trl.experimental.gmpo import GMPOTrainer
from trl.experimental.ppo import ppo_trainer
from trl.rewards import get_soft_overlong_punishment
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.rloo_trainer import RLOOTrainer
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

from ippo_cli.formulas import full_kl, masked_mean, masked_var, masked_whiten

ALL_ROWS = "rows without action tokens count in the mean over rows; ours excludes them"
TEMPERATURE = 0.7
UNBOUNDED = "the log-ratio is unbounded; ours bounds it to +-20, and k3 to 10"


class Alone:
    """An accelerator with one process."""

    num_processes = 1
    sync_gradients = True

    def gather(self, x: Tensor) -> Tensor:
        return x

    def reduce(self, x: Tensor, reduction: str) -> Tensor:
        return x


def trainer(c: Case, new: Tensor, **settings: Any) -> SimpleNamespace:
    """Return a stub with the trainer's attributes that losses use; `new` are the model's log-probabilities."""
    reads = {
        "_get_per_token_logps_and_entropies": lambda *given, **named: (new, torch.zeros_like(new), None),
        "_metrics": {"train": defaultdict(list)},
        "model": SimpleNamespace(training=True),
        "accelerator": Alone(),
        "current_gradient_accumulation_steps": 1,
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "beta": 0.0,
        "loss_type": "grpo",
        "epsilon_low": c.low,
        "epsilon_high": c.high,
        "max_completion_length": NORM,
        "use_vllm": False,
        "_entropy_bonus_enabled": False,
        "args": SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
    }
    return SimpleNamespace(**(reads | settings))


def inputs(c: Case, **more: Tensor) -> dict[str, Tensor]:
    ids = torch.zeros_like(c.ids)
    named = {"prompt_ids": ids, "prompt_mask": ids, "completion_ids": ids, "completion_mask": c.m}
    return (
        named
        | {"old_per_token_logps": c.old, "ref_per_token_logps": c.ref, "num_items_in_batch": torch.tensor(c.num_tokens)}
        | more
    )


def their_grpo(advantages: Callable[[Case], Tensor], delta: bool = False, kl: bool = False, **settings: Any) -> Side:
    def loss(new: Tensor, c: Case) -> Tensor:
        args = SimpleNamespace(delta=c.dual if delta else None, use_bias_correction_kl=False, steps_per_generation=1)
        reads = trainer(c, new, args=args, beta=c.coef if kl else 0.0, **settings)
        return GRPOTrainer._compute_loss(reads, None, inputs(c, advantages=advantages(c)))

    return lambda c: graded(lambda new: loss(new, c), c.new)


def their_rloo(c: Case) -> tuple[Tensor, Tensor]:
    def loss(new: Tensor) -> Tensor:
        given = inputs(c, advantages=c.row_advantages, old_logps=c.kept(c.old).sum(dim=1))
        return RLOOTrainer._compute_loss(trainer(c, new), None, given)

    return graded(loss, c.new)


def their_cispo(c: Case) -> Result:
    """TRL's `epsilon_high` is the largest weight, ours the distance from 1."""
    return their_grpo(per_token, loss_type="cispo", epsilon_high=1.0 + c.high)(c)


def their_gmpo(c: Case) -> tuple[Tensor, Tensor]:
    def loss(new: Tensor) -> Tensor:
        return GMPOTrainer._compute_loss(trainer(c, new), None, inputs(c, advantages=c.row_advantages))

    return graded(loss, c.new)


def gmpo_of_all_rows(c: Case) -> tuple[Tensor, Tensor]:
    loss, gradient = gmpo(per_row, all_rows=True)(c)
    return loss - c.row_advantages[~c.mask.any(dim=1)].sum() / len(c.mask), gradient


def their_overlong(c: Case) -> Tensor:
    reward = get_soft_overlong_punishment(*overlong_limits(c))
    return c.coef * torch.tensor(
        reward(completion_ids=[[0] * int(length) for length in c.mask.sum(1)]), dtype=c.m.dtype
    )


def compute_distillation_loss(c: Case) -> tuple[Tensor, Tensor]:
    """The mean over tokens of the exact KL to a teacher, and its gradient."""

    def head(hidden: Tensor) -> Tensor:
        return hidden

    def loss(logits: Tensor) -> Tensor:
        each = full_kl(logits, head, c.logits.flip(-1), head, temperature=TEMPERATURE, chunk_tokens=7)
        return aggregated(each, c, "token-mean")

    return graded(loss, c.logits)


def their_distilled(c: Case) -> tuple[Tensor, Tensor]:
    labels = torch.where(c.mask, c.ids, -100)

    def loss(logits: Tensor) -> Tensor:
        return GKDTrainer.generalized_jsd_loss(
            logits, c.logits.flip(-1), labels=labels, beta=1.0, temperature=TEMPERATURE
        )

    return graded(loss, c.logits)


def unbounded(c: Case) -> tuple[Tensor, Tensor]:
    def loss(new: Tensor) -> Tensor:
        ratio, back = (new - c.old).exp(), c.ref - new
        each = torch.maximum(-c.advantages * ratio, -c.advantages * ratio.clamp(1 - c.low, 1 + c.high))
        return masked_mean(each + c.coef * (back.exp() - back - 1), c.mask)

    return graded(loss, c.new)


def one_number(c: Case) -> Tensor:
    return c.row_advantages


def their_chosen(c: Case) -> tuple[Tensor, ...]:
    return (
        *graded(lambda logits: selective_log_softmax(logits, c.ids), c.logits),
        *graded(entropy_from_logits, c.logits),
    )


COMPARISONS = (
    *(
        Comparison(
            what=f"GRPO trainer's loss, loss_type={kind} ({mode}), and gradient",
            ours=policy(mode, per_row),
            theirs=their_grpo(one_number, loss_type=kind),
        )
        for kind, mode in (
            ("grpo", "seq-mean-token-mean"),
            ("bnpo", "token-mean"),
            ("dapo", "token-mean"),
            ("dr_grpo", "seq-mean-token-sum-norm"),
            ("luspo", "seq-mean-token-sum"),
        )
    ),
    *(
        Comparison(
            what=f"GRPO trainer's loss, loss_type={kind}, and gradient",
            ours=policy(mode, per_row),
            theirs=their_grpo(one_number, loss_type=kind),
            on=("empty rows",),
            known=ALL_ROWS,
            translated=policy(mode, per_row, all_rows=True),
        )
        for kind, mode in (("grpo", "seq-mean-token-mean"), ("dr_grpo", "seq-mean-token-sum-norm"))
    ),
    Comparison(
        what="GRPO trainer's loss, loss_type=dapo, and gradient",
        ours=policy("token-mean", per_row),
        theirs=their_grpo(one_number, loss_type="dapo"),
        on=("empty rows",),
    ),
    Comparison(
        what="GRPO trainer's loss, delta (our dual clip), and gradient",
        ours=policy("token-mean", dual=True),
        theirs=their_grpo(per_token, delta=True, loss_type="dapo"),
    ),
    Comparison(
        what="GRPO trainer's loss, beta (k3), and gradient",
        ours=policy("token-mean", kl=True),
        theirs=their_grpo(per_token, kl=True, loss_type="dapo"),
    ),
    Comparison(
        what="GRPO trainer's loss, beta (k3), and gradient",
        ours=policy("token-mean", kl=True),
        theirs=their_grpo(per_token, kl=True, loss_type="dapo"),
        on=("far",),
        known=UNBOUNDED,
        translated=unbounded,
    ),
    Comparison(
        what="GRPO trainer's loss, ratio by sequence (GSPO), and gradient",
        ours=policy("seq-mean-token-mean", per_row, level="sequence"),
        theirs=their_grpo(one_number, importance_sampling_level="sequence"),
    ),
    Comparison(
        what="GRPO trainer's loss, loss_type=cispo, and gradient",
        ours=cispo("token-mean", low=lambda c: 1.0),
        theirs=their_cispo,
        on=("empty rows", "far"),
        tolerance=EPSILON,
    ),
    Comparison(what="GMPO trainer's loss, ranges of log-ratios, and gradient", ours=gmpo(per_row), theirs=their_gmpo),
    Comparison(
        what="GMPO trainer's loss, ranges of log-ratios, and gradient",
        ours=gmpo(per_row),
        theirs=their_gmpo,
        on=("empty rows",),
        known="rows without action tokens count in the mean over rows, with ratio 1; ours excludes them",
        translated=gmpo_of_all_rows,
    ),
    Comparison(
        what="soft overlong punishment (DAPO's penalty of long responses)",
        ours=overlong,
        theirs=their_overlong,
        on=("plain",),
        tolerance=SINGLE,
    ),
    Comparison(
        what="GKD trainer's loss, beta=1 (exact KL to a teacher), and gradient",
        ours=compute_distillation_loss,
        theirs=their_distilled,
        on=("empty rows",),
    ),
    Comparison(
        what="RLOO trainer's loss and gradient",
        theirs=their_rloo,
        ours=policy("seq-mean-token-mean", per_row, level="sequence", pooling="sum"),
    ),
    Comparison(
        what="whitening",
        ours=lambda c: masked_whiten(c.rewards, c.mask),
        theirs=lambda c: c.kept(ppo_trainer.masked_whiten(c.rewards, c.m)),
    ),
    Comparison(
        what="whitening without centering",
        ours=lambda c: masked_whiten(c.rewards, c.mask, center=False),
        theirs=lambda c: c.kept(ppo_trainer.masked_whiten(c.rewards, c.m, shift_mean=False)),
        known="the mean is added back unscaled; ours scales it too",
        translated=lambda c: c.kept(masked_whiten(c.rewards, c.mask) + masked_mean(c.rewards, c.mask)),
    ),
    Comparison(
        what="masked mean and variance",
        ours=lambda c: (masked_mean(c.rewards, c.mask), masked_var(c.rewards, c.mask)),
        theirs=lambda c: (ppo_trainer.masked_mean(c.rewards, c.m), ppo_trainer.masked_var(c.rewards, c.m)),
    ),
    Comparison(
        what="log-probabilities and entropies, and gradients",
        ours=joined(chosen(0, 1.0), chosen(1, 1.0)),
        theirs=their_chosen,
    ),
)
