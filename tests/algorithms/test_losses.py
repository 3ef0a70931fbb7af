"""Losses of a micro-batch, on hand-worked numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ippo_cli.algorithms.losses import policy_objective, value_objective
from ippo_cli.compose.load import load_config
from ippo_cli.config.schema import PositiveNllConfig
from ippo_cli.models.actor import PolicyOutput
from ippo_cli.tasks.task import response_budgets
from ippo_cli.types import Minibatch, Rollout, Targets

MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]], dtype=torch.bool)
ENDS = torch.tensor([[0, 0, 1, 0], [1, 0, 0, 0]], dtype=torch.bool)
OLD = torch.tensor([[-1.0, -2.0, -0.5, 0.0], [-3.0, 0.0, 0.0, 0.0]])
ADVANTAGE = torch.tensor([2.0, -1.0])[:, None] * MASK
RETURN = torch.tensor([1.0, 3.0])[:, None] * MASK


def batch(*, values: torch.Tensor | None = None, weights: torch.Tensor | None = None, by_turn: bool) -> Minibatch:
    turn, zeros = torch.where(MASK, 0, -1), torch.zeros(2, 4)
    rollout = Rollout(
        prompt_ids=torch.ones(2, 1).long(),
        prompt_mask=torch.ones(2, 1).bool(),
        response_ids=turn.clamp(min=0),
        response_mask=MASK,
        turn=turn,
        length=MASK.sum(dim=1),
        logprobs=OLD,
        behavior_logprobs=OLD,
        finished=torch.ones(2).bool(),
        texts=["", ""],
    )
    targets = Targets(
        rewards=zeros,
        values=zeros if values is None else values,
        final_values=torch.zeros(2),
        ref_logprobs=OLD,
        advantages=ADVANTAGE,
        returns=RETURN,
        loss_mask=MASK,
        value_mask=ENDS if by_turn else MASK,
        behavior_weights=MASK.float() if weights is None else weights,
        sample_counts=torch.ones(2).long(),
        positive=torch.tensor([True, False]),
    )
    return Minibatch(
        rollout=rollout,
        targets=targets,
        num_tokens=4,
        num_sequences=2,
        num_values=2 if by_turn else 4,
        num_value_sequences=2,
        agent=torch.zeros(2).long(),
    )


def make_output(logprobs: torch.Tensor, full_kl: torch.Tensor | None = None) -> PolicyOutput:
    return PolicyOutput(logprobs, torch.zeros(2, 4), None, None, full_kl)


def test_comlrl_policy_loss() -> None:
    config = load_config(["algorithm=comlrl_iac"]).algorithm
    new = OLD.clone().requires_grad_()
    loss = policy_objective(make_output(new), batch(by_turn=True), config, 4)
    assert loss.total.item() == pytest.approx(-(2.0 * -3.5 + -1.0 * -3.0) / 2)
    loss.total.backward()
    torch.testing.assert_close(new.grad, -ADVANTAGE / 2)


@pytest.mark.parametrize(
    "budget", [["rollout.max_new_tokens=4"], ["rollout.max_new_tokens=2", "task.protocol=dialogue", "task.num_turns=2"]]
)
def test_dr_grpo_loss_divided_by_response_budget(budget: list[str]) -> None:
    config = load_config(["algorithm=dr_grpo", "rollout.num_generations=4", *budget])
    loss = policy_objective(make_output(OLD), batch(by_turn=False), config.algorithm, response_budgets(config)["low"])
    assert loss.total.item() == pytest.approx(-(3 * 2.0 + 1 * -1.0) / 2 / 4)


@pytest.mark.parametrize(("name", "seen"), [("comlrl_iac", [0.25, 0.5]), ("comlrl_ippo", [5.0, 6.0])])
def test_comlrl_value_loss(name: str, seen: list[float]) -> None:
    config = load_config([f"algorithm={name}"]).algorithm
    values = torch.tensor([[0.25, 9.0, 9.0, 0.0], [0.5, 0.0, 0.0, 0.0]])
    loss = value_objective(values, torch.tensor([5.0, 6.0]), batch(by_turn=True), config, 4)
    squares = (seen[0] - 1.0) ** 2 + (seen[1] - 3.0) ** 2
    coef = {"comlrl_iac": 0.6, "comlrl_ippo": 0.25}[name]  # of the square itself
    assert loss.total.item() == pytest.approx(coef * squares / 2)
    assert loss.sums["loss"].item() / 4 == pytest.approx(0.5 * squares / 2)  # logged per value


def test_auto_credit_with_single_turns_has_token_values() -> None:
    config = load_config(["algorithm=turn_ppo", "algorithm.credit=auto"]).algorithm
    values = torch.tensor([[0.25, 2.0, 4.0, 0.0], [0.5, 0.0, 0.0, 0.0]])
    config = replace(config, value_clip_range=None)
    loss = value_objective(values, torch.zeros(2), batch(by_turn=False), config, 4)
    squares = 0.75**2 + 1.0**2 + 3.0**2 + 2.5**2
    assert loss.total.item() == pytest.approx(0.5 * 0.5 * squares / 4)


def test_huber_value_loss() -> None:
    config = replace(load_config(["algorithm=actor_critic"]).algorithm, huber_delta=0.5, value_clip_range=None)
    loss = value_objective(torch.zeros(2, 4), torch.zeros(2), batch(by_turn=False), config, 4)
    assert loss.total.item() == pytest.approx(0.5 * (3 * 0.5 * (1 - 0.25) + 0.5 * (3 - 0.25)) / 4)


def test_behavior_weights_scale_only_policy_loss() -> None:
    config = load_config(["algorithm=ppo", "algorithm.kl.loss.coef=0.5", "algorithm.kl.loss.estimator=full"]).algorithm
    weights = torch.tensor([[2.0, 0.0, 1.0, 0.0], [0.5, 0.0, 0.0, 0.0]])
    divergence = torch.full((2, 4), 0.125) * MASK
    loss = policy_objective(make_output(OLD, divergence), batch(weights=weights, by_turn=False), config, 4)
    assert loss.total.item() == pytest.approx((-2.0 * 3.0 + 1.0 * 0.5) / 4 + 0.5 * 0.125)
    assert loss.sums["kl_loss"].item() == pytest.approx(4 * 0.125)


def test_entropy_is_subtracted_from_the_loss() -> None:
    config = load_config(["algorithm=ppo", "algorithm.entropy_coef=0.25", "algorithm.kl.loss.coef=0"]).algorithm
    config = replace(config, loss_aggregation="token-mean")
    entropy = torch.tensor([[1.0, 2.0, 3.0, 9.0], [4.0, 9.0, 9.0, 9.0]])
    plain = policy_objective(make_output(OLD), batch(by_turn=False), config, 4)
    loss = policy_objective(make_output(OLD)._replace(entropy=entropy), batch(by_turn=False), config, 4)
    assert loss.total.item() - plain.total.item() == pytest.approx(-0.25 * (1 + 2 + 3 + 4) / 4)


def test_sequence_ratio_clips_all_tokens() -> None:
    keys = ["algorithm=grpo", "algorithm.ratio_level=sequence", "algorithm.ratio_pooling=mean"]
    config = replace(load_config(keys).algorithm, loss_aggregation="token-mean")
    config.kl.loss.coef = 0.0
    new = OLD + torch.tensor([[0.9, 0.0, 0.0, 0.0], [0.1, 0.0, 0.0, 0.0]])
    loss = policy_objective(make_output(new), batch(by_turn=False), config, 4)
    second = torch.tensor(0.1).exp().item()
    assert loss.total.item() == pytest.approx((-2.0 * 3 * 1.2 + second) / 4)  # exp(.3) is beyond 1.2
    assert loss.sums["clip_fraction"].item() == 3
    assert loss.sums["ratio"].item() == pytest.approx(3 * torch.tensor(0.3).exp().item() + second)


NEW = OLD + torch.tensor([[2.0, 0.5, 1.1, 1.0], [0.4, 1.0, 1.0, 1.0]]).log() * MASK
"""Ratios 2, .5, 1.1 with advantage 2, and .4 with advantage -1."""


RANGE = ("algorithm.clip_range_low=0.3", "algorithm.clip_range_high=0.5")


def loss_of(*keys: str, rollout: dict[str, torch.Tensor] | None = None) -> tuple[float, torch.Tensor, float]:
    """The loss with a mean over tokens, its gradient times the number of tokens, and the clip fraction's sum."""
    config = load_config([*keys, "algorithm.loss_aggregation=token-mean", "algorithm.kl.loss.coef=0"]).algorithm
    made, new = batch(by_turn=False), NEW.clone().requires_grad_()
    made = replace(made, rollout=replace(made.rollout, **(rollout or {})))
    loss = policy_objective(make_output(new), made, config, 4)
    loss.total.backward()
    assert new.grad is not None
    return loss.total.item() * 4, new.grad * 4, loss.sums["clip_fraction"].item()


