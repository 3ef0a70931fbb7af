"""Evaluates the weights of a run or a Hugging Face model on held-out data, with the evaluation code of training."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ippo_cli.agents.frozen import Record, load_frozen_agent
from ippo_cli.agents.initial import describe_source, read_record, record_path, verify_record
from ippo_cli.config.adapters import ADAPTER_CONFIG, ADAPTER_SUBFOLDER
from ippo_cli.config.errors import ConfigError, PreflightError, ResumeError, convert_storage_errors
from ippo_cli.config.schema import Config
from ippo_cli.config.secrets import mask_secrets
from ippo_cli.config.served_agents import served_agents
from ippo_cli.config.teams import base_by_policy, policy_by_agent
from ippo_cli.config.text import format_count
from ippo_cli.engine import distributed
from ippo_cli.evaluation.estimates import confidence_intervals, length_summary
from ippo_cli.evaluation.exclude_trained_rows import exclude_trained_rows
from ippo_cli.planning.prepare import Purpose, load_task_and_reward
from ippo_cli.planning.served_agents import check_servers
from ippo_cli.reporting.console import Console, series_by_metric
from ippo_cli.rewards.contract import (
    RewardContext,
    RewardFunction,
    close_reward,
    prepare_reward,
)
from ippo_cli.rollout.collect import collect
from ippo_cli.rollout.combined_generator import build_with_served_agents
from ippo_cli.rollout.generator import Generator, SamplingStream, build_generator, context_limit, sampling_settings
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.rollout.served_policy import ServedPolicy, load_served_policy
from ippo_cli.runs.checkpoint_files import find_damage, newest_intact_checkpoint
from ippo_cli.runs.folder import MANIFEST, display_path, list_checkpoints, print_warning, write_atomically
from ippo_cli.runs.json_values import replace_non_finite
from ippo_cli.runs.output import print_status
from ippo_cli.runs.records import RunRecord
from ippo_cli.runs.run_files import read_state_file
from ippo_cli.tasks.conversation import PromptFormat, prompt_formats
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.tasks.eval_rows import sample_rows, select_eval_rows
from ippo_cli.tasks.prompt_lengths import check_prompt_lengths, fitting_rows
from ippo_cli.tasks.rows import take_rows
from ippo_cli.tasks.task import (
    Task,
    can_reuse_prefix,
    example_only_agents,
    make_environment_pool,
)
from ippo_cli.tasks.templates import first_message
from ippo_cli.training.checkpoint import INITIAL
from ippo_cli.training.evaluate import Evaluation, evaluate
from ippo_cli.training.process import prepare_process
from ippo_cli.types import Batch, Episode, Example

OTHER_ROWS = ("task.eval=", "task.eval_split=")
"""Overrides of an evaluation that replace the held-out rows on which a run chose its best checkpoint."""


@dataclass(frozen=True, kw_only=True)
class EvaluatedWeights:
    """The weights to evaluate: the source of each agent's model, and a name for all of them."""

    name: str
    models: dict[str, Record]
    metadata: dict[str, Any]  # further fields that describe the weights in result files
    chosen_among: int = 1  # evaluations of the run of which these weights have the best score


def evaluate_run(config: Config, folder: Path, checkpoint: str, overrides: Sequence[str]) -> Path:
    """Score weights of a run (`latest`, `best`, `initial`, or an iteration) on the held-out data of the task.

    Prints the scores and writes them to `evaluations/` in the run folder, together with the `overrides` of this
    evaluation. Returns the file.
    """
    subject = find_weights(folder, checkpoint, policy_by_agent(config), adapters_by_agent(config))
    return _evaluate_weights(config, subject, folder, overrides)


def adapters_by_agent(config: Config) -> dict[str, tuple[str, str | None]]:
    """By agent with a LoRA adapter, the name of its base and the adapter that it was initialized from, or None."""
    base = base_by_policy(config)
    return {
        name: (base[holder], actor.first_adapter)
        for name, holder in policy_by_agent(config).items()
        if (actor := config.task.agents[name].actor).trains_adapter
    }


