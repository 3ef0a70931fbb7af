"""`ippo-eval`: score a run's weights, a Hugging Face model, or agents of several checkpoints beside one another."""

from __future__ import annotations

import os
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ippo_cli.cli.entry import run_command
from ippo_cli.cli.help import EVAL_HELP
from ippo_cli.compose.configured import (
    choose_models,
    model_config,
    names,
    own_keys,
    refuse_mistyped,
    resolve_run,
    run_config,
    yes_or_no,
)
from ippo_cli.config.commands import shell_command, typed_path, typed_paths
from ippo_cli.runs.output import announce, outlive_readers

if TYPE_CHECKING:
    from ippo_cli.config.schema import Config
    from ippo_cli.evaluation.evaluate_run import Subject

# Keys of this command; all others are a run's.
OWN = ("run", "model", "checkpoint", "crossplay", "checkpoints", "compare", "compare_checkpoint", "format", "json")
FORMATS = ("table", "json", "csv", "markdown", "latex")
CHECKPOINT = re.compile(r"latest|best|initial|\d+")


def main() -> NoReturn:
    """Entry point."""
    run_command("ippo-eval", EVAL_HELP, _evaluate, needs_arguments=True, own=OWN)


def _evaluate(argv: list[str]) -> None:
    own, overrides = own_keys(argv, OWN)
    form = _format(own)
    if form == "table":
        _run_evaluation(own, overrides)
        return
    with redirect_stdout(sys.stderr):  # nothing but the report is on stdout
        written = _run_evaluation(own, overrides)
        from ippo_cli.engine.launchers import ranks_from
        from ippo_cli.evaluation.report import render_report
    if ranks_from(os.environ).rank == 0:
        print(render_report(written, form), end="", flush=True)


def _format(own: dict[str, str]) -> str:
    """In which form scores are printed: `format=`, or `json=true`."""
    from ippo_cli.config.errors import ConfigError

    form = own.get("format", "table")
    if form not in FORMATS:
        raise ConfigError(f"format={form}", "is not known", f"use one of {' '.join(FORMATS)}")
    if not yes_or_no(own, "json", form == "json"):
        if form == "json":
            raise ConfigError("json=false", "contradicts format=json", "leave one of them out")
        return form
    if "format" in own and form != "json":
        raise ConfigError("json=true", f"contradicts format={form}", "leave one of them out")
    return "json"


def _run_evaluation(own: dict[str, str], overrides: list[str]) -> Path:
    """Evaluate, compare or cross-play. Returns the file or folder that was written."""
    from ippo_cli.config.errors import ConfigError

    if bool(own.get("run")) == bool(own.get("model")):
        refuse_mistyped(overrides, OWN)
        rule = "is missing" if not own.get("run") else f"cannot be combined with model={own['model']}"
        raise ConfigError(
            f"run={own.get('run', '')}",
            rule,
            "give a run's folder, run=outputs/NAME/DATE-ID, or a Hugging Face model, model=PATH",
        )
    resolve_run(own)
    if "compare_checkpoint" in own and not own.get("compare"):
        raise ConfigError(
            f"compare_checkpoint={own['compare_checkpoint']}", "names weights of compare=, which is missing", "add it"
        )
    if _wants_cross_play(own):
        return _cross_play(own, overrides)
    if "checkpoint" in own and own.get("model"):
        raise ConfigError(f"checkpoint={own['checkpoint']}", "names the weights of a run", "give run=, or leave it out")
    if own.get("compare"):
        return _compare(own, overrides)
    if own.get("run"):
        return _evaluate_run(own["run"], own.get("checkpoint", "latest"), overrides)
    return _evaluate_model(own["model"], overrides)


def _begin() -> None:
    """From here on all keys are right, and the result is written to files as well."""
    outlive_readers("the evaluation")
    announce("ippo-eval: loading libraries and weights")


def _wants_cross_play(own: dict[str, str]) -> bool:
    """Whether pairings are to be scored. Raises `ConfigError` for what means nothing with it, or without it."""
    from ippo_cli.config.errors import ConfigError

    wanted = own.get("crossplay", "false")
    if wanted not in ("true", "false"):
        raise ConfigError(f"crossplay={wanted}", "is neither true nor false", "use crossplay=true")
    if wanted == "true" and "model" in own:
        raise ConfigError(f"model={own['model']}", "is no run, and crossplay=true is between runs", "give run=")
    if wanted == "true" and "compare" in own:
        raise ConfigError(f"compare={own['compare']}", "is between two, and crossplay=true between all", "use one")
    if wanted == "true" and "checkpoint" in own:
        raise ConfigError(
            f"checkpoint={own['checkpoint']}",
            "names one checkpoint, and crossplay=true takes a list",
            f"use checkpoints=[{own['checkpoint']}]",
        )
    if wanted == "false" and "checkpoints" in own:
        raise ConfigError(
            f"checkpoints={own['checkpoints']}", "is a list for crossplay=true", "add that, or use checkpoint="
        )
    if "run" in own and own["run"] and not typed_paths(own["run"]):
        raise ConfigError(f"run={own['run']}", "names no run", "give a run's folder, run=outputs/NAME/DATE-ID")
    if wanted == "false" and len(typed_paths(own.get("run", ""))) > 1:
        raise ConfigError(f"run={own['run']}", "names several runs", "add crossplay=true, or give one")
    return wanted == "true"


