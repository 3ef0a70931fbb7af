"""`mode=plan`: prints a run's sizes, resources and prompts without loading weights."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

from ippo_cli.config.errors import PreflightError
from ippo_cli.config.hardware import world_size
from ippo_cli.config.packages import missing_packages
from ippo_cli.config.placement import format_ranks
from ippo_cli.config.schema import Config
from ippo_cli.config.served_agents import local_agents
from ippo_cli.config.teams import agents_by_critic, agents_by_policy
from ippo_cli.config.text import PAGE_WIDTH, format_table, join_names, shorten_name
from ippo_cli.engine.launchers import external_world_size, local_world_size
from ippo_cli.planning.fit import sharding_options
from ippo_cli.planning.memory import GIB
from ippo_cli.planning.method_plan import find_authors, method_plans
from ippo_cli.planning.model_memory import MemoryEstimate
from ippo_cli.planning.model_specs import ModelSpecs
from ippo_cli.planning.placeholder_episodes import Preview, preview_episode, reward_warnings
from ippo_cli.planning.prepare import Prepared, Purpose, load_task_and_reward, prepare
from ippo_cli.planning.remedies import find_memory_problem
from ippo_cli.planning.resources import (
    device_kind,
    free_disk_bytes,
    planned_machine,
    this_machine,
)
from ippo_cli.planning.run_memory import Machine, RunMemory
from ippo_cli.planning.served_agents import inspect_servers
from ippo_cli.rewards.contract import close_reward
from ippo_cli.runs.output import print_text
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.templates import first_message

MIB = 2**20
LABEL_WIDTH = 16
WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json")


def show_plan(config: Config) -> None:
    """Print sizes, batches, memory, disk, and prompts or a conversation. Raises the errors of training."""
    outside = external_world_size()
    ranks = world_size(config, outside)
    machine = planned_machine(config)
    if machine is None:
        machine = this_machine(device_kind(config.launch.device), _local_ranks(outside, ranks // config.launch.nodes))
    reward_notes: list[str] = []
    task, reward = load_task_and_reward(config, ranks, Purpose.plan, reward_notes.append)
    close_reward(reward)
    prepared = prepare(
        config,
        ranks,
        machine.device,
        task,
        reward,
        report=lambda line: _print_labelled(*line.split(": ", 1)),
    )
    _show_sizes(prepared)
    show_memory(prepared.memory, machine, elsewhere=config.plan.devices is not None)
    if machine.device == "cuda":
        _show_sharding_options(prepared, machine)
    servers = list(inspect_servers(config, prepared.specs.served, waits=False))
    for server in servers:
        state = "ready" if server.error is None else "unusable, see below"
        _print_labelled(f"{server.agent} server", f"{server.place}, no memory here; {state}")
    _show_disk(prepared)
    _show_missing_weights(config)
    _show_episodes(config, prepared.specs)
    _show_critics(prepared.specs)
    _show_prompts(prepared)
    for package in missing_packages(config):
        _print_labelled("note", str(package))
    for text in (*prepared.warnings.values(), *reward_notes, *reward_warnings(config, prepared.task)):
        _print_labelled("warning", text)
    if (problem := find_memory_problem(prepared, machine)) is not None:
        if problem.is_certain:
            raise PreflightError(problem.text)
        print_text(f"warning: {problem.text}")
    for server in servers:
        if server.error is not None:
            raise server.error


def _local_ranks(external_ranks: int | None, ranks: int) -> int:
    """The number of ranks on this machine: all, or the external launcher's local number."""
    return ranks if external_ranks is None else local_world_size(os.environ) or 1


