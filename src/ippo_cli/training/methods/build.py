"""The methods of a run, in the order in which the stages of an iteration call them."""

from __future__ import annotations

from pathlib import Path

import torch

from ippo_cli.algorithms.advantage_method import AdvantageMethod
from ippo_cli.config.schema import Advantage, Config, CreditAssignment, UpdateOrder
from ippo_cli.tasks.schedule import ExampleSchedule
from ippo_cli.training.methods.credit import CreditMeasurement
from ippo_cli.training.methods.engine_state import EngineState
from ippo_cli.training.methods.greedy_baseline import GreedyBaseline
from ippo_cli.training.methods.happo import SequentialUpdates
from ippo_cli.training.methods.method import Method
from ippo_cli.training.methods.opponents import OpponentPool
from ippo_cli.training.methods.popart import ReturnNormalization
from ippo_cli.training.methods.refill import Refill
from ippo_cli.training.methods.role_gradients import RoleGradients
from ippo_cli.training.methods.shared_rows import SharedRows
from ippo_cli.training.targets import Algorithm


def build_methods(
    config: Config, folder: Path, algorithm: Algorithm, schedule: ExampleSchedule, device: torch.device
) -> list[Method]:
    """The methods that a configuration asks for; a checkpoint restores their states later."""
    advantage, reward = config.algorithm.estimator, config.reward
    methods: list[Method] = []
    if config.rollout.user_engine is not None:
        methods.append(EngineState())  # first: others play episodes with the engine
    if config.team.opponent_pool.every:
        methods.append(OpponentPool(config, folder, device))
    if advantage is Advantage.greedy_baseline:
        methods.append(GreedyBaseline())
    if config.rollout.refill_rounds or schedule.curriculum is not None:
        methods.append(Refill(config.rollout.refill_rounds, schedule.curriculum))
    if isinstance(algorithm.estimator, AdvantageMethod):
        own = algorithm.estimator.build_method(config, algorithm)
        methods += [] if own is None else [own]
    if reward.credit_assignment is not CreditAssignment.none or reward.measure_credit_every:
        methods.append(CreditMeasurement())
    if config.team.share_rollouts:
        methods.append(SharedRows(config))
    if config.team.update_order is UpdateOrder.sequential:
        methods.append(SequentialUpdates(config))
    if any(getattr(agent.critic, "popart_beta", None) is not None for agent in config.task.agents.values()):
        methods.append(ReturnNormalization())
    if config.team.role_gradients_every:
        methods.append(RoleGradients(config))
    return methods