def _cross_play(own: dict[str, str], overrides: list[str]) -> Path:
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.config.evaluation import refuse_unlike

    checkpoints = list(dict.fromkeys(names(own.get("checkpoints", "latest"))))
    if not checkpoints or ("all" in checkpoints and len(checkpoints) > 1):
        rule = "names nothing" if not checkpoints else "names all, and others beside"
        raise ConfigError(f"checkpoints={own['checkpoints']}", rule, "use all, or a list such as [initial,best,40]")
    runs = {Path(name).absolute(): name for name in typed_paths(own["run"])}
    configs = {folder: run_config(folder, name, overrides) for folder, name in runs.items()}
    first, *others = runs
    for folder in others:
        refuse_unlike(runs[first], configs[first], runs[folder], configs[folder])
    _begin()
    from ippo_cli.evaluation.crossplay import cross_play

    return cross_play(configs, checkpoints, overrides, _of_other_seeds(configs))


def _of_other_seeds(configs: dict[Path, Config]) -> dict[Path, Config]:
    """What the runs that do not have the first one's seed were trained with, whatever is typed now."""
    from ippo_cli.compose.load import typed
    from ippo_cli.compose.resume import saved_values

    seed = next(iter(configs.values())).seed
    return {folder: typed(saved_values(folder)) for folder, config in configs.items() if config.seed != seed}


def _compare(own: dict[str, str], overrides: list[str]) -> Path:
    """Two policies or teams on the same rows."""
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.config.evaluation import refuse_unlike
    from ippo_cli.config.teams import holders

    wanted, model = own["compare"], own.get("model")
    folder = typed_path(wanted).absolute()
    is_run, is_checkpoint = (folder / "config.yaml").is_file(), bool(CHECKPOINT.fullmatch(wanted))
    if model and (is_run or (is_checkpoint and not folder.exists())):
        turned = shell_command("ippo-eval", ("run", wanted), ("compare", model))
        works = f"turn them round: {turned}" if is_run else "give another model"
        raise ConfigError(f"compare={wanted}", "is a run's, and is compared with a model on the run's task", works)
    if "compare_checkpoint" in own and not is_run:
        raise ConfigError(f"compare_checkpoint={own['compare_checkpoint']}", "names weights of a run", "leave it out")
    if model:
        config = model_config(model, overrides)
        _refuse_no_task(model, overrides)
        root = Path(config.output_dir)
    else:
        (name,) = typed_paths(own["run"])
        root = Path(name).absolute()
        config = run_config(root, name, overrides)
    other = config
    if is_run:
        other = run_config(folder, wanted, overrides)
        refuse_unlike(own["run"], config, wanted, other)
    elif not (own.get("run") and is_checkpoint):
        from ippo_cli.compose.hub_names import settle_names

        settle_names([("compare", wanted)])
    _begin()
    from ippo_cli.compose.configured import exported_models
    from ippo_cli.evaluation.compare import compare
    from ippo_cli.evaluation.evaluate_run import adapters_of, find_weights, models_of, one_model

    def of_run(config: Config, where: Path, checkpoint: str) -> Subject:
        return find_weights(where, checkpoint, holders(config), adapters_of(config))

    one = models_of(config) if model else of_run(config, root, own.get("checkpoint", "latest"))
    if is_run:
        against = of_run(other, folder, own.get("compare_checkpoint", "latest"))
    elif not model and is_checkpoint:
        against = of_run(config, root, wanted)
    else:
        against = one_model(config, str(folder) if folder.is_dir() else wanted, exported_models(folder, config))
    shown = (_shown(own.get("run") or str(model), one.name), _shown(wanted, against.name))
    trained = _of_other_seeds({root: config, folder: other}) if is_run else {}
    return compare((config, one), (other, against), shown, root, overrides, trained)


def _shown(typed: str, name: str) -> str:
    """What was typed, and which weights that is."""
    return typed if Path(typed).name == name else f"{typed} {name}"


def _evaluate_run(run: str, checkpoint: str, overrides: list[str]) -> Path:
    (name,) = typed_paths(run)
    folder = Path(name).absolute()
    config = run_config(folder, name, overrides)
    _begin()
    from ippo_cli.evaluation.evaluate_run import evaluate_run

    return evaluate_run(config, folder, checkpoint, overrides)


def _refuse_no_task(model: str, overrides: list[str]) -> None:
    """Raise `ConfigError` where a model would be scored on the embedded job's task without being asked to."""
    from ippo_cli.config.errors import ConfigError

    if not any(text.lstrip("+").startswith(("task=", "experiment=")) for text in overrides):
        raise ConfigError(
            f"model={model}", "needs a task to be scored on", "add task=gsm8k, task=FILE.yaml or task=sorting_solo"
        )


def _evaluate_model(model: str, overrides: list[str]) -> Path:
    config = model_config(model, overrides)
    _refuse_no_task(model, overrides)
    _begin()
    from ippo_cli.evaluation.evaluate_run import evaluate_model

    return evaluate_model(config, [*choose_models(model, overrides)[1:], *overrides])


if __name__ == "__main__":
    main()