def _show_sizes(prepared: Prepared) -> None:
    config, task, sizes, ranks = prepared.config, prepared.task, prepared.batch_sizes, prepared.ranks
    _print_labelled("data", f"{len(task.train)} training examples, {len(task.held_out)} held out")
    _print_labelled(
        "iterations",
        f"{sizes.num_iterations}, each {sizes.prompts_per_iteration} prompts x "
        f"{config.rollout.num_generations} generations x {len(config.task.agents)} agents",
    )
    plans = method_plans(config)
    for line in (line for plan in plans for line in plan.describe_prompts(sizes.prompts_per_iteration)):
        _print_labelled("", line)
    fewest, most = sizes.samples_per_rank
    _print_labelled(
        "ranks", f"{ranks}, each {fewest if fewest == most else f'{fewest} to {most}'} samples per iteration"
    )
    if (parts := config.deepspeed.ranks_per_group) > 1:
        split = "their tokens" if config.deepspeed.sequence_parallel > 1 else "the model's linear maps"
        _print_labelled("", f"groups of {parts}: the ranks of a group train the same rows, each with a part of {split}")
    for label, text in (line for plan in plans for line in plan.describe(prepared.specs.shapes)):
        _print_labelled(label, text)
    for holder, names in agents_by_policy(config).items():
        if config.task.agents[names[0]].frozen:
            _print_labelled(f"{holder} steps", "none (frozen)")
            continue
        steps = [f"actor {sizes.actor_steps[names[0]]}"]
        if holder in sizes.critic_steps:
            steps.append(f"critic {sizes.critic_steps[holder]}")
        shared = f", on the rows of {join_names(list(names))}" if holder != names[0] else ""
        if authors := find_authors(config, names[0]):
            shared = f", of the actor also on the rows of {join_names(list(authors))}"
        _print_labelled(f"{holder} steps", ", ".join(steps) + f" optimizer steps per iteration{shared}")
    for name, names in agents_by_critic(config).items():
        if name not in agents_by_policy(config):
            steps = f"critic {sizes.critic_steps[name]} optimizer steps per iteration"
            _print_labelled(f"{name} steps", f"{steps}, on the rows of {join_names(list(names))}")


def show_memory(memory: RunMemory, machine: Machine, *, elsewhere: bool = False) -> None:
    """Print for all ranks with the same models a table of their memory and a line for the phases; then the machine."""
    for ranks, estimate in memory.by_ranks.items():
        if len(memory.by_ranks) > 1:
            _print_labelled("on ranks", f"{format_ranks(ranks)} of {memory.ranks}")
        _show_rank_memory(estimate)
    if memory.servers is not None:
        _print_labelled(
            "servers",
            f"on device {format_ranks(memory.servers.devices)} of each machine: "
            f"{_format_size(memory.servers.weight_bytes)} of weights and at most "
            f"{_format_size(memory.servers.cache_bytes)} of keys and values per device",
        )
    _show_machine(machine, memory.ranks, elsewhere=elsewhere)


def _show_rank_memory(memory: MemoryEstimate) -> None:
    sizes: dict[str, tuple[int, Sequence[float]]] = {}  # by model: parameters, and bytes by column
    for model in memory.trained:
        held = model.memory
        sizes[model.name] = (
            model.shape.saved_parameters,
            [held.weights, held.gradients, held.optimizer, held.buckets, held.host],
        )
    for frozen in memory.frozen:
        sizes[frozen.name] = frozen.shape.parameters, [frozen.weight_bytes, 0, 0, 0, 0]
    unit, size = _size_unit(max((part for _, parts in sizes.values() for part in parts), default=0.0))
    rows = [[f"{unit} per rank", "parameters", "weights", "gradients", "optimizer", "buckets", "host memory"]]
    for name, (parameters, parts) in sizes.items():
        rows.append([name, f"{parameters / 1e6:.1f} M", *(_format_number(part, size) for part in parts)])
    for line in format_table(rows, numbers=True):
        print_text(line)
    phases = ", ".join(f"{name} {_format_size(part)}" for name, part in memory.bytes_by_phase.items())
    _print_labelled("memory", f"per rank, peak of each phase: {phases}")
    parked = (
        f"; the rollout caches at most {_format_size(memory.prefix_cache_bytes)} of earlier turns"
        if memory.prefix_cache_bytes
        else ""
    )
    host = f"; and {_format_size(memory.host_bytes)} in host memory" if memory.host_bytes else ""
    _print_labelled(
        "",
        f"of this, {_format_size(memory.certain_bytes)} are weights, gradients and optimizer; the rest is estimated "
        f"for the longest sequences{parked}{host}",
    )


