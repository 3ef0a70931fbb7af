"""Rules of rewards: their keys, and their requirements on the task."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.python_names import is_code_reference
from ippo_cli.config.reward_models import check_reward_model
from ippo_cli.config.reward_weights import check_reward_weights
from ippo_cli.config.schema import (
    PROTOCOLS,
    Advantage,
    CodePairRewardConfig,
    CodeRunConfig,
    Config,
    ConversationConfig,
    CreditAssignment,
    EnvironmentRewardConfig,
    EnvironmentTaskConfig,
    ExactMatchConfig,
    FormatRewardConfig,
    FunctionRewardConfig,
    GridConfig,
    GridRewardConfig,
    Gsm8kRewardConfig,
    LengthRewardConfig,
    MathRewardConfig,
    MixRewardConfig,
    NumberRewardConfig,
    Processor,
    ProgramConfig,
    RewardConfig,
    Sandbox,
    has_seed_examples,
)
from ippo_cli.config.text import join_names

SANDBOXES = "reward.sandbox=bwrap (needs bubblewrap), or reward.sandbox=unsafe_local on a disposable machine"
REFERENCE_REWARDS = (ExactMatchConfig, Gsm8kRewardConfig, MathRewardConfig, NumberRewardConfig)
EXAMPLE_REWARDS = (*REFERENCE_REWARDS, CodeRunConfig, GridRewardConfig)


def rewards_with_prefixes(config: Config) -> Iterator[tuple[str, Config]]:
    """Yield the prefix of the keys, and the configuration with that reward: the run's, or each part of a mix."""
    if isinstance(config.reward, MixRewardConfig):
        for name, part in config.reward.parts.items():
            yield f"reward.parts.{name}", replace(config, reward=part)
    else:
        yield "reward", config


def check_rewards(config: Config) -> None:
    """Raise `ConfigError` for a reward with invalid settings, or one that does not support the task."""
    if isinstance(config.reward, MixRewardConfig):
        _check_mix(config, config.reward)
    _check_reward(config)
    _check_reward_batches(config)
    for where, own in rewards_with_prefixes(config):
        _check_keys(own.reward, where)
        check_reward_model(own.reward, where)
        _check_reward_of_task(own, where)


def needs_whole_batch(reward: RewardConfig) -> bool:
    """Whether scores depend on the other rows of a batch."""
    parts = reward.parts.values() if isinstance(reward, MixRewardConfig) else [reward]
    return any(isinstance(part, FunctionRewardConfig) and part.whole_batch for part in parts)


def buffer_dependent_scores(reward: RewardConfig) -> Iterator[tuple[str, str, str]]:
    """Settings by which the scores of a response depend on others of its buffer: each with its effect, and a remedy."""
    moving = sorted({Processor.zscore.value, Processor.running_zscore.value} & set(reward.processor))
    if moving:
        yield (
            f"reward.processor=[{','.join(reward.processor)}]",
            "standardises scores by moments that change from buffer to buffer",
            f"reward.processor without {join_names(moving)}",
        )
    if isinstance(reward, MixRewardConfig) and reward.normalize:
        yield "reward.normalize", "standardises parts of the score over a buffer", "reward.normalize=[]"
    if needs_whole_batch(reward):
        yield (
            "reward.whole_batch=true",
            "compares the responses of a buffer with each other",
            "reward.whole_batch=false",
        )
    if reward.credit_assignment is not CreditAssignment.none:
        yield (
            f"reward.credit_assignment={reward.credit_assignment.value}",
            "subtracts a baseline that other responses determine",
            "reward.credit_assignment=none",
        )


