"""What types cannot say: ranges and rules between groups, checked before anything is loaded."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from ippo_cli.config.applicability import check_algorithm
from ippo_cli.config.arithmetic import divisors
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import (
    AgentConfig,
    Alphabet,
    Config,
    ExactMatchConfig,
    FunctionRewardConfig,
    GridConfig,
    GridRewardConfig,
    Gsm8kRewardConfig,
    JsonlConfig,
    LadderConfig,
    Processor,
    RelayConfig,
    SignallingConfig,
    SortingConfig,
    TaskKind,
    TinyActorConfig,
    Zero3Gather,
)

# leaf name -> (lowest, highest, open at the low end, open at the high end); names are unique in meaning over groups
_POSITIVE = (0.0, math.inf, True, True)
_NOT_NEGATIVE = (0.0, math.inf, False, True)
_SHARE = (0.0, 1.0, False, False)
_FROM_ONE = (1, math.inf, False, True)
RANGES: dict[str, tuple[float, float, bool, bool]] = {
    "num_iterations": _FROM_ONE,
    "num_epochs": _POSITIVE,
    "seed": (0, 2**31 - 1, False, False),
    "learning_rate": _NOT_NEGATIVE,
    "warmup_iterations": _NOT_NEGATIVE,
    "min_lr_ratio": _SHARE,
    "weight_decay": _NOT_NEGATIVE,
    "adam_beta1": (0.0, 1.0, False, True),
    "adam_beta2": (0.0, 1.0, False, True),
    "adam_epsilon": _POSITIVE,
    "max_grad_norm": _NOT_NEGATIVE,
    "hidden_size": _FROM_ONE,
    "num_layers": _FROM_ONE,
    "num_heads": _FROM_ONE,
    "warm_start_steps": _NOT_NEGATIVE,
    "warm_start_batch_size": _FROM_ONE,
    "warm_start_learning_rate": _POSITIVE,
    "value_head_hidden_dim": _FROM_ONE,
    "mini_batch_size": _FROM_ONE,
    "ppo_epochs": _FROM_ONE,
    "length": _FROM_ONE,
    "train_size": _FROM_ONE,
    "eval_size": _FROM_ONE,
    "size": (2, 9, False, False),
    "message_length": _FROM_ONE,
    "strides": _FROM_ONE,
    "num_rungs": _FROM_ONE,
    "step_cost": _SHARE,
    "coef": _NOT_NEGATIVE,
    "target": _POSITIVE,
    "horizon": _POSITIVE,
    "gamma": _SHARE,
    "gae_lambda": _SHARE,
    "clip_range_low": (0.0, 1.0, True, False),
    "clip_range_high": _POSITIVE,
    "dual_clip": (1.0, math.inf, True, True),
    "value_clip_range": _POSITIVE,
    "value_loss_coef": _NOT_NEGATIVE,
    "entropy_coef": (-math.inf, math.inf, True, True),
    "target_kl": _POSITIVE,
    "critic_warmup": _NOT_NEGATIVE,
    "truncation_penalty": _POSITIVE,
    "length_adaptive_alpha": _POSITIVE,
    "critic_gae_lambda": _SHARE,
    "huber_delta": _POSITIVE,
    "power": _POSITIVE,
    "cap": _POSITIVE,
    "band_low": _NOT_NEGATIVE,
    "band_high": _POSITIVE,
    "buffer_size": _FROM_ONE,
    "num_generations": _FROM_ONE,
    "temperature": _POSITIVE,
    "top_p": (0.0, 1.0, True, False),
    "top_k": _NOT_NEGATIVE,
    "min_p": (0.0, 1.0, False, True),
    "repetition_penalty": _POSITIVE,
    "max_new_tokens": _FROM_ONE,
    "min_new_tokens": _NOT_NEGATIVE,
    "decode_batch_size": _FROM_ONE,
    "max_prompt_tokens": _FROM_ONE,
    "context_limit": (2, math.inf, False, True),
    "norm_eps": _NOT_NEGATIVE,
    "failure_budget": _SHARE,
    "stage": (0, 3, False, False),
    "reduce_bucket_size": _FROM_ONE,
    "persistence_threshold": _NOT_NEGATIVE,
    "micro_batch_tokens": _FROM_ONE,
    "forward_batch_tokens": _FROM_ONE,
    "reward_batch_rows": _NOT_NEGATIVE,
    "logit_chunk_tokens": _FROM_ONE,
    "keep": (2, math.inf, False, True),
    "every": _NOT_NEGATIVE,
    "samples_every": _NOT_NEGATIVE,
    "samples": _NOT_NEGATIVE,
    "processes": _FROM_ONE,
    "threads": _FROM_ONE,
    "timeout_s": _FROM_ONE,
}
CHOICES: dict[str, tuple[str, ...]] = {
    "loss_aggregation": ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"),
    "kl.reward.estimator": ("k1", "abs", "k2", "k3", "full"),
    "kl.loss.estimator": ("k1", "abs", "k2", "k3", "k1+", "abs+", "k2+", "k3+", "full"),
}
CHAT_TEMPLATES = ("auto", True, False)
NAMES = ("output_dir", "train", "eval", "model", "function", "warm_start")  # leaves that name a file, folder or id
WORLDS = (TaskKind.ladder,)  # they know what may be answered
RESERVED_AGENT_NAMES = ("eval", "time", "perf", "iteration")


def check(config: Config, world_size: int, *, training: bool = True) -> None:
    """Raise `ConfigError` for the first rule that the configuration breaks; an evaluation needs no training data."""
    _check_ranges(config)
    _check_run(config)
    _check_agents(config, training=training)
    _check_rollout(config, world_size)
    check_algorithm(config)
    _check_deepspeed(config)
    _check_reward(config)


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
        if value in ("", []) and key.rsplit(".", 1)[-1] in NAMES:
            raise ConfigError(f"{key}=", "names nothing", "give a file, a folder or a name")
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
            "must not both be set or both be null",
            "set exactly one, and the other to null",
        )
    if not re.fullmatch(r"[\w.-]+", config.name) or config.name.startswith("."):
        raise ConfigError(f"name={config.name}", "is used as a folder", "use letters, digits, '-', '_' and '.'")


def _check_agents(config: Config, *, training: bool) -> None:
    if not config.task.agents:
        raise ConfigError("task.agents={}", "names nobody", "name at least one agent in the task file")
    mode, _, metric = config.task.primary_metric.partition("/")
    if mode not in ("sampled", "greedy") or not metric:
        raise ConfigError(
            f"task.primary_metric={config.task.primary_metric}",
            "is no evaluation metric",
            "use sampled/score, or greedy/ and a metric",
        )
    if mode == "greedy" and not config.evaluation.greedy:
        raise ConfigError(
            f"task.primary_metric={config.task.primary_metric}",
            "needs the greedy evaluation",
            "set evaluation.greedy=true, or a primary_metric that starts with sampled/",
        )
    for name, agent in config.task.agents.items():
        _check_agent(config, name, agent)
    task = config.task
    if isinstance(task, SortingConfig) and task.length > len(set(task.alphabet)):
        raise ConfigError(
            f"task.length={task.length}",
            f"is more than the {len(set(task.alphabet))} letters there are",
            "shorten it, or lengthen task.alphabet",
        )
    if isinstance(task, RelayConfig | LadderConfig) and len(set(task.alphabet)) < 2:
        raise ConfigError(f"task.alphabet={task.alphabet}", "has fewer than two letters", "use more of them")
    if isinstance(task, LadderConfig) and task.strides >= len(set(task.alphabet)):
        raise ConfigError(
            f"task.strides={task.strides}",
            f"leads once around the {len(set(task.alphabet))} letters",
            f"use at most {len(set(task.alphabet)) - 1}",
        )
    if isinstance(task, SignallingConfig):
        _check_signalling(task)
    if isinstance(task, JsonlConfig):
        if task.chat_template not in CHAT_TEMPLATES:
            raise ConfigError(f"task.chat_template={task.chat_template}", "is not known", "use auto, true or false")
        for key in ("train", "eval") if training else ("eval",):
            if getattr(task, key) is None:
                raise ConfigError(
                    f"task.{key}=null",
                    "names no data",
                    f"set task.{key} to a .jsonl or .parquet file, or a hub dataset id",
                )
            listed = getattr(task, key)
            if not all(isinstance(name, str) for name in (listed if isinstance(listed, list) else [listed])):
                raise ConfigError(
                    f"task.{key}={listed}",
                    "is neither a name nor a list of names",
                    f"use task.{key}=a.jsonl or task.{key}=[a.jsonl,b.jsonl]",
                )


def _check_signalling(task: SignallingConfig) -> None:
    signals, messages = len(set(task.signals)), len(set(task.symbols)) ** task.message_length
    if signals < 2:
        raise ConfigError(f"task.signals={task.signals}", "tells nobody anything", "use at least two characters")
    if messages < signals:
        raise ConfigError(
            f"task.symbols={task.symbols} task.message_length={task.message_length}",
            f"make {messages} messages, fewer than the {signals} signals",
            "use more symbols, or longer messages",
        )
    for key in ("train_size", "eval_size"):
        if getattr(task, key) < signals:
            raise ConfigError(
                f"task.{key}={getattr(task, key)}",
                f"leaves some of the {signals} signals out",
                f"use at least {signals}",
            )


def _check_agent(config: Config, name: str, agent: AgentConfig) -> None:
    where = f"task.agents.{name}"
    if not re.fullmatch(r"[A-Za-z]\w*", name) or name in RESERVED_AGENT_NAMES:
        raise ConfigError(
            where,
            "is used in metric names and folders",
            "use letters, digits and '_', and none of " + " ".join(RESERVED_AGENT_NAMES),
        )
    chat = config.task.chat_template if isinstance(config.task, JsonlConfig) else False
    if agent.system is not None and (chat is False or isinstance(agent.actor, TinyActorConfig)):
        raise ConfigError(
            f"{where}.system={agent.system!r}",
            "has an effect with a chat template only",
            "use task.chat_template=auto with actor=full, or put the text into the template",
        )
    actor = agent.actor
    if agent.warm_start_answer is not None and not isinstance(actor, TinyActorConfig):
        raise ConfigError(
            f"{where}.warm_start_answer={agent.warm_start_answer!r}",
            "is what actor=tiny is taught, and has no effect on other models",
            "set it to null, or use actor=tiny",
        )
    if isinstance(actor, TinyActorConfig):
        if actor.model is not None:
            raise ConfigError(
                f"actor.model={actor.model}", "cannot be set for actor=tiny, which is made locally", "use actor=full"
            )
        if actor.hidden_size % 2:
            raise ConfigError(
                f"actor.hidden_size={actor.hidden_size}",
                "is odd, and positions are written in pairs",
                f"use {actor.hidden_size + 1}",
            )
        if actor.hidden_size % actor.num_heads or (actor.hidden_size // actor.num_heads) % 2:
            raise ConfigError(
                f"actor.num_heads={actor.num_heads}",
                f"must divide actor.hidden_size={actor.hidden_size} into even parts",
                "use one of " + divisors(actor.hidden_size // 2),
            )
        if chat is True:
            raise ConfigError(
                "task.chat_template=true",
                "needs a tokenizer with a chat template, and actor=tiny's has none",
                "use actor=full, or task.chat_template=auto",
            )
        known = agent.answer is not None or agent.warm_start_answer is not None or config.task.kind in WORLDS
        if actor.alphabet is Alphabet.auto and not known:
            raise ConfigError(
                f"{where}.answer=null",
                "leaves actor=tiny nothing to learn its alphabet from",
                "use actor.alphabet=printable, or give the reference answer as a template such as '{answer}'",
            )
    elif actor.model is None:
        raise ConfigError(
            "actor.model=null",
            f"names no weights for agent {name}",
            "set actor.model to a folder or a hub id, or use actor=tiny",
        )


def _check_rollout(config: Config, world_size: int) -> None:
    rollout = config.rollout
    size = rollout.buffer_size
    if size % rollout.num_generations:
        raise ConfigError(
            f"rollout.num_generations={rollout.num_generations}",
            f"does not divide rollout.buffer_size={size}",
            "use one of " + divisors(size),
        )
    if size < world_size:
        raise ConfigError(
            f"rollout.buffer_size={size}",
            f"leaves some of the {world_size} processes without a sample",
            f"use at least {world_size}",
        )
    if rollout.min_new_tokens > rollout.max_new_tokens:
        raise ConfigError(
            f"rollout.min_new_tokens={rollout.min_new_tokens}",
            f"is more than rollout.max_new_tokens={rollout.max_new_tokens}",
            "lower it",
        )
    if rollout.zero3_gather is Zero3Gather.layer and config.deepspeed.stage != 3:
        raise ConfigError(
            "rollout.zero3_gather=layer", "has an effect at ZeRO stage 3 only", "use deepspeed=zero3, or all"
        )
    if "" in rollout.stop_strings:
        raise ConfigError("rollout.stop_strings", "has an empty string, which every response contains", "remove it")


def _check_deepspeed(config: Config) -> None:
    deepspeed = config.deepspeed
    if deepspeed.offload_params and deepspeed.stage != 3:
        raise ConfigError(
            "deepspeed.offload_params=true", f"needs ZeRO stage 3, not {deepspeed.stage}", "use deepspeed=zero3_offload"
        )
    if deepspeed.offload_optimizer and deepspeed.stage == 0:
        raise ConfigError("deepspeed.offload_optimizer=true", "needs ZeRO stage 1, 2 or 3", "use deepspeed=zero1")


def _check_reward(config: Config) -> None:
    reward = config.reward
    if not reward.team_weight and not reward.agent_weight:
        raise ConfigError("reward.team_weight=0 reward.agent_weight=0", "leave no reward", "set one of them")
    if Processor.clip in reward.processor and reward.clip_low >= reward.clip_high:
        raise ConfigError(
            f"reward.clip_low={reward.clip_low} reward.clip_high={reward.clip_high}",
            "are no interval",
            "set clip_low below clip_high",
        )
    if isinstance(reward, FunctionRewardConfig) and reward.function is None:
        raise ConfigError("reward.function=null", "names no function", "set reward.function=path/to/file.py:function")
    if isinstance(reward, FunctionRewardConfig) and reward.whole_batch and reward.reward_batch_rows:
        raise ConfigError(
            f"reward.reward_batch_rows={reward.reward_batch_rows}",
            "asks about parts of a batch, and reward.whole_batch=true rules that out",
            "set one of them to 0 or false",
        )
    if isinstance(reward, GridRewardConfig) and not isinstance(config.task, GridConfig):
        raise ConfigError(
            "reward.kind=grid",
            "scores walks, and this task's examples have no grid to walk on",
            "use task=probe_grid, or another reward",
        )
    if isinstance(reward, ExactMatchConfig | Gsm8kRewardConfig):
        for name, agent in config.task.agents.items():
            if agent.answer is None:
                raise ConfigError(
                    f"task.agents.{name}.answer=null",
                    f"leaves {reward.kind.value} nothing to compare with",
                    "give the reference answer as a template such as '{answer}'",
                )
