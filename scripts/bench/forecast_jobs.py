"""The runs of `forecast_runs.py`, drawn at random: tasks, algorithms, rates and sizes; almost half are broken."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ippo_cli.benchmark.tasks import SEES_ALL, list_world_overrides

ITERATIONS = 44
EVERY = 4  # iterations between evaluations
EVAL_ROWS = 64
REWARDS = "scripts/bench/forecast_rewards.py"
ROWS = "scripts/bench/forecast_tasks.py"
# Most of the first runs that are broken had lost their score by their first evaluation. In later runs the learning rate
# rises over more iterations, so that a score falls at some time of the run; and half of them are broken.
FIRST_GRADUAL = 45
RAMPS = {"healthy": (2, 2, 10, 20), "broken": (10, 20, 30, 40)}  # iterations in which the rate rises
WARM_STARTS = {"healthy": (20, 60, 120), "broken": (60, 120, 160)}  # steps: a score that can fall
EVERY_RUN = (
    f"num_iterations={ITERATIONS}",
    f"evaluation.every={EVERY}",
    "evaluation.greedy=false",
    f"tracker.samples={EVAL_ROWS}",
    "tracker.sample_tokens=0",
    "tracker.samples_every=0",
    "tracker.tensorboard=false",
    "tracker.console=plain",
    "tracker.report=false",
    "tracker.turns=0",
    "checkpoint.every=0",
    "checkpoint.best=false",
    "launch.threads=1",
    "launch.watchdog_s=null",
)
ACTOR = ("actor.warmup_iterations=2", "actor.lr_schedule=linear", "actor.min_lr_ratio=0.3")
WRITTEN = (*ACTOR, "actor.warm_start_learning_rate=3e-3", "actor.warm_start_batch_size=64")
PLAYED = (*ACTOR, "actor.alphabet=printable", "actor.warm_start_learning_rate=3e-3")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task; tasks of one family are left out together when forecasts are judged."""

    family: str
    overrides: tuple[str, ...]
    rate: float = 2e-3
    is_written: bool = False  # agents have reference answers, so that `forecast_rewards.py` can score them
    acts_jointly: bool = False  # agents act at the same step, as HAPPO needs
    is_team: bool = True
    has_eval_size: bool = True


def written(name: str, tokens: int) -> Task:
    """A task of one agent in `forecast_tasks.py`."""
    return Task(
        family=name,
        overrides=(
            "task=jsonl",
            f"task.train={ROWS}:{name}_train",
            f"task.eval={ROWS}:{name}_eval",
            "task.agents.solo.template='{prompt}'",
            "task.agents.solo.answer='{answer}'",
            "reward=exact_match",
            f"rollout.max_new_tokens={tokens}",
            *WRITTEN,
        ),
        is_written=True,
        is_team=False,
        has_eval_size=False,
    )