def _check_keys(reward: RewardConfig, where: str) -> None:
    if isinstance(reward, FunctionRewardConfig) and reward.per_sample and reward.whole_batch:
        raise ConfigError(
            f"{where}.per_sample=true", f"calls it row by row, and {where}.whole_batch=true forbids that", "set one"
        )
    if isinstance(reward, LengthRewardConfig):
        _check_length(reward, where)
    if isinstance(reward, FormatRewardConfig):
        _check_pattern(reward, where)
    if isinstance(reward, CodeRunConfig) and reward.sandbox is Sandbox.none:
        raise ConfigError(f"{where}.sandbox=none", "runs no generated code", f"set {SANDBOXES}")
    if isinstance(reward, CodePairRewardConfig):
        if not (reward.parses or reward.defines or reward.calls or reward.tests):
            keys = " ".join(f"{where}.{key}=0" for key in ("parses", "defines", "calls", "tests"))
            raise ConfigError(keys, "leave no reward", "set one of them")
        if not reward.helper.isidentifier():
            raise ConfigError(f"{where}.helper={reward.helper}", "is not a function name", "use a name such as aux")


def _check_length(reward: LengthRewardConfig, where: str) -> None:
    if reward.high is None and not reward.low:
        raise ConfigError(f"{where}.low=0 {where}.high=null", "allow every length", f"set {where}.high=200")
    if reward.high is not None and reward.high < reward.low:
        raise ConfigError(
            f"{where}.low={reward.low} {where}.high={reward.high}", "are not an interval", "set low to at most high"
        )


def _check_pattern(reward: FormatRewardConfig, where: str) -> None:
    if reward.pattern is None:
        raise ConfigError(f"{where}.pattern=null", "is missing", f"set {where}.pattern='<think>.*</think>.*'")
    try:
        re.compile(reward.pattern)
    except re.error as error:
        raise ConfigError(
            f"{where}.pattern={reward.pattern}",
            f"is not a regular expression ({error})",
            r"correct it, such as -?[0-9]+; write \( for a literal bracket",
        ) from error


def _check_mix(config: Config, mix: MixRewardConfig) -> None:
    if not mix.parts:
        raise ConfigError(
            "reward.parts={}",
            "leaves no reward",
            "add parts: 'reward.parts={right: {kind: gsm8k}, brief: {kind: length}}'",
        )
    for name in mix.parts:
        if not re.fullmatch(r"\w+", name):
            raise ConfigError(f"reward.parts.{name}", "is used in metric names", "use letters, digits and '_'")
    for key, named in (("weights", mix.weights), ("normalize", mix.normalize)):
        if others := [name for name in named if name not in mix.parts]:
            raise ConfigError(
                f"reward.{key}", f"names {others[0]}, which is not a part", f"use one of {' '.join(mix.parts)}"
            )
    if idle := [name for name, weight in mix.weights.items() if not weight and name in mix.normalize]:
        raise ConfigError(f"reward.normalize={mix.normalize}", f"names {idle[0]}, which has weight 0", "remove it")
    if all(mix.weights.get(name, 1.0) == 0 for name in mix.parts):
        raise ConfigError("reward.weights", "leave no reward", "set one of them")
    credit = mix.credit_assignment is not CreditAssignment.none or mix.measure_credit_every
    if mix.normalize and (credit or config.algorithm.estimator is Advantage.greedy_baseline):
        setting = "reward.credit_assignment" if credit else "algorithm.advantage=greedy_baseline"
        raise ConfigError(
            f"reward.normalize={mix.normalize}",
            f"normalises scores within a buffer, and {setting} compares scores of different buffers",
            "use either",
        )


def _check_reward(config: Config) -> None:
    reward = config.reward
    check_reward_weights(config)
    _check_processors(reward)
    if Processor.clip in reward.processor and reward.clip_low >= reward.clip_high:
        raise ConfigError(
            f"reward.clip_low={reward.clip_low} reward.clip_high={reward.clip_high}",
            "are not an interval",
            "set clip_low below clip_high",
        )
    for where, own in rewards_with_prefixes(config):
        _check_weights_and_names(own.reward, where)
    if needs_whole_batch(reward) and reward.reward_batch_rows:
        raise ConfigError(
            f"reward.reward_batch_rows={reward.reward_batch_rows}",
            "scores parts of a batch, and reward.whole_batch=true forbids that",
            "set one of them to 0 or false",
        )
    if needs_whole_batch(reward) and config.algorithm.estimator is Advantage.greedy_baseline:
        raise ConfigError(
            "reward.whole_batch=true",
            "compares greedy responses with each other, and algorithm.advantage=greedy_baseline subtracts their scores "
            "from the scores of sampled responses",
            "set it to false, or use another algorithm",
        )


