"""Prepares a run: loads its task and reward, reads its models' sizes, and checks all of them before weights load.

Used by `mode=plan`, by the start of a run, by each rank, and by evaluations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path

from ippo_cli.algorithms.user_advantages import build_user_estimator, check_estimator
from ippo_cli.algorithms.user_objectives import build_user_loss, try_loss
from ippo_cli.config.batch_sizes import BatchSizes, compute_batch_sizes
from ippo_cli.config.config_warnings import eval_size_warning
from ippo_cli.config.errors import PreflightError, RowError
from ippo_cli.config.needs import check_own_needs
from ippo_cli.config.packages import lacks_reward_package
from ippo_cli.config.schema import Advantage, Config, Mode, find_implementation
from ippo_cli.engine import distributed
from ippo_cli.planning.episode_length import length_warnings
from ippo_cli.planning.model_specs import ModelSpecs, read_model_specs
from ippo_cli.planning.placeholder_episodes import check_primary_metric
from ippo_cli.planning.resources import estimate_all_memory, required_disk_bytes
from ippo_cli.planning.run_memory import RunMemory
from ippo_cli.reporting.trackers.build import check_tracker_code, check_tracker_usable
from ippo_cli.reporting.training_warnings import startup_warnings
from ippo_cli.rewards.build import build_reward
from ippo_cli.rewards.contract import (
    Reward,
    RewardFunction,
    check_reward_connection,
    close_reward,
    sample_examples,
    validate_reward_examples,
)
from ippo_cli.rewards.processors import check_processor_functions
from ippo_cli.tasks.conversation import PromptFormat, prompt_formats
from ippo_cli.tasks.prompt_lengths import check_prompt_lengths, describe_row, fitting_rows
from ippo_cli.tasks.rows import take_rows
from ippo_cli.tasks.schedule import ExampleSchedule, build_schedule
from ippo_cli.tasks.task import Task, example_only_agents, load_held_out, load_task, multi_turn_agents
from ippo_cli.tasks.templates import first_message, first_message_size
from ippo_cli.types import Episode, Example

Report = Callable[[str], object]


class Purpose(Enum):
    """What a task and a reward are loaded for; it decides which checks apply."""

    plan = auto()  # `mode=plan`: an unreachable server is a warning
    start = auto()  # before a run's folder is created
    training = auto()  # in each rank, which need not repeat the checks of `start`
    evaluation = auto()  # held-out data only, and scores are not processed


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The checked parts of a run that exist before its weights are loaded."""

    config: Config
    ranks: int
    task: Task  # without excluded rows
    reward: RewardFunction
    batch_sizes: BatchSizes
    specs: ModelSpecs
    schedule: ExampleSchedule
    formats: Mapping[str, PromptFormat]
    memory: RunMemory
    checkpoint_bytes: float
    disk_bytes: float  # of all checkpoints and snapshots that exist at the same time
    warnings: Mapping[str, str]  # by rule


def load_task_and_reward(config: Config, ranks: int, purpose: Purpose, warn: Report) -> tuple[Task, RewardFunction]:
    """Load a run's task and build its reward, and check tracker, data, the user's code and the batch sizes. Collective.

    The caller closes the reward. A plan does not build it if its package is not installed. `warn`: receives warnings
    about examples, and about an unreachable server in a plan.
    """
    trains = purpose is not Purpose.evaluation
    if purpose is Purpose.plan:
        check_tracker_code(config.tracker)
    elif purpose is Purpose.start:
        check_tracker_usable(config.tracker)
    task = load_task(config.task, config.seed) if trains else _load_held_out_task(config, warn)
    has_reward = purpose is not Purpose.plan or not lacks_reward_package(config)
    reward = build_reward(config.reward, config.task.agents) if has_reward else _unavailable_reward
    try:
        with distributed.synchronize_errors():
            if trains:
                check_processor_functions(config.reward.processor)
            for warning in validate_reward_examples(
                reward, sample_examples(*([task.train] if trains else []), task.held_out)
            ):
                warn(warning)
            _check_connection(reward, purpose, warn)
        if purpose in (Purpose.plan, Purpose.start) and config.mode is not Mode.critic and has_reward:
            check_primary_metric(config, task)
        if trains:
            compute_batch_sizes(config, ranks, len(task.train))
    except BaseException:
        close_reward(reward)
        raise
    return task, reward


