"""Batch sizes and step counts that follow from the configuration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ippo_cli.config.schema import AgentConfig, Config, OptimizedCriticConfig
from ippo_cli.config.teams import agents_by_critic

CRITIC_STEPS = 8
"""Maximum optimizer steps of a separate critic per buffer and epoch without a mini-batch size; the last step may have
fewer rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSizes:
    """Batch sizes and step counts of a run."""

    num_iterations: int
    last_iteration: int  # last iteration of this process: num_iterations, or max_iterations_this_run if smaller
    prompts_per_iteration: int
    samples_per_rank: tuple[int, int]  # minimum, maximum
    actor_steps: dict[str, int]  # optimizer steps per iteration, by agent
    critic_steps: dict[str, int]  # optimizer steps per iteration of critics with a separate optimizer, by critic


def compute_batch_sizes(config: Config, world_size: int, train_rows: int) -> BatchSizes:
    """Compute all batch sizes; `train_rows` is the number of training examples (used with `num_epochs` only)."""
    size, generations = config.rollout.buffer_size, config.rollout.num_generations
    prompts = size // generations
    if config.num_iterations is not None:
        iterations = config.num_iterations
    else:
        assert config.num_epochs is not None
        iterations = max(1, math.ceil(config.num_epochs * train_rows / prompts))
    critic_steps = {
        name: math.ceil(size / critic_mini_batch_size(config, agent))
        * (agent.critic.ppo_epochs or agent.algorithm.ppo_epochs)
        for name, names in agents_by_critic(config).items()
        if isinstance((agent := config.task.agents[names[0]]).critic, OptimizedCriticConfig)
    }
    return BatchSizes(
        num_iterations=iterations,
        last_iteration=min(config.max_iterations_this_run or iterations, iterations),
        prompts_per_iteration=prompts,
        samples_per_rank=(size // world_size, math.ceil(size / world_size)),
        actor_steps={name: policy_steps(config, agent) for name, agent in config.task.agents.items()},
        critic_steps=critic_steps,
    )


def policy_steps(config: Config, agent: AgentConfig) -> int:
    """Optimizer steps of an agent's actor per buffer."""
    return config.rollout.buffer_size // mini_batch_size(config, agent) * agent.algorithm.ppo_epochs


def mini_batch_size(config: Config, agent: AgentConfig) -> int:
    """Sequences per optimizer step of an agent's actor."""
    return agent.algorithm.mini_batch_size or config.rollout.buffer_size


def critic_mini_batch_size(config: Config, agent: AgentConfig) -> int:
    """Sequences per optimizer step of an agent's separate critic: the critic's setting, else the policy's.

    If the policy makes one step per buffer, the critic makes `CRITIC_STEPS`: one step only fits the mean return.
    """
    assert isinstance(agent.critic, OptimizedCriticConfig)
    return (
        agent.critic.mini_batch_size
        or agent.algorithm.mini_batch_size
        or math.ceil(config.rollout.buffer_size / CRITIC_STEPS)
    )


def fit_mini_batch(preset: int, buffer_size: int) -> int:
    """Fit a preset's mini-batch size to a buffer: the whole buffer if it is smaller, else the largest divisor of the
    buffer between half the preset and the preset.

    Without such a divisor it returns the preset, which the checks reject.
    """
    if buffer_size < preset:
        return max(buffer_size, 1)
    between = range(preset, (preset - 1) // 2, -1)
    return next((size for size in between if buffer_size % size == 0), preset)


def format_divisors(number: int) -> str:
    """All divisors of a number, for error messages."""
    return " ".join(str(divisor) for divisor in range(1, number + 1) if number % divisor == 0)