def evaluate_model(config: Config, overrides: Sequence[str]) -> Path:
    """Score the Hugging Face models in `actor.model` of the agents. Writes to `evaluations/` in `output_dir`."""
    subject = configured_weights(config)
    # Different models may have the same folder name.
    identity = [*overrides, json.dumps([subject.metadata, subject.models], sort_keys=True)]
    return _evaluate_weights(config, subject, Path(config.output_dir), overrides, identity)


def configured_weights(config: Config) -> EvaluatedWeights:
    """The untrained models of the configuration."""
    actors = {name: agent.actor for name, agent in config.task.agents.items()}
    models = {
        name: describe_source(str(actor.model), actor.revision, has_weights=not actor.is_served)
        for name, actor in actors.items()
    }
    for agent, actor in actors.items():
        if actor.trains_adapter:
            first = actor.first_adapter
            models[agent]["adapter"] = None if first is None else describe_source(first, None)
    places = {str(record["model"]) for record in models.values()}
    parents = {Path(place).parent for place in places}
    team = next(iter(parents)) if len(places) > 1 and len(parents) == 1 else Path(next(iter(models.values()))["model"])
    name = team.name or Path(next(iter(places))).name
    task = {"task": config.task.kind, "seed": config.seed}
    return EvaluatedWeights(name=name, models=models, metadata=task)


def single_model_weights(
    config: Config, model: str, models_by_agent: Mapping[str, str] | None = None
) -> EvaluatedWeights:
    """One Hugging Face model for all agents, or the models in `models_by_agent`."""
    places = models_by_agent or dict.fromkeys(config.task.agents, model)
    records = {place: describe_source(place, None) for place in dict.fromkeys(places.values())}
    return EvaluatedWeights(
        name=Path(model).name,
        models={name: records[place] for name, place in places.items()},
        metadata={"task": config.task.kind, "model": model},
    )


EvaluatedTeam = tuple[Mapping[str, GenerationPolicy], Mapping[str, PromptFormat]]
"""Policies and prompt formats by agent."""


def count_comparisons(subjects: Sequence[EvaluatedWeights], overrides: Sequence[str]) -> int:
    """The number of evaluations of which the best was chosen on the rows of this evaluation; 1 without a choice.

    Of two chosen sides, each has an advantage over the other by its own choice only, so the larger number counts.
    """
    if any(text.lstrip("+").startswith(OTHER_ROWS) for text in overrides):
        return 1
    return max(subject.chosen_among for subject in subjects)


def choice_messages(subjects: Sequence[EvaluatedWeights], comparisons: int) -> list[str]:
    """Messages about weights that were chosen by their score on the same rows."""
    if comparisons == 1:
        return []
    return [
        f"{subject.name} has the best score of {subject.chosen_among} evaluations on these rows, which is too high on "
        "average; intervals and p values allow for the choice (Bonferroni)"
        for subject in subjects
        if subject.chosen_among > 1
    ]


