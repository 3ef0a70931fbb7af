"""Keys that affect an evaluation. Other keys are rejected, because the result file lists the overrides."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ippo_cli.config.checks import constrained_leaves
from ippo_cli.config.errors import ConfigError, combine_errors
from ippo_cli.config.schema import Config, JsonlConfig

# Groups and keys; `*` is an agent's name.
EVALUATION_KEYS = (
    "task",
    "reward",
    "task.primary_metric",
    "task.eval",
    "task.eval_split",
    "task.eval_size",
    "task.eval_share",
    "task.columns",
    "task.map",
    "task.filter",
    "task.overlong",
    "task.streaming",
    "task.data_config",
    "task.chat_template",
    "task.alphabet",
    "task.length",
    "task.size",
    "task.signals",
    "task.strides",
    "task.num_rungs",
    "task.protocol",
    "task.num_turns",
    "task.num_workers",
    "task.env_id",
    "task.environment",
    "task.environment_args",
    "task.max_turns",
    "task.observation",
    "task.invalid_reward",
    "task.illegal_move",
    "task.opponent",
    "task.seat",
    "task.dataset",
    "task.dataset_args",
    "task.answer_tag",
    "task.agents.*.template",
    "task.agents.*.turn_template",
    "task.agents.*.system",
    "task.agents.*.answer",
    "actor.dtype",
    "task.agents.*.actor.dtype",
    "rollout.temperature",
    "rollout.top_p",
    "rollout.top_k",
    "rollout.min_p",
    "rollout.repetition_penalty",
    "rollout.max_new_tokens",
    "rollout.min_new_tokens",
    "rollout.stop_strings",
    "task.agents.*.rollout.temperature",
    "task.agents.*.rollout.top_p",
    "task.agents.*.rollout.top_k",
    "task.agents.*.rollout.min_p",
    "task.agents.*.rollout.repetition_penalty",
    "task.agents.*.rollout.max_new_tokens",
    "task.agents.*.rollout.min_new_tokens",
    "task.agents.*.rollout.stop_strings",
    "task.agents.*.reward.team_weight",
    "task.agents.*.reward.agent_weight",
    "task.agents.*.reward.turn_weight",
    "rollout.decode_batch_size",
    "rollout.max_prompt_tokens",
    "rollout.context_limit",
    "rollout.context",
    "reward.team_weight",
    "reward.turn_weight",
    "reward.agent_weight",
    "reward.failure_budget",
    "reward.whole_batch",
    "reward.match",
    "reward.exact_weight",
    "reward.near_weight",
    "reward.format_weight",
    "reward.function",
    "reward.step_cost",
    "reward.per_sample",
    "reward.concurrency",
    "reward.process",
    "reward.timeout_s",
    "reward.unit",
    "reward.low",
    "reward.high",
    "reward.margin",
    "reward.pattern",
    "reward.workers",
    "reward.sandbox",
    "reward.prompt",
    "reward.test",
    "reward.entry_point",
    "reward.helper",
    "reward.parses",
    "reward.defines",
    "reward.calls",
    "reward.tests",
    "reward.parts",
    "reward.weights",
    "reward.url",
    "reward.token_env",
    "reward.batch_size",
    "reward.model",
    "reward.revision",
    "reward.template",
    "reward.field",
    "reward.min_score",
    "reward.max_score",
    "reward.max_tokens",
    "reward.dtype",
    "reward.device",
    "reward.batch_tokens",
    "reward.overlong",
    "evaluation.seed",
    "evaluation.size",
    "evaluation.sampled",
    "evaluation.num_generations",
    "evaluation.greedy",
    "tracker.console",
    "tracker.samples",
    "tracker.turns",
    "launch.device",
    "launch.threads",
    "launch.timeout_s",
    "deterministic",
)
# Additional keys for the evaluation of a Hugging Face model; for a run they are fixed.
MODEL_EVALUATION_KEYS = (
    "seed",
    "hub",
    "task.train",
    "task.train_split",
    "output_dir",
    "actor.revision",
    "actor.tokenizer",
    "actor.tokenizer_revision",
    "actor.model_args",
    "task.agents.*.actor.kind",
    "task.agents.*.actor.model",
    "task.agents.*.actor.revision",
    "task.agents.*.actor.tokenizer",
    "task.agents.*.actor.tokenizer_revision",
    "task.agents.*.actor.model_args",
)
# Keys in EVALUATION_KEYS that affect speed or hardware, but not prompts, samples or scores.
COMPUTE_KEYS = (
    "actor.dtype",
    "task.agents.*.actor.dtype",
    "rollout.decode_batch_size",
    "task.num_workers",
    "reward.workers",
    "reward.concurrency",
    "reward.token_env",
    "reward.batch_size",
    "reward.device",
    "reward.batch_tokens",
)
SEARCH_PATH = "hydra.searchpath"
EXPERIMENT = "experiment"


def check_comparable_runs(first: str, config: Config, run: str, other: Config) -> None:
    """Raise `ConfigError` if two runs have different agents, prompts, sampling or rewards."""
    agents, others = list(config.task.agents), list(other.task.agents)
    if agents != others:
        raise ConfigError(
            f"run={run}",
            f"has the agents {' '.join(others)}, and {first} has {' '.join(agents)}",
            "cross-play is between runs with the same agents",
        )
    first_settings, other_settings = dict(_scoring_settings(config)), dict(_scoring_settings(other))
    # Agents last: values that all agents inherit from a group are reported under the group's key.
    for key in sorted(
        dict.fromkeys((*first_settings, *other_settings)), key=lambda key: key.startswith("task.agents.")
    ):
        if first_settings.get(key) != other_settings.get(key):
            raise ConfigError(
                f"run={run}",
                f"has {key}={_format_value(other_settings.get(key))}, and {first} has "
                f"{_format_value(first_settings.get(key))}",
                f"remove the run, or set one value for all runs: {key}=VALUE",
            )
    _check_same_split(first, config, run, other)


def _check_same_split(first: str, config: Config, run: str, other: Config) -> None:
    """Raise `ConfigError` if held-out rows of one run may be training rows of the other."""
    if not isinstance(config.task, JsonlConfig) or config.task.eval_share is None:
        return
    assert isinstance(other.task, JsonlConfig)
    sides = [
        {"seed": run_config.seed, "task.train": task.train, "task.train_split": task.train_split}
        for run_config, task in ((config, config.task), (other, other.task))
    ]
    for key, value in sides[0].items():
        if sides[1][key] != value:
            raise ConfigError(
                f"run={run}",
                f"has {key}={_format_value(sides[1][key])}, and {first} has {_format_value(value)}: held-out rows of "
                f"one run (task.eval_share={config.task.eval_share}) may be training rows of the other",
                "use data that is new to both: task.eval_share=null task.eval=FILE",
            )


def _scoring_settings(config: Config) -> Iterator[tuple[str, Any]]:
    """Keys and values that determine prompts, samples and scores."""
    known = {*EVALUATION_KEYS, "task.kind", "reward.kind"} - {*COMPUTE_KEYS}
    for key, value, _ in constrained_leaves(config):
        if key.startswith(("task.", "rollout.", "reward.", "evaluation.")) and _wildcard_key(key) in known:
            yield key, value


def _format_value(value: Any) -> str:
    return "null" if value is None else str(getattr(value, "value", value))


def _wildcard_key(key: str) -> str:
    """Replace an agent's name by `*`, and cut user-defined subkeys."""
    return re.sub(
        r"^((?:task|(?:task\.agents\.\*\.)?actor)\.(?:\w+_args|columns)|reward\.(?:parts|weights))\..*",
        r"\1",
        re.sub(r"^task\.agents\.\w+\.", "task.agents.*.", key),
    )


