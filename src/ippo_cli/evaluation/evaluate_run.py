"""Evaluating a run's weights, or a Hugging Face model: the same code as during training, on held-out data alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ippo_cli.agents.agent import FrozenAgent
from ippo_cli.agents.frozen import Record, frozen_agent
from ippo_cli.agents.initial import description, read_record, record_file, verified
from ippo_cli.config.adapters import ADAPTER_CONFIG, BESIDE_MERGED
from ippo_cli.config.config_warnings import more_than_held_out
from ippo_cli.config.errors import ConfigError, PreflightError, ResumeError, storing
from ippo_cli.config.schema import Config, LoraActorConfig
from ippo_cli.config.secrets import kept
from ippo_cli.config.teams import base_of, holders
from ippo_cli.engine import distributed
from ippo_cli.evaluation.estimates import intervals, length_summary
from ippo_cli.evaluation.exclude_trained_rows import unseen_rows
from ippo_cli.planning.preflight import drops_too_long
from ippo_cli.reporting.console import Console, in_lines
from ippo_cli.reporting.run_log import finite
from ippo_cli.rewards.build import build_reward
from ippo_cli.rewards.contract import (
    Place,
    RewardFunction,
    close_reward,
    prepare_reward,
    reach_reward,
    sample_examples,
    try_reward,
)
from ippo_cli.rollout.collect import collect
from ippo_cli.rollout.generator import GENERATORS, Draws, context_limit, sampling_settings
from ippo_cli.runs.checkpoint_files import damaged, newest_intact
from ippo_cli.runs.folder import MANIFEST, all_checkpoints, warn, write_atomically
from ippo_cli.runs.output import announce
from ippo_cli.tasks.conversation import PromptFormat, fitting_rows, prompt_formats, refuse_too_long
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.tasks.eval_rows import examined_rows
from ippo_cli.tasks.rows import narrowed
from ippo_cli.tasks.task import (
    Task,
    goes_on,
    load_held_out,
    speakers_told_of_examples,
    task_environments,
    workers_of,
)
from ippo_cli.tasks.templates import first_message
from ippo_cli.training.checkpoint import INITIAL
from ippo_cli.training.evaluate import Evaluation, evaluate
from ippo_cli.training.process import prepare_process
from ippo_cli.types import Batch, Episode, Example


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Whose weights are evaluated: by agent, under a name that says which they are."""

    name: str
    models: dict[str, Record]
    told: dict[str, Any]  # what the result says of them beside


def evaluate_run(config: Config, folder: Path, checkpoint: str, overrides: Sequence[str]) -> Path:
    """Score a run's weights (`latest`, `best`, `initial`, or an iteration's number) on the task's held-out data.

    Prints the scores and writes them to `evaluations/` in the run's folder, with the `overrides` that made its
    configuration another one for this evaluation. Returns the file.
    """
    subject = find_weights(folder, checkpoint, holders(config), adapters_of(config))
    return _evaluate(config, subject, folder, overrides)


def adapters_of(config: Config) -> dict[str, tuple[str, str | None]]:
    """Of agents that are an adapter, the name of the base, and the adapter that it began as."""
    base = base_of(config)
    return {
        name: (base[holder], actor.adapter)
        for name, holder in holders(config).items()
        if isinstance(actor := config.task.agents[name].actor, LoraActorConfig)
    }


def evaluate_model(config: Config, overrides: Sequence[str]) -> Path:
    """Score a Hugging Face model, or one for each agent: `actor.model`. Writes to `evaluations/` in `output_dir`."""
    subject = models_of(config)
    # Equal names of other models are others.
    identity = [*overrides, json.dumps([subject.told, subject.models], sort_keys=True)]
    return _evaluate(config, subject, Path(config.output_dir), overrides, identity)


