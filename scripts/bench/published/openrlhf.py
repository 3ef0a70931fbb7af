"""Comparisons with OpenRLHF: from scores, rewards and values to advantages."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import torch
from published.cases import SINGLE, Case, Comparison, Side, graded
from published.ours import (
    adapted,
    adaptive,
    chosen,
    less_group_mean_whitened,
    outcome_rewards,
    overlong,
    overlong_limits,
    tokens,
    with_epsilon,
)
from torch import Tensor

from ippo_cli.formulas import gae, group_normalized, leave_one_out, reward_to_go

# The `__init__` of these packages imports kernels or servers that need a GPU; their modules do not, so it is not run.
for package in ("openrlhf.models", "openrlhf.utils", "openrlhf.trainer.ray"):
    found = importlib.util.find_spec(package)
    assert found is not None
    sys.modules[package] = importlib.util.module_from_spec(found)
launcher = ModuleType("openrlhf.trainer.ray.launcher")
launcher.RayActorGroup = object  # used in annotations only
sys.modules[launcher.__name__] = launcher

from openrlhf.models.utils import compute_reward, log_probs_from_logits  # noqa: E402
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker  # noqa: E402
from openrlhf.trainer.ppo_utils.kl_controller import AdaptiveKLController  # noqa: E402
from openrlhf.trainer.ppo_utils.length_penalty import apply_overlong_penalty  # noqa: E402
from published.openrlhf_losses import LOSSES  # noqa: E402

TEMPERATURE = 0.7
HOLES = "discounts through observations, with values of 0 there; ours skips them"
BASELINE = less_group_mean_whitened(lambda c: c.blocks)
POPULATION = "population std; ours has Bessel's correction, a factor of sqrt((n - 1) / n)"


def over_holes(c: Case) -> tuple[Tensor, Tensor]:
    """Our GAE, with observations as tokens of value 0 and reward 0."""
    every = torch.ones_like(c.mask)
    advantages, returns = gae(c.kept(c.rewards), c.kept(c.values), every, gamma=c.gamma, gae_lambda=c.gae_lambda)
    return c.kept(advantages), c.kept(returns)


def undiscounted(c: Case) -> Case:
    return replace(c, gamma=1.0, gae_lambda=1.0)


def their_gae(c: Case) -> tuple[Tensor, Tensor]:
    advantages, returns = RemoteExperienceMaker.get_advantages_and_returns(
        None, c.values, c.rewards, c.m, c.gamma, c.gae_lambda
    )
    return c.kept(advantages), c.kept(returns)


def their_to_go(c: Case) -> Tensor:
    return c.kept(RemoteExperienceMaker.get_cumulative_returns(None, c.rewards, c.m, c.gamma))


def to_go_over_holes(c: Case) -> Tensor:
    return c.kept(reward_to_go(c.kept(c.rewards), torch.ones_like(c.mask), gamma=c.gamma))


def their_advantages(estimator: str, coef: float = 0.0) -> Side:
    """Run OpenRLHF's whole computation from scores to advantages, for one batch of responses."""

    def theirs(c: Case) -> Tensor:
        batch = SimpleNamespace(
            rewards=c.score,
            index=list(range(len(c.score))),
            info={},
            values=c.values,
            kl=c.old - c.ref,
            action_mask=c.m,
        )
        advantage = SimpleNamespace(estimator=estimator, gamma=1.0, lambd=c.gae_lambda, no_std_norm=False)
        args = SimpleNamespace(
            algo=SimpleNamespace(advantage=advantage),
            reward=SimpleNamespace(clip_range=None),
            rollout=SimpleNamespace(n_samples_per_prompt=c.block),
        )
        maker = SimpleNamespace(
            strategy=SimpleNamespace(args=args),
            advantage_estimator=estimator,
            kl_ctl=SimpleNamespace(value=coef),
            get_advantages_and_returns=lambda *given: RemoteExperienceMaker.get_advantages_and_returns(None, *given),
            get_cumulative_returns=lambda *given: RemoteExperienceMaker.get_cumulative_returns(None, *given),
        )
        (done,) = RemoteExperienceMaker.compute_advantages_and_returns(maker, [batch])
        return c.kept(done.advantages)

    return theirs


