"""Comparisons with AgileRL; methods are called with stubs of their algorithm."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from agilerl.algorithms.grpo import GRPO
from agilerl.algorithms.ppo_llm import PPO
from agilerl.algorithms.reinforce_llm import REINFORCE
from agilerl.utils import llm_utils
from published.cases import EPSILON, SINGLE, Case, Comparison, Side, graded, joined
from published.ours import Choice, aggregated, kl, per_row, per_token, policy, tokens, values, with_epsilon
from torch import Tensor

from ippo_cli.formulas import (
    gae,
    group_normalized,
    masked_mean,
    masked_var,
    masked_whiten,
    place_scores,
    pool_values,
    turn_ends,
    turn_gae,
    value_loss,
)

READINGS = {"mean": "mean", "final_value": "final"}  # theirs to ours
BROKEN = "each turn is a separate episode: no credit crosses an observation; ours skips observations"
BOUNDED = "0 if it is above 10 and the policy is below the reference, unbounded otherwise; ours is bounded to 10"
UNITS = "mean over turns, with equal weights of short and long turns; ours is a mean over tokens"


def last_tokens(c: Case) -> Tensor:
    return turn_ends(c.mask, c.turn)


def repeated(c: Case) -> Tensor:
    """Return each turn's score on all its tokens: the format of AgileRL's rewards."""
    return c.kept(c.turn_scores.gather(1, c.turn.clamp(min=0)))


def by_turn(reading: str, *, whiten: bool) -> Side:
    def ours(c: Case) -> tuple[Tensor, Tensor]:
        rewards = place_scores(c.turn_scores, c.mask, c.turn)
        advantages, returns = turn_gae(
            rewards, c.values, c.mask, c.turn, gamma=c.gamma, gae_lambda=c.gae_lambda, turn_value=READINGS[reading]
        )
        if whiten:
            ends = last_tokens(c)
            moments = masked_mean(advantages, ends), masked_var(advantages, ends)
            advantages = masked_whiten(advantages, c.mask, moments=moments)
        return advantages, returns

    return ours


def their_by_turn(reading: str, *, whiten: bool) -> Side:
    def theirs(c: Case) -> tuple[Tensor, Tensor]:
        reads = SimpleNamespace(gamma=c.gamma, turn_value_reduction=reading, whiten_advantages=whiten)
        returns, advantages = PPO._compute_gae_returns(reads, repeated(c), c.values, c.mask, c.turn, c.gae_lambda)
        return advantages, returns

    return theirs


def their_by_token(c: Case) -> tuple[Tensor, Tensor]:
    reads = SimpleNamespace(gamma=c.gamma, whiten_advantages=False)
    returns, advantages = PPO._compute_gae_returns_token(reads, c.rewards, c.values, c.mask, c.gae_lambda)
    return advantages, returns


def turn_by_turn(c: Case) -> tuple[Tensor, Tensor]:
    """Our GAE of each turn as a separate row."""
    results = [
        gae(c.rewards, c.values, c.turn == turn, gamma=c.gamma, gae_lambda=c.gae_lambda)
        for turn in range(int(c.turn.max()) + 1)
    ]
    return sum((a for a, _ in results), torch.zeros_like(c.m)), sum((r for _, r in results), torch.zeros_like(c.m))


def to_go(c: Case) -> Tensor:
    """Our sum of scores from the turn on, z-scored over turns."""
    rewards = place_scores(c.turn_scores, c.mask, c.turn)
    found, _ = turn_gae(
        rewards, torch.zeros_like(rewards), c.mask, c.turn, gamma=c.gamma, gae_lambda=1.0, turn_value="first"
    )
    ends = last_tokens(c)
    return masked_whiten(found, c.mask, moments=(masked_mean(found, ends), masked_var(found, ends)))


def their_to_go(c: Case) -> Tensor:
    return REINFORCE._compute_rebn_advantages(SimpleNamespace(gamma=c.gamma), repeated(c), c.m, c.turn)


def grpo(c: Case) -> Tensor:
    return group_normalized(c.score, c.blocks)


def their_grpo(norm: str) -> Side:
    return lambda c: GRPO._calculate_advantage(SimpleNamespace(group_size=c.block, adv_norm=norm), c.score)[:, 0]


ADVANTAGES: dict[str, Choice] = {"token": per_token, "turn": repeated, "sequence": per_row}


def surrogate(level: str, pooling: str, units: Choice | None = None) -> Side:
    mode = "seq-mean-token-mean" if level == "sequence" else "token-mean"
    return policy(mode, ADVANTAGES[level], level=level, pooling=pooling, units=units, upper=lambda c: c.low)


def their_surrogate(level: str, pooling: str) -> Side:
    def loss(new: Tensor, c: Case) -> Tensor:
        name = "trajectory" if level == "sequence" else level
        return llm_utils.clipped_is_surrogate(
            new - c.old, ADVANTAGES[level](c), c.m, c.turn, name, c.low, turn_reduction=pooling
        )[0]

    return lambda c: graded(lambda new: loss(new, c), c.new)


def their_kl(c: Case) -> tuple[Tensor, Tensor]:
    return graded(lambda new: llm_utils.calculate_k3_kl(c.ref, new), c.new)


def bounded_kl(c: Case) -> tuple[Tensor, Tensor]:
    """k3 without our bounds, and 0 beyond theirs."""

    def penalty(new: Tensor) -> Tensor:
        apart = new - c.ref
        value = torch.expm1(-apart) + apart
        return torch.where((value > 10.0) & (apart < 0.0), 0.0 * new, value)

    return graded(penalty, c.new)


def their_bounded_kl(c: Case) -> tuple[Tensor, Tensor]:
    def penalty(new: Tensor) -> Tensor:
        reference, _ = llm_utils.k3_kl_penalty_reference(c.ref, new, 10.0)
        return llm_utils.calculate_k3_kl(reference, new)

    return graded(penalty, c.new)


def turn_values(reading: str) -> Side:
    def loss(new: Tensor, c: Case) -> Tensor:
        pooled, old = (pool_values(v, c.mask, c.turn, turn_value=READINGS[reading]) for v in (new, c.values))
        each = value_loss(pooled, old, repeated(c), value_clip_range=c.low)
        return aggregated(each, c, "token-mean", mask=last_tokens(c))

    return lambda c: graded(lambda new: loss(new, c), c.new_values)


def their_values(reading: str, unit: str) -> Side:
    def loss(new: Tensor, c: Case) -> Tensor:
        reads = SimpleNamespace(turn_value_reduction=reading, clip_coef=c.low, vf_coef=1.0)
        reads._compute_vf_loss_token = lambda *given: PPO._compute_vf_loss_token(reads, *given)
        returns = c.returns if unit == "token" else repeated(c)
        turns = int(c.turn.max()) + 1
        return PPO._ppo_value_loss(reads, new, c.values, returns, c.mask, c.turn, turns, unit)

    return lambda c: graded(lambda new: loss(new, c), c.new_values)


COMPARISONS = (
    *(
        Comparison(
            what=f"turn GAE and returns, turn_value={ours}, raw and whitened",
            on=("holes", "empty rows"),
            ours=joined(by_turn(theirs, whiten=False), by_turn(theirs, whiten=True)),
            tolerance=SINGLE,
            theirs=joined(their_by_turn(theirs, whiten=False), their_by_turn(theirs, whiten=True)),
        )
        for theirs, ours in READINGS.items()
    ),
    Comparison(what="GAE and returns over tokens", ours=tokens, theirs=their_by_token, on=("plain",), tolerance=SINGLE),
    Comparison(
        what="GAE and returns over tokens",
        ours=tokens,
        theirs=their_by_token,
        tolerance=SINGLE,
        known=BROKEN,
        translated=turn_by_turn,
    ),
    Comparison(what="REINFORCE over turns, z-scored", ours=to_go, theirs=their_to_go, tolerance=SINGLE),
    Comparison(
        what="GRPO",
        ours=grpo,
        theirs=their_grpo("mean_std"),
        translated=with_epsilon(1e-8),
        known="adds 1e-8 to the std; ours adds 1e-6",
    ),
    Comparison(
        what="Dr. GRPO",
        ours=lambda c: group_normalized(c.score, c.blocks, scale_by_std=False),
        theirs=their_grpo("mean_only"),
    ),
    Comparison(
        what="policy loss by token and gradient",
        ours=surrogate("token", "sum"),
        theirs=their_surrogate("token", "sum"),
        on=("empty rows",),
    ),
    *(
        Comparison(
            what=f"policy loss by turn, {pooling} of log-ratios, and gradient",
            ours=surrogate("turn", pooling),
            theirs=their_surrogate("turn", pooling),
            tolerance=SINGLE,
            known=UNITS,
            translated=surrogate("turn", pooling, last_tokens),
        )
        for pooling in ("mean", "sum")
    ),
    Comparison(
        what="policy loss by response (GSPO) and gradient",
        ours=surrogate("sequence", "mean"),
        theirs=their_surrogate("sequence", "mean"),
        on=("empty rows",),
    ),
    Comparison(what="KL k3 and gradient", ours=kl("k3"), theirs=their_kl),
    Comparison(
        what="KL k3 as a penalty, bounded, and gradient",
        ours=kl("k3"),
        theirs=their_bounded_kl,
        on=("far",),
        known=BOUNDED,
        translated=bounded_kl,
    ),
    Comparison(
        what="value loss by token, clipped, and gradient",
        ours=values(lambda c: c.low),
        on=("empty rows",),
        theirs=their_values("mean", "token"),
    ),
    *(
        Comparison(
            what=f"value loss by turn, turn_value={ours}, clipped, and gradient",
            ours=turn_values(theirs),
            theirs=their_values(theirs, "turn"),
            tolerance=SINGLE,
        )
        for theirs, ours in READINGS.items()
    ),
    Comparison(
        what="whitening",
        ours=lambda c: masked_whiten(c.rewards, c.mask),
        tolerance=EPSILON,
        theirs=lambda c: c.kept(llm_utils.masked_whiten(c.rewards, c.mask)),
    ),
)
