"""Which keys of a run can have an effect on an evaluation: all others are refused, since its result would name them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ippo_cli.config.checks import constrained_leaves
from ippo_cli.config.errors import ConfigError, combine_errors
from ippo_cli.config.schema import Config, JsonlConfig

# Groups of which another option may be chosen, and keys; `*` stands for an agent's name.
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
    "task.too_long",
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
    "rollout.history",
    "reward.team_weight",
    "reward.turn_weight",
    "reward.agent_weight",
    "reward.failure_budget",
    "reward.whole_batch",
    "reward.match",
    "reward.right",
    "reward.near",
    "reward.bare",
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
    "reward.lowest",
    "reward.highest",
    "reward.max_tokens",
    "reward.dtype",
    "reward.device",
    "reward.batch_tokens",
    "reward.too_long",
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
# Of a Hugging Face model; a run has these, and another value would be another run's.
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
# Of OF_BOTH, what says how fast or on what an evaluation is computed, and not what is asked or how it is scored.
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
    """Raise `ConfigError` where two runs do not ask the same agents in the same way, or score them otherwise."""
    agents, others = list(config.task.agents), list(other.task.agents)
    if agents != others:
        raise ConfigError(
            f"run={run}",
            f"has the agents {' '.join(others)}, and {first} has {' '.join(agents)}",
            "cross-play is between runs with the same agents",
        )
    first_settings, other_settings = dict(_scoring_settings(config)), dict(_scoring_settings(other))
    # Agents last: what a group gives to all of them is told by the group's name.
    for key in sorted(
        dict.fromkeys((*first_settings, *other_settings)), key=lambda key: key.startswith("task.agents.")
    ):
        if first_settings.get(key) != other_settings.get(key):
            raise ConfigError(
                f"run={run}",
                f"has {key}={_format_value(other_settings.get(key))}, and {first} has {_format_value(first_settings.get(key))}",
                f"leave it out, or give all of them one: {key}=VALUE",
            )
    _check_same_split(first, config, run, other)


def _check_same_split(first: str, config: Config, run: str, other: Config) -> None:
    """Raise `ConfigError` where rows that the first run holds out are among those that the other was trained on."""
    if not isinstance(config.task, JsonlConfig) or config.task.eval_share is None:
        return
    assert isinstance(other.task, JsonlConfig)
    sides = [
        {"seed": each.seed, "task.train": task.train, "task.train_split": task.train_split}
        for each, task in ((config, config.task), (other, other.task))
    ]
    for key, value in sides[0].items():
        if sides[1][key] != value:
            raise ConfigError(
                f"run={run}",
                f"has {key}={_format_value(sides[1][key])}, and {first} has {_format_value(value)}: rows that one of them holds out "
                f"(task.eval_share={config.task.eval_share}) the other was trained on",
                "name data that is new to both: task.eval_share=null task.eval=FILE",
            )


def _scoring_settings(config: Config) -> Iterator[tuple[str, Any]]:
    """What is asked, how it is sampled and how it is scored."""
    known = {*EVALUATION_KEYS, "task.kind", "reward.kind"} - {*COMPUTE_KEYS}
    for key, value, _ in constrained_leaves(config):
        if key.startswith(("task.", "rollout.", "reward.", "evaluation.")) and _wildcard_key(key) in known:
            yield key, value


def _format_value(value: Any) -> str:
    return "null" if value is None else str(getattr(value, "value", value))


def _wildcard_key(key: str) -> str:
    """A key with `*` for an agent's name, without what is of the user's choice."""
    return re.sub(
        r"^((?:task|(?:task\.agents\.\*\.)?actor)\.(?:\w+_args|columns)|reward\.(?:parts|weights))\..*",
        r"\1",
        re.sub(r"^task\.agents\.\w+\.", "task.agents.*.", key),
    )


def check_evaluation_overrides(overrides: Iterable[str], *, of_model: bool) -> None:
    """Raise `ConfigError` with every override that can change nothing about an evaluation."""
    known = (*EVALUATION_KEYS, *MODEL_EVALUATION_KEYS) if of_model else EVALUATION_KEYS
    errors: list[ConfigError] = []
    for text in overrides:
        key = text.partition("=")[0].lstrip("+~")
        if _wildcard_key(key) in known or key == SEARCH_PATH or (of_model and key == EXPERIMENT):
            continue
        of = "a model's" if of_model else "a run's"
        errors.append(ConfigError(text, f"can have no effect on {of} evaluation", _suggest_keys(key, known)))
    if errors:
        raise combine_errors(errors)


def _suggest_keys(key: str, known: Sequence[str]) -> str:
    """For a name without a group the keys of that name, else those of its group that have an effect; else all groups.

    A key of a group has another meaning in other groups: `reward.model` is no `actor.model`.
    """
    group, _, leaf = _wildcard_key(key).rpartition(".")
    same = [other for other in known if not group and other.rpartition(".")[2] == leaf and "*" not in other]
    if same:
        return "did you mean " + " or ".join(f"{other}=" for other in same) + "?"
    of_group = [other for other in known if group and other.startswith(f"{group}.")]
    if of_group:
        return f"those of this group that can: {_join_keys(of_group)}"
    groups = dict.fromkeys(other.partition(".")[0] for other in known)
    return f"those that can are keys of {' '.join(groups)}; see ippo-eval --help KEY"


def _join_keys(keys: Iterable[str]) -> str:
    """Keys with what they have in common written once: `rollout.{temperature,top_p}`."""
    groups: dict[str, list[str]] = {}
    for key in keys:
        group, dot, leaf = key.rpartition(".")
        groups.setdefault(group + dot, []).append(leaf)
    return " ".join(
        " ".join(leaves) if not group else f"{group}{leaves[0] if len(leaves) == 1 else '{' + ','.join(leaves) + '}'}"
        for group, leaves in groups.items()
    )
