"""Development configurations of `pilots.py`: twenty that learn, and twenty that cannot, for twelve reasons.

The pilot was corrected after they had been run; those that judge it are in `pilot_judged.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

COMMON = ("tracker.console=plain", "launch.threads=1")
SOLO = ("task=sorting_solo",)
FOUR = ("rollout.num_generations=4",)
EXACT = ("reward.match=exact",)
DIFFERING = "equal_scores scores_by_prompt few_differing"
GROUPS = ("algorithm=grpo", "rollout.num_generations=8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One command line, and the findings of which its pilot must name one; a healthy one has none."""

    name: str
    overrides: tuple[str, ...]  # HOME is the folder of `files`
    expected: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def healthy(name: str, *overrides: str, seed: int = 23) -> Configuration:
    """A configuration that learns."""
    return Configuration(name=f"learns/{name}", overrides=(*COMMON, f"seed={seed}", *overrides))


def failing(name: str, expected: str, *overrides: str, seed: int = 23, **files: str) -> Configuration:
    """A configuration that cannot learn; `files`: Python modules by name, `expected`: findings with spaces between."""
    named = {f"{name}.py": text for name, text in files.items()}
    return Configuration(
        name=f"fails/{name}",
        overrides=(*COMMON, f"seed={seed}", *overrides),
        expected=tuple(expected.split()),
        files=named,
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
ZERO = """
import torch

def zero(inputs, config):
    return torch.zeros_like(inputs.rewards)
"""

DEVELOPMENT = (
    healthy("sorting_experiment", "+experiment=sorting_ppo"),
    healthy("sorting_rounds", "team.update_order=round_robin", "team.round_robin_every=2"),
    healthy("sorting_ppo_groups", "algorithm=ppo", "rollout.num_generations=4"),
    healthy("sorting_grpo", *GROUPS),
    healthy("sorting_shared_policy_ppo", "team=shared_policy", "algorithm=ppo"),
    healthy("sorting_shared_base_grpo", "actor=tiny_lora", "team=shared_base", *GROUPS),
    healthy("sorting_mappo_groups", "algorithm=mappo", "critic=centralized", "rollout.num_generations=2"),
    healthy("sorting_four_letters", "task.length=4", "task.train_size=4096", "task.eval_size=256"),
    healthy("peers_rloo", "task=sorting_peers", "algorithm=rloo", "rollout.num_generations=4"),
    healthy("relay_ppo", "task=relay", "algorithm=ppo"),
    healthy("signalling_four", "+experiment=signalling", "task.signals=abcd"),
    healthy("probe_constant", "+experiment=probe_constant"),
    healthy("probe_grid", "+experiment=probe_grid"),
    healthy("solo_ppo", *SOLO, "algorithm=ppo"),
    healthy("solo_value_head", *SOLO, "algorithm=ppo", "critic=value_head"),
    healthy("solo_dr_grpo", *SOLO, "algorithm=dr_grpo", "rollout.num_generations=8"),
    healthy("solo_reinforce_baseline", *SOLO, "algorithm=reinforce_plus_plus_baseline", "rollout.num_generations=4"),
    healthy("solo_vapo", *SOLO, "algorithm=vapo", "rollout.num_generations=8"),
    healthy("solo_pf_ppo", *SOLO, "algorithm=pf_ppo"),
    healthy("solo_lora", *SOLO, "actor=tiny_lora"),
    failing("constant_reward_ppo", "equal_scores", *SOLO, "algorithm=ppo", *REWARD, reward=CONSTANT),
    failing("constant_reward_grpo", "equal_scores", *GROUPS, *REWARD, reward=CONSTANT),
    failing("score_of_prompt_team", "scores_by_prompt", "algorithm=ppo", *REWARD, reward=BY_PROMPT),
    failing("score_of_prompt_rloo", "scores_by_prompt", *SOLO, "algorithm=rloo", *FOUR, *REWARD, reward=BY_PROMPT),
    failing("cold_sampling_team", DIFFERING, *GROUPS, "rollout.temperature=0.02"),
    failing(
        "exact_of_eight",
        "equal_scores rare_scores few_differing",
        *SOLO,
        *EXACT,
        "task.length=8",
        "rollout.max_new_tokens=10",
    ),
    failing("not_a_number", "failing_rewards non_finite_scores failure", *REWARD, reward=NOT_A_NUMBER),
    failing("raising_reward", "failing_rewards failure", *SOLO, *GROUPS, *REWARD, reward=RAISING),
    failing("rate_0.5_ppo", "large_step", *SOLO, "algorithm=ppo", "actor.learning_rate=0.5"),
    failing("rate_0.2_shared", "large_step", "team=shared_policy", "actor.learning_rate=0.2"),
    failing("rate_0.7_lora", "large_step", *SOLO, "actor=tiny_lora", "actor.learning_rate=0.7"),
    failing("rate_1e-11_ppo", "small_step", *SOLO, "algorithm=ppo", "actor.learning_rate=1e-11"),
    failing("rate_1e-12_shared", "small_step", "team=shared_policy", "actor.learning_rate=1e-12"),
    failing("rate_0", "no_update", *SOLO, "actor.learning_rate=0"),
    failing("warmup_of_the_run", "no_update", "actor.warmup_iterations=90", "num_iterations=90"),
    failing("kl_of_reward_ppo", "kl_coefficient", *SOLO, "algorithm=ppo", "algorithm.kl.reward.coef=30"),
    failing("truncated", "truncated", *SOLO, *EXACT, "rollout.max_new_tokens=1"),
    failing("unparsed_grpo", "unparsed", *SOLO, *GROUPS, *REWARD, reward=PREFIXED),
    failing("zero_advantages", "removed_signal", *SOLO, "algorithm.advantage=HOME/zero.py:zero", zero=ZERO),
    failing("noise", "noise random_scores", *REWARD, reward=NOISE),
)
