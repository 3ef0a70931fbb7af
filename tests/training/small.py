"""The smallest real run: two agents, 32-wide models, a few iterations. Imported by path."""

from __future__ import annotations

import copy
import json
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from rank_scripts import finish, read_output, start_ranks
from safetensors.torch import load_file
from torch import Tensor

from ippo_cli.compose.load import build_config, compose_node, resolve_config, to_yaml
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import Preempted
from ippo_cli.config.schema import Config
from ippo_cli.config.schema import Console as Style
from ippo_cli.config.teams import policy_by_agent
from ippo_cli.engine import distributed
from ippo_cli.reporting.console import Console
from ippo_cli.reporting.run_log import RunLog, RunState
from ippo_cli.reporting.stopwatch import Stopwatch
from ippo_cli.runs.checkpoint_files import newest_intact_checkpoint
from ippo_cli.runs.folder import reserve_folder, write_start_files
from ippo_cli.runs.signals import PreemptionHandler
from ippo_cli.training.build_trainer import RunContext, build_trainer
from ippo_cli.training.process import prepare_process, run_training
from ippo_cli.training.trainer import Trainer
from ippo_cli.types import Experience

SMALL_MODEL = (
    "actor.hidden_size=32",
    "actor.num_layers=1",
    "actor.num_heads=2",
    "actor.warm_start_steps=3",
    "actor.warm_start_batch_size=16",
)
SMALL_RUN = (
    "task.train_size=48",
    "task.eval_size=8",
    "rollout.buffer_size=16",
    "rollout.decode_batch_size=8",
    "num_iterations=4",
    "evaluation.every=2",
    "checkpoint.every=2",
    "tracker.tensorboard=false",
    "tracker.console=plain",
    "tracker.samples_every=0",
    "tracker.report=false",
    "launch.threads=1",
)
FAULTS = "debug_faults="
SMALL = (*SMALL_MODEL, *SMALL_RUN)


def small(overrides: Sequence[str]) -> tuple[str, ...]:
    """All overrides of a small run: those of a locally created model, unless one is loaded."""
    return (*(SMALL_RUN if {"actor=full", "actor=lora"} & set(overrides) else SMALL), *overrides)


@cache
def composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    """Plain values; cached, because composing takes a large part of a run's time."""
    return resolve_config(compose_node(overrides))


def small_config(root: Path, *overrides: str) -> tuple[Config, str]:
    """A checked configuration and its YAML."""
    # Faults are set after composing: a campaign has a new list for every run, and composes each kind of run once.
    faults = [text for text in overrides if text.startswith(FAULTS)]
    plain = copy.deepcopy(composed(small([text for text in overrides if text not in faults])))
    plain["output_dir"] = str(root)
    if faults:
        plain["debug_faults"] = [part for part in faults[-1].removeprefix(FAULTS).strip("[]").split(",") if part]
    config = build_config(plain)
    check_config(config, 1)
    return config, to_yaml(plain)


def new_run(root: Path, *overrides: str) -> tuple[Config, Path]:
    """A reserved run folder with its start files."""
    config, yaml = small_config(root, *overrides)
    folder = reserve_folder(root / config.name)
    write_start_files(folder, yaml, [f"output_dir={root}", *small(overrides)], ["ippo-train"], resumed=False)
    return config, folder