def test_two_sided_mask() -> None:
    """In [.7, 1.5]: the third token only, whatever the advantages' signs."""
    total, gradient, outside = loss_of("algorithm=grpo", "algorithm.objective=mask", *RANGE)
    assert (total, outside) == (pytest.approx(-2.2), 3)
    torch.testing.assert_close(gradient, torch.tensor([[0.0, 0.0, -2.2, 0.0], [0.0, 0.0, 0.0, 0.0]]))


def test_clipped_weights_keep_gradients() -> None:
    """Weights 1.5, .7, 1.1 and .7."""
    total, gradient, outside = loss_of("algorithm=cispo", *RANGE)
    expected = torch.tensor([[-3.0, -1.4, -2.2, 0.0], [0.7, 0.0, 0.0, 0.0]])
    assert (total, outside) == (pytest.approx((expected * NEW).sum().item()), 3)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize(("region", "low", "high"), [("tv", 0.05, 0.15), ("kl", 0.02, 0.15), ("tv", 0.5, 0.5)])
def test_updates_that_leave_the_region(region: str, low: float, high: float) -> None:
    """Probabilities .368 to .736, .135 to .068, .607 to .667 with advantage 2; .050 to .020 with -1.

    The first has left the narrow regions, and its update would move it further; the second has left them as well, and
    its update would bring it back; the last two are inside.
    """
    keys = (f"algorithm.trust_region={region}", f"algorithm.clip_range_low={low}", f"algorithm.clip_range_high={high}")
    total, gradient, outside = loss_of("algorithm=grpo", *keys)
    first = -4.0 if high == 0.5 else 0.0
    expected = torch.tensor([[first, -1.0, -2.2, 0.0], [0.4, 0.0, 0.0, 0.0]])
    assert (total, outside) == (pytest.approx(expected.sum().item()), 0 if high == 0.5 else 2)
    torch.testing.assert_close(gradient, expected)


