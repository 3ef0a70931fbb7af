"""Prompt formats and checks of prompt lengths before weights are loaded."""

from __future__ import annotations

from dataclasses import replace

from ippo_cli.config.batch_sizes import BatchSizes
from ippo_cli.config.errors import PreflightError, RowError
from ippo_cli.config.schema import Config
from ippo_cli.planning.episode_length import length_warnings
from ippo_cli.planning.model_specs import ModelSpecs
from ippo_cli.tasks.conversation import PromptFormat, prompt_formats
from ippo_cli.tasks.prompt_lengths import check_prompt_lengths, describe_row, fitting_rows
from ippo_cli.tasks.rows import take_rows
from ippo_cli.tasks.schedule import ExampleSchedule
from ippo_cli.tasks.task import Task, example_only_agents, multi_turn_agents
from ippo_cli.tasks.templates import first_message, first_message_size
from ippo_cli.types import Example


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