@dataclass(frozen=True, kw_only=True)
class EvaluationTask:
    """The held-out examples, environments and reward of a task, which all evaluated policies share."""

    config: Config
    environments: EnvironmentPool
    held_out: Sequence[Example]
    reward: RewardFunction
    too_long: int = 0  # number of examples that were excluded because their prompts are too long
    trained_on: int = 0  # number of examples that were excluded because a compared run was trained on them

    @property
    def row_indices(self) -> list[int]:
        """The indices of the held-out examples in the evaluation."""
        return select_eval_rows(len(self.held_out), self.config.evaluation)

    def sample_rows(self, size: int) -> list[int]:
        """A random subset of these indices, sorted, the same for equal `evaluation.seed`; all if `size` is larger."""
        return sample_rows(self.row_indices, size, self.config.evaluation.seed)

    def build_formats(self, policies: Mapping[str, GenerationPolicy]) -> dict[str, PromptFormat]:
        """The prompt format of each policy. Raises `ConfigError` for an invalid format or a prompt that is too long."""
        config = self.config
        tokenizers = {name: policy.tokenizer for name, policy in policies.items()}
        formats = prompt_formats(config.task, config.rollout, tokenizers)
        if not config.task.drops_overlong:
            rows = [(row, self.held_out[row]) for row in self.row_indices]
            check_prompt_lengths(
                self._first_speakers(formats),
                self._first_message,
                rows,
                "the held-out data",
                self._context_limits(policies),
            )
        return formats

    def drop_too_long_rows(self, teams: Sequence[EvaluatedTeam]) -> EvaluationTask:
        """A copy without rows whose prompts are too long for any of the teams, if `task.overlong=drop`.

        Raises `PreflightError` if no row is left.
        """
        if not self.config.task.drops_overlong:
            return self
        fitting = set(range(len(self.held_out)))
        for policies, formats in teams:
            first_formats = self._first_speakers(formats)
            fitting &= set(
                fitting_rows(first_formats, self._first_message, self.held_out, self._context_limits(policies))
            )
        if not fitting:
            raise PreflightError("task.overlong=drop leaves no held-out row; raise rollout.max_prompt_tokens")
        held_out = take_rows(self.held_out, sorted(fitting))
        return replace(self, held_out=held_out, too_long=len(self.held_out) - len(fitting))

    def exclude_rows_of_runs(self, runs: Mapping[Path, Config]) -> EvaluationTask:
        """A copy without rows that one of the runs was trained on. `runs`: training configurations by folder."""
        places = exclude_trained_rows(self.config.task, self.held_out, runs)
        if len(places) == len(self.held_out):
            return self
        return replace(self, held_out=take_rows(self.held_out, places), trained_on=len(self.held_out) - len(places))

    @property
    def exclusion_messages(self) -> list[str]:
        """Messages about excluded rows in comparisons and cross-play."""
        message = f"{self.trained_on} held-out rows are excluded: a run of another seed was trained on them"
        return [message] if self.trained_on else []

    def _first_message(self, agent: str, example: Example) -> str:
        return first_message(agent, self.config.task.agents[agent], example)

    def _first_speakers(self, formats: Mapping[str, PromptFormat]) -> dict[str, PromptFormat]:
        return {name: formats[name] for name in example_only_agents(self.config.task)}

    def _context_limits(self, policies: Mapping[str, GenerationPolicy]) -> dict[str, int]:
        rollout = self.config.rollout
        return {name: context_limit(policy.model_config, rollout) for name, policy in policies.items()}

    def score_team(
        self,
        policies: Mapping[str, GenerationPolicy],
        formats: Mapping[str, PromptFormat],
        console: Console,
        *,
        keep_all_samples: bool = False,
    ) -> Evaluation:
        """Sample the policies on the held-out examples and score them. Collective.

        `keep_all_samples`: return the samples of all episodes.
        """
        config = self.config

        def report_progress(agent: str, done: int, rows: int) -> None:
            console.show_progress(f"generating responses of {agent}", done, rows)

        def build_local(own: Mapping[str, GenerationPolicy]) -> Generator:
            return build_generator(own, config.rollout, sampling, report_progress, continues=can_reuse_prefix(config))

        sampling = sampling_settings(config.task)
        generator = build_with_served_agents(policies, config.rollout, sampling, build_local, report_progress)

        def play(batch: Batch, greedy: bool) -> list[Episode]:
            draws = SamplingStream(seed=config.evaluation.seed, purpose="evaluation", greedy=greedy)
            return collect(self.environments, formats, batch, generator, draws)

        task = Task(train=(), held_out=self.held_out)
        try:
            return evaluate(play, task, self.reward, config, keep_all_samples=keep_all_samples)
        finally:
            generator.close()


@contextmanager
def open_evaluation_task(config: Config, device: torch.device) -> Iterator[EvaluationTask]:
    """Load held-out data, environments and reward of a configuration; close environments and reward at the end."""
    with ExitStack() as resources:
        environments = make_environment_pool(config.task)
        resources.callback(environments.close)
        task, reward = load_task_and_reward(
            config, distributed.world_size(), Purpose.evaluation, lambda text: print_status(f"warning: {text}")
        )
        resources.callback(close_reward, reward)
        prepare_reward(reward, RewardContext(device=device, folder=None))
        yield EvaluationTask(config=config, environments=environments, held_out=task.held_out, reward=reward)