def test_ratios_clipped_before_pooling() -> None:
    """GMPO: (1.5 * .5 * 1.1) ** (1/3), where the first token has no gradient, and .4 clipped to .7."""
    keys = ("algorithm.ratio_level=sequence", "algorithm.ratio_pooling=mean", "algorithm.clip_level=token")
    total, gradient, outside = loss_of("algorithm=grpo", *keys, *RANGE)
    mean = (1.5 * 0.5 * 1.1) ** (1 / 3)
    assert (total, outside) == (pytest.approx(-2 * 3 * mean + 0.7), 3)
    torch.testing.assert_close(gradient, torch.tensor([[0.0, -2 * mean, -2 * mean, 0.0], [0.0, 0.0, 0.0, 0.0]]))


def test_ratio_to_the_sampler() -> None:
    """With half the sampler's probabilities before filters, ratios are twice as large; filtered ones have no effect."""
    recorded = (OLD + torch.tensor(0.5).log()) * MASK
    keys = ("algorithm=grpo", "algorithm.objective=mask", *RANGE, "algorithm.ratio_base=sampler")
    total, gradient, outside = loss_of(*keys, rollout={"logprobs": recorded, "behavior_logprobs": recorded / 2})
    expected = torch.tensor([[0.0, -2.0, 0.0, 0.0], [0.8, 0.0, 0.0, 0.0]])
    assert (total, outside) == (pytest.approx(-1.2), 2)
    torch.testing.assert_close(gradient, expected)


def test_likelihood_of_positive_responses() -> None:
    """The mean over the three tokens of the positive response, of six such tokens in the step."""
    keys = ["algorithm=vapo", "algorithm.positive_nll.coef=0.5"]
    config, whole = load_config(keys).algorithm, replace(batch(by_turn=False), num_positive_tokens=6)
    new = OLD.clone().requires_grad_()
    loss = policy_objective(make_output(new), whole, config, 4)
    plain = policy_objective(make_output(OLD), whole, replace(config, positive_nll=PositiveNllConfig(0.0, None)), 4)
    assert loss.total.item() - plain.total.item() == pytest.approx(0.5 * 3.5 / 6)
    assert (loss.sums["nll_loss"].item(), loss.sums["positive_fraction"].item()) == (pytest.approx(3.5), 3)
    (loss.total - plain.total).backward()
    expected = torch.tensor([[-2.0, -2.0, -2.0, 0.0], [1.0, 0.0, 0.0, 0.0]]) / 4
    expected[0, :3] -= 0.5 / 6
    torch.testing.assert_close(new.grad, expected)


def test_router_loss_weighted_by_the_share_of_tokens() -> None:
    config = load_config(["algorithm=ppo", "algorithm.router_loss_coef=0.5"]).algorithm
    whole = batch(by_turn=False)
    without = policy_objective(make_output(OLD), whole, config, 4).total
    output = make_output(OLD)._replace(router_loss=torch.tensor(3.0))
    loss = policy_objective(output, replace(whole, num_tokens=16), config, 4)
    # the micro-batch has 4 of the step's 16 tokens
    assert loss.total.item() == pytest.approx(without.item() / 4 + 0.5 * 3.0 / 4)
    assert loss.sums["router_loss"].item() / 4 == pytest.approx(3.0)
    masked = policy_objective(output, whole.mask_all(), config, 4)
    assert masked.total.item() == 0.0
