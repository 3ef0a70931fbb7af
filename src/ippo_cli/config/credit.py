"""What measuring an agent's credit needs, and where it cannot be measured."""

from __future__ import annotations

from ippo_cli.config.batch_sizes import format_divisors
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.rewards import needs_whole_batch
from ippo_cli.config.schema import (
    Advantage,
    Config,
    ConversationConfig,
    CreditAssignment,
)


def needs_reference(config: Config) -> bool:
    """Whether the initial weights are kept: some KL term compares with them, or they play episodes anew."""
    return config.algorithm.kl.reward.coef != 0.0 or config.algorithm.kl.loss.coef != 0.0 or needs_replays(config)


def needs_replays(config: Config) -> bool:
    """Whether episodes are ever played anew by initial policies."""
    reward = config.reward
    return reward.credit_assignment is CreditAssignment.difference or reward.measure_credit_every > 0


def is_replay_iteration(config: Config, iteration: int) -> bool:
    """Whether they are in this iteration (counted from 0)."""
    every = config.reward.measure_credit_every
    return config.reward.credit_assignment is CreditAssignment.difference or (
        every > 0 and (iteration + 1) % every == 0
    )


def is_credit_iteration(config: Config, iteration: int) -> bool:
    """Whether any credit is measured in this iteration."""
    return config.reward.credit_assignment is not CreditAssignment.none or is_replay_iteration(config, iteration)


def check_credit(config: Config) -> None:
    """Raise `ConfigError` for credit that cannot be measured."""
    reward = config.reward
    _check_answer_substitution(config)
    how = reward.credit_assignment
    if how is CreditAssignment.none and not reward.measure_credit_every:
        return
    setting = f"reward.credit_assignment={how.value}"
    if how is CreditAssignment.difference and reward.measure_credit_every:
        raise ConfigError(
            f"reward.measure_credit_every={reward.measure_credit_every}",
            f"has no effect: {setting} measures it in every iteration",
            "set one of them to 0 or none",
        )
    if needs_whole_batch(reward):
        credit_setting = setting if how is not CreditAssignment.none else "reward.measure_credit_every"
        raise ConfigError(
            "reward.whole_batch=true",
            f"compares the rows of a batch, and {credit_setting} asks about episodes that nobody played beside them",
            "set it to false, or reward.credit_assignment=none reward.measure_credit_every=0",
        )
    if how is not CreditAssignment.none and config.algorithm.advantage is Advantage.greedy_baseline:
        raise ConfigError(
            setting,
            "subtracts a baseline, and algorithm.advantage=greedy_baseline compares with the scores of greedy "
            "responses, which have none",
            "use none, or another algorithm",
        )


def _check_answer_substitution(config: Config) -> None:
    """Refuse to put other answers into episodes in which somebody heard the one that was given."""
    how, task = config.reward.credit_assignment, config.task
    if how not in (CreditAssignment.counterfactual, CreditAssignment.leave_out):
        return
    setting = f"reward.credit_assignment={how.value}"
    if not isinstance(task, ConversationConfig) or task.protocol != "parallel" or task.num_turns != 1:
        reason = f"task.kind={task.kind.value} has a world that answers"
        if isinstance(task, ConversationConfig):
            reason = (
                f"with task.protocol={task.protocol} task.num_turns={task.num_turns} others may have heard the old one"
            )
        raise ConfigError(
            setting,
            f"puts another answer into an episode and keeps everything else, and {reason}",
            "use reward.credit_assignment=difference, which plays the episode anew"
            + (", or task.protocol=parallel task.num_turns=1" if isinstance(task, ConversationConfig) else ""),
        )
    if how is CreditAssignment.counterfactual and config.rollout.num_generations < 2:
        raise ConfigError(
            f"rollout.num_generations={config.rollout.num_generations}",
            f"leaves {setting} no other answer to the same prompt",
            "use one of "
            + " ".join(format_divisors(config.rollout.buffer_size).split()[1:])
            + ", or leave_out or difference",
        )
