"""Comparisons with CoMLRL; methods are called with stubs of their trainer."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from comlrl.trainers.actor_critic.iac import IACTrainer
from comlrl.trainers.reinforce.magrpo import MAGRPOTrainer
from comlrl.utils.reference_kl import reference_kl_for_sequence
from published.cases import SINGLE, Case, Comparison, Side, graded
from torch import Tensor

from ippo_cli.formulas import (
    aggregate,
    group_normalized,
    kl_estimate,
    leave_one_out,
    masked_whiten,
    on_policy_loss,
    selected_logprobs,
    value_loss,
)

PROMPT = 2  # prompt tokens in the sequences of their functions


class Fixed(torch.nn.Module):
    """A model that returns the same logits for every input."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, **_: object) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits)


def sequence(c: Case, row: int, logits: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return one row as prompt and response: ids `[1, T]`, next-token logits `[1, T, V]`, and the response length."""
    length = int(c.mask[row].sum())
    ids = torch.cat([torch.zeros(PROMPT, dtype=torch.long), c.ids[row, :length]])
    before = torch.zeros(PROMPT - 1, logits.shape[-1], dtype=logits.dtype)
    after = torch.zeros(1, logits.shape[-1], dtype=logits.dtype)
    return ids[None], torch.cat([before, logits[row, :length], after])[None], length


def response_logprobs(c: Case, logits: Tensor) -> Tensor:
    return c.kept(selected_logprobs(logits, lambda hidden: hidden, c.ids, temperature=1.0, chunk_tokens=7)[0])


def their_response_logprobs(c: Case) -> Tensor:
    found = []
    for row in range(len(c.mask)):
        ids, logits, length = sequence(c, row, c.logits)
        found.append(IACTrainer._compute_sequence_stats(None, ids, logits, PROMPT, length))
    return torch.cat(found)


def apart(c: Case, by: float) -> Tensor:
    """Return the logits of a reference, from equal (0) to far (1)."""
    return torch.lerp(c.logits, c.logits.flip(-1), by)


def response_kl(by: float) -> Side:
    return lambda c: c.kept(
        kl_estimate(response_logprobs(c, c.logits), response_logprobs(c, apart(c, by)), estimator="k3")
    ).sum(dim=1)


def unbounded_kl(by: float) -> Side:
    def ours(c: Case) -> Tensor:
        back = response_logprobs(c, apart(c, by)) - response_logprobs(c, c.logits)
        return (torch.expm1(back) - back).sum(dim=1)

    return ours


def their_response_kl(by: float) -> Side:
    def row_kl(c: Case, row: int) -> Tensor:
        ids, logits, length = sequence(c, row, c.logits)
        reference = Fixed(sequence(c, row, apart(c, by))[1])
        return reference_kl_for_sequence(Fixed(logits), reference, ids, torch.ones_like(ids), PROMPT, length)

    return lambda c: torch.cat([row_kl(c, row) for row in range(len(c.mask))])


def zscored(c: Case) -> Tensor:
    advantages = c.score - c.greedy
    return masked_whiten(advantages, torch.ones_like(advantages, dtype=torch.bool))


def their_zscored(c: Case) -> Tensor:
    samples = [
        SimpleNamespace(metadata={"adv_target": target[None]}, returns=target[None], old_value=value[None])
        for target, value in zip(c.score, c.greedy, strict=True)
    ]
    IACTrainer._prepare_advantages(SimpleNamespace(args=SimpleNamespace(advantage_normalization=True)), samples)
    return torch.cat([sample.normalized_advantage for sample in samples])


def against_all(mode: str) -> Side:
    return lambda c: MAGRPOTrainer._compute_advantages(SimpleNamespace(advantage_mode=mode), c.score)


def one_group(c: Case) -> Tensor:
    return torch.zeros_like(c.group)


def step(c: Case) -> tuple[Tensor, Tensor]:
    """Return gradients of one update with respect to token log-probabilities and values before the response."""
    counts = {"num_tokens": c.num_tokens, "num_sequences": c.num_sequences}

    def policy(new: Tensor) -> Tensor:
        return aggregate(
            on_policy_loss(new, c.on_tokens(c.row_advantages)), c.mask, mode="seq-mean-token-sum", **counts
        )

    def critic(new: Tensor) -> Tensor:
        each = value_loss(new, c.greedy, c.score, value_clip_range=c.value_clip)
        return 2 * c.coef * each.mean()  # their squared error has no factor 1/2

    return graded(policy, c.new)[1], graded(critic, c.turn_scores[:, 0])[1]


def their_step(c: Case) -> tuple[Tensor, Tensor]:
    """Run their whole update with an optimizer that keeps gradients."""
    new, value = c.new.detach().requires_grad_(), c.turn_scores[:, 0].detach().requires_grad_()
    samples = [
        SimpleNamespace(
            full_input_ids=c.ids[row],
            attention_mask=c.mask[row],
            prompt_len=row,
            response_len=0,
            old_value=c.greedy[row : row + 1],
            old_logprob=c.score[row : row + 1],
            normalized_advantage=c.row_advantages[row : row + 1],
            returns=c.score[row : row + 1],
            metadata={"value_target": c.score[row : row + 1]},
        )
        for row in range(len(c.mask))
    ]
    idle = SimpleNamespace(zero_grad=lambda: None, step=lambda: None)
    args = SimpleNamespace(use_separate_critic=False, value_clip_range=c.value_clip, value_loss_coef=c.coef)
    cpu = torch.device("cpu")
    reads = SimpleNamespace(
        agents=[None],
        agent_optimizers=[idle],
        args=args,
        agent_devices=[cpu],
        _critic_device=lambda agent: cpu,
        _policy_eval=lambda model, ids, mask, row, *rest, **named: (c.kept(new)[row].sum()[None], None),
        _value_for_critic_type=lambda model, ids, mask, row, lengths: value[row : row + 1],
    )
    IACTrainer._ac_step(reads, 0, samples)
    assert new.grad is not None
    assert value.grad is not None
    return new.grad, value.grad


COMPARISONS = (
    Comparison(
        what="log-probability of a response",
        theirs=their_response_logprobs,
        on=("plain",),
        ours=lambda c: response_logprobs(c, c.logits).sum(dim=1),
    ),
    Comparison(
        what="KL of a response (k3, summed)", ours=response_kl(0.1), theirs=their_response_kl(0.1), on=("plain",)
    ),
    Comparison(
        what="KL of a response (k3, summed), far from the reference",
        ours=response_kl(1.0),
        on=("plain",),
        theirs=their_response_kl(1.0),
        known="unbounded; ours is bounded to 10 per token",
        translated=unbounded_kl(1.0),
    ),
    Comparison(
        what="MAGRPO: score minus the mean",
        theirs=against_all("mean"),
        ours=lambda c: group_normalized(c.score, one_group(c), scale_by_std=False),
    ),
    Comparison(what="MARLOO", ours=lambda c: leave_one_out(c.score, one_group(c)), theirs=against_all("rloo")),
    Comparison(
        what="IAC: z-scored advantages",
        ours=zscored,
        theirs=their_zscored,
        tolerance=SINGLE,
        known="population std; ours has Bessel's correction, a factor of sqrt((n - 1) / n)",
        translated=lambda c: zscored(c) * (len(c.score) / (len(c.score) - 1)) ** 0.5,
    ),
    Comparison(what="IAC: gradients of one update, with value clipping", ours=step, theirs=their_step),
)
