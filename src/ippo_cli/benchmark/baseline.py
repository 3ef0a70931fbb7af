"""Settings of training for tasks of the benchmark: algorithms, sizes of models, and the entry without overrides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ippo_cli.benchmark.tasks import BUFFER, BenchmarkTask

MINI_BATCH = 64  # episodes per optimizer step, for all algorithms
CLIPPED = ("algorithm.ppo_epochs=4", f"algorithm.mini_batch_size={MINI_BATCH}")
FROM_SCRATCH = (
    "actor.alphabet=printable",  # equal initial weights for every critic input
    "actor.lr_schedule=linear",  # a constant rate unlearns again: whitening amplifies noise
    "actor.min_lr_ratio=0.1",
    "actor.warmup_iterations=2",
)
LONG_PROMPT_BUFFER = 64  # episodes per update; prompts of a thousand characters take most of the time
LONG_PROMPT_WARM_START = 16  # examples per supervised step
QUICK = ("num_iterations=2", "evaluation.every=1", "task.eval_size=16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One algorithm, as overrides in addition to a task's."""

    about: str
    overrides: tuple[str, ...]
    buffer: int = BUFFER
    rate: float = 1.0  # factor of the scale's learning rates
    critic: bool = True
    cannot: Mapping[str, str] = field(default_factory=dict)  # task -> why it is rejected there


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Model size, number of episodes and learning rates; `overrides` come before the task's."""

    episodes: int  # factor of the task's episodes
    overrides: tuple[str, ...]
    from_scratch: bool  # with the overrides `FROM_SCRATCH` and a warm start
    actor_learning_rate: float
    critic_learning_rate: float


INDEPENDENT_PPO = Algorithm(about="independent PPO with clipped ratios", overrides=("algorithm=ppo", *CLIPPED))
SMALL = Scale(  # most team tasks of one to four turns are solved in a minute or two of one core
    episodes=1,
    overrides=("actor.num_layers=1", "actor.hidden_size=64"),
    from_scratch=True,
    actor_learning_rate=3e-3,
    critic_learning_rate=3e-3,
)


def list_settings(task: BenchmarkTask, algorithm: Algorithm, scale: Scale, *, quick: bool = False) -> Iterator[str]:
    """Yield the overrides of a task and an algorithm: the same number of episodes for every buffer size."""
    buffer = min(algorithm.buffer, LONG_PROMPT_BUFFER) if task.long_prompts else algorithm.buffer
    iterations = task.episodes * scale.episodes // buffer
    if scale.from_scratch:
        yield from FROM_SCRATCH
        # Teaches the format of answers, not their content.
        yield from (f"actor.warm_start_steps={task.warm_start_steps}", "actor.warm_start_learning_rate=3e-3")
        if task.long_prompts:
            yield f"actor.warm_start_batch_size={LONG_PROMPT_WARM_START}"
    yield from (*scale.overrides, *task.overrides, *algorithm.overrides)
    # Settings of presets that do not define the algorithm are made equal.
    yield "algorithm.entropy_coef=0"
    yield "evaluation.greedy=false"
    rate = task.rate * algorithm.rate
    yield f"actor.learning_rate={scale.actor_learning_rate * rate:g}"
    if algorithm.critic:
        yield f"critic.learning_rate={scale.critic_learning_rate * rate:g}"
    yield f"rollout.buffer_size={buffer}"
    if quick:
        yield from QUICK
    else:
        yield f"num_iterations={iterations}"
        yield f"evaluation.every={iterations // 5}"
