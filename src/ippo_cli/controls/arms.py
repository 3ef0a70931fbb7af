"""The arms of a comparison: overrides of the arms that a configuration admits, and why it does not admit others."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ippo_cli.compose.arguments import SWEEP_FLAGS, merge_search_paths, normalize_arguments
from ippo_cli.compose.configured import load_training_config
from ippo_cli.compose.searchpath import SEARCH_PATH
from ippo_cli.config.commands import hydra_override
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, TaskConfig
from ippo_cli.config.text import closest_hint
from ippo_cli.controls.settings import PREFIX, ControlsConfig, Differences
from ippo_cli.sweeps.grid import expand_grid
from ippo_cli.tasks.protocols import DEFAULT_TURN_TEMPLATE
from ippo_cli.tasks.templates import can_read_others, is_conversation_field, template_fields

TEAM, SINGLE_SAMPLES, SINGLE_TOKENS, SHARED_POLICY = "team", "single_samples", "single_tokens", "shared_policy"
NO_MESSAGES, OTHER_SEEDS, FROZEN = "no_messages", "other_seeds", "frozen_partner_"
SINGLE_ARMS = (SINGLE_SAMPLES, SINGLE_TOKENS)
OF_SWEEP = ("hydra.", "hydra/", "sweep=", "sweep.")


@dataclass(frozen=True, kw_only=True)
class ControlPlan:
    """The team, its arms, and the statistics that are fixed before the first seed."""

    team: tuple[str, ...]  # overrides, without the seed
    arms: Mapping[str, tuple[str, ...]]  # overrides of arms by name, without the seed; those of the team if not trained
    refused: Mapping[str, str]  # why other arms are not admitted
    of_sweep: tuple[str, ...]  # overrides of the launcher and of parallel jobs
    search_paths: tuple[str, ...]
    metric: str
    score_range: tuple[float, float] | None  # None: not needed
    differences: Differences
    first_seed: int
    seeds: int
    alpha: float

    @property
    def alpha_per_arm(self) -> float:
        """The error probability of one arm (Bonferroni)."""
        return self.alpha / max(len(self.arms), 1)

    def overrides_of(self, run: str) -> tuple[str, ...]:
        """The overrides of the team or an arm; those of `single_samples` also if only its tokens are needed."""
        return self.team if run == TEAM else self.arms[SINGLE_TOKENS if run not in self.arms else run]


def build_plan(typed: Sequence[str], settings: ControlsConfig) -> ControlPlan:
    """Compose and check every arm.

    Raises `ConfigError` if the team's configuration or a key is wrong, or an arm that the keys name is not admitted.
    """
    team = _split(typed)
    _check_one_job(typed, team)
    config = load_training_config([*team.search_paths, *team.rest])
    if len(config.task.agents) < 2:
        raise ConfigError(
            f"task.kind={config.task.kind}", "has one agent, and a comparison is about a team", "use a task of several"
        )
    limits = _score_range(config, settings)
    if limits is None and settings.differences is Differences.bounded:
        raise ConfigError(
            f"task.primary_metric={config.task.primary_metric}",
            "has no range that is known for this reward, and a verdict depends on it",
            f"give the lowest and highest possible score: {PREFIX}range=[0,1], or {PREFIX}differences=normal",
        )
    builders = _arm_builders(config, settings)
    names = _select_arms(settings.arms, list(builders))
    _check_overrides_used(settings, names)
    requested = {SINGLE_SAMPLES, SINGLE_TOKENS} if settings.single is not None else set()
    requested |= {NO_MESSAGES} if settings.no_messages is not None else set()
    arms: dict[str, tuple[str, ...]] = {}
    refused: dict[str, str] = {}
    paths = list(team.search_paths)
    for name in names:
        try:
            arm = _split(replace_keys(typed, builders[name]()))
            _check_arm(load_training_config([*arm.search_paths, *arm.rest]), config)
        except ConfigError as error:
            if settings.arms is not None or name in requested:
                raise
            refused[name] = " ".join(str(error).split())
            continue
        arms[name] = _without_seed(arm)
        paths += arm.search_paths
    if not arms:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise ConfigError("configuration", "admits no arm", reasons)
    return ControlPlan(
        team=_without_seed(team),
        arms=arms,
        refused=refused,
        of_sweep=tuple(team.of_sweep),
        search_paths=tuple(merge_search_paths(list(dict.fromkeys(paths)))),
        metric=config.task.primary_metric,
        score_range=limits,
        differences=settings.differences,
        first_seed=config.seed,
        seeds=settings.seeds,
        alpha=settings.alpha,
    )


def _score_range(config: Config, settings: ControlsConfig) -> tuple[float, float] | None:
    """The range that bounded differences need. Raises `ConfigError` for one that normal differences do not read."""
    typed = settings.range
    if settings.differences is Differences.bounded:
        return find_score_range(config) if typed is None else (typed[0], typed[1])
    if typed is not None:
        raise ConfigError(
            f"{PREFIX}range=[{typed[0]:g},{typed[1]:g}]",
            f"has no effect with {PREFIX}differences=normal",
            f"leave it out, or use {PREFIX}differences=bounded",
        )
    return None


def _arm_builders(config: Config, settings: ControlsConfig) -> dict[str, Callable[[], list[str]]]:
    """By arm, a function that returns its overrides in addition to the team's, or raises `ConfigError`."""
    learners = [name for name, agent in config.task.agents.items() if not agent.frozen]
    return {
        SINGLE_SAMPLES: lambda: _single_overrides(settings),
        SINGLE_TOKENS: lambda: _single_overrides(settings),
        **{f"{FROZEN}{name}": lambda name=name: _freeze_others(name, learners) for name in learners},
        SHARED_POLICY: lambda: _share_policy(config),
        NO_MESSAGES: lambda: (
            overrides_without_messages(config) if settings.no_messages is None else shlex.split(settings.no_messages)
        ),
        OTHER_SEEDS: lambda: _cross_play(config),
    }