def _check_processors(reward: RewardConfig) -> None:
    names = [step.value for step in Processor]
    for step in reward.processor:
        if step not in names and not is_code_reference(step) and not step.endswith(".py"):
            close = difflib.get_close_matches(step, names, n=1)
            raise ConfigError(
                f"reward.processor=[{step}]",
                "is neither a step nor a function",
                f"use {close[0] if close else ' '.join(names)}, or path/to/file.py:function",
            )


def _check_weights_and_names(reward: RewardConfig, where: str) -> None:
    if isinstance(reward, NumberRewardConfig) and not (
        reward.exact_weight or reward.near_weight or reward.format_weight
    ):
        raise ConfigError(
            " ".join(f"{where}.{key}=0" for key in ("exact_weight", "near_weight", "format_weight")),
            "leave no reward",
            "set one of them",
        )
    if isinstance(reward, FunctionRewardConfig) and reward.function is None:
        raise ConfigError(
            f"{where}.function=null", "names no function", f"set {where}.function=path/to/file.py:function"
        )


def _check_reward_batches(config: Config) -> None:
    reward = config.reward
    if reward.reward_batch_rows and not (
        isinstance(config.task, ConversationConfig) and config.task.is_one_turn_per_agent
    ):
        raise ConfigError(
            f"reward.reward_batch_rows={reward.reward_batch_rows}",
            "rewards rows during generation, and rows with several turns finish together",
            "use 0, or task.protocol=parallel or sequential with task.num_turns=1",
        )


def _check_reward_of_task(config: Config, where: str) -> None:
    """Check the requirements of a reward on the task."""
    reward = config.reward
    is_environment = isinstance(config.task, EnvironmentTaskConfig | ProgramConfig)
    own_protocol = isinstance(config.task, ConversationConfig) and config.task.protocol not in PROTOCOLS
    if isinstance(reward, EnvironmentRewardConfig) and not (is_environment or own_protocol):
        raise ConfigError(
            f"{where}.kind=environment",
            f"needs an environment, a program or your own protocol, and task.kind={config.task.kind} has none",
            "use task=gymnasium, pettingzoo, textarena, reasoning_gym, environment or program, or another reward",
        )
    if isinstance(reward, EXAMPLE_REWARDS) and has_seed_examples(config.task):
        raise ConfigError(
            f"{where}.kind={reward.kind}",
            f"compares responses with examples, and examples of task.kind={config.task.kind} are seeds",
            "use reward=environment or reward=function",
        )
    if isinstance(reward, GridRewardConfig) and not isinstance(config.task, GridConfig):
        raise ConfigError(
            f"{where}.kind=grid",
            "scores walks on a grid, and this task has none",
            "use task=probe_grid, or another reward",
        )
    if isinstance(reward, CodePairRewardConfig) and len(config.task.agents) != 2:
        raise ConfigError(
            f"{where}.kind=code_pair",
            f"needs two agents, and the task has {len(config.task.agents)}",
            "use task=code_pair, or reward=code",
        )
    answers = [agent.answer for agent in config.task.agents.values() if agent.answer is not None]
    if isinstance(reward, REFERENCE_REWARDS) and not answers:
        raise ConfigError(
            f"task.agents.{next(iter(config.task.agents))}.answer=null",
            f"is not a reference answer, and reward={reward.kind} needs one",
            "set it to a template of the reference answer, such as '{answer}'",
        )