def prepare(
    config: Config,
    ranks: int,
    device: str,
    task: Task,
    reward: RewardFunction,
    *,
    weights: Mapping[str, Path | str] | None = None,
    report: Report,
) -> Prepared:
    """Read model specs, exclude rows that are too long, and check prompts. Raises `PreflightError` or `ConfigError`.

    `device`: `cpu` or `cuda`. `weights`: the initial weights by policy; see `read_model_specs`. `report`: receives
    lines about excluded rows.
    """
    check_user_methods(config)
    specs = read_model_specs(config, task, weights)
    if (check := find_implementation("rollout", config.rollout.kind, "check")) is not None:
        check(config, {name: own.actor for name, own in specs.shapes.items()}, specs.tokenizers, device)
    task, excluded = drop_too_long_rows(config, task, specs)
    batch_sizes = compute_batch_sizes(config, ranks, len(task.train))
    for line in excluded:
        report(line)
    schedule = build_schedule(config, task.train, batch_sizes.prompts_per_iteration)
    formats = build_prompt_formats(config, batch_sizes, task, schedule, specs)
    checkpoint_bytes, disk_bytes = required_disk_bytes(config, specs, ranks)
    return Prepared(
        config=config,
        ranks=ranks,
        task=task,
        reward=reward,
        batch_sizes=batch_sizes,
        specs=specs,
        schedule=schedule,
        formats=formats,
        memory=estimate_all_memory(config, batch_sizes, task, specs, ranks, device),
        checkpoint_bytes=checkpoint_bytes,
        disk_bytes=disk_bytes,
        warnings=startup_warnings(config, batch_sizes, task) | prompt_warnings(config, specs) | dict(specs.warnings),
    )


def check_user_methods(config: Config) -> None:
    """Load and try the estimator and the loss of a user. Raises `ConfigError` before a model is read."""
    if config.algorithm.estimator is Advantage.function:
        check_estimator(config, build_user_estimator(config.algorithm))
    if (loss := build_user_loss(config.algorithm)) is not None:
        check_own_needs(config, loss.setting, getattr(loss.component, "needs", ()))
        try_loss(loss)


def _load_held_out_task(config: Config, warn: Report) -> Task:
    """The held-out data alone."""
    held_out = load_held_out(config.task, config.seed)
    if (line := eval_size_warning(config, len(held_out))) is not None:
        warn(line)
    return Task(train=(), held_out=held_out)


def _unavailable_reward(episodes: Sequence[Episode]) -> Reward:
    """The reward of a plan without its package: a plan scores nothing."""
    raise AssertionError("a plan scored episodes")


def _check_connection(reward: RewardFunction, purpose: Purpose, warn: Report) -> None:
    try:
        check_reward_connection(reward)
    except PreflightError as error:
        if purpose is not Purpose.plan:
            raise
        warn(f"{error} (training would not start)")


def drop_too_long_rows(config: Config, task: Task, specs: ModelSpecs) -> tuple[Task, list[str]]:
    """Remove rows with too long prompts if `task.overlong=drop`; returns the task and log lines on excluded rows.

    Raises `PreflightError` if no row remains.
    """
    messages: list[str] = []
    parts = {"train": task.train, "held_out": task.held_out}
    for part in parts.values():
        messages += [f"data: {counts}" for counts in getattr(part, "counts", ()) if sum(counts.dropped.values())]
    if not config.task.drops_overlong:
        return task, list(dict.fromkeys(messages))
    formats = prompt_formats(config.task, config.rollout, specs.tokenizers)
    known = {name: formats[name] for name in example_only_agents(config.task)}

    def message(agent: str, example: Example) -> str:
        return first_message(agent, config.task.agents[agent], example)

    for name, rows in parts.items():
        kept = fitting_rows(known, message, rows, specs.context_limits)
        if len(kept) == len(rows):
            continue
        limit = f"rollout.max_prompt_tokens={config.rollout.max_prompt_tokens}"
        split = {"train": "training", "held_out": "held-out"}[name]
        if not kept:
            raise PreflightError(f"task.overlong=drop excludes all {len(rows)} {split} rows with {limit}; increase it")
        messages.append(
            f"data: {len(rows) - len(kept)} of {len(rows)} {split} rows excluded: prompts too long for {limit}"
        )
        parts[name] = take_rows(rows, kept)
        if 0 in getattr(parts[name], "sizes", ()) and getattr(parts[name], "weights", None):
            raise PreflightError(f"task.overlong=drop excludes all rows of a weighted source, with {limit}")
    return replace(task, train=parts["train"], held_out=parts["held_out"]), list(dict.fromkeys(messages))


