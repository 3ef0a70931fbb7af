"""`mode=pilot`: runs a pilot on this rank, prints its report, and writes it below the output folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from ippo_cli.config.errors import (
    INTERRUPTED,
    NonFiniteError,
    Preempted,
    PreemptionRequested,
    RewardError,
    convert_storage_errors,
)
from ippo_cli.config.schema import Config, TrackerKind
from ippo_cli.config.secrets import redact_text
from ippo_cli.diagnosis.finding import Observations
from ippo_cli.diagnosis.observe import find_chat_templates
from ippo_cli.engine import distributed
from ippo_cli.pilot.folder import report_path, work_root
from ippo_cli.pilot.measure import Measurement, measure
from ippo_cli.pilot.report import describe_size, format_failure, format_report, to_json_data
from ippo_cli.pilot.size import PilotSize, compute_pilot_size
from ippo_cli.pilot.verdict import Assessment, assess, failed_assessment
from ippo_cli.runs.folder import display_path, write_atomically
from ippo_cli.training.build_trainer import RunContext, build_trainer
from ippo_cli.training.failure import handle_failure
from ippo_cli.training.process import run_rank
from ippo_cli.training.trainer import Trainer


def run_pilot(config: Config, folder: Path | None, *, start: Callable[[Path], None] | None = None) -> Path:
    """Measure in this process as one rank; returns the folder of the pilot in progress. Raises as `run_training`."""
    return run_rank(prepare_config(config), folder, partial(_run, config), root=work_root(config), start=start)


def prepare_config(config: Config) -> Config:
    """The run's configuration without trackers, and with all sampled prompts, also those without a signal."""
    tracker = replace(config.tracker, kind=TrackerKind.none, tensorboard=False, callback=None, report=False)
    return replace(config, tracker=tracker, rollout=replace(config.rollout, refill_rounds=0))


def _run(config: Config, context: RunContext) -> None:
    """`config`: of the run."""
    trainer: Trainer | None = None
    try:
        trainer = build_trainer(context)
        examples = len(trainer.collector.schedule.examples)
        size = compute_pilot_size(config, trainer.plan, distributed.world_size(), examples)
        context.console.print_line(describe_size(size))
        measurement, assessment = _measure(trainer, config, size)
        _write(context, measurement, assessment)
    except PreemptionRequested as request:
        if not distributed.is_main():
            raise SystemExit(INTERRUPTED) from request
        raise Preempted("stop requested: the pilot has measured nothing; start it again") from None
    except BaseException as error:
        reported = handle_failure(error, context.log, None)
        if reported is error:
            raise
        raise reported from error
    finally:
        if trainer is not None:
            trainer.free()
    context.log.finish("done")


def _measure(trainer: Trainer, config: Config, size: PilotSize) -> tuple[Measurement | None, Assessment]:
    """What a pilot finds, also if the error of a run ends it."""
    agents = list(trainer.state.team)
    try:
        measurement = measure(trainer, size)
    except RewardError as error:
        return None, failed_assessment(f"the reward fails: {error}", "correct the reward or its service", agents)
    except NonFiniteError as error:
        if distributed.world_size() > 1:  # the other ranks end with an error of their own
            raise
        return None, failed_assessment(str(error), "lower actor.learning_rate", agents)
    observations = Observations(
        config=config,
        rows=[measurement.row],
        episodes=measurement.samples,
        chat_templates=find_chat_templates(config),
    )
    return measurement, assess(measurement, observations)


def _write(context: RunContext, measurement: Measurement | None, assessment: Assessment) -> None:
    """Print the report, and write it as text and JSON. Collective."""

    def write() -> None:
        text = format_failure(assessment) if measurement is None else format_report(measurement, assessment)
        data = to_json_data(measurement, assessment)
        target = report_path(context.folder)
        with convert_storage_errors(str(target)):
            target.parent.mkdir(exist_ok=True)
            write_atomically(target, redact_text(json.dumps(data, indent=1)) + "\n")
            write_atomically(target.with_suffix(".txt"), redact_text(text) + "\n")
        for line in ("", *text.splitlines()):
            context.console.print_line(line)
        context.console.print_line(f"-> {display_path(target)}")

    distributed.run_on_main(write)
