"""What a method adds to the plan of a run; the planner adds up, and names no method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from transformers import PreTrainedTokenizerBase

from ippo_cli.algorithms.user_advantages import find_advantage_method
from ippo_cli.config.method_plans import METHOD_PLANS
from ippo_cli.config.schema import Advantage, Config
from ippo_cli.planning.agent_shapes import AgentShapes


class MethodPlan:
    """The plan of one method. Every default adds nothing; without the method, nothing may be added."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def describe_prompts(self, prompts: int) -> Iterator[str]:
        """Lines below the number of prompts of an iteration."""
        yield from ()

    def describe(self, shapes: Mapping[str, AgentShapes]) -> Iterator[tuple[str, str]]:
        """Labels and texts of further lines about an iteration."""
        yield from ()

    def check_tokenizers(self, tokenizers: Mapping[str, PreTrainedTokenizerBase]) -> None:
        """Raise `ConfigError` if the agents' tokenizers do not fit."""

    @property
    def rows_per_sample(self) -> int:
        """Rows that are decoded at once for each row of the buffer."""
        return 1

    @property
    def copies(self) -> tuple[str, ...]:
        """Labels of further models of the size of each trained policy in memory."""
        return ()

    @property
    def num_stored_policies(self) -> int:
        """Further copies of the trained policies on disk."""
        return 0

    def gradient_parts(self, learner: str) -> int:
        """Gradients in float32 that are kept at once in an update of a policy or critic, sharded over its ranks."""
        return 0

    def authors(self, agent: str) -> tuple[str, ...]:
        """The other agents with responses that an agent's policy is trained on, in the task's order."""
        return ()


def method_plans(config: Config) -> list[MethodPlan]:
    """The plans of all methods, that of a package's estimator included."""
    places = (place.partition(":") for place in METHOD_PLANS)
    plans = [getattr(import_module(module), name)(config) for module, _, name in places]
    if config.algorithm.estimator is Advantage.function:
        estimator = find_advantage_method(config.algorithm)
        own = None if estimator is None else estimator.build_plan(config)
        plans += [] if own is None else [own]
    return plans


def count_gradient_parts(config: Config, learner: str) -> int:
    """Gradients in float32 that an update of a policy or critic keeps at once."""
    return sum(plan.gradient_parts(learner) for plan in method_plans(config))


def find_authors(config: Config, agent: str) -> tuple[str, ...]:
    """The other agents with responses that an agent's policy is trained on."""
    return tuple(author for plan in method_plans(config) for author in plan.authors(agent))
