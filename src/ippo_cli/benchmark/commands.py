"""The subcommands of `ippo-bench`: each checks its arguments and calls the code that does the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ippo_cli.benchmark.replay import check_package, list_arm_overrides, load_rows
from ippo_cli.benchmark.responses import score_file, write_rows
from ippo_cli.benchmark.result import SCHEMA, Result, read_result, write_result
from ippo_cli.benchmark.run import list_seeds, run_entry
from ippo_cli.benchmark.table import (
    format_markdown,
    format_results,
    list_task_rows,
    read_results,
    replace_block,
)
from ippo_cli.benchmark.tasks import BENCHMARK_TASKS
from ippo_cli.benchmark.version import task_version
from ippo_cli.config.commands import last_value
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.text import closest_hint, format_count, format_table
from ippo_cli.controls.arms import FROZEN, NO_MESSAGES, SHARED_POLICY, SINGLE_ARMS, TEAM
from ippo_cli.controls.settings import Differences
from ippo_cli.runs.folder import display_path
from ippo_cli.runs.output import print_text

TASK_BLOCK, RESULT_BLOCK = "benchmark tasks", "benchmark results"


def run_subcommand(name: str, argv: Sequence[str], keys: Sequence[str], controls_keys: Sequence[str]) -> None:
    """Run a subcommand. `keys`: of `ippo-bench` itself; `controls_keys`: of `ippo-controls`, which `run` takes too."""
    if name not in COMMANDS:
        hint = closest_hint(name, list(COMMANDS))
        raise ConfigError(name, f"is no subcommand{hint}", f"use one of {' '.join(COMMANDS)}")
    own = {
        key: value
        for key, equals, value in (text.partition("=") for text in argv)
        if equals and key in (*keys, *controls_keys)
    }
    rest = [text for text in argv if text.partition("=")[0] not in own]
    COMMANDS[name](own, rest, controls_keys)


def list_tasks(own: Mapping[str, str], rest: Sequence[str], _: Sequence[str]) -> None:
    """Print the tasks with their bounds, or write them into a page."""
    _check_keys("list", own, rest, ("page",))
    rows = list_task_rows()
    if "page" in own:
        replace_block(Path(own["page"]), TASK_BLOCK, format_markdown(rows))
        print_text(f"wrote {format_count(len(rows) - 1, 'task')} to {own['page']}")
    else:
        print_text("\n".join(format_table(rows)))


def train_entry(own: Mapping[str, str], rest: Sequence[str], controls_keys: Sequence[str]) -> None:
    """Train a team and its control arms, and write the result."""
    name, typed = _take_task("run", rest)
    _check_keys("run", own, (), ("entry", "seeds", "to", *controls_keys))
    list_seeds(own)
    run_entry(name, own, typed, controls_keys)


def export_rows(own: Mapping[str, str], rest: Sequence[str], _: Sequence[str]) -> None:
    """Write the rows that another trainer answers, and print how it does this."""
    name, others = _take_task("prompts", rest)
    seed = last_value(others, "seed")
    others = [text for text in others if not text.startswith("seed=")]
    _check_keys("prompts", own, others, ("to", "seeds", "arm", "split"))
    split = own.get("split", "held_out")
    if split not in ("held_out", "train"):
        raise ConfigError(f"split={split}", "is not known", "use held_out, which is scored, or train")
    file = Path(_require("prompts", own, "to", "to=rows.jsonl"))
    seeds = list_seeds({**own, **({} if seed is None else {"seed": seed})})
    count = write_rows(name, _check_arm(own, name), seeds, file, is_train=split == "train")
    task, arm = BENCHMARK_TASKS[name], own.get("arm", TEAM)
    unit = "information set" if task.game else "row"
    print_text(f"{name} {task_version(name)}: {format_count(count, unit)} -> {display_path(file)}")
    all_overrides = list_arm_overrides(name, arm)
    overrides = " ".join(text for text in all_overrides if "environment" in text or "max_new_tokens" in text)
    print_text(f"  played as {overrides or all_overrides[0]}; turns of each agent of the team: {task.turns}")
    if task.game:
        print_text(
            f'  answer each seed with one line: {{"version": "{task_version(name)}", "seed": 0, '
            '"strategy": {AGENT: {INFORMATION: {ACTION: PROBABILITY}}}}'
        )
    elif split == "train":
        print_text("  rows of the training split are not scored; leave split= out for those that are")
    else:
        version = f'"version": "{task_version(name)}"'
        print_text(
            f'  answer each row with one line: {{{version}, "seed": 0, "row": 0, "responses": [[AGENT, TEXT], ...]}}'
        )
    of_arm = "" if arm == TEAM else f" arm={arm}"
    print_text(f"  then: ippo-bench import RESPONSES.jsonl task={name} entry=NAME trainer='NAME VERSION'{of_arm}")


def import_responses(own: Mapping[str, str], rest: Sequence[str], _: Sequence[str]) -> None:
    """Score the responses of another trainer, and write or extend its result."""
    names = [text for text in rest if "=" not in text]
    if len(names) != 1:
        raise ConfigError(" ".join(names) or "FILE", "is not one file of responses", "ippo-bench import FILE task=NAME")
    typed = [text for text in rest if text not in names and not text.startswith("task=")]
    _check_keys("import", own, typed, ("entry", "trainer", "arm", "to"))
    name = _check_task(last_value(rest, "task") or "", "task=")
    entry, arm = _require("import", own, "entry", "entry=NAME"), _check_arm(own, name)
    file = Path(own.get("to", f"{name}-{entry}.json"))
    task = BENCHMARK_TASKS[name]
    known = read_result(file) if file.is_file() else None
    if known is not None and (known.task, known.entry) != (name, entry):
        rule = f"is the result of {known.entry} on {known.task}"
        raise ConfigError(f"to={display_path(file)}", rule, "use another file: to=FILE")
    if known is not None:
        _check_same_trainer(known, own.get("trainer", known.trainer), file)
    runs = score_file(Path(names[0]), name, arm)
    all_runs = [*([] if known is None else [run for run in known.runs if run.arm != arm]), *runs]
    arms, imported = _expected_arms(name), {run.arm for run in all_runs}
    result = Result(
        schema=SCHEMA,
        task=name,
        version=task_version(name),
        entry=entry,
        trainer=own.get("trainer", known.trainer if known else "other"),
        metric=task.score_name,
        overrides=[],
        alpha=0.05,
        differences=Differences.bounded,
        range=list(task.score_range),
        arms=arms,
        missing={one: "no responses were imported" for one in arms if one not in imported},
        runs=all_runs,
        cross_play=[],
    )
    write_result(result, file)
    for run in runs:
        print_text(f"{arm} seed {run.seed}: {run.score:.4f}")
    print_text(f"{entry} on {name}: {format_count(len(runs), 'run')} of {arm} -> {display_path(file)}")
    if result.missing:
        print_text(f"missing control arms: {' '.join(result.missing)}; import them with arm=NAME")


def _check_same_trainer(known: Result, trainer: str, file: Path) -> None:
    """Raise `ConfigError` if a result has the runs of another trainer, or of this program."""
    remedy = "use another file: to=FILE"
    if known.overrides:
        raise ConfigError(f"to={display_path(file)}", "has the runs of ippo-bench run", remedy)
    if known.trainer != trainer:
        raise ConfigError(f"trainer={trainer}", f"was {known.trainer} in {display_path(file)}", remedy)


def _expected_arms(name: str) -> list[str]:
    """Return the control arms that other trainers can have on a task; only conversations can have no messages."""
    config = load_rows(name, TEAM, 0).config
    single = SINGLE_ARMS if BENCHMARK_TASKS[name].single else ()
    messages = (NO_MESSAGES,) if config.task.is_conversation else ()
    return [*single, *(f"{FROZEN}{agent}" for agent in config.task.agents), SHARED_POLICY, *messages]


def print_results(own: Mapping[str, str], rest: Sequence[str], _: Sequence[str]) -> None:
    """Print the tables of results, or write them into a page."""
    _check_keys("table", own, [text for text in rest if "=" in text], ("page",))
    if not rest:
        raise ConfigError("table", "names no result", "ippo-bench table FILE_OR_FOLDER... [page=FILE]")
    results = read_results([Path(text) for text in rest])
    if "page" in own:
        replace_block(Path(own["page"]), RESULT_BLOCK, format_results(results, is_page=True))
        print_text(f"wrote {format_count(len(results), 'result')} to {own['page']}")
    else:
        print_text(format_results(results, is_page=False))


Command = Callable[[Mapping[str, str], Sequence[str], Sequence[str]], None]
COMMANDS: dict[str, Command] = {
    "list": list_tasks,
    "run": train_entry,
    "prompts": export_rows,
    "import": import_responses,
    "table": print_results,
}


def _take_task(command: str, rest: Sequence[str]) -> tuple[str, list[str]]:
    """Return the task that the first argument names, and the other arguments."""
    name = rest[0] if rest else ""
    return _check_task(name, f"ippo-bench {command} "), list(rest[1:])


def _check_task(name: str, where: str) -> str:
    """Return the name of a task. Raises `ConfigError` if it is unknown, or needs a package that is not installed."""
    if name not in BENCHMARK_TASKS:
        hint = closest_hint(name, list(BENCHMARK_TASKS))
        raise ConfigError(f"{where}{name}", f"names no task{hint}", f"use one of {' '.join(BENCHMARK_TASKS)}")
    check_package(name)
    return name


def _check_arm(own: Mapping[str, str], name: str) -> str:
    """Return the typed arm, the team without one. Raises `ConfigError` for an arm that other trainers cannot have."""
    arm = own.get("arm", TEAM)
    if arm != TEAM and arm not in (known := _expected_arms(name)):
        rule = f"is no arm of responses to {name}{closest_hint(arm, known)}"
        raise ConfigError(f"arm={arm}", rule, f"use one of {' '.join((TEAM, *known))}")
    return arm


def _require(command: str, own: Mapping[str, str], key: str, remedy: str) -> str:
    if not own.get(key):
        raise ConfigError(f"{key}=", f"is missing in ippo-bench {command}", f"add {remedy}")
    return own[key]


def _check_keys(command: str, own: Mapping[str, str], rest: Sequence[str], keys: Sequence[str]) -> None:
    """Raise `ConfigError` for an argument that a subcommand does not have."""
    for text in [*(f"{key}={value}" for key, value in own.items() if key not in keys), *rest]:
        hint = closest_hint(text.partition("=")[0], list(keys))
        raise ConfigError(text, f"is not a key of ippo-bench {command}{hint}", f"use {' '.join(keys)}")
