"""Requirements of credit assignment, and checks of `reward.credit_assignment`."""

from __future__ import annotations

from collections.abc import Iterator

from ippo_cli.config.batch_sizes import format_divisors
from ippo_cli.config.errors import ConfigError, combine_errors
from ippo_cli.config.rewards import needs_whole_batch
from ippo_cli.config.schema import (
    Advantage,
    Config,
    ConversationConfig,
    Credit,
    CreditAssignment,
    Processor,
)

ROW_PROCESSORS = (Processor.shift, Processor.zscore, Processor.running_zscore)


def needs_reference(config: Config) -> bool:
    """Whether the initial weights stay in memory: for a KL term, or for replayed episodes."""
    return config.algorithm.kl.reward.coef != 0.0 or config.algorithm.kl.loss.coef != 0.0 or needs_replays(config)


def needs_replays(config: Config) -> bool:
    """Whether any iteration replays episodes with initial policies."""
    reward = config.reward
    return reward.credit_assignment is CreditAssignment.difference or reward.measure_credit_every > 0


def is_replay_iteration(config: Config, iteration: int) -> bool:
    """Whether this iteration (counted from 0) replays episodes with initial policies."""
    every = config.reward.measure_credit_every
    return config.reward.credit_assignment is CreditAssignment.difference or (
        every > 0 and (iteration + 1) % every == 0
    )


def is_credit_iteration(config: Config, iteration: int) -> bool:
    """Whether this iteration (counted from 0) measures any credit."""
    return config.reward.credit_assignment is not CreditAssignment.none or is_replay_iteration(config, iteration)


def check_credit(config: Config) -> None:
    """Raise `ConfigError` for credit that cannot be measured."""
    reward = config.reward
    _check_answer_substitution(config)
    if errors := list(_check_alternatives(config)):
        raise combine_errors(errors)
    method = reward.credit_assignment
    if method is CreditAssignment.none and not reward.measure_credit_every:
        return
    setting = f"reward.credit_assignment={method.value}"
    if method is CreditAssignment.difference and reward.measure_credit_every:
        raise ConfigError(
            f"reward.measure_credit_every={reward.measure_credit_every}",
            f"has no effect: {setting} measures credit in every iteration",
            "set one of them to 0 or none",
        )
    if needs_whole_batch(reward):
        credit_setting = setting if method is not CreditAssignment.none else "reward.measure_credit_every"
        raise ConfigError(
            "reward.whole_batch=true",
            f"compares the rows of a batch, and {credit_setting} scores additional episodes separately",
            "set it to false, or reward.credit_assignment=none reward.measure_credit_every=0",
        )
    if method is not CreditAssignment.none and config.algorithm.estimator is Advantage.greedy_baseline:
        raise ConfigError(
            setting,
            "subtracts a baseline, and algorithm.advantage=greedy_baseline compares with the scores of greedy "
            "responses, which have none",
            "use none, or another algorithm",
        )


def samples_alternatives(config: Config) -> bool:
    """Whether counterfactual credit samples alternatives to turns, and replays the rest of the episodes."""
    reward = config.reward
    return reward.credit_assignment is CreditAssignment.counterfactual and reward.credit_alternatives is not None


def _check_answer_substitution(config: Config) -> None:
    """Raise `ConfigError` for substituted responses in episodes with later turns that may depend on them."""
    method, task = config.reward.credit_assignment, config.task
    if method not in (CreditAssignment.counterfactual, CreditAssignment.leave_out) or samples_alternatives(config):
        return
    setting = f"reward.credit_assignment={method.value}"
    has_tools = any(agent.tools is not None for agent in task.agents.values())
    if has_tools or not isinstance(task, ConversationConfig) or task.protocol != "parallel" or task.num_turns != 1:
        reason = f"task.kind={task.kind} has an environment that reacts to responses"
        if isinstance(task, ConversationConfig):
            reason = f"with task.protocol={task.protocol} task.num_turns={task.num_turns} later turns may depend on it"
        if has_tools:
            reason = "with tools of an agent later turns may depend on it"
        single_turn = ", or task.protocol=parallel task.num_turns=1" + (" without tools" if has_tools else "")
        replays = "reward.credit_assignment=difference, which replays the episode"
        if method is CreditAssignment.counterfactual:
            replays = f"reward.credit_alternatives=2, which samples alternatives and replays the episode, or {replays}"
        raise ConfigError(
            setting,
            f"replaces one response of an episode and keeps all others, and {reason}",
            f"use {replays}" + (single_turn if isinstance(task, ConversationConfig) else ""),
        )
    if method is CreditAssignment.counterfactual and config.rollout.num_generations < 2:
        raise ConfigError(
            f"rollout.num_generations={config.rollout.num_generations}",
            f"is too small: {setting} needs other responses to the same prompt",
            "use one of "
            + " ".join(format_divisors(config.rollout.buffer_size).split()[1:])
            + ", or reward.credit_alternatives=2, or leave_out or difference",
        )


def _check_alternatives(config: Config) -> Iterator[ConfigError]:
    """Keys of sampled alternatives, and what cannot use a credit by turn."""
    reward, algorithm, task = config.reward, config.algorithm, config.task
    method = f"reward.credit_assignment={reward.credit_assignment.value}"
    if reward.credit_alternatives is not None and reward.credit_assignment is not CreditAssignment.counterfactual:
        yield ConfigError(
            f"reward.credit_alternatives={reward.credit_alternatives}",
            f"has no effect: {method} samples no alternatives",
            "set reward.credit_assignment=counterfactual, or null",
        )
    if reward.credit_turns is not None and not samples_alternatives(config):
        yield ConfigError(
            f"reward.credit_turns={reward.credit_turns}",
            "has no effect: no alternatives to turns are sampled",
            "set reward.credit_assignment=counterfactual reward.credit_alternatives=2, or null",
        )
    if not samples_alternatives(config):
        return
    setting = f"{method} reward.credit_alternatives={reward.credit_alternatives}"
    if isinstance(task, ConversationConfig) and task.is_one_turn_per_agent:
        if reward.credit_turns is not None:
            yield ConfigError(
                f"reward.credit_turns={reward.credit_turns}", "has no effect: every agent has one turn", "use null"
            )
        return
    if algorithm.gamma not in (None, 1.0) and algorithm.credit is Credit.token:
        yield ConfigError(
            f"algorithm.gamma={algorithm.gamma} algorithm.credit=token",
            f"discount by token, and {setting} is the return from a turn",
            "use algorithm.gamma=1, or algorithm.credit=turn",
        )
    if rows := [step for step in reward.processor if step in ROW_PROCESSORS]:
        yield ConfigError(
            f"reward.processor=[{rows[0]}]",
            f"belongs to the sum over the turns of a row, and {setting} is a credit for each turn",
            "remove it; algorithm.advantage_normalization standardises advantages",
        )