def build_prompt_formats(
    config: Config, batch_sizes: BatchSizes, task: Task, schedule: ExampleSchedule, specs: ModelSpecs
) -> dict[str, PromptFormat]:
    """Build each agent's prompt format and check that first prompts fit into the context.

    Checks all examples if first prompts depend on the example only, else those of the dry run.
    """
    formats = prompt_formats(config.task, config.rollout, specs.tokenizers)
    for name in () if config.task.is_program else multi_turn_agents(config.task):
        # A program's messages may always begin a new sequence.
        formats[name].check_history_continues(several_answers=config.task.max_answers != 1)

    def message(agent: str, example: Example) -> str:
        return first_message(agent, config.task.agents[agent], example)

    scheduled = schedule.scheduled_examples(batch_sizes.num_iterations)
    known = {name: formats[name] for name in example_only_agents(config.task)}
    sizes = {name: first_message_size(name, config.task.agents[name]) for name in known}
    for part, rows, source in (
        ("train", scheduled, "the training data"),
        ("eval", enumerate(task.held_out), "the held-out data"),
    ):
        try:
            check_prompt_lengths(known, message, rows, source, specs.context_limits, sizes)
        except RowError as error:
            raise RowError(error.error, error.row, describe_row(config.task, part, error.row)) from error
    for name, observation in ({} if known else task.dry_run.first_observations).items():
        if name in formats:  # unknown agents are reported when episodes fail
            formats[name].check_lengths([(0, observation)], "the training data", specs.context_limits[name])
    return formats


def prompt_warnings(config: Config, specs: ModelSpecs) -> dict[str, str]:
    """Warnings about context lengths, longrope and chat templates, by rule."""
    warnings = (
        length_warnings(config, specs.lengths, specs.context_limits)
        | _critic_context_warnings(specs)
        | _longrope_warnings(specs)
    )
    return warnings | _chat_template_warnings(config, specs)


def _chat_template_warnings(config: Config, specs: ModelSpecs) -> dict[str, str]:
    """Warn if a chat template ends prompts with the end-of-sequence token, which stops generation at once."""
    for name, prompt_format in prompt_formats(config.task, config.rollout, specs.tokenizers).items():
        end = prompt_format.tokenizer.eos_token_id
        if prompt_format.uses_chat_template and prompt_format.prompt_ids("x")[-1:] == [end]:
            token = prompt_format.tokenizer.eos_token
            return {
                "ended_prompts": f"{name}: the chat template ends prompts with {token}, which also ends responses, so "
                "the model may generate nothing; use a template that begins the assistant's message, or "
                "task.chat_template=false"
            }
    return {}


def _longrope_warnings(specs: ModelSpecs) -> dict[str, str]:
    """Warn if a row's rotary frequencies depend on the longest row of its batch."""
    for name, shapes in specs.shapes.items():
        limit, longest = shapes.actor.longrope_threshold, shapes.length.sequence_tokens
        if limit is not None and longest > limit:
            return {
                "longrope": f"{name}: with longrope, one row of more than {limit} tokens changes the rotary "
                f"frequencies of all rows in its batch; rollout.context_limit={limit} avoids this"
            }
    return {}


def _critic_context_warnings(specs: ModelSpecs) -> dict[str, str]:
    """Warn if a centralised critic's input may exceed its context."""
    longest = max((shapes.critic_row_tokens or 0 for shapes in specs.shapes.values()), default=0)
    for name, layout in specs.layouts.items():
        if not layout.is_last_only and longest > layout.context:
            return {
                "long_views": f"the critic of {name} may need up to {longest} tokens per episode, but its context has "
                f"{layout.context}: the oldest observations and responses of other agents are truncated "
                "(value/truncated_context_fraction)"
            }
    return {}
