"""The configurations of `pilots.py`: twenty that learn, and twenty that cannot, for twelve reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

COMMON = ("tracker.console=plain", "launch.threads=1", "seed=11")
SOLO = ("task=sorting_solo",)
GROUPS = ("algorithm=grpo", "rollout.num_generations=8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One command line, and the findings of which its pilot must name one; a healthy one has none."""

    name: str
    overrides: tuple[str, ...]  # HOME is the folder of `files`
    expected: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def healthy(name: str, *overrides: str) -> Configuration:
    """A configuration that learns."""
    return Configuration(name=f"learns/{name}", overrides=(*COMMON, *overrides))


def failing(name: str, expected: str, *overrides: str, **files: str) -> Configuration:
    """A configuration that cannot learn; `files`: Python modules by name, `expected`: findings with spaces between."""
    named = {f"{name}.py": text for name, text in files.items()}
    return Configuration(
        name=f"fails/{name}", overrides=(*COMMON, *overrides), expected=tuple(expected.split()), files=named
    )


REWARD = ("reward=function", "reward.function=HOME/reward.py:score")
CONSTANT = """
def score(examples, responses):
    return {"team": [0.5 for _ in examples]}
"""
BY_PROMPT = """
def score(examples, responses):
    return {"team": [float(row["letters"][0] < "e") for row in examples]}
"""
NOT_A_NUMBER = """
def score(examples, responses):
    return {"team": [float("nan") for _ in examples]}
"""
RAISING = """
def score(examples, responses):
    raise ConnectionError("the service of the reward does not answer")
"""
NOISE = """
import random

def score(examples, responses):
    return {"team": [random.random() for _ in examples]}
"""
PREFIXED = """
def score(examples, responses):
    found = [float("answer: " in text) for text in responses["solo"]]
    return {"team": found, "parts": {"found": found}}
"""
DEAF = """
def talk(example, agents):
    yield {"low": f"{example['letters']}<"}
    yield {"high": f"{example['letters']}>"}
"""
ZERO = """
import torch

def zero(inputs, config):
    return torch.zeros_like(inputs.rewards)
"""

CONFIGURATIONS = (
    healthy("sorting_ippo"),
    healthy("sorting_ppo_value_head", "algorithm=ppo", "critic=value_head"),
    healthy("sorting_shared_policy", "team=shared_policy"),
    healthy("sorting_shared_policy_grpo", "team=shared_policy", *GROUPS),
    healthy("sorting_shared_base", "actor=tiny_lora", "team=shared_base"),
    healthy("sorting_mappo", "algorithm=mappo", "critic=centralized"),
    healthy("sorting_happo", "algorithm=happo"),
    healthy("sorting_peers", "task=sorting_peers"),
    healthy("relay", "task=relay"),
    healthy("signalling", "+experiment=signalling"),
    healthy("ladder", "task=ladder", "algorithm=turn_ppo"),
    healthy("probe", "+experiment=probe_conditional"),
    healthy("solo_grpo", *SOLO, *GROUPS),
    healthy("solo_rloo", *SOLO, "algorithm=rloo", "rollout.num_generations=4"),
    healthy("solo_reinforce_plus_plus", *SOLO, "algorithm=reinforce_plus_plus"),
    healthy("solo_remax", *SOLO, "algorithm=remax"),
    healthy("solo_dapo", *SOLO, "algorithm=dapo", "rollout.num_generations=8"),
    healthy("solo_gspo", *SOLO, "algorithm=gspo", "rollout.num_generations=8"),
    healthy("solo_cispo", *SOLO, "algorithm=cispo", "rollout.num_generations=8"),
    healthy("solo_actor_critic", *SOLO, "algorithm=actor_critic"),
    failing("constant_reward", "equal_scores", *REWARD, reward=CONSTANT),
    failing("constant_reward_grpo", "equal_scores", *SOLO, *GROUPS, *REWARD, reward=CONSTANT),
    failing("score_of_prompt", "scores_by_prompt", *SOLO, *REWARD, reward=BY_PROMPT),
    failing("score_of_prompt_grpo", "scores_by_prompt removed_signal", *SOLO, *GROUPS, *REWARD, reward=BY_PROMPT),
    failing("cold_sampling", "equal_scores scores_by_prompt", *SOLO, *GROUPS, "rollout.temperature=0.01"),
    failing("not_a_number", "failing_rewards non_finite_scores failure", *SOLO, *REWARD, reward=NOT_A_NUMBER),
    failing("raising_reward", "failing_rewards failure", *REWARD, reward=RAISING),
    failing("rate_1", "large_step", "actor.learning_rate=1"),
    failing("rate_0.1_grpo", "large_step", *SOLO, *GROUPS, "actor.learning_rate=0.1"),
    failing("rate_1_lora", "large_step", "actor=tiny_lora", "team=shared_base", "actor.learning_rate=1"),
    failing("rate_1e-12", "small_step", "actor.learning_rate=1e-12"),
    failing("rate_1e-11_grpo", "small_step", *SOLO, *GROUPS, "actor.learning_rate=1e-11"),
    failing("rate_0_of_one_agent", "no_update", "task.agents.high.actor.learning_rate=0"),
    failing("critic_warmup", "no_update", "algorithm=ppo", "algorithm.critic_warmup=90", "num_iterations=90"),
    failing("kl_of_reward", "kl_coefficient", "algorithm.kl.reward.coef=100"),
    failing("truncated", "truncated", *SOLO, "rollout.max_new_tokens=2"),
    failing("unparsed", "unparsed", *SOLO, *REWARD, reward=PREFIXED),
    failing("deaf", "deaf_agents", "task.protocol=HOME/protocol.py:talk", protocol=DEAF),
    failing("zero_advantages", "removed_signal no_gradient", "algorithm.advantage=HOME/zero.py:zero", zero=ZERO),
    failing("noise", "noise", *SOLO, *REWARD, reward=NOISE),
)