def load_policies(
    config: Config, weights: EvaluatedWeights, device: torch.device, loaded: dict[Any, Any]
) -> dict[str, GenerationPolicy]:
    """The policy of each agent, in the order of the task. `loaded` caches models, so that equal weights load once.

    Servers of agents are checked before a model loads. Raises `UnusableServer`.
    """
    served: dict[str, ServedPolicy] = {}
    for name, actor in served_agents(config).items():
        record = weights.models[name]
        served[name] = load_served_policy(name, actor, record["model"], record["commit"])
    check_servers(config, served)
    policies: dict[str, GenerationPolicy] = {}
    for name, agent in config.task.agents.items():
        if name in served:
            policies[name] = served[name]
            continue
        record = weights.models[name]
        adapter = record.get("adapter") or {}
        actor = agent.actor
        key = (record["model"], record["commit"], actor.dtype.value, adapter.get("model"), "adapter" in record)
        key += (record.get("tokenizer", actor.tokenizer), actor.tokenizer_revision, str(actor.model_args))
        key += (actor.chat_template,)
        if key not in loaded:
            loaded[key] = load_frozen_agent(name, record, agent.actor, device, loaded)
        policies[name] = replace(loaded[key], name=name)
    return policies


def _evaluate_weights(
    config: Config,
    weights: EvaluatedWeights,
    root: Path,
    overrides: Sequence[str],
    identity: Sequence[str] | None = None,
) -> Path:
    device = prepare_process(config)
    try:
        with (
            open_evaluation_task(config, device) as exam,
            Console(config.tracker.console, list(config.task.agents)) as console,
        ):
            policies = load_policies(config, weights, device, {})
            formats = exam.build_formats(policies)
            exam = exam.drop_too_long_rows([(policies, formats)])
            result = exam.score_team(policies, formats, console, keep_all_samples=True)
            comparisons = count_comparisons([weights], overrides)
            samples, interval_by_metric = gather_samples(result), confidence_intervals(result, comparisons)
            console.show_samples(samples[: config.tracker.samples])
            primary_metric, rows = config.task.primary_metric, len(exam.row_indices)
            record = {
                **weights.metadata,
                "models": weights.models,
                "overrides": list(overrides),
                "rows": rows,
                "episodes": {mode: rows * count for mode, count in result.generations.items()},
                "failed": result.failed_counts,
                "too_long": exam.too_long,
                "primary_metric": primary_metric,
                "score": result.metrics[primary_metric],
                **result.metrics,
                "intervals": {key: replace_non_finite(interval) for key, interval in interval_by_metric.items()},
                "comparisons": comparisons,
                "lengths": length_summary(result),
            }
            target = (
                root / "evaluations" / result_file_name(weights.name, config.evaluation.seed, identity or overrides)
            )
            distributed.run_on_main(lambda: _write_results(target, record, samples))
            failed, too_long = sum(result.failed_counts.values()), exam.too_long
            without = f", {format_count(failed, 'episode')} without a reward" if failed else ""
            excluded = f", {format_count(too_long, 'row')} excluded as too long" if too_long else ""
            console.print_line(
                f"{weights.name}: held-out score {record['score']:.3f} ({primary_metric}, {format_count(rows, 'row')}"
                f"{without}{excluded})"
            )
            for key, values in series_by_metric(result.metrics).items():
                interval = (
                    f"   [{interval_by_metric[key]['low']:.4f}, {interval_by_metric[key]['high']:.4f}]"
                    if key in interval_by_metric
                    else ""
                )
                console.print_line(f"  {key:<40} {' '.join(f'{value:.4f}' for value in values)}{interval}")
            for line in choice_messages([weights], comparisons):
                console.print_line(line)
            console.print_line(f"written to {display_path(target)} and {samples_file(target).name}")
    finally:
        distributed.shutdown()
    return target


def gather_samples(result: Evaluation) -> list[dict[str, Any]]:
    """The samples of all ranks, grouped by mode. Collective."""
    parts = distributed.gather_objects(result.samples)
    return [row for mode in result.generations for part in parts for row in part if row["mode"] == mode]


def samples_file(target: Path) -> Path:
    """The file of the samples that belongs to a file of scores."""
    return target.with_suffix(".samples.jsonl")


def write_samples(file: Path, samples: Sequence[Mapping[str, Any]]) -> None:
    """Write one JSON line per episode."""
    write_atomically(file, "".join(json.dumps(row) + "\n" for row in samples))