def _single_overrides(settings: ControlsConfig) -> list[str]:
    if settings.single is None:
        raise ConfigError(
            f"{PREFIX}single=null",
            "names no task for one agent, which a team's task does not imply",
            f"give overrides: {PREFIX}single='task=sorting_solo'",
        )
    return shlex.split(settings.single)


def _freeze_others(agent: str, learners: Sequence[str]) -> list[str]:
    others = [name for name in learners if name != agent]
    if not others:
        raise ConfigError(f"task.agents={agent}", "is the only agent that learns", "leave this arm out")
    return [f"task.agents.{name}.frozen=true" for name in others]


def _share_policy(config: Config) -> list[str]:
    if len(config.task.agents) < 2 or config.team.kind.value == SHARED_POLICY:
        raise ConfigError(f"team={config.team.kind.value}", "has one policy already", "leave this arm out")
    return [f"team={SHARED_POLICY}"]


def _cross_play(config: Config) -> list[str]:
    if len(config.task.agents) < 2:
        raise ConfigError("task.agents", "has one agent, which has no partner of another seed", "leave this arm out")
    return []


def _check_arm(arm: Config, team: Config) -> None:
    """Raise `ConfigError` if the scores of an arm cannot be compared with the team's."""
    if arm.task.primary_metric != team.task.primary_metric:
        raise ConfigError(
            f"task.primary_metric={arm.task.primary_metric}",
            f"differs from the team's {team.task.primary_metric}",
            f"add task.primary_metric={team.task.primary_metric} to the overrides of the arm",
        )
    if arm.seed != team.seed:
        raise ConfigError(f"seed={arm.seed}", f"differs from the team's {team.seed}", "remove it: seeds are paired")


