"""Parts of the gradient of shared weights by agent (`team.role_gradients_every`), and their balance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ippo_cli.agents.grad_norms import GradNorms
from ippo_cli.agents.learner import Learner, MicroBatch
from ippo_cli.agents.team import Team
from ippo_cli.config.role_gradients import find_shared_policy, role_balance, roles_by_learner
from ippo_cli.config.schema import Config, RoleBalance, SharedPolicyConfig
from ippo_cli.engine import distributed
from ippo_cli.formulas import equal_norm_weights, gradnorm_weights
from ippo_cli.planning.method_plan import MethodPlan
from ippo_cli.reporting.stopwatch import Stopwatch
from ippo_cli.training.methods.method import Method, Outcome, Player
from ippo_cli.training.minibatches import OptimizerStep
from ippo_cli.types import Experience, Minibatch, StepContext

WEIGHT_LIMIT = 10.0  # weights are at least its inverse
NORM_DECAY = 0.5  # weight of earlier measurements in the running mean of norms
GRADNORM_RATE = 0.025  # learning rate of the weights, of the paper
MIN_LOSS = 1e-3  # of an agent with the best score


@dataclass(frozen=True)
class RoleState:
    """The state of one learner's agents, by agent; checkpoints store it."""

    weights: dict[str, float] = field(default_factory=dict)  # empty before the first measurement
    mean_norms: dict[str, float] = field(default_factory=dict)
    first_losses: dict[str, float] = field(default_factory=dict)  # of GradNorm
    recent_norms: dict[str, list[float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Values of JSON."""
        return asdict(self)

    def record(self, norms: Mapping[str, float]) -> tuple[RoleState, dict[str, bool]]:
        """The state after a measurement, and by agent whether its norm is a spike, see `GradNorms`."""
        recent = {name: GradNorms(self.recent_norms.get(name, ())) for name in norms}
        spikes = {name: math.isfinite(norm) and recent[name].record(norm) for name, norm in norms.items()}
        return replace(self, recent_norms={name: own.recent for name, own in recent.items()}), spikes


class Balance:
    """Computes the weights of agents that share a policy; with `team.role_balance=none` there are none."""

    def __init__(self, config: Config) -> None:
        self.kind = role_balance(config)
        team: SharedPolicyConfig | None = find_shared_policy(config)
        self._alpha = None if team is None else team.gradnorm_alpha
        self._best_score = None if team is None else team.gradnorm_best_score

    def update(self, state: RoleState, norms: Mapping[str, float], scores: Mapping[str, float]) -> RoleState:
        """The state with the weights after a measurement of unweighted `norms`; `scores`: mean scores by agent.

        Norms that are not finite do not change the state.
        """
        if self.kind is RoleBalance.none or not all(map(math.isfinite, norms.values())):
            return state
        if self.kind is RoleBalance.equal_norm:
            return _equalize_norms(state, norms)
        return self._balance_rates(state, norms, scores)

    def _balance_rates(self, state: RoleState, norms: Mapping[str, float], scores: Mapping[str, float]) -> RoleState:
        assert self._alpha is not None
        assert self._best_score is not None
        losses = {
            name: max(self._best_score - score, MIN_LOSS) for name, score in scores.items() if math.isfinite(score)
        }
        first = losses | state.first_losses
        ratios = [losses[name] / first[name] if name in losses else 1.0 for name in norms]
        weights = gradnorm_weights(
            torch.tensor([state.weights.get(name, 1.0) for name in norms], dtype=torch.float64),
            torch.tensor([*norms.values()], dtype=torch.float64),
            torch.tensor(ratios, dtype=torch.float64),
            alpha=self._alpha,
            rate=GRADNORM_RATE,
            limit=WEIGHT_LIMIT,
        )
        return replace(state, weights=_by_name([*norms], weights.tolist()), first_losses=first)


def _equalize_norms(state: RoleState, norms: Mapping[str, float]) -> RoleState:
    """Weights from the running means of the norms; an agent without a gradient keeps its mean."""
    means = {
        name: NORM_DECAY * state.mean_norms[name] + (1.0 - NORM_DECAY) * norm if name in state.mean_norms else norm
        for name, norm in norms.items()
        if norm > 0
    }
    means = state.mean_norms | means
    known = torch.tensor([means.get(name, 0.0) for name in norms], dtype=torch.float64)
    weights = equal_norm_weights(known, limit=WEIGHT_LIMIT)
    return replace(state, weights=_by_name([*norms], weights.tolist()), mean_norms=means)


def _by_name(names: Sequence[str], numbers: Sequence[float]) -> dict[str, float]:
    return dict(zip(names, numbers, strict=True))


@dataclass(frozen=True, kw_only=True)
class RoleMeasurement:
    """A learner's measurement in an iteration, the same on all ranks that hold it."""

    roles: tuple[str, ...]
    products: list[list[float]] | None  # scalar products of the agents' gradients; None: not measured
    state: RoleState


class RoleGradients(Method):
    """Measures each agent's part of the gradient of the first optimizer step, and weighs the agents' losses."""

    name = "role_gradients"

    def __init__(self, config: Config) -> None:
        self._every = config.team.role_gradients_every
        self._balance = Balance(config)
        self._states: dict[str, RoleState] = {}  # by learner and stage
        self._found: dict[str, RoleMeasurement] = {}  # of the current iteration
        self._scores: dict[str, float] = {}  # mean scores of the current iteration, by agent

    def state_dict(self) -> dict[str, Any]:
        return {key: state.to_json() for key, state in self._states.items()}

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        self._states = {key: RoleState(**state) for key, state in stored.items()}

    def begin(self, team: Team, iteration: int, clock: Stopwatch) -> None:
        self._found = {}

    def prepare_values(self, team: Team, experience: Experience) -> None:
        self._scores = {name: _mean_score(experience, name) for name in team}

    def wrap_steps(
        self, learner: Learner, steps: Iterator[OptimizerStep], context: StepContext
    ) -> Iterator[OptimizerStep]:
        if len(learner.agent_names) < 2 or (learner.member is not None and learner.member.index):
            return steps
        return self._weigh_steps(learner, steps, context)

    def _weigh_steps(
        self, learner: Learner, steps: Iterator[OptimizerStep], context: StepContext
    ) -> Iterator[OptimizerStep]:
        key = f"{learner.name}/{learner.stage}"
        state = self._states.get(key, RoleState())
        for step in steps:
            if step.is_first:
                products = None
                if context.iteration % self._every == 0 and not learner.objective.freezes_policy(context.iteration):
                    products = measure_products(learner, step.batch, context)
                    if learner.is_policy:
                        scores = {name: self._scores[name] for name in learner.agent_names}
                        state = self._balance.update(state, _norms(learner.agent_names, products), scores)
                self._found[key] = RoleMeasurement(roles=learner.agent_names, products=products, state=state)
            yield step if not state.weights else replace(step, micro_batches=weigh_roles(learner, step.batch, state))

    def metrics(self, outcome: Outcome) -> dict[str, float]:
        if not all(learner.group.is_world for learner in outcome.team.learners):
            self._found = {key: own for part in distributed.gather_objects(self._found) for key, own in part.items()}
        row: dict[str, float] = {}
        for key, found in self._found.items():
            stage = key.rpartition("/")[2]
            row |= {f"{role}/{stage}/role_weight": weight for role, weight in found.state.weights.items()}
            if found.products is not None:
                state, spikes = found.state.record(_norms(found.roles, found.products))
                self._found[key] = replace(found, state=state)
                row |= product_metrics(key, found.roles, found.products)
                row |= {f"{role}/{stage}/role_grad_spike": float(spike) for role, spike in spikes.items()}
        return row

    def commit(self, player: Player, outcome: Outcome) -> None:
        self._states = self._states | {key: found.state for key, found in self._found.items()}


def split_roles(learner: Learner, batch: Minibatch) -> Iterator[tuple[str, Minibatch]]:
    """The rows of each agent of a mini-batch on this rank; an agent without rows has a masked one."""
    for place, name in enumerate(learner.agent_names):
        rows = torch.nonzero(batch.agent == place).flatten()
        yield name, batch.select_rows(rows) if len(rows) else batch.select_rows([0]).mask_all()


def weigh_roles(learner: Learner, batch: Minibatch, state: RoleState) -> Iterator[MicroBatch]:
    """Micro-batches of one agent each, with the agents' weights. Collective."""
    for name, part in split_roles(learner, batch):
        yield from learner.iterate_micro_batches(replace(part, loss_weight=state.weights[name]))


def measure_products(learner: Learner, batch: Minibatch, context: StepContext) -> list[list[float]]:
    """Scalar products of the agents' parts of a mini-batch's gradient over all ranks, before clipping and weights.

    Each rank keeps its share of each part. The losses are divided by the counts of the whole mini-batch, so that the
    parts sum to its gradient. Collective.
    """
    parts = [own_share(learner.compute_gradient(part, context)) for _, part in split_roles(learner, batch)]
    products = [torch.stack([scalar_product(left, right) for right in parts]) for left in parts]
    return distributed.all_sum(torch.stack(products)).tolist()


def scalar_product(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    return torch.stack([torch.dot(*both).double() for both in zip(left, right, strict=True)]).sum()


def own_share(gradient: Sequence[Tensor]) -> list[Tensor]:
    """This rank's share of a gradient."""
    size, rank = distributed.world_size(), distributed.rank()
    return [part.flatten().tensor_split(size)[rank].clone() for part in gradient]


def product_metrics(key: str, roles: Sequence[str], products: Sequence[Sequence[float]]) -> dict[str, float]:
    """Metrics of a learner (`name/stage`) from the scalar products of its agents' gradients."""
    stage, norms, with_whole = key.rpartition("/")[2], _norms(roles, products), [sum(row) for row in products]
    whole = math.sqrt(max(sum(with_whole), 0.0))
    row = {f"{key}/role_grad_norm": whole}
    for place, role in enumerate(roles):
        own = f"{role}/{stage}/role_grad"
        row |= {
            f"{own}_norm": norms[role],
            f"{own}_fraction": _divide(with_whole[place], whole * whole),
            f"{own}_cosine": _divide(with_whole[place], norms[role] * whole),
        }
        for other in range(place + 1, len(roles)):
            product = norms[role] * norms[roles[other]]
            row[f"{own}_cosine/{roles[other]}"] = _divide(products[place][other], product)
    return row


def _norms(roles: Sequence[str], products: Sequence[Sequence[float]]) -> dict[str, float]:
    return {role: math.sqrt(products[place][place]) for place, role in enumerate(roles)}


def _divide(value: float, by: float) -> float:
    return value / by if by > 0 else math.nan


def _mean_score(experience: Experience, agent: str) -> float:
    """The mean score of an agent's rows over all ranks; NaN without any. Collective."""
    scores = experience.scores[agent]
    totals = scores.raw.sum(dim=1)[scores.valid].double()
    total, count = distributed.all_sum(torch.stack([totals.sum(), totals.new_tensor(float(len(totals)))])).tolist()
    return _divide(total, count)


class RoleGradientsPlan(MethodPlan):
    """Gradients in float32 during a measurement: one whole, and a rank's share of each agent's."""

    def gradient_parts(self, learner: str) -> int:
        return len(roles_by_learner(self.config).get(learner, ())) if self.config.team.role_gradients_every else 0