TASKS: Mapping[str, Task] = {
    "sorting": Task(
        family="sorting",
        overrides=("task=sorting", "task.length=4", "task.train_size=512", "rollout.max_new_tokens=3", *WRITTEN),
        is_written=True,
        acts_jointly=True,
    ),
    "reverse": written("reverse", 4),
    "relay": Task(
        family="relay",
        overrides=("task=relay", "rollout.max_new_tokens=2", *WRITTEN),
        is_written=True,
    ),
    "shift": written("shift", 4),
    "copy_alone": Task(
        family="copy_alone",
        overrides=(
            "task=benchmark_solo",
            "+task.environment_args.length=1",
            "rollout.max_new_tokens=2",
            *PLAYED,
        ),
        is_team=False,
    ),
    "probe_conditional": Task(
        family="probe_conditional",
        overrides=("task=probe_conditional", "rollout.max_new_tokens=1", *WRITTEN),
        is_written=True,
        acts_jointly=True,
    ),
    "compare": written("compare", 3),
    "convention": Task(
        family="matrix",
        overrides=(*list_world_overrides("convention", "turns=1"), *SEES_ALL, *PLAYED),
        acts_jointly=True,
    ),
    "sorting_solo": Task(
        family="sorting",
        overrides=("task=sorting_solo", "task.length=4", "task.train_size=512", "rollout.max_new_tokens=5", *WRITTEN),
        is_written=True,
        is_team=False,
    ),
    "probe_grid": Task(
        family="probe_grid",
        overrides=(
            "task=probe_grid",
            "task.size=4",
            "task.train_size=160",
            "reward=grid",
            "rollout.max_new_tokens=3",
            *WRITTEN,
        ),
    ),
    "count": written("count", 2),
    "stag_hunt": Task(
        family="matrix",
        overrides=(*list_world_overrides("stag_hunt", "turns=1"), *SEES_ALL, *PLAYED),
        acts_jointly=True,
    ),
}
CLIPPED = ("ppo", "value_head", "shared_policy", "mappo", "happo", "grpo", "dr_grpo", "gspo", "cispo", "ppo_kl")
ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "ppo": ("algorithm=ppo",),
    "ppo_kl": ("algorithm=ppo", "algorithm.kl.reward.coef=0.01"),
    "value_head": ("algorithm=ppo", "critic=value_head"),
    "shared_policy": ("algorithm=ppo", "team=shared_policy"),
    "mappo": ("algorithm=mappo",),
    "happo": ("algorithm=happo",),
    "ippo": ("algorithm=ippo",),
    "grpo": ("algorithm=grpo",),
    "dr_grpo": ("algorithm=dr_grpo",),
    "gspo": ("algorithm=gspo",),
    "cispo": ("algorithm=cispo",),
    "rloo": ("algorithm=rloo",),
    "reinforce_plus_plus": ("algorithm=reinforce_plus_plus",),
}
WITHOUT_CRITIC = ("grpo", "dr_grpo", "gspo", "cispo", "rloo", "reinforce_plus_plus")
GROUPED = ("grpo", "dr_grpo", "gspo", "cispo", "rloo")
ARMS = (
    "rate", "rate", "rate", "rate", "epochs", "no_clip", "no_clip", "entropy", "no_entropy", "tiny_batch", "critic",
    "hack_letter", "hack_length", "noise", "noisy", "wrong",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training."""

    name: str
    task: str
    algorithm: str
    arm: str  # `healthy`, or how it is broken
    overrides: tuple[str, ...]


def list_jobs(count: int, seed: int = 0) -> list[Job]:
    """The first jobs of an endless list: two of five are broken on purpose, and every task occurs equally often."""
    return [_draw(number, seed) for number in range(count)]


def _draw(number: int, seed: int) -> Job:
    source = random.Random(f"forecast {seed} {number}")
    name = list(TASKS)[(number + number // len(TASKS)) % len(TASKS)]
    task = TASKS[name]
    arm = "healthy"
    if number % 2 if number >= FIRST_GRADUAL else number % 5 in (1, 3):
        hacks = ("hack_letter", "hack_length", "noise", "noisy", "wrong")
        arm = source.choice([one for one in ARMS if task.is_written or one not in hacks])
    cannot = {"happo"} if not task.acts_jointly else set()
    cannot |= {"shared_policy", "happo", "mappo"} if not task.is_team else set()
    possible = [one for one in ALGORITHMS if one not in cannot]
    if arm in ("epochs", "no_clip"):
        possible = ["ppo", "ppo_kl", "grpo"]
    if arm == "critic":
        possible = [one for one in ("ppo", "value_head", "mappo", "ippo") if one in possible]
    algorithm = source.choice(possible)
    buffer = source.choice((24, 32, 48))
    rate = task.rate * 10 ** source.uniform(-0.7, 0.6)
    values = {
        "task": name,
        "hidden": source.choice((24, 32, 48)),
        "layers": source.choice((1, 1, 1, 1, 2)),
        "warm_start": source.choice(WARM_STARTS["healthy" if arm == "healthy" else "broken"]),
        "generations": source.choice((4, 8)),
        "split": source.choice(((1, 1), (2, 1), (2, 1), (1, 2), (1, 2))),  # mini-batches, epochs
        "schedule": source.choice(("linear", "constant")),
        "clip": source.choice((0.1, 0.2, 0.2, 0.3)),
    }
    overrides = [*_common(task, algorithm, values, buffer, rate)]
    overrides += list(_break(arm, algorithm, source, buffer, rate))
    if number >= FIRST_GRADUAL:
        overrides.append(f"actor.warmup_iterations={source.choice(RAMPS['healthy' if arm == 'healthy' else 'broken'])}")
    return Job(
        name=f"{number:04d}_{name}_{algorithm}_{arm}",
        task=name,
        algorithm=algorithm,
        arm=arm,
        overrides=(*overrides, f"seed={number}"),
    )


def _common(task: Task, algorithm: str, values: Mapping[str, Any], buffer: int, rate: float) -> Iterator[str]:
    yield from (*task.overrides, *ALGORITHMS[algorithm], *EVERY_RUN)
    if task.has_eval_size:
        yield f"task.eval_size={EVAL_ROWS}"
    yield from (f"actor.hidden_size={values['hidden']}", f"actor.num_layers={values['layers']}")
    yield f"actor.warm_start_steps={values['warm_start']}"
    yield from (f"rollout.buffer_size={buffer}", f"actor.learning_rate={rate:.3g}")
    yield f"actor.lr_schedule={values['schedule']}"
    if algorithm in GROUPED:
        yield f"rollout.num_generations={values['generations']}"
    if algorithm not in WITHOUT_CRITIC and algorithm != "value_head":
        yield from (f"critic.learning_rate={4 * rate:.3g}", f"critic.mini_batch_size={buffer}", "critic.ppo_epochs=1")
    if algorithm in CLIPPED:
        parts, epochs = values["split"]
        yield from (f"algorithm.mini_batch_size={buffer // parts}", f"algorithm.ppo_epochs={epochs}")
    if algorithm in ("ppo", "ppo_kl", "grpo"):
        yield from (f"algorithm.clip_range_low={values['clip']}", f"algorithm.clip_range_high={values['clip']}")


def _break(arm: str, algorithm: str, source: random.Random, buffer: int, rate: float) -> Iterator[str]:
    if arm == "rate":
        yield f"actor.learning_rate={min(rate * 10 ** source.uniform(1, 2), 1.0):.3g}"
        yield f"actor.warmup_iterations={source.choice((2, 10, 20, 30))}"  # of the learning rate: later collapses
    elif arm == "epochs":
        yield from (f"algorithm.ppo_epochs={source.choice((6, 8))}", f"algorithm.mini_batch_size={buffer // 2}")
        yield f"actor.learning_rate={rate * 2:.3g}"
    elif arm == "no_clip":
        yield from ("algorithm.clip_range_low=0.99", "algorithm.clip_range_high=50", "algorithm.ppo_epochs=4")
        yield from (f"algorithm.mini_batch_size={buffer // 2}", f"actor.learning_rate={rate * 3:.3g}")
    elif arm == "entropy":
        yield f"algorithm.entropy_coef={10 ** source.uniform(-1, 0.3):.3g}"
    elif arm == "no_entropy":
        yield from (f"algorithm.entropy_coef={-source.uniform(0.05, 0.5):.3g}", f"actor.learning_rate={rate * 2:.3g}")
    elif arm == "tiny_batch":
        yield from ("rollout.buffer_size=8", f"actor.learning_rate={rate * 3:.3g}")
        if algorithm in GROUPED:
            yield "rollout.num_generations=2"
        if algorithm in CLIPPED:
            yield "algorithm.mini_batch_size=4"
        if algorithm not in WITHOUT_CRITIC and algorithm != "value_head":
            yield "critic.mini_batch_size=8"
    elif arm == "critic":
        yield (
            f"critic.learning_rate={rate * source.choice((1e-4, 100)):.3g}"
            if algorithm != "value_head"
            else ("algorithm.value_loss_coef=50")
        )
        yield f"actor.learning_rate={rate * 4:.3g}"
    elif arm != "healthy":
        function = {"hack_letter": "letter_bonus", "hack_length": "length_bonus"}.get(arm, arm)
        yield from ("reward=function", f"reward.function={REWARDS}:{function}", "task.primary_metric=sampled/true")
