"""The configurations that judge `mode=pilot`: twenty that can learn, and twenty that cannot, for fifteen reasons.

They were written after the pilot and before any of them was run. Tasks, sizes, rates and most reasons differ from those
of `pilot_configurations.py`.
"""

from __future__ import annotations

from functools import partial

import pilot_configurations as known
from forecast_jobs import TASKS
from pilot_configurations import DIFFERING, REWARD
from team_games import SEES_ALL, list_world_overrides

SEED = 57
PPO, GRPO, RLOO = ("algorithm=ppo",), ("algorithm=grpo", "rollout.num_generations=4"), ("algorithm=rloo",)
WRITER = ("actor.warm_start_steps=60", "rollout.buffer_size=48", "actor.learning_rate=1e-3", "num_iterations=120")
REVERSE, SHIFT, COMPARE, COUNT = (
    (*TASKS[name].overrides, *WRITER) for name in ("reverse", "shift", "compare", "count")
)
CONDITIONAL = ("task=probe_conditional", "rollout.max_new_tokens=1")
GAME = (*SEES_ALL, "actor.alphabet=printable", "actor.warm_start_steps=60", "rollout.buffer_size=64")
FOUR_LETTERS = ("task.length=4", "task.train_size=4096", "task.eval_size=256")
FIVE_LETTERS = ("task.length=5", "task.train_size=4096", "task.eval_size=256")
RARE = "rare_scores few_differing equal_scores"
healthy, failing = partial(known.healthy, seed=SEED), partial(known.failing, seed=SEED)

COIN = """
import random

def score(examples, responses):
    return {"team": [random.choice((0.0, 1.0)) for _ in examples]}
"""
MOSTLY_NOISE = """
import random

def score(examples, responses):
    texts = responses["solo"]
    return {"team": [0.1 * (text[:1] == row["answer"][:1]) + random.gauss(0, 1) for row, text in zip(examples, texts)]}
"""
BY_LENGTH_OF_PROMPT = """
def score(examples, responses):
    return {"team": [float(row["prompt"] < "55") for row in examples]}
"""
BY_HIDDEN_LETTER = """
def score(examples, responses):
    return {"team": [ord(row["hidden"]) / 128 for row in examples]}
"""
ALWAYS_INVALID = """
def score(examples, responses):
    return {"team": [None for _ in examples]}
"""
BOXED = """
def score(examples, responses):
    parsed = [float("[" in text and "]" in text) for text in responses["solo"]]
    return {"team": parsed, "parts": {"parsed": parsed}}
"""
CENTRED = """
def subtract_rewards(inputs, config):
    return inputs.rewards - inputs.rewards
"""

JUDGED = (
    healthy("relay_grpo", "task=relay", *GRPO),
    healthy("relay_value_head", "task=relay", *PPO, "critic=value_head", "actor.learning_rate=7e-4"),
    healthy("peers_ppo", "task=sorting_peers", *FOUR_LETTERS, *PPO),
    healthy("conditional_ppo", "+experiment=probe_conditional"),
    healthy("conditional_rloo", *CONDITIONAL, *RLOO, "rollout.num_generations=8"),
    healthy("grid_of_four", "task=probe_grid", "reward=grid", "task.size=4", "task.train_size=160", *PPO),
    healthy("reverse_ppo", *REVERSE, *PPO),
    healthy("shift_grpo", *SHIFT, *GRPO),
    healthy("compare_reinforce", *COMPARE, "algorithm=reinforce_plus_plus"),
    healthy("count_rloo", *COUNT, *RLOO, "rollout.num_generations=4"),
    healthy("convention_mappo", *list_world_overrides("convention", "turns=1"), *GAME, "algorithm=mappo"),
    healthy("stag_hunt_grpo", *list_world_overrides("stag_hunt", "turns=2"), *GAME, *GRPO),
    healthy("meet_ppo", *list_world_overrides("meet", "turns=3"), *GAME, *PPO),
    healthy("copy_alone", *TASKS["copy_alone"].overrides, *WRITER, *PPO),
    healthy("ladder", "task=ladder", *PPO),
    healthy("solo_gspo", "task=sorting_solo", *FIVE_LETTERS, "algorithm=gspo", "rollout.num_generations=8"),
    healthy("solo_cispo", "task=sorting_solo", *FOUR_LETTERS, "algorithm=cispo", "rollout.num_generations=4"),
    healthy("sorting_wide", "actor.hidden_size=96", "actor.num_layers=2", "actor.learning_rate=2e-4"),
    healthy("sorting_happo", *FOUR_LETTERS, "algorithm=happo"),
    healthy("solo_narrow", "task=sorting_solo", "actor.hidden_size=16", "actor.learning_rate=2e-3", *PPO),
    failing("constant_reward_relay", "equal_scores", "task=relay", *PPO, *REWARD, reward=known.CONSTANT),
    failing("any_length", "equal_scores", *SHIFT, *PPO, "reward=length", "reward.high=40", "reward.unit=tokens"),
    failing("score_of_prompt_compare", "scores_by_prompt", *COMPARE, *PPO, *REWARD, reward=BY_LENGTH_OF_PROMPT),
    failing("score_of_prompt_relay", "scores_by_prompt", "task=relay", *GRPO, *REWARD, reward=BY_HIDDEN_LETTER),
    failing("cold_reverse", DIFFERING, *REVERSE, *GRPO, "rollout.temperature=0.01"),
    failing("exact_of_seven", RARE, "task=sorting_solo", "task.length=7", *GRPO, "reward.match=exact"),
    failing("exact_unwarmed", RARE, *REVERSE, *PPO, "actor.warm_start_steps=0", "reward.match=exact"),
    failing("coin", "noise random_scores", "task=relay", *PPO, *REWARD, reward=COIN),
    failing("mostly_noise", "noise random_scores", *REVERSE, *GRPO, *REWARD, reward=MOSTLY_NOISE),
    failing("no_number", "failing_rewards non_finite_scores failure", *CONDITIONAL, *REWARD, reward=ALWAYS_INVALID),
    failing("rate_1_relay", "large_step", "task=relay", *GRPO, "actor.learning_rate=1"),
    failing("rate_0.3_count", "large_step", *COUNT, *PPO, "critic=value_head", "actor.learning_rate=0.3"),
    failing("rate_1e-10_conditional", "small_step", *CONDITIONAL, *PPO, "actor.learning_rate=1e-10"),
    failing("critic_warmup", "no_update", *COMPARE, *PPO, "algorithm.critic_warmup=120"),
    failing("blind", "equal_prompts", *REVERSE, *PPO, "task.agents.solo.template='?'"),
    failing("kl_of_loss", "kl_coefficient", "task=sorting_solo", *GRPO, "algorithm.kl.loss.coef=200"),
    failing("two_of_three_letters", "truncated", *REVERSE, *PPO, "reward.match=exact", "rollout.max_new_tokens=2"),
    failing("boxed", "unparsed", *COUNT, *GRPO, *REWARD, reward=BOXED),
    failing(
        "centred",
        "removed_signal",
        "task=relay",
        "algorithm.advantage=HOME/centred.py:subtract_rewards",
        centred=CENTRED,
    ),
    failing("entropy_5", "entropy_coefficient", "task=sorting_solo", *PPO, "algorithm.entropy_coef=5"),
)
