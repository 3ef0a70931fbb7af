"""`ippo-eval`: score a run's weights, a Hugging Face model, or agents of several checkpoints beside one another."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ippo_cli import __version__
from ippo_cli.cli.help import EVAL_HELP, asks_for_help, asks_for_version

if TYPE_CHECKING:
    from ippo_cli.config.schema import Config

OWN = ("run", "model", "checkpoint", "crossplay", "checkpoints")  # keys of this command; all others are a run's


def main() -> NoReturn:
    """Entry point; the exit codes are those of `ippo-train`."""
    argv = sys.argv[1:]
    if not argv or asks_for_help(argv):
        print(EVAL_HELP, end="")
        sys.exit(0)
    if asks_for_version(argv):
        print(f"ippo-eval {__version__}")
        sys.exit(0)
    from ippo_cli.cli.exits import guarded, leave

    overrides = [text for text in argv if text.partition("=")[0] not in OWN]
    leave(guarded(lambda: _evaluate(argv), overrides))


def _evaluate(argv: list[str]) -> None:
    from ippo_cli.cli.arguments import arguments
    from ippo_cli.cli.flags import refuse_unknown
    from ippo_cli.config.errors import ConfigError

    refuse_unknown(argv, OWN)
    own: dict[str, str] = {}
    rest: list[str] = []
    for text in argv:
        key, equals, value = text.partition("=")
        if key in OWN and equals:
            own[key] = value
        else:
            rest.append(text)
    overrides = arguments(rest)
    if bool(own.get("run")) == bool(own.get("model")):
        rule = "is missing" if not own.get("run") else f"cannot be combined with model={own['model']}"
        raise ConfigError(
            f"run={own.get('run', '')}",
            rule,
            "give a run's folder, run=outputs/NAME/DATE-ID, or a Hugging Face model, model=PATH",
        )
    if _wants_cross_play(own):
        _cross_play(own, overrides)
    elif own.get("run"):
        _evaluate_run(own["run"], own.get("checkpoint", "latest"), overrides)
    elif "checkpoint" in own:
        raise ConfigError(f"checkpoint={own['checkpoint']}", "names the weights of a run", "give run=, or leave it out")
    else:
        _evaluate_model(own["model"], overrides)


def _wants_cross_play(own: dict[str, str]) -> bool:
    """Whether pairings are to be scored. Raises `ConfigError` for what means nothing with it, or without it."""
    from ippo_cli.config.errors import ConfigError

    wanted = own.get("crossplay", "false")
    if wanted not in ("true", "false"):
        raise ConfigError(f"crossplay={wanted}", "is neither true nor false", "use crossplay=true")
    if wanted == "true" and "model" in own:
        raise ConfigError(f"model={own['model']}", "is no run, and crossplay=true is between runs", "give run=")
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
    if wanted == "false" and len(_names(own.get("run", ""))) > 1:
        raise ConfigError(f"run={own['run']}", "names several runs", "add crossplay=true, or give one")
    return wanted == "true"


def _names(text: str) -> list[str]:
    """The names of a list, `[a,b]` or `a,b`."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    return [name for part in inner.split(",") if (name := part.strip().strip("'\""))]


def _cross_play(own: dict[str, str], overrides: list[str]) -> None:
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.config.evaluation import refuse_unlike

    checkpoints = list(dict.fromkeys(_names(own.get("checkpoints", "latest"))))
    if not checkpoints or ("all" in checkpoints and len(checkpoints) > 1):
        rule = "names nothing" if not checkpoints else "names all, and others beside"
        raise ConfigError(f"checkpoints={own['checkpoints']}", rule, "use all, or a list such as [initial,best,40]")
    runs = {Path(name).absolute(): name for name in _names(own["run"])}
    configs = {folder: _configured(folder, name, overrides) for folder, name in runs.items()}
    first, *others = runs
    for folder in others:
        refuse_unlike(runs[first], configs[first], runs[folder], configs[folder])
    from ippo_cli.training.crossplay import cross_play

    cross_play(configs, checkpoints, overrides)


def _evaluate_run(run: str, checkpoint: str, overrides: list[str]) -> None:
    (name,) = _names(run)
    folder = Path(name).absolute()
    config = _configured(folder, name, overrides)
    from ippo_cli.training.evaluate_run import evaluate_run

    evaluate_run(config, folder, checkpoint, overrides)


def _configured(folder: Path, run: str, overrides: list[str]) -> Config:
    """A run's configuration with what is typed now."""
    from ippo_cli.cli.resume import refuse_changed, saved_overrides
    from ippo_cli.config.errors import ResumeError

    if not (folder / "config.yaml").is_file():
        raise ResumeError(f"run={run}: there is no run; give a run's folder such as outputs/NAME/DATE-ID")
    saved = saved_overrides(folder)
    config = _composed([*saved, *overrides], overrides, of_model=False)
    refuse_changed(folder, saved, overrides)
    if any(text.lstrip("+").startswith("task.eval_size=") for text in overrides):
        _refuse_trained_examples(config, folder)
    return config


def _evaluate_model(model: str, overrides: list[str]) -> None:
    from ippo_cli.cli.arguments import arguments

    chosen = ["actor=full", *arguments([f"actor.model={model}"])]
    config = _composed([*chosen, *overrides], overrides, of_model=True)
    _refuse_made_locally(config)
    from ippo_cli.training.evaluate_run import evaluate_model

    evaluate_model(config, [*chosen[1:], *overrides])


def _refuse_made_locally(config: Config) -> None:
    """Raise `ConfigError` for an agent whose task file has it made by a run."""
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.config.schema import TinyActorConfig

    for name, agent in config.task.agents.items():
        if isinstance(agent.actor, TinyActorConfig):
            raise ConfigError(
                f"task.agents.{name}.actor.kind={agent.actor.kind.value}",
                "is a model that a run makes, and model= is there already",
                f"add task.agents.{name}.actor=full, or evaluate the run",
            )


def _composed(composed: list[str], typed_now: list[str], *, of_model: bool) -> Config:
    """The configuration of these overrides, of which those typed now must have an effect."""
    from ippo_cli.cli.arguments import with_one_search_path
    from ippo_cli.cli.hub import settle_hub
    from ippo_cli.config.checks import check
    from ippo_cli.config.evaluation import refuse_without_effect
    from ippo_cli.config.files import check_own_files
    from ippo_cli.config.load import compose_node, resolve, typed

    combined = with_one_search_path(composed)
    check_own_files(combined)
    node = compose_node(combined)  # first: what is no key at all is told as such
    refuse_without_effect(typed_now, of_model=of_model)
    config = typed(resolve(node))
    check(config, 1, training=False)
    settle_hub(config, models=of_model, training=False)  # a run's models come from its checkpoint
    return config


def _refuse_trained_examples(config: Config, folder: Path) -> None:
    """Of generated examples the first ones are held out, and the run was trained on those that follow."""
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.config.load import from_yaml
    from ippo_cli.config.schema import JsonlConfig

    task, trained = config.task, from_yaml(folder / "config.yaml").task
    if isinstance(task, JsonlConfig) or isinstance(trained, JsonlConfig):
        return
    wanted, held_out = (getattr(each, "eval_size") for each in (task, trained))  # noqa: B009 (every generated task's)
    if wanted > held_out:
        raise ConfigError(
            f"task.eval_size={wanted}", "would reach into what the run was trained on", f"use at most {held_out}"
        )


if __name__ == "__main__":
    main()
