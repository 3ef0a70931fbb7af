"""Evaluating a finished or running run's checkpoint: the same code as during training, on the saved weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from ippo_cli.agents.agent import Loaded
from ippo_cli.config.errors import ConfigError, ResumeError
from ippo_cli.config.schema import Config
from ippo_cli.engine import distributed
from ippo_cli.models.actor import Policy, load_causal_lm, load_tokenizer
from ippo_cli.rewards.build import build_reward
from ippo_cli.rollout.collect import collect
from ippo_cli.tasks.prompts import PromptStream, chat_template
from ippo_cli.tasks.task import load_task
from ippo_cli.training.checkpoint import damaged, newest_intact, pointed
from ippo_cli.training.console import Console
from ippo_cli.training.evaluate import evaluate
from ippo_cli.training.folder import all_checkpoints, write_atomically
from ippo_cli.training.process import prepare_process


def evaluate_run(config: Config, folder: Path, checkpoint: str, overrides: Sequence[str]) -> None:
    """Score a checkpoint (`latest`, `best`, or an iteration's number) of a run on the task's held-out data.

    Prints the scores and writes them to `evaluations/` in the run's folder, with the `overrides` that made its
    configuration another one for this evaluation.
    """
    found = find_checkpoint(folder, checkpoint)
    device = prepare_process(config)
    try:
        speakers = {}
        for name, agent in config.task.agents.items():
            weights = str(found / name / "actor")
            policy = Policy(load_causal_lm(weights, None, agent.actor.dtype)).to(device).eval()
            speakers[name] = Loaded(name=name, tokenizer=load_tokenizer(weights, None), policy=policy)
        task = load_task(config.task, config.seed)
        prompts = PromptStream(
            task.train, config.task.agents, {name: speaker.tokenizer for name, speaker in speakers.items()},
            seed=config.seed, prompts_per_iteration=1, num_generations=1,
            max_prompt_tokens=config.rollout.max_prompt_tokens,
            chat_template=chat_template(config.task),
        )  # fmt: skip
        with Console(config.tracker.console, list(speakers)) as console:
            result = evaluate(
                lambda batch, greedy: collect(
                    speakers, batch, config.rollout, seed=config.evaluation.seed, purpose="evaluation", greedy=greedy,
                    poll=lambda agent, done, rows: console.progress(f"{agent} writes", done, rows),
                ),
                prompts, task, build_reward(config.reward, config.task.agents), config,
            )  # fmt: skip
            console.samples(result.samples[: config.tracker.samples])
            target = folder / "evaluations" / file_name(found.name, config.evaluation.seed, overrides)
            target.parent.mkdir(exist_ok=True)
            record = {"checkpoint": found.name, "overrides": list(overrides), **result.metrics}
            write_atomically(target, json.dumps(record, indent=1) + "\n")
            console.say(f"{found.name}: held-out score {result.metrics[config.task.headline]:.3f} "
                        f"({config.task.headline}, {len(task.held_out)} rows)")  # fmt: skip
            for key, value in result.metrics.items():
                console.say(f"  {key:<40} {value:.4f}")
            console.say(f"written to {target}")
    finally:
        distributed.shutdown()


def file_name(checkpoint: str, seed: int, overrides: Sequence[str]) -> str:
    """Of an evaluation's scores: the same for the same evaluation. The seed is readable, other overrides are hashed."""
    others = [text for text in overrides if not text.startswith("evaluation.seed=")]
    digest = f"-{hashlib.sha256(json.dumps(others).encode()).hexdigest()[:8]}" if others else ""
    return f"{checkpoint}-seed{seed}{digest}.json"


def find_checkpoint(folder: Path, checkpoint: str) -> Path:
    """The named checkpoint, checked against its manifest. Raises `ConfigError` or `ResumeError`."""
    root = folder / "checkpoints"
    if checkpoint == "latest":
        found = newest_intact(root)
    elif checkpoint == "best":
        found = pointed(root, "best")
    elif checkpoint.isdigit():
        found = next((path for path in all_checkpoints(root) if int(path.name.split("_")[1]) == int(checkpoint)), None)
    else:
        raise ConfigError(f"checkpoint={checkpoint}", "is not known", "use latest, best or an iteration's number")
    if found is None:
        if checkpoint == "best" and (root / "latest.json").is_file() and not (root / "best.json").is_file():
            raise ResumeError(f"run={folder}: no evaluation was better than the one before training, so the best "
                              "weights are those it began with, or checkpoint.best=false kept none; "
                              "use checkpoint=latest")  # fmt: skip
        there = " ".join(str(int(path.name.split("_")[1])) for path in all_checkpoints(root)) or "none"
        raise ResumeError(f"run={folder}: there is no intact checkpoint={checkpoint}; those there: {there}")
    if (damage := damaged(found)) is not None:
        raise ResumeError(f"{found} is damaged ({damage}); use another checkpoint")
    return found