def check_evaluation_overrides(overrides: Iterable[str], *, of_model: bool) -> None:
    """Raise `ConfigError` with every override that has no effect on an evaluation."""
    known = (*EVALUATION_KEYS, *MODEL_EVALUATION_KEYS) if of_model else EVALUATION_KEYS
    errors: list[ConfigError] = []
    for text in overrides:
        key = text.partition("=")[0].lstrip("+~")
        if _wildcard_key(key) in known or key == SEARCH_PATH or (of_model and key == EXPERIMENT):
            continue
        of = "a model's" if of_model else "a run's"
        errors.append(ConfigError(text, f"has no effect on {of} evaluation", _suggest_keys(key, known)))
    if errors:
        raise combine_errors(errors)


def _suggest_keys(key: str, known: Sequence[str]) -> str:
    """Suggest keys of the same name for a name without a group, else valid keys of its group, else all groups.

    Other groups are not searched, because the meaning differs: `reward.model` is not `actor.model`.
    """
    group, _, leaf = _wildcard_key(key).rpartition(".")
    same = [other for other in known if not group and other.rpartition(".")[2] == leaf and "*" not in other]
    if same:
        return "did you mean " + " or ".join(f"{other}=" for other in same) + "?"
    of_group = [other for other in known if group and other.startswith(f"{group}.")]
    if of_group:
        return f"keys of this group with an effect: {_join_keys(of_group)}"
    groups = dict.fromkeys(other.partition(".")[0] for other in known)
    return f"groups with an effect: {' '.join(groups)}; see ippo-eval --help KEY"


def _join_keys(keys: Iterable[str]) -> str:
    """Join keys and write common prefixes once: `rollout.{temperature,top_p}`."""
    groups: dict[str, list[str]] = {}
    for key in keys:
        group, dot, leaf = key.rpartition(".")
        groups.setdefault(group + dot, []).append(leaf)
    return " ".join(
        " ".join(leaves) if not group else f"{group}{leaves[0] if len(leaves) == 1 else '{' + ','.join(leaves) + '}'}"
        for group, leaves in groups.items()
    )
