"""Cost of sampled alternatives to turns, per iteration: `reward.credit_alternatives`."""

from __future__ import annotations

from ippo_cli.config.schema import Config, ConversationConfig
from ippo_cli.tasks.task import max_turns_by_agent


def alternatives_cost(config: Config) -> str:
    """The replayed episodes of an iteration and a bound of the tokens that they sample, for `mode=plan`."""
    task, size, count = config.task, config.rollout.buffer_size, config.reward.credit_alternatives
    assert count is not None
    trained = [name for name, agent in task.agents.items() if not agent.frozen]
    limits = {name: limit for name, limit in max_turns_by_agent(task).items() if limit is not None}
    rest = "turns with unchanged prompts are reused"
    if len(limits) < len(task.agents):
        each = "" if config.reward.credit_turns is None else f" (at most {config.reward.credit_turns})"
        return (
            f"counterfactual: {count} more episodes are replayed and scored for each turn{each} of {len(trained)} "
            f"agents in {size} episodes; {rest}"
        )
    measured = {name: min(limits[name], config.reward.credit_turns or limits[name]) for name in trained}
    turns = sum(measured.values())
    tokens = sum(_max_tokens(config, limits, name, turn) for name in trained for turn in range(measured[name]))
    has_fixed_length = isinstance(task, ConversationConfig) and all(
        agent.tools is None for agent in task.agents.values()
    )
    bound = "" if has_fixed_length else "at most "
    return (
        f"counterfactual: {bound}{size * count * turns} more episodes are replayed and scored "
        f"({size} x {turns} turns x {count} alternatives), and at most {size * count * tokens} tokens are "
        f"sampled; {rest}"
    )


def _max_tokens(config: Config, limits: dict[str, int], agent: str, turn: int) -> int:
    """The largest number of tokens from a turn of an agent on, those of other agents in the same step excluded."""
    agents, task = list(config.task.agents), config.task
    total = 0
    for place, name in enumerate(agents):
        follows = name == agent or not isinstance(task, ConversationConfig)
        if isinstance(task, ConversationConfig) and task.protocol != "parallel":
            follows = place >= agents.index(agent)
        turns = limits[name] - turn if follows else limits[name] - turn - 1
        total += max(0, turns) * task.agents[name].rollout.max_new_tokens
    return total