def _show_machine(machine: Machine, ranks: int, *, elsewhere: bool) -> None:
    if machine.device == "cuda":
        where, others = ("a machine", f"{machine.ranks} of them") if elsewhere else ("this machine", "")
        _print_labelled(
            where,
            f"{_format_gib(machine.gpu_bytes)} GiB on a GPU for {machine.ranks_per_device} of {ranks} ranks, "
            f"{_format_gib(machine.host_bytes)} GiB of host memory for {others or machine.ranks}",
        )
    else:
        _print_labelled(
            "this machine", f"{_format_gib(machine.host_bytes)} GiB for {machine.ranks} of {ranks} ranks, on the CPU"
        )
        _print_labelled(
            "",
            "each process needs about 0.4 GiB more, and may not return freed memory (docs/memory.md)",
        )


def _show_sharding_options(prepared: Prepared, machine: Machine) -> None:
    """Print one line per sharding option; marks the configured one."""
    rows = [["per GPU", "certain", "at most", "in", "host memory", "tokens", "checkpointed"]]
    for option in sharding_options(prepared, machine):
        phase, most = option.peak_phase
        rows.append(
            [
                f"{'*' if option.is_configured else ' '} {option.overrides}",
                _format_size(option.certain_bytes),
                _format_size(most),
                phase,
                _format_size(option.host_bytes) if option.host_bytes else "-",
                *(str(tokens) if tokens else "none" for tokens in (option.max_tokens, option.max_tokens_checkpointed)),
            ]
        )
    for line in format_table(rows, numbers=True):
        print_text(line)
    _print_labelled(
        "", "* configured; tokens: the largest micro_batch_tokens that fits, also with gradient_checkpointing=true"
    )


def _show_disk(prepared: Prepared) -> None:
    config, one, most = prepared.config, prepared.checkpoint_bytes, prepared.disk_bytes
    if config.plan.devices is not None:
        _print_labelled("disk", f"about {_format_size(one)} per checkpoint, at most {_format_size(most)}")
        return
    free = free_disk_bytes(Path(config.output_dir))
    _print_labelled(
        "disk",
        f"about {_format_size(one)} per checkpoint, at most {_format_size(most)}; {_format_size(free)} are free",
    )
    if most > free:
        print_text(
            f"warning: checkpoints need about {_format_size(most)} below output_dir={config.output_dir}, which has "
            f"{_format_size(free)}; lower checkpoint.keep, or use another output_dir"
        )


def _show_missing_weights(config: Config) -> None:
    sources = {agent.actor.model for agent in local_agents(config).values() if agent.actor.model is not None}
    for source in sorted(sources):
        folder = Path(source)
        if folder.is_dir() and not any(next(folder.glob(files), None) for files in WEIGHT_FILES):
            print_text(f"warning: actor.model={source} has no .safetensors file; training needs one")


def _show_episodes(config: Config, specs: ModelSpecs) -> None:
    """Print turns and context per agent; nothing if all agents act once, in parallel."""
    if _is_single_turn(config, specs):
        return
    workers = config.task.episode_workers
    parts = [f"task={config.task.kind}"]
    for key in ("protocol", "env_id", "dataset", "environment", "program", "command"):
        if (value := getattr(config.task, key, None)) is not None:
            parts.append(f"protocol {value}" if key == "protocol" else str(value))
    for name, length in specs.lengths.items():
        turns = length.turns
        parts.append(
            f"{name} up to {turns} turn{'' if turns == 1 else 's'}" if turns else f"{name} any number of turns"
        )
    if workers is not None:
        parts.append(f"{workers} workers")
    _print_labelled("episodes", ", ".join(parts))
    for name, length in specs.lengths.items():
        again = f", {length.row_tokens} in all turns" if length.row_tokens != length.sequence_tokens else ""
        basis = "including other agents' responses" if workers is None else "estimated from the preview below"
        _print_labelled(
            f"{name} context",
            f"{specs.context_limits[name]} tokens, of which an episode uses up to {length.sequence_tokens}{again}; "
            f"{basis}",
        )