def _write_results(target: Path, record: dict[str, Any], samples: Sequence[Mapping[str, Any]]) -> None:
    with convert_storage_errors(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_samples(samples_file(target), samples)
    write_record(target, replace_non_finite(record))


def write_record(target: Path, record: Mapping[str, Any]) -> None:
    """Write results as JSON, without secrets. Raises `StorageError`."""
    with convert_storage_errors(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, json.dumps(mask_secrets(dict(record)), indent=1) + "\n")


def result_file_name(weights: str, seed: int, identity: Sequence[str]) -> str:
    """The file name of scores; equal evaluations have equal names. It has the seed, and a hash of all else."""
    others = [text for text in identity if not text.startswith("evaluation.seed=")]
    digest = f"-{hashlib.sha256(json.dumps(others).encode()).hexdigest()[:8]}" if others else ""
    return f"{weights}-seed{seed}{digest}.json"


def find_weights(
    folder: Path,
    checkpoint: str,
    policy_of_agent: Mapping[str, str],
    adapters: Mapping[str, tuple[str, str | None]] | None = None,
) -> EvaluatedWeights:
    """Find weights of a run and verify their checksums. Raises `ConfigError` or `ResumeError`.

    `policy_of_agent`: the name of each agent's weights; frozen agents have their initial weights. `adapters`: see
    `adapters_by_agent`.
    """
    adapters = adapters or {}
    iteration = _best_iteration(folder) if checkpoint == "best" else None
    chosen_among = _count_evaluations(folder, checkpoint)
    if checkpoint == INITIAL or iteration == 0 or (checkpoint.isdigit() and int(checkpoint) == 0):
        models = {name: _initial_record(folder, holder, adapters.get(name)) for name, holder in policy_of_agent.items()}
        return EvaluatedWeights(
            name=INITIAL,
            models=models,
            metadata={"run": str(folder), "checkpoint": INITIAL, "iteration": 0},
            chosen_among=chosen_among,
        )
    found = _find_checkpoint(folder, checkpoint, iteration)
    listed = json.loads((found / MANIFEST).read_text())["files"]
    models: dict[str, Record] = {}
    for name, holder in policy_of_agent.items():
        place = f"{holder}/actor/"
        digests = {
            file.removeprefix(place): entry["sha256"] for file, entry in listed.items() if file.startswith(place)
        }
        if not digests and record_path(folder, adapters.get(name, (holder, None))[0]).is_file():
            models[name] = _initial_record(folder, holder, adapters.get(name))
            continue
        if not digests:
            known = sorted({file.split("/")[0] for file in listed if "/actor/" in file})
            raise ConfigError("task.agents", f"has {name}, which is not an agent of this run", f"use {' '.join(known)}")
        models[name] = {"model": str(found / holder / "actor"), "commit": None, "sha256": digests}
        if name in adapters:
            models[name] = _adapter_on_base(folder, adapters[name][0], models[name])
        models[name]["tokenizer"] = str(found / holder / "actor")
    metadata = {"run": str(folder), "checkpoint": found.name, "iteration": int(found.name.split("_")[1])}
    return EvaluatedWeights(name=found.name, models=models, metadata=metadata, chosen_among=chosen_among)


def _count_evaluations(folder: Path, checkpoint: str) -> int:
    """The number of a run's evaluations if `checkpoint` is the best of them; 1 for other checkpoints.

    The iteration's number may name the best checkpoint too, unless it is that of the last evaluation.
    """
    record = RunRecord(folder)
    try:
        known = record.state.get("evaluation") or {}
    except ResumeError:
        return 1
    best, last = ((known.get(name) or {}).get("iteration") for name in ("best", "last"))
    if checkpoint != "best" and (not checkpoint.isdigit() or int(checkpoint) != best or best == last):
        return 1
    metric = f"eval/{record.primary_metric}"
    return max(sum(math.isfinite(row.get(metric, math.nan)) for row in record.metrics), 1)


def _adapter_on_base(folder: Path, base: str, saved: Record) -> Record:
    """The record of an adapter on its base, which computes exactly what the run computes; a merged model is rounded.

    Falls back to the merged model with a warning if the base is missing.
    """
    if ADAPTER_CONFIG in saved["sha256"]:  # saved without a merged model
        return _initial_model_record(folder, base) | {"adapter": saved}
    beside = f"{ADAPTER_SUBFOLDER}/"
    digests = {file.removeprefix(beside): digest for file, digest in saved["sha256"].items() if file.startswith(beside)}
    adapter = {"model": str(Path(saved["model"]) / ADAPTER_SUBFOLDER), "commit": None, "sha256": digests}
    try:
        model = _initial_model_record(folder, base)
        if model["sha256"] and not Path(model["model"]).is_dir():
            raise ResumeError(f"{model['model']} no longer exists")
    except ResumeError as error:
        print_warning(f"the base of {saved['model']} cannot be used ({error}); evaluating the merged model")
        return saved
    return model | {"adapter": adapter}


def _initial_record(folder: Path, holder: str, adapter: tuple[str, str | None] | None) -> Record:
    """The record of initial weights: a model, or a base with the adapter from which training started, if any."""
    if adapter is None:
        return _initial_model_record(folder, holder)
    base, initial = adapter
    return _initial_model_record(folder, base) | {
        "adapter": None if initial is None else describe_source(initial, None)
    }


def _initial_model_record(folder: Path, holder: str) -> Record:
    """The record of the initial model of an agent or group: the copy in the run folder, or the original model."""
    if (template := record_path(folder, f"{holder}.chat_template")).is_file():
        file = read_record(template)
        verify_record(file["model"], file)
    record = read_record(record_path(folder, holder))
    own = folder / INITIAL / holder
    return verify_record(own, record) | {"model": str(own)} if own.is_dir() else verify_record(record["model"], record)


def _best_iteration(folder: Path) -> int:
    """The iteration with the best evaluation so far; 0 for the initial weights. Raises `ResumeError`."""
    try:
        known = read_state_file(folder).value["evaluation"]
        if known and (known.get("best") or {}).get("score") is None:
            raise ResumeError(f"run={folder}: no evaluation has a score, so none is the best; use checkpoint=latest")
        return int(known["best"]["iteration"])
    except (ValueError, KeyError, TypeError) as error:
        raise ResumeError(f"run={folder}: run.json has no evaluation ({error!r}); use checkpoint=latest") from error


def _find_checkpoint(folder: Path, checkpoint: str, iteration: int | None) -> Path:
    """The intact checkpoint of an iteration, or the newest one. Raises `ConfigError` or `ResumeError`."""
    root = folder / "checkpoints"
    if iteration is None and checkpoint != "latest":
        if not checkpoint.isdigit():
            raise ConfigError(
                f"checkpoint={checkpoint}", "is not a checkpoint", "use latest, best, initial or an iteration's number"
            )
        iteration = int(checkpoint)
    checkpoints = {int(path.name.split("_")[1]): path for path in list_checkpoints(root)}
    found = newest_intact_checkpoint(root) if iteration is None else checkpoints.get(iteration)
    if found is None and checkpoints and checkpoint.isdigit():
        rule = f"does not exist in {folder} (it may have been deleted by checkpoint.keep)"
        raise ConfigError(f"checkpoint={checkpoint}", rule, f"use one of {' '.join(map(str, checkpoints))}, or initial")
    if found is None:
        raise ResumeError(f"run={folder}: {_missing_checkpoint_message(checkpoints, checkpoint, iteration)}")
    if iteration is not None and (damage := find_damage(found)) is not None:
        intact = [number for number, path in checkpoints.items() if number != iteration and find_damage(path) is None]
        others = " or ".join(f"checkpoint={number}" for number in intact[-2:]) or "checkpoint=initial"
        raise ResumeError(f"{found} is damaged ({damage}); use {others}")
    return found


def _missing_checkpoint_message(checkpoints: Mapping[int, Path], checkpoint: str, iteration: int | None) -> str:
    """Why the checkpoint does not exist, and which checkpoints can be used."""
    numbers = " ".join(map(str, checkpoints))
    if not checkpoints:
        return "there are no checkpoints, and only the initial weights can be used: checkpoint=initial"
    if iteration is None:
        return f"all of its checkpoints are damaged ({numbers}); only checkpoint=initial can be used"
    which = f"checkpoint={checkpoint} is iteration {iteration}, which"
    return f"{which} does not exist (it may have been deleted by checkpoint.keep); use one of {numbers}, or initial"
