"""`mode=plan`: what a run would do and need, without loading a weight."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ippo_cli.config.arithmetic import arithmetic
from ippo_cli.config.errors import PreflightError
from ippo_cli.config.schema import (
    ActorConfig,
    Config,
    CriticKind,
    Dtype,
    SeparateCriticConfig,
    TinyActorConfig,
)
from ippo_cli.models.actor import load_tokenizer
from ippo_cli.models.tiny import tiny_config
from ippo_cli.rewards.build import build_reward
from ippo_cli.tasks.prompts import PromptStream, chat_template, fill
from ippo_cli.tasks.task import Task, load_task
from ippo_cli.training.launch import external_world_size

GIB = 2**30
ADAM_BYTES = 8  # two float32 moments


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of one trained model: per rank in memory, and in a checkpoint."""

    parameters: int
    memory: float
    disk: float


def show_plan(config: Config) -> None:
    """Print sizes, batch arithmetic, estimates and two rendered prompts per agent."""
    ranks = external_world_size() or config.launch.processes
    task = load_task(config.task, config.seed)
    build_reward(config.reward, config.task.agents)
    plan = arithmetic(config, ranks, len(task.train))
    print(f"data           {len(task.train)} training examples, {len(task.held_out)} held out")
    print(f"iterations     {plan.num_iterations}, each {plan.prompts_per_iteration} prompts x "
          f"{config.rollout.num_generations} generations x {len(config.task.agents)} agents")  # fmt: skip
    fewest, most = plan.samples_per_rank
    print(f"ranks          {ranks}, each {fewest if fewest == most else f'{fewest} to {most}'} samples per iteration")
    memory = disk = flops = 0.0
    for name, agent in config.task.agents.items():
        models = {"actor": footprint(config, agent.actor, agent.actor.dtype, ranks)}
        if isinstance(agent.critic, SeparateCriticConfig):
            models["critic"] = footprint(config, agent.actor, agent.critic.dtype, ranks, agent.critic.model)
        for role, size in models.items():
            steps = plan.actor_steps if role == "actor" else plan.critic_steps[name]
            millions = size.parameters / 1e6
            print(f"{name + ' ' + role:<14} {millions:.1f} M parameters, {steps} optimizer steps per iteration")
            memory, disk = memory + size.memory, disk + size.disk
        flops += _flops(config, {role: size.parameters for role, size in models.items()})
        if config.algorithm.kl.reward.coef or config.algorithm.kl.loss.coef:
            memory += models["actor"].parameters * _bytes(agent.actor.dtype)
    print(f"memory         about {memory / GIB:.2f} GiB per rank for weights, gradients, optimizer; activations extra")
    kept = config.checkpoint.keep + config.checkpoint.best + 1  # one more while the next is being written
    print(f"disk           about {disk / GIB:.2f} GiB per checkpoint, {kept * disk / GIB:.2f} GiB at the most")
    seconds = flops / ranks / _flops_per_second()
    print(f"time           at least {seconds:.1f} s per iteration on this machine's processor, "
          f"{seconds * plan.num_iterations / 60:.1f} min in all (arithmetic alone)")  # fmt: skip
    for name in config.task.agents:
        for row in range(min(2, len(task.train))):
            print(f"{name + ' reads':<14} {_prompt(config, task, name, row)!r}")


def footprint(config: Config, actor: ActorConfig, dtype: Dtype, ranks: int, model: str | None = None) -> Footprint:
    """Of an actor, or of a critic of the same or another model."""
    parameters = count_parameters(actor, model)
    width, stage = _bytes(dtype), config.deepspeed.stage
    master = 0 if dtype is Dtype.fp32 and stage == 0 else 4
    weights = parameters * width / (ranks if stage == 3 else 1)
    gradients = parameters * width / (ranks if stage >= 2 else 1)
    optimizer = parameters * (ADAM_BYTES + master) / (ranks if stage >= 1 else 1)
    return Footprint(
        parameters=parameters,
        memory=weights + gradients + optimizer,
        disk=parameters * (2 * width + ADAM_BYTES + master),  # shards, and the folder for `from_pretrained`
    )


def count_parameters(actor: ActorConfig, model: str | None = None) -> int:
    """Parameters of the model, counted without memory for any of them."""
    with torch.device("meta"):
        if isinstance(actor, TinyActorConfig) and model is None:
            shape = tiny_config(actor, vocabulary=32)
        else:
            source = model or actor.model
            try:
                shape = AutoConfig.from_pretrained(source, revision=actor.revision if model is None else None)
            except Exception as error:
                reason = str(error).strip().splitlines()[0]
                raise PreflightError(f"actor.model={source}: no configuration could be read ({reason})") from error
        return sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(shape).parameters())


def _prompt(config: Config, task: Task, name: str, row: int) -> str:
    agent = config.task.agents[name]
    wanted = chat_template(config.task)
    if wanted is False or isinstance(agent.actor, TinyActorConfig):
        return fill(agent.template, task.train[row], f"task.agents.{name}.template")
    stream = PromptStream(
        task.train, config.task.agents, {name: load_tokenizer(str(agent.actor.model), agent.actor.revision)},
        seed=config.seed, prompts_per_iteration=1, num_generations=1,
        max_prompt_tokens=config.rollout.max_prompt_tokens, chat_template=wanted,
    )  # fmt: skip
    return stream.text(name, task.train[row])


def _flops(config: Config, parameters: dict[str, int]) -> float:
    """Of one agent's iteration with full-length responses: 2 per parameter and token forward, 4 more backward."""
    tokens = config.rollout.buffer_size * config.rollout.max_new_tokens
    generated = 2.0 * parameters["actor"] * tokens
    trained = sum(parameters.values()) * 6.0 * tokens * config.algorithm.ppo_epochs
    valuing = 0 if config.critic.kind is CriticKind.none else parameters.get("critic", parameters["actor"])
    valued = 2.0 * valuing * tokens
    return generated + valued + trained


def _flops_per_second() -> float:
    """Measured with float32 matrix products for a moment."""
    size, rounds = 768, 0
    left = torch.ones(size, size)
    left @ left
    began = time.perf_counter()
    while time.perf_counter() - began < 0.2:
        left @ left
        rounds += 1
    return rounds * 2.0 * size**3 / (time.perf_counter() - began)


def _bytes(dtype: Dtype) -> int:
    return 4 if dtype is Dtype.fp32 else 2