def rows(formula: Callable[[Case], Tensor]) -> Side:
    return lambda c: c.on_tokens(formula(c))


def as_population(x: Tensor, c: Case) -> Tensor:
    return x * (c.num_tokens / (c.num_tokens - 1)) ** 0.5


def rloo_with_kl(c: Case) -> Tensor:
    """The group advantage on every token, minus the KL terms from the token on."""
    return c.on_tokens(leave_one_out(c.score, c.blocks)) - reward_to_go(0.3 * (c.old - c.ref), c.mask, gamma=1.0)


def their_overlong(c: Case) -> Tensor:
    batch = SimpleNamespace(response_length=c.mask.sum(dim=1), rewards=torch.zeros_like(c.score))
    apply_overlong_penalty([batch], *overlong_limits(c), c.coef)
    return batch.rewards


def reward(c: Case) -> Tensor:
    return c.kept(outcome_rewards(c) - c.coef * (c.old - c.ref))


COMPARISONS = (
    Comparison(what="GAE and returns", ours=tokens, theirs=their_gae, on=("plain",)),
    Comparison(what="GAE and returns", ours=tokens, theirs=their_gae, known=HOLES, translated=over_holes),
    Comparison(
        what="GAE and returns at gamma = lambda = 1",
        ours=lambda c: tokens(undiscounted(c)),
        theirs=lambda c: their_gae(undiscounted(c)),
    ),
    Comparison(
        what="reward-to-go",
        ours=lambda c: reward_to_go(c.rewards, c.mask, gamma=c.gamma),
        theirs=their_to_go,
        on=("plain",),
    ),
    Comparison(
        what="reward-to-go",
        ours=lambda c: reward_to_go(c.rewards, c.mask, gamma=c.gamma),
        theirs=their_to_go,
        known=HOLES,
        translated=to_go_over_holes,
    ),
    Comparison(what="RLOO", ours=rows(lambda c: leave_one_out(c.score, c.blocks)), theirs=their_advantages("rloo")),
    Comparison(
        what="RLOO with KL in the reward",
        theirs=their_advantages("rloo", 0.3),
        ours=rows(lambda c: leave_one_out(c.score - 0.3 * c.kept(c.old - c.ref).sum(1), c.blocks)),
        known="the KL term is not in the baseline, and is summed from the token on; ours is part of the score",
        translated=rloo_with_kl,
    ),
    Comparison(
        what="Dr. GRPO",
        ours=rows(lambda c: group_normalized(c.score, c.blocks, scale_by_std=False)),
        theirs=their_advantages("dr_grpo"),
    ),
    Comparison(
        what="GRPO (group_norm)",
        ours=rows(lambda c: group_normalized(c.score, c.blocks)),
        theirs=their_advantages("group_norm"),
        known="adds 1e-9 to the std; ours adds 1e-6",
        translated=rows(with_epsilon(1e-9)),
    ),
    Comparison(
        what="REINFORCE++ with a baseline",
        ours=BASELINE,
        theirs=their_advantages("reinforce_baseline"),
        tolerance=SINGLE,
        known=POPULATION,
        translated=lambda c: as_population(BASELINE(c), c),
    ),
    Comparison(
        what="scores on the last action token minus the KL term",
        ours=reward,
        theirs=lambda c: c.kept(compute_reward(c.score, c.coef, c.old - c.ref, c.m)),
    ),
    Comparison(
        what="DAPO's penalty of long responses", ours=overlong, theirs=their_overlong, on=("plain",), tolerance=SINGLE
    ),
    *LOSSES,
    Comparison(what="adaptive KL coefficient", ours=adaptive, theirs=lambda c: adapted(AdaptiveKLController, c)),
    Comparison(
        what="tempered log-probabilities and gradient",
        ours=chosen(0, TEMPERATURE),
        theirs=lambda c: graded(lambda logits: log_probs_from_logits(logits.clone(), c.ids, TEMPERATURE), c.logits),
    ),
)
