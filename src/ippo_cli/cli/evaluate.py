"""`ippo-eval`: score the weights of a run or a Hugging Face model, compare two, or cross-play several checkpoints."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ippo_cli.cli.command_keys import OWN_KEYS, value_errors
from ippo_cli.cli.entry import run_command
from ippo_cli.cli.help import EVAL_HELP
from ippo_cli.compose.configured import (
    check_own_values,
    load_model_config,
    load_run_config,
    model_overrides,
    parse_bool_key,
    split_command_keys,
    split_names,
)
from ippo_cli.config.commands import parse_path, parse_paths, shell_command
from ippo_cli.runs.output import ignore_closed_output, print_status, print_text

if TYPE_CHECKING:
    from ippo_cli.config.exploitability import ExploitabilitySettings
    from ippo_cli.config.schema import Config
    from ippo_cli.evaluation.evaluate_run import EvaluatedWeights

# Keys of this command; all other keys are overrides of the configuration.
COMMAND_KEYS = OWN_KEYS["ippo-eval"]
FORMATS = ("table", "json", "csv", "markdown", "latex")
CHECKPOINT_PATTERN = re.compile(r"latest|best|initial|\d+")


def main() -> NoReturn:
    """Entry point."""
    run_command("ippo-eval", EVAL_HELP, _evaluate, needs_arguments=True, command_keys=COMMAND_KEYS)


def _evaluate(argv: list[str]) -> None:
    own, overrides = split_command_keys(argv, COMMAND_KEYS)
    check_own_values(
        own,
        overrides,
        COMMAND_KEYS,
        lambda: value_errors(own),
        remedy="use the folder of a run, run=outputs/NAME/DATE-ID, or a Hugging Face model, model=PATH",
    )
    form = _output_format(own)
    if form == "table":
        _run_evaluation(own, overrides)
        return
    with redirect_stdout(sys.stderr):  # stdout contains only the report
        written = _run_evaluation(own, overrides)
        from ippo_cli.engine.launchers import detect_ranks
        from ippo_cli.evaluation.report import render_report
    if detect_ranks(os.environ).rank == 0:
        print_text(render_report(written, form), end="")


def _output_format(own: dict[str, str]) -> str:
    """The output format: the value of `format=`, or json with `json=true`."""
    from ippo_cli.config.errors import ConfigError

    form = own.get("format", "table")
    if form not in FORMATS:
        raise ConfigError(f"format={form}", "is an unknown format", f"use one of {' '.join(FORMATS)}")
    if not parse_bool_key(own, "json", form == "json"):
        if form == "json":
            raise ConfigError("json=false", "contradicts format=json", "remove one of them")
        return form
    if "format" in own and form != "json":
        raise ConfigError("json=true", f"contradicts format={form}", "remove one of them")
    return "json"


def _run_evaluation(own: dict[str, str], overrides: list[str]) -> Path:
    """Evaluate, compare or cross-play; return the file or folder with the results."""
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.config.exploitability import parse_exploitability

    if "compare_checkpoint" in own and not own.get("compare"):
        raise ConfigError(
            f"compare_checkpoint={own['compare_checkpoint']}",
            "selects a checkpoint of compare=, which is missing",
            "add compare=RUN",
        )
    for report, run_report in REPORTS.items():
        if _is_report(own, report):
            return run_report(own, overrides)
    if (exploitability := parse_exploitability(own)) is not None:
        _check_only_report(own, "exploitability")
        return _report_exploitability(own, exploitability, overrides)
    if _is_cross_play(own):
        return _run_cross_play(own, overrides)
    if "checkpoint" in own and own.get("model"):
        raise ConfigError(
            f"checkpoint={own['checkpoint']}",
            "selects a checkpoint of a run, and model= is not a run",
            "use run=, or remove checkpoint=",
        )
    if own.get("compare"):
        return _run_comparison(own, overrides)
    if own.get("run"):
        return _evaluate_run(own["run"], own.get("checkpoint", "latest"), overrides)
    return _evaluate_model(own["model"], overrides)


def _is_report(own: dict[str, str], report: str) -> bool:
    """Whether `critic=true`, say, is set. Raises `ConfigError` for keys that contradict it or require it."""
    from ippo_cli.config.critic_reports import CREDIT_SETTING_KEYS, SETTING_KEYS
    from ippo_cli.config.errors import ConfigError

    setting_keys = {
        "critic": SETTING_KEYS,
        "credit": CREDIT_SETTING_KEYS,
        "attribution": ("attribution_baseline",),
    }
    wanted = parse_bool_key(own, report, False)
    for key in setting_keys[report]:
        if key in own and not wanted:
            raise ConfigError(f"{key}={own[key]}", f"requires {report}=true", f"add {report}=true, or remove it")
    if wanted:
        _check_only_report(own, report)
    return wanted


def _check_only_report(own: dict[str, str], report: str) -> None:
    """Raise `ConfigError` for keys that contradict a report."""
    from ippo_cli.config.errors import ConfigError

    others = [key for key in (*REPORTS, "exploitability") if key != report]
    for key in ("model", "compare", "crossplay", "checkpoints", *others):
        if key in own and own[key] != "false":
            is_model = key == "model"
            rule = f"is not a run, and {report}=true reads weights of a run" if is_model else "is another report"
            raise ConfigError(f"{key}={own[key]}", rule, f"use run= and checkpoint= with {report}=true")
    if len(parse_paths(own["run"])) > 1:
        raise ConfigError(f"run={own['run']}", f"contains several runs, and {report}=true reads one", "name one run")


def _load_run(own: dict[str, str], overrides: list[str]) -> tuple[Path, Config]:
    """The folder of the one run of `run=`, and its configuration with overrides."""
    (name,) = parse_paths(own["run"])
    folder = Path(name).absolute()
    return folder, load_run_config(folder, name, overrides)


def _report_critic(own: dict[str, str], overrides: list[str]) -> Path:
    from ippo_cli.config.critic_reports import check_critic_report, parse_report_settings

    settings = parse_report_settings(own)
    folder, config = _load_run(own, overrides)
    check_critic_report(config, settings)
    _start_output()
    from ippo_cli.evaluation.critic_report import report_critic

    return report_critic(config, folder, own.get("checkpoint", "latest"), settings, overrides)


def _attribute_gain(own: dict[str, str], overrides: list[str]) -> Path:
    from ippo_cli.config.errors import ConfigError

    folder, config = _load_run(own, overrides)
    if len(config.task.agents) < 2:
        raise ConfigError("attribution=true", "needs at least two agents, and this task has one", "use compare=initial")
    _start_output()
    from ippo_cli.evaluation.attribution import attribute_gain

    checkpoints = own.get("checkpoint", "latest"), own.get("attribution_baseline", "initial")
    return attribute_gain(config, folder, *checkpoints, overrides)


def _report_credit(own: dict[str, str], overrides: list[str]) -> Path:
    from ippo_cli.config.critic_reports import check_credit_report, parse_credit_settings

    settings = parse_credit_settings(own)
    folder, config = _load_run(own, overrides)
    check_credit_report(config, settings)
    _start_output()
    from ippo_cli.evaluation.credit_report import report_credit

    return report_credit(config, folder, own.get("checkpoint", "latest"), settings, overrides)


def _report_exploitability(own: dict[str, str], settings: ExploitabilitySettings, overrides: list[str]) -> Path:
    from ippo_cli.config.exploitability import check_exploitability

    folder, config = _load_run(own, overrides)
    checkpoint = own.get("checkpoint", "latest")
    check_exploitability(config, settings)
    _start_output()
    if settings.is_exact:
        from ippo_cli.evaluation.exploitability import report_exact

        return report_exact(config, folder, checkpoint, settings, overrides)
    from ippo_cli.sweeps.responders import report_trained_responders

    return report_trained_responders(config, folder, checkpoint, settings, overrides)


REPORTS: dict[str, Callable[[dict[str, str], list[str]], Path]] = {
    "critic": _report_critic,
    "credit": _report_credit,
    "attribution": _attribute_gain,
}


def _start_output() -> None:
    """Ignore a closed stdout from here on: all keys are valid, and the results are also written to files."""
    ignore_closed_output("the evaluation")
    print_status("ippo: loading libraries and weights")


def _is_cross_play(own: dict[str, str]) -> bool:
    """Whether `crossplay=true` is set. Raises `ConfigError` for keys that contradict it or require it."""
    from ippo_cli.config.errors import ConfigError

    wanted = own.get("crossplay", "false")
    if wanted not in ("true", "false"):
        raise ConfigError(f"crossplay={wanted}", "must be true or false", "use crossplay=true")
    if wanted == "true" and "model" in own:
        raise ConfigError(f"model={own['model']}", "is not a run, and crossplay=true pairs agents of runs", "use run=")
    if wanted == "true" and "compare" in own:
        raise ConfigError(f"compare={own['compare']}", "cannot be combined with crossplay=true", "remove one of them")
    if wanted == "true" and "checkpoint" in own:
        raise ConfigError(
            f"checkpoint={own['checkpoint']}",
            "selects one checkpoint, and crossplay=true needs a list",
            f"use checkpoints=[{own['checkpoint']}]",
        )
    if wanted == "false" and "checkpoints" in own:
        raise ConfigError(
            f"checkpoints={own['checkpoints']}", "requires crossplay=true", "add crossplay=true, or use checkpoint="
        )
    if "run" in own and own["run"] and not parse_paths(own["run"]):
        raise ConfigError(f"run={own['run']}", "contains no run", "use the folder of a run, run=outputs/NAME/DATE-ID")
    if wanted == "false" and len(parse_paths(own.get("run", ""))) > 1:
        raise ConfigError(f"run={own['run']}", "contains several runs", "add crossplay=true, or use one run")
    return wanted == "true"


def _run_cross_play(own: dict[str, str], overrides: list[str]) -> Path:
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.config.evaluation import check_comparable_runs

    checkpoints = list(dict.fromkeys(split_names(own.get("checkpoints", "latest"))))
    if not checkpoints or ("all" in checkpoints and len(checkpoints) > 1):
        rule = "is empty" if not checkpoints else "combines all with other checkpoints"
        raise ConfigError(f"checkpoints={own['checkpoints']}", rule, "use all, or a list such as [initial,best,40]")
    runs = {Path(name).absolute(): name for name in parse_paths(own["run"])}
    configs = {folder: load_run_config(folder, name, overrides) for folder, name in runs.items()}
    first, *others = runs
    for folder in others:
        check_comparable_runs(runs[first], configs[first], runs[folder], configs[folder])
    _start_output()
    from ippo_cli.evaluation.crossplay import cross_play

    return cross_play(configs, checkpoints, overrides, _other_seed_settings(configs))


def _other_seed_settings(configs: dict[Path, Config]) -> dict[Path, Config]:
    """The saved training configurations, without overrides, of the runs with another seed than the first run."""
    from ippo_cli.compose.load import build_config
    from ippo_cli.compose.resume import saved_config

    seed = next(iter(configs.values())).seed
    return {folder: build_config(saved_config(folder)) for folder, config in configs.items() if config.seed != seed}


def _run_comparison(own: dict[str, str], overrides: list[str]) -> Path:
    """Compare two policies or teams on the same rows."""
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.config.evaluation import check_comparable_runs
    from ippo_cli.config.teams import policy_by_agent

    wanted, model = own["compare"], own.get("model")
    folder = parse_path(wanted).absolute()
    is_run, is_checkpoint = (folder / "config.yaml").is_file(), bool(CHECKPOINT_PATTERN.fullmatch(wanted))
    if model and (is_run or (is_checkpoint and not folder.exists())):
        turned = shell_command("ippo-eval", ("run", wanted), ("compare", model))
        remedy = f"swap them: {turned}" if is_run else "use a model for compare="
        raise ConfigError(f"compare={wanted}", "is of a run, and model= can only be compared with a model", remedy)
    if "compare_checkpoint" in own and not is_run:
        raise ConfigError(
            f"compare_checkpoint={own['compare_checkpoint']}",
            "selects a checkpoint, and compare= is not a run",
            "remove it",
        )
    if model:
        config = load_model_config(model, overrides)
        _check_task_is_set(model, overrides)
        root = Path(config.output_dir)
    else:
        (name,) = parse_paths(own["run"])
        root = Path(name).absolute()
        config = load_run_config(root, name, overrides)
    other = config
    if is_run:
        other = load_run_config(folder, wanted, overrides)
        check_comparable_runs(own["run"], config, wanted, other)
    elif not (own.get("run") and is_checkpoint):
        from ippo_cli.compose.hub_names import check_model_access

        check_model_access([("compare", wanted)])
    _start_output()
    from ippo_cli.compose.configured import exported_models
    from ippo_cli.evaluation.compare import compare
    from ippo_cli.evaluation.evaluate_run import (
        adapters_by_agent,
        configured_weights,
        find_weights,
        single_model_weights,
    )

    def weights_from_run(config: Config, where: Path, checkpoint: str) -> EvaluatedWeights:
        return find_weights(where, checkpoint, policy_by_agent(config), adapters_by_agent(config))

    one = configured_weights(config) if model else weights_from_run(config, root, own.get("checkpoint", "latest"))
    if is_run:
        against = weights_from_run(other, folder, own.get("compare_checkpoint", "latest"))
    elif not model and is_checkpoint:
        against = weights_from_run(config, root, wanted)
    else:
        against = single_model_weights(
            config, str(folder) if folder.is_dir() else wanted, exported_models(folder, config)
        )
    labels = (_label_weights(own.get("run") or str(model), one.name), _label_weights(wanted, against.name))
    trained = _other_seed_settings({root: config, folder: other}) if is_run else {}
    return compare((config, one), (other, against), labels, root, overrides, trained)


def _label_weights(typed: str, name: str) -> str:
    """The typed value, followed by the name of the weights."""
    return typed if Path(typed).name == name else f"{typed} {name}"


def _evaluate_run(run: str, checkpoint: str, overrides: list[str]) -> Path:
    (name,) = parse_paths(run)
    folder = Path(name).absolute()
    config = load_run_config(folder, name, overrides)
    _start_output()
    from ippo_cli.evaluation.evaluate_run import evaluate_run

    return evaluate_run(config, folder, checkpoint, overrides)


def _check_task_is_set(model: str, overrides: list[str]) -> None:
    """Raise `ConfigError` if no task is set: the default task would score a model on data that it does not fit."""
    from ippo_cli.config.errors import ConfigError

    if not any(text.lstrip("+").startswith(("task=", "experiment=")) for text in overrides):
        raise ConfigError(f"model={model}", "needs a task", "add task=gsm8k, task=FILE.yaml or task=sorting_solo")


def _evaluate_model(model: str, overrides: list[str]) -> Path:
    config = load_model_config(model, overrides)
    _check_task_is_set(model, overrides)
    _start_output()
    from ippo_cli.evaluation.evaluate_run import evaluate_model

    return evaluate_model(config, [*model_overrides(model, overrides)[1:], *overrides])


if __name__ == "__main__":
    main()
