"""What types cannot say: ranges, rules between groups, and all batch arithmetic, checked before anything is loaded."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from operator import attrgetter
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import (
    Advantage,
    AgentConfig,
    Config,
    Credit,
    CriticKind,
    ExactMatchConfig,
    FunctionRewardConfig,
    Gather,
    GridConfig,
    GridRewardConfig,
    JsonlConfig,
    KlConfig,
    Objective,
    Processor,
    RatioLevel,
    Reweight,
    SeparateCriticConfig,
    SortingConfig,
    TinyActorConfig,
    Truncation,
    TurnValue,
    ValueUnit,
    WeightLevel,
)

# leaf name -> (lowest, highest, open at the low end, open at the high end); names are unique in meaning over groups
_POSITIVE = (0.0, math.inf, True, True)
_NOT_NEGATIVE = (0.0, math.inf, False, True)
_SHARE = (0.0, 1.0, False, False)
_FROM_ONE = (1, math.inf, False, True)
RANGES: dict[str, tuple[float, float, bool, bool]] = {
    "num_iterations": _FROM_ONE, "num_epochs": _POSITIVE, "seed": (0, 2**31 - 1, False, False),
    "learning_rate": _NOT_NEGATIVE, "warmup_iterations": _NOT_NEGATIVE, "min_lr_ratio": _SHARE,
    "weight_decay": _NOT_NEGATIVE, "adam_beta1": (0.0, 1.0, False, True), "adam_beta2": (0.0, 1.0, False, True),
    "adam_epsilon": _POSITIVE, "max_grad_norm": _NOT_NEGATIVE, "hidden_size": _FROM_ONE, "num_layers": _FROM_ONE,
    "num_heads": _FROM_ONE, "warm_start_steps": _NOT_NEGATIVE, "warm_start_batch_size": _FROM_ONE,
    "warm_start_learning_rate": _POSITIVE, "value_head_hidden_dim": _FROM_ONE, "mini_batch_size": _FROM_ONE,
    "ppo_epochs": _FROM_ONE, "length": _FROM_ONE, "train_size": _FROM_ONE, "eval_size": _FROM_ONE,
    "size": (2, 9, False, False), "step_cost": _SHARE,
    "coef": _NOT_NEGATIVE, "target": _POSITIVE, "horizon": _POSITIVE, "gamma": _SHARE, "gae_lambda": _SHARE,
    "clip_range_low": (0.0, 1.0, True, False), "clip_range_high": _POSITIVE,
    "dual_clip": (1.0, math.inf, True, True), "value_clip_range": _POSITIVE, "value_loss_coef": _NOT_NEGATIVE,
    "entropy_coef": (-math.inf, math.inf, True, True), "target_kl": _POSITIVE, "critic_warmup": _NOT_NEGATIVE,
    "truncation_penalty": _POSITIVE, "length_adaptive_alpha": _POSITIVE, "critic_gae_lambda": _SHARE,
    "huber_delta": _POSITIVE, "power": _POSITIVE, "cap": _POSITIVE, "band_low": _NOT_NEGATIVE, "band_high": _POSITIVE,
    "buffer_size": _FROM_ONE, "num_generations": _FROM_ONE,
    "temperature": _POSITIVE, "top_p": (0.0, 1.0, True, False), "top_k": _NOT_NEGATIVE,
    "min_p": (0.0, 1.0, False, True), "repetition_penalty": _POSITIVE, "max_new_tokens": _FROM_ONE,
    "min_new_tokens": _NOT_NEGATIVE, "decode_batch_size": _FROM_ONE, "max_prompt_tokens": _FROM_ONE,
    "context_limit": (2, math.inf, False, True), "norm_eps": _NOT_NEGATIVE, "failure_budget": _SHARE,
    "stage": (0, 3, False, False), "reduce_bucket_size": _FROM_ONE, "persistence_threshold": _NOT_NEGATIVE,
    "micro_batch_tokens": _FROM_ONE, "scoring_batch_tokens": _FROM_ONE,
    "overlap_rows": _NOT_NEGATIVE, "logit_chunk_tokens": _FROM_ONE, "keep": (2, math.inf, False, True),
    "every": _NOT_NEGATIVE, "samples_every": _NOT_NEGATIVE, "samples": _NOT_NEGATIVE, "processes": _FROM_ONE,
    "threads": _FROM_ONE, "timeout_s": _FROM_ONE,
}  # fmt: skip
CHOICES: dict[str, tuple[str, ...]] = {
    "loss_aggregation": ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"),
    "kl.reward.estimator": ("k1", "abs", "k2", "k3", "full"),
    "kl.loss.estimator": ("k1", "abs", "k2", "k3", "k1+", "abs+", "k2+", "k3+", "full"),
}
RESERVED_AGENT_NAMES = ("eval", "time", "perf", "iteration")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """The sizes that follow from the configuration."""

    num_iterations: int
    prompts_per_iteration: int
    samples_per_rank: tuple[int, int]  # fewest, most
    actor_steps: int  # optimizer steps per iteration and agent
    critic_steps: dict[str, int]  # likewise, by agent; of separate critics only


def check(config: Config, world_size: int) -> None:
    """Raise `ConfigError` for the first rule that the configuration breaks."""
    _check_ranges(config)
    _check_run(config)
    _check_agents(config)
    _check_rollout(config, world_size)
    _check_algorithm(config)
    _check_deepspeed(config)
    _check_reward(config)
    if config.num_iterations is not None:
        arithmetic(config, world_size, train_rows=1)


def arithmetic(config: Config, world_size: int, train_rows: int) -> Arithmetic:
    """All batch sizes; `train_rows` is the number of training examples (used with `num_epochs` only)."""
    size, generations = config.rollout.buffer_size, config.rollout.num_generations
    prompts = size // generations
    mini = config.algorithm.mini_batch_size or size
    if config.num_iterations is not None:
        iterations = config.num_iterations
    else:
        assert config.num_epochs is not None
        iterations = max(1, math.ceil(config.num_epochs * train_rows / prompts))
    critic_steps = {
        name: (size // (agent.critic.mini_batch_size or mini))
        * (agent.critic.ppo_epochs or config.algorithm.ppo_epochs)
        for name, agent in config.task.agents.items()
        if isinstance(agent.critic, SeparateCriticConfig)
    }
    return Arithmetic(
        num_iterations=iterations,
        prompts_per_iteration=prompts,
        samples_per_rank=(size // world_size, math.ceil(size / world_size)),
        actor_steps=_policy_steps(config),
        critic_steps=critic_steps,
    )


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if is_dataclass(node):
        for leaf in fields(node):
            yield from _leaves(getattr(node, leaf.name), f"{prefix}{leaf.name}.")
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, f"{prefix}{key}.")
    else:
        yield prefix.removesuffix("."), node


def _check_ranges(config: Config) -> None:
    # Agents last: what a group gives to all of them is told by the group's name.
    for key, value in sorted(_leaves(config), key=lambda leaf: leaf[0].startswith("task.agents.")):
        for ending, choices in CHOICES.items():
            if key.endswith(ending) and value not in choices:
                raise ConfigError(f"{key}={value}", "is not known", "use one of " + " ".join(choices))
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{key}={value}", "is no number that can be computed with", "use a finite number")
        bounds = RANGES.get(key.rsplit(".", 1)[-1])
        if bounds is None or value is None or isinstance(value, str):
            continue
        low, high, open_low, open_high = bounds
        if value < low or (open_low and value == low):
            remedy = f"use a number above {low:.12g}" if open_low else f"use a number of at least {low:.12g}"
        elif value > high or (open_high and value == high):
            remedy = f"use a number below {high:.12g}" if open_high else f"use a number of at most {high:.12g}"
        else:
            continue
        interval = f"{'(' if open_low else '['}{low:.12g}, {high:.12g}{')' if open_high else ']'}"
        raise ConfigError(f"{key}={value}", f"is out of range; it must lie in {interval}", remedy)


def _check_run(config: Config) -> None:
    if config.resume != "never":  # what is typed is acted upon, and taken out, before anything is composed
        raise ConfigError(f"resume={config.resume}", "has an effect on the command line only", "type it there")
    if (config.num_iterations is None) == (config.num_epochs is None):
        raise ConfigError(
            f"num_iterations={config.num_iterations} num_epochs={config.num_epochs}",
            "must not both be set or both be null", "set exactly one, and the other to null",
        )  # fmt: skip
    if not re.fullmatch(r"[\w.-]+", config.name) or config.name.startswith("."):
        raise ConfigError(f"name={config.name}", "is used as a folder", "use letters, digits, '-', '_' and '.'")


def _check_agents(config: Config) -> None:
    if not config.task.agents:
        raise ConfigError("task.agents={}", "names nobody", "name at least one agent in the task file")
    mode, _, metric = config.task.headline.partition("/")
    if mode not in ("sampled", "greedy") or not metric:
        raise ConfigError(f"task.headline={config.task.headline}", "is no evaluation metric",
                          "use sampled/score, or greedy/ and a metric")  # fmt: skip
    if mode == "greedy" and not config.evaluation.greedy:
        raise ConfigError(f"task.headline={config.task.headline}", "needs the greedy evaluation",
                          "set evaluation.greedy=true, or a headline that starts with sampled/")  # fmt: skip
    for name, agent in config.task.agents.items():
        _check_agent(config, name, agent)
    task = config.task
    if isinstance(task, SortingConfig) and task.length > len(set(task.alphabet)):
        raise ConfigError(f"task.length={task.length}", f"is more than the {len(set(task.alphabet))} letters there are",
                          "shorten it, or lengthen task.alphabet")  # fmt: skip
    if isinstance(task, JsonlConfig):
        for key in ("train", "eval"):
            if getattr(task, key) is None:
                raise ConfigError(f"task.{key}=null", "names no data",
                                  f"set task.{key} to a .jsonl or .parquet file, or a hub dataset id")  # fmt: skip


def _check_agent(config: Config, name: str, agent: AgentConfig) -> None:
    where = f"task.agents.{name}"
    if not re.fullmatch(r"[A-Za-z]\w*", name) or name in RESERVED_AGENT_NAMES:
        raise ConfigError(where, "is used in metric names and folders",
                          "use letters, digits and '_', and none of " + " ".join(RESERVED_AGENT_NAMES))  # fmt: skip
    if agent.system is not None and not (isinstance(config.task, JsonlConfig) and config.task.chat_template):
        raise ConfigError(f"{where}.system={agent.system!r}", "has an effect with a chat template only",
                          "set task.chat_template=true, or put the text into the template")  # fmt: skip
    actor = agent.actor
    if isinstance(actor, TinyActorConfig):
        if actor.model is not None:
            raise ConfigError(f"actor.model={actor.model}", "cannot be set for actor=tiny, which is made locally",
                              "use actor=full")  # fmt: skip
        if actor.hidden_size % 2:
            raise ConfigError(f"actor.hidden_size={actor.hidden_size}", "is odd, and positions are written in pairs",
                              f"use {actor.hidden_size + 1}")  # fmt: skip
        if actor.hidden_size % actor.num_heads or (actor.hidden_size // actor.num_heads) % 2:
            raise ConfigError(f"actor.num_heads={actor.num_heads}",
                              f"must divide actor.hidden_size={actor.hidden_size} into even parts",
                              "use one of " + _divisors(actor.hidden_size // 2))  # fmt: skip
        if isinstance(config.task, JsonlConfig) and config.task.chat_template:
            raise ConfigError("task.chat_template=true", "needs a tokenizer with a chat template, and actor=tiny's has "
                              "none", "use actor=full, or task.chat_template=false")  # fmt: skip
        if agent.answer is None:
            raise ConfigError(f"{where}.answer=null", "leaves actor=tiny nothing to learn its alphabet from",
                              "give the reference answer as a template such as '{answer}'")  # fmt: skip
    elif actor.model is None:
        raise ConfigError("actor.model=null", f"names no weights for agent {name}",
                          "set actor.model to a folder or a hub id, or use actor=tiny")  # fmt: skip


def _check_rollout(config: Config, world_size: int) -> None:
    rollout = config.rollout
    size = rollout.buffer_size
    if size % rollout.num_generations:
        raise ConfigError(f"rollout.num_generations={rollout.num_generations}",
                          f"does not divide rollout.buffer_size={size}",
                          "use one of " + _divisors(size))  # fmt: skip
    if size < world_size:
        raise ConfigError(f"rollout.buffer_size={size}", f"leaves some of the {world_size} processes without a sample",
                          f"use at least {world_size}")  # fmt: skip
    if rollout.min_new_tokens > rollout.max_new_tokens:
        raise ConfigError(f"rollout.min_new_tokens={rollout.min_new_tokens}",
                          f"is more than rollout.max_new_tokens={rollout.max_new_tokens}", "lower it")  # fmt: skip
    if rollout.gather is Gather.layer and config.deepspeed.stage != 3:
        raise ConfigError("rollout.gather=layer", "has an effect at ZeRO stage 3 only", "use deepspeed=zero3, or all")
    if "" in rollout.stop_strings:
        raise ConfigError("rollout.stop_strings", "has an empty string, which every response contains", "remove it")


def _check_algorithm(config: Config) -> None:
    _check_steps(config)
    _check_critic(config)
    _check_kl(config.algorithm.kl)
    _check_pieces(config)
    _check_rows(config)


def _check_steps(config: Config) -> None:
    algorithm, size = config.algorithm, config.rollout.buffer_size
    minis = {"algorithm.mini_batch_size": algorithm.mini_batch_size}
    for name, agent in config.task.agents.items():
        if isinstance(agent.critic, SeparateCriticConfig):
            minis[f"critic.mini_batch_size (agent {name})"] = agent.critic.mini_batch_size
    for key, mini in minis.items():
        if mini is not None and size % mini:
            raise ConfigError(
                f"{key}={mini}", f"does not divide rollout.buffer_size={size}", "use one of " + _divisors(size)
            )
    steps = _policy_steps(config)
    if algorithm.objective is Objective.on_policy and steps > 1 and not algorithm.allow_off_policy_steps:
        raise ConfigError(
            f"algorithm.mini_batch_size={algorithm.mini_batch_size or 'null'} "
            f"algorithm.ppo_epochs={algorithm.ppo_epochs}",
            f"make {steps} optimizer steps per buffer, and objective=on_policy is right for the first one only",
            "use one step, algorithm=ppo, or algorithm.allow_off_policy_steps=true",
        )


def _check_critic(config: Config) -> None:
    advantage, critic = config.algorithm.advantage, config.critic.kind
    if advantage.needs_critic and critic is CriticKind.none:
        raise ConfigError("critic=none", f"leaves algorithm.advantage={advantage.value} without values",
                          "use critic=separate or critic=value_head, or an algorithm without a critic, such as "
                          "algorithm=grpo")  # fmt: skip
    if not advantage.needs_critic and critic is not CriticKind.none:
        raise ConfigError(f"critic={critic.value}",
                          f"trains values that algorithm.advantage={advantage.value} has no use for",
                          "use critic=none, or an algorithm with a critic, such as algorithm=ppo")  # fmt: skip
    if config.algorithm.truncation is Truncation.bootstrap and critic is CriticKind.none:
        raise ConfigError("algorithm.truncation=bootstrap", "needs a critic's value of going on, and critic=none",
                          "use none, penalty or mask")  # fmt: skip


def _check_pieces(config: Config) -> None:
    """Every key that has no part in this algorithm is at rest, and every key that has one is set."""
    for key, value, at_rest, reason, needed in pieces(config):
        rests = value is at_rest or value == at_rest
        shown = "null" if value is None else str(getattr(value, "value", value))
        if reason is not None and not rests:
            rest = "null" if at_rest is None else str(getattr(at_rest, "value", at_rest))
            raise ConfigError(f"algorithm.{key}={shown}", f"would do nothing: {reason}", f"use {rest.lower()}")
        if reason is None and needed is not None and rests:
            raise ConfigError(f"algorithm.{key}={shown}", "is needed by this algorithm", f"use {needed}")


def pieces(config: Config) -> Iterator[tuple[str, Any, Any, str | None, str | None]]:
    """Keys of `algorithm` that mean something only beside others.

    Each with its value, the value that leaves it out, why it means nothing here (None where it does), and what to set
    where it must be set.
    """
    algorithm = config.algorithm
    advantage = algorithm.advantage.value
    scored = None if algorithm.advantage.walks else f"advantage={advantage} gives one number to a whole response"
    valued = None if algorithm.advantage.needs_critic else f"advantage={advantage} has no values"
    grouped = None if algorithm.advantage is Advantage.group else f"advantage={advantage} divides by no deviation"
    turned = valued or (None if algorithm.credit is not Credit.token else "credit=token has no turns")
    clipped = None if algorithm.objective is Objective.clip else "objective=on_policy has no ratio"
    pooled = clipped or (None if algorithm.ratio_level is not RatioLevel.token else "ratio_level=token pools nothing")
    fixed = valued or ("length_adaptive_alpha sets lambda" if algorithm.length_adaptive_alpha is not None else None)
    plain = None if algorithm.objective is Objective.on_policy else "objective=clip is made for several steps"
    single = None if _policy_steps(config) > 1 else "there is one optimizer step per buffer, and none to skip"
    unpenalised = None if algorithm.truncation is Truncation.penalty else f"truncation={algorithm.truncation.value}"
    method, level = algorithm.reweight.method, algorithm.behavior_correction.level
    unpowered = None if method is Reweight.pow else f"reweight.method={method.value} takes no power"
    unadapted = None if algorithm.kl.reward.target is not None else "without kl.reward.target the coefficient is fixed"
    uncorrected = None if level is not WeightLevel.none else "behavior_correction.level=none has no weights"
    rows: list[tuple[str, Any, str | None, str | None]] = [
        ("credit", Credit.token, scored, None), ("turn_value", None, turned, "first"),
        ("value_unit", ValueUnit.token, turned, None), ("scale_by_std", None, grouped, "true (GRPO) or false"),
        ("gamma", None, scored, "1.0"), ("gae_lambda", None, fixed, "0.95"),
        ("length_adaptive_alpha", None, valued, None), ("critic_gae_lambda", None, valued, None),
        ("clip_range_low", None, clipped, "0.2"), ("clip_range_high", None, clipped, "0.2"),
        ("dual_clip", None, clipped, None), ("ratio_level", RatioLevel.token, clipped, None),
        ("ratio_pooling", None, pooled, "sum or mean"), ("value_loss_coef", None, valued, "0.5"),
        ("value_clip_range", None, valued, None), ("huber_delta", None, valued, None),
        ("critic_warmup", 0, valued, None), ("allow_off_policy_steps", False, plain, None),
        ("target_kl", None, single, None), ("truncation_penalty", None, unpenalised, "a positive number"),
        ("kl.reward.horizon", None, unadapted, "10000"), ("reweight.power", None, unpowered, "2.0"),
        ("behavior_correction.cap", None, uncorrected, None),
        ("behavior_correction.band_low", None, uncorrected, None),
        ("behavior_correction.band_high", None, uncorrected, None),
    ]  # fmt: skip
    for key, at_rest, reason, needed in rows:
        yield key, attrgetter(key)(algorithm), at_rest, reason, needed


def _check_rows(config: Config) -> None:
    """What an algorithm asks of the buffer, its scores and its sampler."""
    algorithm, rollout, reward = config.algorithm, config.rollout, config.reward
    advantage, correction = algorithm.advantage, algorithm.behavior_correction
    several = advantage.needs_group or algorithm.reweight.method is not Reweight.none
    if several and rollout.num_generations < 2:
        what = f"reweight.method={algorithm.reweight.method.value}" if not advantage.needs_group else (
            f"advantage={advantage.value}")  # fmt: skip
        raise ConfigError(f"rollout.num_generations={rollout.num_generations}",
                          f"leaves algorithm.{what} nothing to compare a response with",
                          "use one of " + " ".join(_divisors(rollout.buffer_size).split()[1:]))  # fmt: skip
    if advantage is Advantage.greedy_baseline and Processor.zscore in reward.processor:
        raise ConfigError("reward.processor=[zscore]", "centres the greedy responses' scores on their own, and "
                          "algorithm.advantage=greedy_baseline subtracts them", "leave zscore out")  # fmt: skip
    if algorithm.turn_value is TurnValue.after and (
        algorithm.credit is not Credit.turn or algorithm.value_unit is not ValueUnit.turn
    ):
        raise ConfigError("algorithm.turn_value=after", "is one value for a whole response",
                          "set algorithm.credit=turn algorithm.value_unit=turn")  # fmt: skip
    filters = (rollout.top_p < 1, rollout.top_k > 0, rollout.min_p > 0, rollout.repetition_penalty != 1,
               rollout.min_new_tokens > 0)  # fmt: skip
    if correction.level is not WeightLevel.none and not any(filters) and not rollout.recompute_logprobs:
        raise ConfigError(f"algorithm.behavior_correction.level={correction.level.value}",
                          f"corrects nothing: rollout={rollout.kind.value} without filters samples from the policy",
                          "use none, or set rollout.recompute_logprobs=true, or one of rollout.top_p top_k min_p "
                          "repetition_penalty")  # fmt: skip
    low, high = correction.band_low, correction.band_high
    if (low is None) != (high is None) or (low is not None and high is not None and low >= high):
        raise ConfigError(f"algorithm.behavior_correction.band_low={low} band_high={high}", "are no interval",
                          "set both, the first below the second, or neither")  # fmt: skip


def _check_kl(kl: KlConfig) -> None:
    if kl.reward.coef and kl.loss.coef and not kl.allow_both:
        raise ConfigError(f"algorithm.kl.reward.coef={kl.reward.coef} algorithm.kl.loss.coef={kl.loss.coef}",
                          "penalise the same divergence twice",
                          "set one to 0, or algorithm.kl.allow_both=true")  # fmt: skip
    if kl.reward.target is not None and not kl.reward.coef:
        raise ConfigError(f"algorithm.kl.reward.target={kl.reward.target}", "adapts a coefficient that is 0",
                          "set algorithm.kl.reward.coef to where the adaptation starts")  # fmt: skip
    if kl.loss.estimator == "k1" and kl.loss.coef:
        raise ConfigError("algorithm.kl.loss.estimator=k1", "has a gradient that is zero on average as a loss",
                          "use k2, k3, k1+ or full")  # fmt: skip


def _policy_steps(config: Config) -> int:
    size = config.rollout.buffer_size
    return size // (config.algorithm.mini_batch_size or size) * config.algorithm.ppo_epochs


def _check_deepspeed(config: Config) -> None:
    deepspeed = config.deepspeed
    if deepspeed.offload_params and deepspeed.stage != 3:
        raise ConfigError("deepspeed.offload_params=true", f"needs ZeRO stage 3, not {deepspeed.stage}",
                          "use deepspeed=zero3_offload")  # fmt: skip
    if deepspeed.offload_optimizer and deepspeed.stage == 0:
        raise ConfigError("deepspeed.offload_optimizer=true", "needs ZeRO stage 1, 2 or 3", "use deepspeed=zero1")


def _check_reward(config: Config) -> None:
    reward = config.reward
    if not reward.team_weight and not reward.agent_weight:
        raise ConfigError("reward.team_weight=0 reward.agent_weight=0", "leave no reward", "set one of them")
    if Processor.clip in reward.processor and reward.clip_low >= reward.clip_high:
        raise ConfigError(f"reward.clip_low={reward.clip_low} reward.clip_high={reward.clip_high}",
                          "are no interval", "set clip_low below clip_high")  # fmt: skip
    if isinstance(reward, FunctionRewardConfig) and reward.function is None:
        raise ConfigError("reward.function=null", "names no function", "set reward.function=path/to/file.py:function")
    if isinstance(reward, GridRewardConfig) and not isinstance(config.task, GridConfig):
        raise ConfigError("reward.kind=grid", "scores walks, and this task's examples have no grid to walk on",
                          "use task=probe_grid, or another reward")  # fmt: skip
    if isinstance(reward, ExactMatchConfig):
        for name, agent in config.task.agents.items():
            if agent.answer is None:
                raise ConfigError(f"task.agents.{name}.answer=null", "leaves exact_match nothing to compare with",
                                  "give the reference answer as a template such as '{answer}'")  # fmt: skip


def _divisors(number: int) -> str:
    return " ".join(str(divisor) for divisor in range(1, number + 1) if number % divisor == 0)