def _select_arms(wanted: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """The arms to consider; `frozen_partner` names those of all agents. Raises `ConfigError` for others."""
    if wanted is None:
        return list(known)
    if not wanted:
        raise ConfigError(f"{PREFIX}arms=[]", "names no arm", f"use some of {' '.join(known)}, or null for all")
    for name in wanted:
        if name not in (*known, FROZEN.rstrip("_")):
            raise ConfigError(
                f"{PREFIX}arms={name}", f"is no arm{closest_hint(name, list(known))}", f"use {' '.join(known)}"
            )
    is_frozen = FROZEN.rstrip("_") in wanted
    return [name for name in known if name in wanted or (is_frozen and name.startswith(FROZEN))]


def _check_overrides_used(settings: ControlsConfig, names: Sequence[str]) -> None:
    """Raise `ConfigError` for overrides of an arm that is not considered."""
    for key, text, arms in (
        ("single", settings.single, (SINGLE_SAMPLES, SINGLE_TOKENS)),
        ("no_messages", settings.no_messages, (NO_MESSAGES,)),
    ):
        if text is not None and not set(arms) & set(names):
            rule = f"has no effect without an arm {' or '.join(arms)}"
            raise ConfigError(f"{PREFIX}{key}={text}", rule, f"add the arm to {PREFIX}arms, or remove this key")


@dataclass(frozen=True)
class _Overrides:
    """Normalised overrides by what reads them."""

    rest: list[str]  # of a run, without the seed
    of_sweep: list[str]
    search_paths: list[str]


def _split(typed: Sequence[str]) -> _Overrides:
    found = normalize_arguments([SWEEP_FLAGS[0], *typed])
    texts = [text for text in found if text not in SWEEP_FLAGS]
    paths = [text for text in texts if text.startswith(SEARCH_PATH)]
    of_sweep = [text for text in texts if text.lstrip("+~").startswith(OF_SWEEP) and text not in paths]
    return _Overrides([text for text in texts if text not in (*paths, *of_sweep)], of_sweep, paths)


def _without_seed(overrides: _Overrides) -> tuple[str, ...]:
    return tuple(text for text in overrides.rest if override_key(text) != "seed")


def _check_one_job(typed: Sequence[str], found: _Overrides) -> None:
    """Raise `ConfigError` for arguments of a sweep or a resume."""
    for text in typed:
        if text in SWEEP_FLAGS or text.startswith(("resume=", "hydra.sweep.")):
            remedy = "remove it; the same command again continues, and the folder is controls.to="
            raise ConfigError(text, "has no effect on ippo-controls", remedy)
    for text in found.rest:
        if len(expand_grid([text], lambda _: [])) > 1:
            raise ConfigError(text, "has several values, and a comparison is about one team", "choose one")


def replace_keys(typed: Sequence[str], more: Sequence[str]) -> list[str]:
    """Typed overrides, of which others replace those with the same key; `~KEY` only removes them."""
    keys = {override_key(text) for text in more}
    removed = {f"~{override_key(text)}" for text in typed}
    return [
        *(text for text in typed if override_key(text) not in keys),
        *(text for text in more if text not in removed),
    ]


def override_key(text: str) -> str:
    """The key of an override."""
    return text.partition("=")[0].lstrip("+~")


KEY = "controls.no_messages"
REMEDY = f"give overrides: {KEY}='KEY=VALUE KEY=VALUE'"


def overrides_without_messages(config: Config) -> list[str]:
    """Overrides with which no agent observes another one's messages; agents then act simultaneously.

    Raises `ConfigError` if agents exchange none, or if something else than the task's templates decides what they
    observe.
    """
    task = config.task
    protocol, turns = task.built_in_protocol, task.max_answers or 1
    if not task.is_conversation or protocol is None:
        raise ConfigError(f"task.kind={task.kind}", "decides what agents observe, not their templates", REMEDY)
    if protocol == "calls":
        raise ConfigError("task.protocol=calls", "begins every turn with a message", REMEDY)
    if len(task.agents) < 2 or (protocol == "parallel" and turns == 1):
        raise ConfigError(f"task.protocol={protocol} task.num_turns={turns}", "has no messages", "leave this arm out")
    found = ["task.protocol=parallel", *_changed_templates(task, turns)]
    if len(found) == 1:
        raise ConfigError(f"task.protocol={protocol}", "has messages that no template reads", REMEDY)
    return found


def _changed_templates(task: TaskConfig, turns: int) -> Iterator[str]:
    for name, agent in task.agents.items():
        texts = {"template": agent.template}
        if turns > 1:
            texts["turn_template"] = DEFAULT_TURN_TEMPLATE if agent.turn_template is None else agent.turn_template
        for leaf, text in texts.items():
            key = f"task.agents.{name}.{leaf}"
            if can_read_others(text, key, [f"agents.{name}", "turn"]):
                yield hydra_override(key, _remove_messages(text, key, {f"agents.{name}", "turn"}))


def _remove_messages(template: str, key: str, own: Collection[str]) -> str:
    """Remove the fields with messages of others from a template. Raises `ConfigError` for templates that are code."""
    fields = template_fields(template, key)
    removed = {field for field in fields if is_conversation_field(field)} - set(own)
    names = "|".join(map(re.escape, removed))
    changed = re.sub(rf"\{{\{{|\}}\}}|\{{({names})\}}", lambda found: "" if found[1] else found[0], template)
    if not names or template_fields(changed, key) != fields - removed:
        raise ConfigError(f"{key}={template!r:.60}", "is code that reads messages", REMEDY)
    return changed


UNIT_REWARDS = ("exact_match", "format", "gsm8k", "length", "math")
"""Rewards from 0 to 1."""
UNIT_PARTS = {
    "exact_match": ("exact", "characters"),
    "gsm8k": ("strict", "flexible"),
    "number": ("right", "near", "bare"),
    "code": ("all", "share"),
}
"""Parts from 0 to 1 that a reward reports."""


def find_score_range(config: Config) -> tuple[float, float] | None:
    """The lowest and highest possible value of `task.primary_metric`; None if the configuration does not bound it."""
    metric = config.task.primary_metric.partition("/")[2]
    kind = config.reward.kind
    if "pass@" in metric or metric in UNIT_PARTS.get(kind, ()):
        return 0.0, 1.0
    weights = [(agent.reward.team_weight, agent.reward.agent_weight) for agent in config.task.agents.values()]
    is_mean = all(min(pair) >= 0 and sum(pair) == 1 for pair in weights)
    return (0.0, 1.0) if metric == "score" and kind in UNIT_REWARDS and is_mean else None
