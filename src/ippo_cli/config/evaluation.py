"""Keys that affect an evaluation. Other keys are rejected, because the result file lists the overrides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ippo_cli.config.checks import constrained_leaves
from ippo_cli.config.errors import ConfigError, combine_errors
from ippo_cli.config.marked_keys import schema_keys, wildcard_key
from ippo_cli.config.marks import Mark
from ippo_cli.config.schema import Config, DataConfig

SEARCH_PATH = "hydra.searchpath"
EXPERIMENT = "experiment"


def evaluation_keys(*, of_model: bool) -> list[str]:
    """Groups and keys with an effect on an evaluation, of a run or a Hugging Face model; `*` is an agent's name."""
    wanted = {Mark.evaluation, Mark.evaluation_compute} | ({Mark.model_evaluation} if of_model else set())
    groups, keys = [], []
    for key in schema_keys():
        group, _, leaf = key.name.rpartition(".")
        if key.marks & wanted and leaf == "kind" and not key.is_of_agent:
            groups.append(group)
        elif key.marks & wanted or (of_model and key.is_of_agent and Mark.agent_model_evaluation in key.marks):
            keys.append(key.name)
    return groups + keys


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
    if not isinstance(config.task, DataConfig) or config.task.eval_share is None:
        return
    assert isinstance(other.task, DataConfig)
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
    known = {key.name for key in schema_keys() if Mark.evaluation in key.marks}
    for key, value, _ in constrained_leaves(config):
        if key.startswith(("task.", "rollout.", "reward.", "evaluation.")) and wildcard_key(key) in known:
            yield key, value


def _format_value(value: Any) -> str:
    return "null" if value is None else str(getattr(value, "value", value))


def check_evaluation_overrides(overrides: Iterable[str], *, of_model: bool) -> None:
    """Raise `ConfigError` with every override that has no effect on an evaluation."""
    known = evaluation_keys(of_model=of_model)
    errors: list[ConfigError] = []
    for text in overrides:
        key = text.partition("=")[0].lstrip("+~")
        if wildcard_key(key) in known or key == SEARCH_PATH or (of_model and key == EXPERIMENT):
            continue
        of = "a model's" if of_model else "a run's"
        errors.append(ConfigError(text, f"has no effect on {of} evaluation", _suggest_keys(key, known)))
    if errors:
        raise combine_errors(errors)


def _suggest_keys(key: str, known: Sequence[str]) -> str:
    """Suggest keys of the same name for a name without a group, else valid keys of its group, else all groups.

    Other groups are not searched, because the meaning differs: `reward.model` is not `actor.model`.
    """
    group, _, leaf = wildcard_key(key).rpartition(".")
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
