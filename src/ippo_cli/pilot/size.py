"""How much a pilot samples: prompts, further responses to them, and their bound in tokens."""

from __future__ import annotations

from dataclasses import dataclass

from ippo_cli.config.batch_sizes import BatchSizes
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config
from ippo_cli.tasks.task import response_budgets

RUN_FRACTION = 0.01  # of the run's tokens, by default
MIN_PROMPTS = 8  # fewer prompts give no intervals
USUAL_PROMPTS = 32  # sampled if the tokens suffice, also by runs with smaller buffers
RESPONSES = 4  # to each of some prompts, with rollout.num_generations=1: their scores show the variance within prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotSize:
    """Sizes of a pilot over all ranks."""

    prompts: int
    generations: int  # responses to each prompt in the buffer, as in training
    repeats: int  # further responses to each of the first `repeated_prompts`, which are only scored
    repeated_prompts: int
    episode_tokens: int  # most sampled tokens of an episode, over all agents
    run_tokens: int  # most sampled tokens of the run

    @property
    def rows(self) -> int:
        """Episodes."""
        return self.prompts * self.generations + self.repeats * self.repeated_prompts

    @property
    def tokens(self) -> int:
        """Most sampled tokens."""
        return self.rows * self.episode_tokens


def compute_pilot_size(
    config: Config, sizes: BatchSizes, world_size: int, num_examples: int | None = None
) -> PilotSize:
    """The largest pilot within `pilot.tokens`; by default at most the larger of a buffer and `USUAL_PROMPTS`.

    `num_examples`: of the training data. More prompts would repeat some, on both sides of a comparison.
    """
    generations = config.rollout.num_generations
    repeats = RESPONSES - 1 if generations == 1 else 0
    per_episode = sum(response_budgets(config).values())
    run_tokens = sizes.num_iterations * config.rollout.buffer_size * per_episode

    def build(prompts: int) -> PilotSize:
        return PilotSize(
            prompts=prompts,
            generations=generations,
            repeats=repeats,
            repeated_prompts=min(prompts, USUAL_PROMPTS) if repeats else 0,
            episode_tokens=per_episode,
            run_tokens=run_tokens,
        )

    least = _least_prompts(world_size, generations)
    limit = config.pilot.tokens or max(int(RUN_FRACTION * run_tokens), build(least).tokens)
    most = max(sizes.prompts_per_iteration, USUAL_PROMPTS, least)
    if config.pilot.tokens is not None:  # as many as were asked for
        most = max(config.pilot.tokens // (generations * per_episode), least)
    if num_examples is not None:
        most = max(min(most, num_examples), least)
    return next((size for size in map(build, range(most, least, -1)) if size.tokens <= limit), build(least))


def check_pilot_tokens(config: Config, world_size: int) -> None:
    """Raise `ConfigError` if `pilot.tokens` is less than the smallest pilot needs."""
    generations = config.rollout.num_generations
    episodes = _least_prompts(world_size, generations) * max(generations, RESPONSES if generations == 1 else 1)
    least = episodes * sum(response_budgets(config).values())
    if config.pilot.tokens is not None and config.pilot.tokens < least:
        raise ConfigError(
            f"pilot.tokens={config.pilot.tokens}",
            f"is less than {episodes} responses of {least // episodes} tokens, and fewer show nothing",
            f"use pilot.tokens={least} or more, or null",
        )


def _least_prompts(world_size: int, generations: int) -> int:
    """The fewest prompts: each rank has a row."""
    return max(MIN_PROMPTS, -(-world_size // generations))