def _show_critics(specs: ModelSpecs) -> None:
    """Print the inputs of centralised critics."""
    longest = max((shapes.critic_row_tokens or 0 for shapes in specs.shapes.values()), default=0)
    for name, layout in specs.layouts.items():
        how = "as text, one value per turn" if layout.reads_text else "one value per token"
        _print_labelled(
            f"{name} critic",
            f"reads observations and responses of {join_names(list(layout.agents))}, {how}: up to {longest} tokens per "
            f"episode, in a context of {layout.context}",
        )


MAX_SHOWN_IDS = 12  # at each end of a prompt with hidden tokens


def _is_single_turn(config: Config, specs: ModelSpecs) -> bool:
    """Whether every agent acts once, and observes the example only."""
    turns = {length.turns for length in specs.lengths.values()}
    return turns == {1} and config.task.built_in_protocol == "parallel"


def _show_prompts(prepared: Prepared) -> None:
    """Print the first two prompts of each agent, or a conversation, with special characters escaped."""
    config, task, formats = prepared.config, prepared.task, prepared.formats
    if not _is_single_turn(config, prepared.specs):
        show_conversation(preview_episode(task, formats))
        return
    for name, agent in config.task.agents.items():
        for row in range(min(2, len(task.train))):
            message = first_message(name, agent, task.train[row])
            _print_labelled(f"{name} prompt", repr(formats[name].text(message)))
            if formats[name].has_hidden_tokens(message):
                _print_labelled(f"{name} ids", format_ids(formats[name], message))


def format_ids(prompt_format: PromptFormat, message: str) -> str:
    """The token ids of a prompt, the first and last of a long one; special tokens with their names."""
    ids = prompt_format.prompt_ids(message)
    special = set(prompt_format.tokenizer.all_special_ids)
    texts = [
        f"{number}={prompt_format.tokenizer.convert_ids_to_tokens(number)}" if number in special else str(number)
        for number in ids
    ]
    shown = texts if len(texts) <= 2 * MAX_SHOWN_IDS else [*texts[:MAX_SHOWN_IDS], "...", *texts[-MAX_SHOWN_IDS:]]
    return " ".join(shown)


def show_conversation(shown: Preview) -> None:
    for turn in shown.turns:
        _print_labelled(f"{turn.agent} prompt", repr(turn.prompt))
        _print_labelled(f"{turn.agent} action", repr(turn.action))
    if shown.remaining_turns:
        _print_labelled("", f"... {shown.remaining_turns} more turn{'' if shown.remaining_turns == 1 else 's'}")
    if shown.ending:
        _print_labelled("episode", shown.ending)


def _print_labelled(label: str, text: str) -> None:
    """Print a label and a text, wrapped below it if long."""
    label = f"{shorten_name(label, 2 * LABEL_WIDTH):<{LABEL_WIDTH - 1}} "
    lines: Sequence[str] = textwrap.wrap(
        text, PAGE_WIDTH - len(label), break_on_hyphens=False, drop_whitespace=False, replace_whitespace=False
    )
    for number, line in enumerate(lines):
        print_text((label if number == 0 else " " * len(label)) + line)


def _size_unit(size: float) -> tuple[str, int]:
    return ("GiB", GIB) if size >= GIB else ("MiB", MIB)


def _format_number(part: float, unit: int) -> str:
    return f"{part / unit:.2f}" if part < 100 * unit else f"{part / unit:.1f}"


def _format_size(part: float) -> str:
    """A size with its unit: `7.31 MiB`."""
    unit, size = _size_unit(part)
    return f"{_format_number(part, size)} {unit}"


def _format_gib(size: float) -> str:
    return f"{size / GIB:.1f}" if size >= 10 * GIB else f"{size / GIB:.2f}"
