"""The methods of a run, in the order in which the stages of an iteration call them."""

from __future__ import annotations

from pathlib import Path

import torch

from ippo_cli.config.schema import Advantage, Config, CreditAssignment
from ippo_cli.training.checkpoint import TrainingState
from ippo_cli.training.methods.continuations import ContinuationValues
from ippo_cli.training.methods.credit import CreditMeasurement
from ippo_cli.training.methods.greedy_baseline import GreedyBaseline
from ippo_cli.training.methods.method import Method
from ippo_cli.training.methods.opponents import OpponentPool
from ippo_cli.training.methods.refill import Refill
from ippo_cli.training.methods.role_baselines import RoleBaselines
from ippo_cli.training.methods.shared_rows import SharedRows
from ippo_cli.training.methods.turn_groups import TurnCandidates


def build_methods(config: Config, folder: Path, state: TrainingState, device: torch.device) -> list[Method]:
    """The methods that a configuration asks for; their states are in `state`, which a checkpoint restores later."""
    advantage, reward = config.algorithm.advantage, config.reward
    methods: list[Method] = []
    if config.team.opponent_pool.every:
        methods.append(OpponentPool(config, folder, state.pool, device))
    if state.algorithm.needs_greedy:
        methods.append(GreedyBaseline())
    if config.rollout.refill_rounds or state.curriculum is not None:
        methods.append(Refill(config.rollout.refill_rounds, state.curriculum))
    if config.algorithm.turn_groups.candidates > 1:
        methods.append(TurnCandidates())
    if reward.credit_assignment is not CreditAssignment.none or reward.measure_credit_every:
        methods.append(CreditMeasurement())
    if config.team.share_rollouts:
        methods.append(SharedRows(config))
    if advantage is Advantage.monte_carlo:
        methods.append(ContinuationValues(config, state.algorithm))
    if advantage is Advantage.role_baseline:
        methods.append(RoleBaselines())
    return methods