def train(root: Path, *overrides: str) -> Path:
    """Train a whole run in this process; returns its folder."""
    config, folder = new_run(root, *overrides)
    run_training(config, folder, resumed=False)
    return folder


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl` without machine-dependent metrics."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(("time/", "perf/"))}
        for line in lines
    ]


def final_weights(folder: Path, agents: Sequence[str] = ("low", "high")) -> dict[str, Tensor]:
    """Weights of the newest checkpoint's `actor/` and `critic/` folders, by `agent/role/name`."""
    found = newest_intact_checkpoint(folder / "checkpoints")
    assert found is not None
    return {
        f"{agent}/{role}/{name}": value
        for agent in agents
        for role in ("actor", "critic")
        for name, value in load_file(found / agent / role / "model.safetensors").items()
    }


@contextmanager
def open_trainer(root: Path, *overrides: str) -> Iterator[Trainer]:
    """A built trainer before its first step."""
    config, folder = new_run(root, *overrides)
    device = prepare_process(config)
    run = RunLog(folder, config.tracker, RunState())
    console = Console(Style.plain, list(config.task.agents), policy_by_agent(config))
    context = RunContext(
        config=config,
        folder=folder,
        log=run,
        console=console,
        preemption=PreemptionHandler(),
        device=device,
        is_resumed=False,
    )
    try:
        trainer = build_trainer(context)
        try:
            yield trainer
        finally:
            trainer.free()
    finally:
        distributed.shutdown()


def experience_of(trainer: Trainer, iteration: int = 0) -> Experience:
    """The experience of one iteration with the current weights, without training on it."""
    return trainer.collector.collect_iteration(iteration, trainer.state.moments, Stopwatch()).experience


def train_with_stop(root: Path, monkeypatch: pytest.MonkeyPatch, function: str, call: int, *overrides: str) -> Path:
    """Train a run that is preempted at a call of a function, counted from 1, and resumed; returns its folder.

    `function`: where it is looked up, as `package.module.name`.
    """
    module, _, name = function.rpartition(".")
    original, calls = getattr(import_module(module), name), count(1)

    def stop_at_call(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(*args, **kwargs)

    config, folder = new_run(root, *overrides)
    with monkeypatch.context() as stopping:
        stopping.setattr(function, stop_at_call)
        with pytest.raises(Preempted):
            run_training(config, folder, resumed=False)
    assert rows(folder)[-1]["iteration"] == call - 1
    run_training(config, folder, resumed=True)
    return folder


STOPPING_REWARD = '''
import os, random, signal
calls = 0

def reward(examples, responses):
    """Depends on the global random stream, which must be restored, and asks the run to leave at a chosen call."""
    global calls
    calls += 1
    if str(calls) == os.environ.get("STOP_AT_CALL"):
        os.kill(os.getpid(), signal.SIGTERM)
    noise = random.random()
    return {"team": [len(set(low) & set(row["low"])) / 3 + 0.1 * noise for low, row in zip(responses["low"], examples)]}
'''


def stopping_reward(root: Path) -> list[str]:
    """Overrides for `STOPPING_REWARD`, written below `root`: the run is preempted at call number `$STOP_AT_CALL`."""
    (root / "reward.py").write_text(STOPPING_REWARD)
    return ["reward=function", f"reward.function={root / 'reward.py'}:reward"]


def train_on_two_ranks(root: Path, *overrides: str) -> Path:
    """The folder of such a run on two ranks."""
    root.mkdir(parents=True, exist_ok=True)
    command = ["ippo_cli.cli.train", *SMALL, *overrides, f"output_dir={root}"]
    codes = finish(start_ranks(*command, folder=root), limit_s=500)
    assert codes == [0, 0], read_output(root)
    (metrics,) = root.glob("default/*/metrics.jsonl")
    return metrics.parent


def assert_metrics_close(
    one: Sequence[dict[str, Any]], two: Sequence[dict[str, Any]], *, rel: float = 1e-3, abs: float = 1e-5
) -> None:
    """Assert that runs with different numbers of ranks have equal metrics up to rounding, and null in the same places.

    Ignores `first_step_deviation`, which is only rounding noise.
    """
    assert len(one) == len(two)
    for first, second in zip(one, two, strict=True):
        assert first.keys() == second.keys()
        for key, value in first.items():
            if not key.endswith("first_step_deviation"):
                assert second[key] == (value if value is None else pytest.approx(value, rel=rel, abs=abs)), key


def stopped_and_resumed(root: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str, at_call: int = 4) -> Path:
    """The folder of a run that was preempted at that call of its reward, in its second iteration, and resumed.

    The fourth call belongs to the second iteration, after two calls of the evaluation.
    """
    config, folder = new_run(root, *overrides)
    with monkeypatch.context() as stopping:
        stopping.setenv("STOP_AT_CALL", str(at_call))
        with pytest.raises(Preempted):
            run_training(config, folder, resumed=False)
    assert rows(folder)[-1]["iteration"] == 1
    run_training(config, folder, resumed=True)
    return folder


def assert_resume_is_exact(root: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str, at_call: int = 4) -> Path:
    """Assert that a run which is preempted at that call of its reward, and resumed, equals a whole run: its metrics and
    all weights of its newest checkpoint. Returns the folder of the whole run.
    """
    monkeypatch.delenv("STOP_AT_CALL", raising=False)
    whole = train(root, *overrides)
    resumed = stopped_and_resumed(root, monkeypatch, *overrides, at_call=at_call)
    assert rows(resumed) == rows(whole)
    expected, found = (all_weights(folder) for folder in (whole, resumed))
    assert expected.keys() == found.keys()
    assert all(found[name].equal(value) for name, value in expected.items())
    return whole


def all_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of the newest checkpoint, by `FOLDER/ROLE/FILE/name`."""
    newest = newest_intact_checkpoint(folder / "checkpoints")
    assert newest is not None
    return {
        f"{file.relative_to(newest)}/{name}": value
        for file in sorted(newest.glob("*/*/*.safetensors"))
        for name, value in load_file(file).items()
    }


def assert_two_ranks_agree(
    root: Path, *overrides: str, ranks: Sequence[str] = (), rel: float = 1e-3, abs: float = 1e-5
) -> list[dict[str, Any]]:
    """Assert that a run on two ranks, with the overrides of `ranks`, has the metrics of one on one rank, and return
    these.
    """
    one = rows(train(root / "one", *overrides))
    assert_metrics_close(one, rows(train_on_two_ranks(root / "two", *overrides, *ranks)), rel=rel, abs=abs)
    return one