def models_of(config: Config) -> Subject:
    """The models that the configuration names, with nothing trained on them."""
    actors = {name: agent.actor for name, agent in config.task.agents.items()}
    models = {name: description(str(actor.model), actor.revision) for name, actor in actors.items()}
    for agent, actor in actors.items():
        if isinstance(actor, LoraActorConfig):
            models[agent]["adapter"] = None if actor.adapter is None else description(actor.adapter, None)
    places = {str(record["model"]) for record in models.values()}
    parents = {Path(place).parent for place in places}
    team = next(iter(parents)) if len(places) > 1 and len(parents) == 1 else Path(next(iter(models.values()))["model"])
    name = team.name or Path(next(iter(places))).name
    task = {"task": config.task.kind.value, "seed": config.seed}
    return Subject(name=name, models=models, told=task)


def one_model(config: Config, model: str, of_agents: Mapping[str, str] | None = None) -> Subject:
    """One Hugging Face model in the place of every agent, or the models `of_agents` in a folder."""
    places = of_agents or dict.fromkeys(config.task.agents, model)
    records = {place: description(place, None) for place in dict.fromkeys(places.values())}
    return Subject(
        name=Path(model).name,
        models={name: records[place] for name, place in places.items()},
        told={"task": config.task.kind.value, "model": model},
    )


Team = tuple[Mapping[str, FrozenAgent], Mapping[str, PromptFormat]]
"""Who speaks for each agent, and how each is asked."""


@dataclass(frozen=True, kw_only=True)
class Examination:
    """A task's held-out examples, which policies are asked about: always the same, with the same random numbers."""

    config: Config
    environments: EnvironmentPool
    held_out: Sequence[Example]
    reward: RewardFunction
    too_long: int = 0  # held-out examples that were left out for their prompts
    trained_on: int = 0  # held-out examples that were left out since a compared run was trained on them

    @property
    def asked(self) -> list[int]:
        """The places of the held-out examples that are asked about."""
        return examined_rows(len(self.held_out), self.config.evaluation)

    def formats(self, policies: Mapping[str, FrozenAgent]) -> dict[str, PromptFormat]:
        """How each of them is asked. Raises `ConfigError` where it cannot be, or there is no room for an example."""
        config = self.config
        tokenizers = {name: policy.tokenizer for name, policy in policies.items()}
        formats = prompt_formats(config.task, config.rollout, tokenizers)
        if not drops_too_long(config):
            told = [(row, self.held_out[row]) for row in self.asked]
            refuse_too_long(
                self._first_speakers(formats), self._message, told, "the held-out data", self._contexts(policies)
            )
        return formats

    def fitting(self, teams: Sequence[Team]) -> Examination:
        """The same, without rows that there is no room for in some team's prompts, where these are to be dropped."""
        if not drops_too_long(self.config):
            return self
        kept = set(range(len(self.held_out)))
        for policies, formats in teams:
            speakers = self._first_speakers(formats)
            kept &= set(fitting_rows(speakers, self._message, self.held_out, self._contexts(policies)))
        if not kept:
            raise PreflightError("task.too_long=drop leaves no held-out row; raise rollout.max_prompt_tokens")
        return replace(self, held_out=narrowed(self.held_out, sorted(kept)), too_long=len(self.held_out) - len(kept))

    def new_to(self, runs: Mapping[Path, Config]) -> Examination:
        """The same, without rows that one of these runs was trained on, as their configurations were then."""
        places = unseen_rows(self.config.task, self.held_out, runs)
        if len(places) == len(self.held_out):
            return self
        return replace(self, held_out=narrowed(self.held_out, places), trained_on=len(self.held_out) - len(places))

    @property
    def left_out(self) -> list[str]:
        """What to say of rows that two runs or more are not asked about."""
        seen = f"{self.trained_on} held-out rows are left out: a run of another seed was trained on them"
        return [seen] if self.trained_on else []

    def _message(self, agent: str, example: Example) -> str:
        return first_message(agent, self.config.task.agents[agent], example)

    def _first_speakers(self, formats: Mapping[str, PromptFormat]) -> dict[str, PromptFormat]:
        return {name: formats[name] for name in speakers_told_of_examples(self.config.task)}

    def _contexts(self, policies: Mapping[str, FrozenAgent]) -> dict[str, int]:
        rollout = self.config.rollout
        return {name: context_limit(policy.policy.lm.config, rollout) for name, policy in policies.items()}

    def scores(
        self,
        policies: Mapping[str, FrozenAgent],
        formats: Mapping[str, PromptFormat],
        console: Console,
        *,
        every_sample: bool = False,
    ) -> Evaluation:
        """What they say, scored; with `every_sample` all of it is kept. Collective."""
        config = self.config

        def play(batch: Batch, greedy: bool) -> list[Episode]:
            generator = GENERATORS[config.rollout.kind](
                policies,
                config.rollout,
                sampling_settings(config.task),
                lambda agent, done, rows: console.progress(f"generating responses of {agent}", done, rows),
                continues=goes_on(config),
            )
            draws = Draws(seed=config.evaluation.seed, purpose="evaluation", greedy=greedy)
            return collect(self.environments, formats, batch, generator, draws)

        task = Task(train=(), held_out=self.held_out)
        return evaluate(play, task, self.reward, config, every_sample=every_sample)


