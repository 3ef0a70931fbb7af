"""Rules of `team.share_rollouts`: agents that train on each other's responses to the same prompts."""

from __future__ import annotations

from collections.abc import Iterator

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import (
    AgentConfig,
    Config,
    ConversationConfig,
    Credit,
    SharedPolicyConfig,
    WeightLevel,
)
from ippo_cli.config.served_agents import served_agents

# Settings that agents with equal prompts share, by part; () is the agent's own settings.
EQUAL_SETTINGS = (("", ("template", "system", "answer")), ("rollout", ("max_new_tokens", "stop_strings")))


def shared_authors(config: Config, agent: str) -> tuple[str, ...]:
    """The other agents with responses that an agent's policy is trained on, in the task's order."""
    if not config.team.share_rollouts or config.task.agents[agent].frozen:
        return ()
    return tuple(name for name in config.task.agents if name != agent)


def check_shared_rollouts(config: Config) -> Iterator[ConfigError]:
    """Yield an error for each setting with which agents cannot train on each other's responses."""
    if not config.team.share_rollouts:
        return
    for is_refused, setting, rule, remedy in (
        *_task_rules(config),
        *_run_rules(config),
        *_algorithm_rules(config),
        *_reward_rules(config),
    ):
        if is_refused:
            yield ConfigError(setting, f"does not support team.share_rollouts=true: {rule}", remedy)
    names = list(config.task.agents)
    for name in names[1:]:
        yield from _check_equal_prompts(names[0], config.task.agents[names[0]], name, config.task.agents[name])


_Rule = tuple[bool, str, str, str]  # whether it is broken, setting, rule, remedy


def _task_rules(config: Config) -> Iterator[_Rule]:
    task = config.task
    is_alone = isinstance(task, ConversationConfig) and task.is_one_turn_per_agent and task.protocol == "parallel"
    setting = f"task.kind={task.kind}"
    if isinstance(task, ConversationConfig):
        setting = f"task.protocol={task.protocol} task.num_turns={task.num_turns}"
    yield (
        not is_alone,
        setting,
        "it shares single responses to a prompt, and here agents have turns, tools or messages of each other",
        "use task.protocol=parallel task.num_turns=1, and agents without tools",
    )
    yield (
        len(task.agents) < 2,
        f"task.agents=[{','.join(task.agents)}]",
        "there is no other agent",
        "use a task with several agents that have equal prompts, such as task=sorting_peers",
    )
    for name in served_agents(config):
        yield (
            True,
            f"task.agents.{name}.actor=server",
            "log-probabilities of a server's responses have not been verified",
            "use an agent with a model in this run, or team.share_rollouts=false",
        )


def _run_rules(config: Config) -> Iterator[_Rule]:
    team, rollout = config.team, config.rollout
    yield (
        isinstance(team, SharedPolicyConfig),
        f"team={team.kind.value}",
        "agents of a group are one policy and train on all of its rows already",
        "use team=independent or team=shared_base",
    )
    yield (
        not rollout.recompute_logprobs,
        "rollout.recompute_logprobs=false",
        "the log-probabilities of other agents' responses are those of a forward pass, and own ones are compared with "
        "them",
        "use true",
    )


def _algorithm_rules(config: Config) -> Iterator[_Rule]:
    algorithm, level = config.algorithm, config.algorithm.behavior_correction.level
    yield (
        algorithm.cross_agent.exponent is None and level is WeightLevel.none,
        "algorithm.cross_agent.exponent=null algorithm.behavior_correction.level=none",
        "responses of other agents would count as samples of the policy",
        "set algorithm.behavior_correction.level=token algorithm.behavior_correction.cap=1.0, or use algorithm=hacpo",
    )
    yield (
        algorithm.credit is Credit.auto,
        "algorithm.credit=auto",
        "responses have one turn",
        "use token or turn",
    )


def _reward_rules(config: Config) -> Iterator[_Rule]:
    weights = {name: agent.reward for name, agent in config.task.agents.items()}
    first = next(iter(weights.values()), None)
    for name, own in weights.items():
        common = own.team_weight == config.reward.team_weight
        where = "reward" if common else f"task.agents.{name}.reward"
        if own.team_weight:
            yield (
                True,
                f"{where}.team_weight={own.team_weight:g}",
                "a joint reward depends on the responses of several agents, and each is trained on alone",
                f"use {where}.team_weight=0.0 {where}.agent_weight=1.0",
            )
            break
        if own != first:
            yield (
                True,
                f"task.agents.{name}.reward",
                "scores of different weights cannot be compared",
                "use equal reward weights for all agents",
            )


def _check_equal_prompts(first: str, its: AgentConfig, name: str, own: AgentConfig) -> Iterator[ConfigError]:
    """Prompts, reference answers and limits must be equal: each agent could have given the others' responses."""
    for part, keys in EQUAL_SETTINGS:
        for key in keys:
            wanted, value = (getattr(getattr(agent, part) if part else agent, key) for agent in (its, own))
            if wanted != value:
                where = f"task.agents.{name}.{f'{part}.' if part else ''}{key}"
                yield ConfigError(
                    f"{where}={'null' if value is None else value}",
                    f"differs from {first}'s {'null' if wanted is None else wanted}, and team.share_rollouts=true "
                    "needs equal prompts, reference answers and limits",
                    f"use {first}'s, or team.share_rollouts=false",
                )
