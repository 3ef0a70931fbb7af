"""The ratio before the first optimizer step is 1 for every objective, whatever filters the sampler has."""

from __future__ import annotations

import pytest
from small import open_trainer

FILTERS = {
    "top_p": ("rollout.top_p=0.6",),
    "top_k": ("rollout.top_k=3",),
    "min_p": ("rollout.min_p=0.5",),
    "repetition_penalty": ("rollout.repetition_penalty=1.5",),
    "min_new_tokens": ("rollout.min_new_tokens=3",),
    "temperature": ("rollout.temperature=0.7", "rollout.top_p=0.6"),
}
RANGE = ("algorithm.clip_range_low=0.1", "algorithm.clip_range_high=0.1")
OBJECTIVES = {
    "sao": ("algorithm=sao",),
    "dppo": ("algorithm=dppo", "rollout.num_generations=4"),
    "dppo by kl": (
        *("algorithm=dppo", "rollout.num_generations=4", "algorithm.trust_region=kl"),
        *("algorithm.clip_range_low=0.01", "algorithm.clip_range_high=0.01"),
    ),
    "ppo": ("algorithm=ppo", "algorithm.ratio_base=sampler", "algorithm.target_kl=0.01"),
    "cispo": ("algorithm=cispo", "algorithm.ratio_base=sampler", *RANGE),
    "gspo": ("algorithm=gspo", "algorithm.ratio_base=sampler"),
    "gmpo": ("algorithm=gmpo", "algorithm.ratio_base=sampler"),
    "masked sequences": ("algorithm=gspo", "algorithm.objective=mask", "algorithm.ratio_base=sampler"),
}
PAIRS = (
    *[("sao", "top_p"), ("sao", "temperature"), ("dppo", "top_k"), ("dppo", "min_p")],
    *[("ppo", "repetition_penalty"), ("ppo", "min_new_tokens"), ("dppo by kl", "top_p"), ("cispo", "temperature")],
    *[("gspo", "top_p"), ("gmpo", "min_p"), ("masked sequences", "top_k")],
)


@pytest.mark.parametrize(("objective", "filters"), PAIRS)
def test_first_ratio_is_one_under_filters(tmp_path, objective, filters):
    keys = (
        *("rollout.max_new_tokens=6", "evaluation.every=0", "algorithm.critic_warmup=0", "algorithm.mini_batch_size=8"),
        *("actor.warmup_iterations=0", "actor.learning_rate=1e-6", "task=sorting_solo"),
    )
    with open_trainer(tmp_path, *keys, *OBJECTIVES[objective], *FILTERS[filters]) as trainer:
        trainer.step()
        (name,) = trainer.state.team
        row = trainer.state.progress.row
    assert row is not None
    assert row[f"{name}/policy/ratio_first_step_deviation"] < 1e-4
    assert row[f"{name}/policy/grad_norm"] > 1e-4
    assert row[f"{name}/policy/clip_fraction"] < 0.1
    assert abs(row[f"{name}/policy/approx_kl"]) < 1e-3
    assert row[f"{name}/policy/steps"] > 1  # target_kl stops no update before the policy has changed