@contextmanager
def examination(config: Config, device: torch.device) -> Iterator[Examination]:
    """Of the task of a configuration; its environments and its reward are closed afterwards."""
    with ExitStack() as held:
        environments = EnvironmentPool(task_environments(config.task), workers=workers_of(config.task))
        held.callback(environments.close)
        held_out = load_held_out(config.task, config.seed)
        if (line := more_than_held_out(config, len(held_out))) is not None:
            announce(f"warning: {line}")
        reward = build_reward(config.reward, config.task.agents)
        held.callback(close_reward, reward)
        for warning in try_reward(reward, sample_examples(held_out)):
            announce(f"warning: {warning}")
        reach_reward(reward)
        prepare_reward(reward, Place(device=device, folder=None))
        yield Examination(config=config, environments=environments, held_out=held_out, reward=reward)


def load_policies(
    config: Config, subject: Subject, device: torch.device, loaded: dict[Any, Any]
) -> dict[str, FrozenAgent]:
    """Whoever speaks for each agent, in the task's order; equal weights are loaded once, and kept in `loaded`."""
    policies: dict[str, FrozenAgent] = {}
    for name, agent in config.task.agents.items():
        record = subject.models[name]
        adapter = record.get("adapter") or {}
        actor = agent.actor
        key = (record["model"], record["commit"], actor.dtype.value, adapter.get("model"), "adapter" in record)
        key += (record.get("tokenizer", actor.tokenizer), actor.tokenizer_revision, str(actor.model_args))
        if key not in loaded:
            loaded[key] = frozen_agent(name, record, agent.actor, device, loaded)
        policies[name] = replace(loaded[key], name=name)
    return policies


def _evaluate(
    config: Config, subject: Subject, root: Path, overrides: Sequence[str], identity: Sequence[str] | None = None
) -> Path:
    device = prepare_process(config)
    try:
        with (
            examination(config, device) as exam,
            Console(config.tracker.console, list(config.task.agents)) as console,
        ):
            policies = load_policies(config, subject, device, {})
            formats = exam.formats(policies)
            exam = exam.fitting([(policies, formats)])
            result = exam.scores(policies, formats, console, every_sample=True)
            samples, certain = all_samples(result), intervals(result, config.evaluation.seed)
            console.samples(samples[: config.tracker.samples])
            primary_metric, rows = config.task.primary_metric, len(exam.asked)
            record = {
                **subject.told,
                "models": subject.models,
                "overrides": list(overrides),
                "rows": rows,
                "episodes": {mode: rows * often for mode, often in result.generations.items()},
                "failed": result.failed,
                "too_long": exam.too_long,
                "primary_metric": primary_metric,
                "score": result.metrics[primary_metric],
                **result.metrics,
                "intervals": {key: finite(one) for key, one in certain.items()},
                "lengths": length_summary(result),
            }
            target = root / "evaluations" / file_name(subject.name, config.evaluation.seed, identity or overrides)
            distributed.on_main(lambda: _write(target, record, samples))
            failed = sum(result.failed.values())
            console.say(
                f"{subject.name}: held-out score {record['score']:.3f} ({primary_metric}, {rows} rows"
                f"{f', {failed} episodes without a reward' if failed else ''}"
                f"{f', {exam.too_long} rows left out as too long' if exam.too_long else ''})"
            )
            for key, values in in_lines(result.metrics).items():
                interval = f"   [{certain[key]['low']:.4f}, {certain[key]['high']:.4f}]" if key in certain else ""
                console.say(f"  {key:<40} {' '.join(f'{value:.4f}' for value in values)}{interval}")
            console.say(f"written to {target} and {samples_file(target).name}")
    finally:
        distributed.shutdown()
    return target


def all_samples(result: Evaluation) -> list[dict[str, Any]]:
    """Every rank's samples, by mode. Collective."""
    parts = distributed.gather_objects(result.samples)
    return [row for mode in result.generations for part in parts for row in part if row["mode"] == mode]


def samples_file(target: Path) -> Path:
    """Where the samples lie that the scores in a file are of."""
    return target.with_suffix(".samples.jsonl")


def write_samples(file: Path, samples: Sequence[Mapping[str, Any]]) -> None:
    """One line for each episode."""
    write_atomically(file, "".join(json.dumps(row) + "\n" for row in samples))


def _write(target: Path, record: dict[str, Any], samples: Sequence[Mapping[str, Any]]) -> None:
    with storing(str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_samples(samples_file(target), samples)
        write_atomically(target, json.dumps(kept(finite(record)), indent=1) + "\n")


def file_name(weights: str, seed: int, identity: Sequence[str]) -> str:
    """Of an evaluation's scores: the same for the same evaluation. The seed is readable, all else is hashed."""
    others = [text for text in identity if not text.startswith("evaluation.seed=")]
    digest = f"-{hashlib.sha256(json.dumps(others).encode()).hexdigest()[:8]}" if others else ""
    return f"{weights}-seed{seed}{digest}.json"


def find_weights(
    folder: Path,
    checkpoint: str,
    holder_of: Mapping[str, str],
    adapters: Mapping[str, tuple[str, str | None]] | None = None,
) -> Subject:
    """The named weights of a run, checked to be what was written. Raises `ConfigError` or `ResumeError`.

    `holder_of`: by agent, the name that its weights go by. Those of a frozen agent are the initial ones. `adapters`:
    of agents that are an adapter, the name of the base, and the adapter that it began as.
    """
    adapters = adapters or {}
    iteration = _best_iteration(folder) if checkpoint == "best" else None
    if checkpoint == INITIAL or iteration == 0 or (checkpoint.isdigit() and int(checkpoint) == 0):
        models = {name: _began(folder, holder, adapters.get(name)) for name, holder in holder_of.items()}
        return Subject(name=INITIAL, models=models, told={"run": str(folder), "checkpoint": INITIAL, "iteration": 0})
    found = _find_checkpoint(folder, checkpoint, iteration)
    listed = json.loads((found / MANIFEST).read_text())["files"]
    models: dict[str, Record] = {}
    for name, holder in holder_of.items():
        place = f"{holder}/actor/"
        digests = {
            file.removeprefix(place): entry["sha256"] for file, entry in listed.items() if file.startswith(place)
        }
        if not digests and record_file(folder, adapters.get(name, (holder, None))[0]).is_file():
            models[name] = _began(folder, holder, adapters.get(name))
            continue
        if not digests:
            there = sorted({file.split("/")[0] for file in listed if "/actor/" in file})
            raise ConfigError("task.agents", f"names {name}, who is no agent of this run", f"it has {' '.join(there)}")
        models[name] = {"model": str(found / holder / "actor"), "commit": None, "sha256": digests}
        if name in adapters:
            models[name] = _as_trained(folder, adapters[name][0], models[name])
        models[name]["tokenizer"] = str(found / holder / "actor")
    told = {"run": str(folder), "checkpoint": found.name, "iteration": int(found.name.split("_")[1])}
    return Subject(name=found.name, models=models, told=told)


def _as_trained(folder: Path, base: str, saved: Record) -> Record:
    """An adapter on the base that it was trained on: exactly what the run computes, where a merged model only comes
    near. The merged model is used where its base is gone."""
    if ADAPTER_CONFIG in saved["sha256"]:  # the adapter without a merged model
        return _initial_model(folder, base) | {"adapter": saved}
    beside = f"{BESIDE_MERGED}/"
    digests = {file.removeprefix(beside): digest for file, digest in saved["sha256"].items() if file.startswith(beside)}
    adapter = {"model": str(Path(saved["model"]) / BESIDE_MERGED), "commit": None, "sha256": digests}
    try:
        model = _initial_model(folder, base)
        if model["sha256"] and not Path(model["model"]).is_dir():
            raise ResumeError(f"{model['model']} is not there any more")
    except ResumeError as error:
        warn(f"the base of {saved['model']} cannot be used ({error}); evaluating the merged model")
        return saved
    return model | {"adapter": adapter}


def _began(folder: Path, holder: str, adapter: tuple[str, str | None] | None) -> Record:
    """What weights of the run were before training: a model, or a base's and maybe an earlier adapter on it."""
    if adapter is None:
        return _initial_model(folder, holder)
    base, began = adapter
    return _initial_model(folder, base) | {"adapter": None if began is None else description(began, None)}


def _initial_model(folder: Path, holder: str) -> Record:
    """What an agent or group of the run began with: the run's own copy, or the model that it was loaded from."""
    record = read_record(record_file(folder, holder))
    own = folder / INITIAL / holder
    return verified(own, record) | {"model": str(own)} if own.is_dir() else verified(record["model"], record)


def _best_iteration(folder: Path) -> int:
    """The iteration with the best evaluation so far, 0 for the weights before training."""
    try:
        return int(json.loads((folder / "run.json").read_text())["evaluation"]["best"]["iteration"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ResumeError(
            f"run={folder}: run.json tells of no evaluation ({error!r}); use checkpoint=latest"
        ) from error


def _find_checkpoint(folder: Path, checkpoint: str, iteration: int | None) -> Path:
    """The checkpoint after an iteration, or the newest one."""
    root = folder / "checkpoints"
    if iteration is None and checkpoint != "latest":
        if not checkpoint.isdigit():
            raise ConfigError(
                f"checkpoint={checkpoint}", "is not known", "use latest, best, initial or an iteration's number"
            )
        iteration = int(checkpoint)
    there = {int(path.name.split("_")[1]): path for path in all_checkpoints(root)}
    found = newest_intact(root) if iteration is None else there.get(iteration)
    if found is None:
        raise ResumeError(f"run={folder}: {_missing_checkpoint(there, checkpoint, iteration)}")
    if iteration is not None and (damage := damaged(found)) is not None:
        intact = [number for number, path in there.items() if number != iteration and damaged(path) is None]
        others = " or ".join(f"checkpoint={number}" for number in intact[-2:]) or "checkpoint=initial"
        raise ResumeError(f"{found} is damaged ({damage}); use {others}")
    return found


def _missing_checkpoint(there: Mapping[int, Path], checkpoint: str, iteration: int | None) -> str:
    """Why no checkpoint of that name can be used, and which can."""
    numbers = " ".join(map(str, there))
    if not there:
        return "there are no checkpoints, and only the initial weights can be used: checkpoint=initial"
    if iteration is None:
        return f"all of its checkpoints are damaged ({numbers}); only checkpoint=initial can be used"
    which = f"checkpoint=best is iteration {iteration}, which" if checkpoint == "best" else f"checkpoint={checkpoint}"
    return f"{which} does not exist (it may have been deleted by checkpoint.keep); use one of {numbers}, or initial"
