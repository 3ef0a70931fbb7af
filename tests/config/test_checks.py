"""Ranges, rules between groups, and batch sizes."""

from __future__ import annotations

import ast
import math
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import pytest

from ippo_cli.compose.load import build_config, config_dir
from ippo_cli.config import (
    agent_checks,
    algorithm_checks,
    applicability,
    checks,
    critic_fitting,
    critics,
    data,
    reward_models,
    rewards,
    schema,
    task_checks,
)
from ippo_cli.config.batch_sizes import compute_batch_sizes
from ippo_cli.config.checks import check_config, constrained_leaves
from ippo_cli.config.constraints import OneOf, PositiveInt, Range, constraints
from ippo_cli.config.errors import ConfigError, split_errors

Make = Callable[..., Any]
Line = tuple[Path, int]

# Number fields that allow every finite value.
UNBOUNDED = {
    "gradnorm_best_score",
    "rank_pattern",
    "alpha_pattern",
    "team_weight",
    "agent_weight",
    "turn_weight",
    "scale",
    "shift",
    "clip_low",
    "clip_high",
    "entropy_coef",
    "invalid_reward",
    "seat",
    "weights",
    "min_score",
    "max_score",
    "value_min",
    "value_max",
    "success_score",
}
GRPO, HAPPO, CISPO = "algorithm=grpo", "algorithm=happo", "algorithm=cispo"
VINE = "algorithm=vine_ppo"
SHARED = "team=shared_policy"
HACPO = ("algorithm=hacpo", "task=sorting_peers")
JSONL, FULL, FUNCTION = "task=jsonl", "actor=full", "reward=function"

TWO = {"task.train": ["a", "b"], "task.eval": "c"}
MATCH = {"kind": "exact_match", "match": "exact"}  # a part of a mix
ALTERNATIVES = {"reward.credit_assignment": "counterfactual", "reward.credit_alternatives": 2}
DIALOGUE = {"task.protocol": "dialogue", "task.num_turns": 2}
SHARE = {
    "team.share_rollouts": True,
    "rollout.recompute_logprobs": True,
    "reward.team_weight": 0.0,
    "reward.agent_weight": 1.0,
    "algorithm.behavior_correction.level": "token",
}
NO_SHARING = "does not support team.share_rollouts=true"
CURRENT = "episodes in which all agents act with their current policies"
FIXED = "scores that depend on their own response alone"
OWN_ROWS = "rows that the agent's own policy has sampled, and team.share_rollouts=true adds"
POOL = {"team.opponent_pool.every": 2, "team.opponent_pool.size": 4, "team.opponent_pool.share": 0.5}

# Choices of groups, changed values, processes, and the start of the message: at least one case per rule.
BROKEN: list[tuple[tuple[str, ...], dict[str, Any], int, str]] = [
    *(
        ((*HACPO, *choices), changes, 1, message)
        for choices, changes, message in [
            (
                (),
                {"task.num_turns": 2, "task.protocol": "dialogue"},
                f"task.protocol=dialogue task.num_turns=2 {NO_SHARING}",
            ),
            ((), {"task.protocol": "sequential"}, f"task.protocol=sequential task.num_turns=1 {NO_SHARING}"),
            ((SHARED,), {}, f"team=shared_policy {NO_SHARING}"),
            (
                (),
                {"team.update_order": "sequential", "algorithm.sequential_correction.pooling": "sum"},
                f"team.update_order=sequential needs {OWN_ROWS}",
            ),
            ((), POOL, f"team.opponent_pool.every=2 needs {OWN_ROWS}"),
            ((), {"rollout.recompute_logprobs": False}, f"rollout.recompute_logprobs=false {NO_SHARING}"),
            ((), {"rollout.refill_rounds": 2}, f"rollout.refill_rounds=2 needs {OWN_ROWS}"),
            (("algorithm=ppo",), {**SHARE, "mode": "critic"}, f"mode=critic needs {OWN_ROWS}"),
            (
                (),
                {"algorithm.cross_agent.exponent": None, "algorithm.cross_agent.clip_range": None},
                f"algorithm.cross_agent.exponent=null algorithm.behavior_correction.level=none {NO_SHARING}",
            ),
            (("algorithm=rae",), SHARE, f"algorithm.advantage=role_baseline needs {OWN_ROWS}"),
            (("algorithm=ppo", "critic=centralized"), SHARE, f"critic=centralized needs {OWN_ROWS}"),
            (("algorithm=ppo",), {**SHARE, "algorithm.credit": "auto"}, f"algorithm.credit=auto {NO_SHARING}"),
            ((), {"algorithm.normalization_scope": "team"}, f"algorithm.normalization_scope=team needs {OWN_ROWS}"),
            (
                (),
                {"algorithm.reweight.method": "pow", "algorithm.reweight.power": 2.0},
                f"algorithm.reweight.method=pow needs {OWN_ROWS}",
            ),
            (
                (),
                {"algorithm.positive_nll.coef": 0.1, "algorithm.positive_nll.min_score": 1.0},
                f"algorithm.positive_nll.coef=0.1 needs {OWN_ROWS}",
            ),
            ((), {"algorithm.kl.reward.coef": 0.1}, f"algorithm.kl.reward.coef=0.1 needs {OWN_ROWS}"),
            (
                (),
                {"algorithm.kl.loss.coef": 0.1},
                f"algorithm.kl.loss.coef=0.1 algorithm.kl.loss.estimator=k3 needs {OWN_ROWS}",
            ),
            ((), {"algorithm.target_kl": 0.1}, f"algorithm.target_kl=0.1 needs {OWN_ROWS}"),
            ((), {"reward.team_weight": 1.0}, f"reward.team_weight=1 {NO_SHARING}"),
            ((), {"task.agents.second.reward.agent_weight": 2.0}, f"task.agents.second.reward {NO_SHARING}"),
            (
                (),
                {"reward.processor": ["zscore"]},
                f"team.share_rollouts=true needs {FIXED}, and reward.processor=[zscore]",
            ),
        ]
    ),
    (
        (*HACPO, "~task.agents.second"),
        {},
        1,
        "task.agents=[first] does not support team.share_rollouts=true: there is no other agent",
    ),
    (
        ("algorithm=hacpo",),
        {},
        1,
        "task.agents.high.template={letters}> differs from low's {letters}<, and team.share_rollouts=true",
    ),
    (
        HACPO,
        {"task.agents.second.rollout.max_new_tokens": 3},
        1,
        "task.agents.second.rollout.max_new_tokens=3 differs from first's",
    ),
    (
        (),
        {"max_iterations_this_run": 1000, "num_iterations": 10},
        1,
        "max_iterations_this_run=1000 is never reached with num_iterations=10",
    ),
    ((), {"launch.watchdog_s": 60.0, "launch.watchdog_first_s": 5.0}, 1, "launch.watchdog_first_s=5 is shorter than"),
    ((), {"critic.popart_beta": 0.0}, 1, "critic.popart_beta=0.0 is out of range"),
    ((), {"critic.value_bins": 1, "critic.popart_beta": 0.9}, 1, "critic.value_bins=1 is out of range"),
    ((), {"critic.mask_agreement": 0.5}, 1, "critic.mask_agreement=0.5 has no effect: critic.ensemble=1"),
    (("critic=centralized",), {"critic.ensemble": 2}, 1, "critic.ensemble=2 divides the prompts of one agent"),
    (
        (),
        {"critic.ensemble": 3, "rollout.buffer_size": 16, "rollout.num_generations": 8},
        1,
        "critic.ensemble=3 leaves a critic without data",
    ),
    (("algorithm=ppo",), {"critic.ensemble": 2}, 1, "algorithm.value_clip_range=0.2 clips to the values"),
    (
        (),
        {"critic.ensemble": 2, "critic.mask_entropy": 0.1, "algorithm.entropy_coef": 0.0},
        1,
        "critic.mask_entropy=0.1 has no effect",
    ),
    ((), {"critic.bin_sigma": 0.5}, 1, "critic.bin_sigma=0.5 has no effect"),
    ((), {"critic.value_min": -1.0}, 1, "critic.value_min=-1 has no effect"),
    ((), {"critic.value_bins": 11}, 1, "critic.value_bins=11 needs the range of the returns"),
    (
        (),
        {"critic.value_bins": 11, "critic.value_min": 1.0, "critic.value_max": 1.0},
        1,
        "critic.value_min=1 critic.value_max=1 are not a range",
    ),
    (
        (),
        {"critic.value_bins": 11, "critic.popart_beta": 1.0, "critic.value_min": 5.0},
        1,
        "critic.value_min=5 critic.value_max=null are not a range",
    ),
    (
        ("algorithm=ppo",),
        {"critic.value_bins": 11, "critic.popart_beta": 0.9},
        1,
        "algorithm.value_clip_range=0.2 is of the squared error",
    ),
    (
        ("critic=value_head",),
        {"critic.value_bins": 11, "critic.popart_beta": 0.9, "algorithm.huber_delta": 2.0},
        1,
        "algorithm.huber_delta=2 is of the squared error",
    ),
    (
        ("algorithm=turn_ppo",),
        {"critic.value_bins": 11, "critic.popart_beta": 0.9, "algorithm.value_clip_range": None},
        1,
        "algorithm.value_unit=turn pools the values",
    ),
    ((), {"algorithm.loss_aggregation": "mean"}, 1, "algorithm.loss_aggregation=mean is not known"),
    ((), {"algorithm.kl.reward.estimator": "k1+"}, 1, "algorithm.kl.reward.estimator=k1+ is not known"),
    ((), {"algorithm.kl.loss.estimator": "full+"}, 1, "algorithm.kl.loss.estimator=full+ is not known"),
    ((), {"reward.scale": math.nan}, 1, "reward.scale=nan must be a finite number"),
    ((), {"algorithm.gamma": math.nan}, 1, "algorithm.gamma=nan must be a finite number"),
    ((), {"actor.learning_rate": math.inf}, 1, "actor.learning_rate=inf must be a finite number"),
    ((), {"actor.learning_rate": -1.0}, 1, "actor.learning_rate=-1.0 is out of range"),
    ((), {"task.agents.low.critic.learning_rate": -1.0}, 1, "task.agents.low.critic.learning_rate=-1.0 is out of"),
    ((), {"actor.tokenizer": "x"}, 1, "actor.tokenizer=x cannot be set for actor=tiny"),
    ((), {"actor.chat_template": "x.jinja"}, 1, "actor.chat_template=x.jinja cannot be set for actor=tiny"),
    (
        ("actor=full", "actor.model=m"),
        {"actor.chat_template": "x.jinja"},
        1,
        "actor.chat_template=x.jinja has no effect: task=sorting uses no chat template",
    ),
    (("actor=full", "actor.model=m"), {"actor.tokenizer_revision": "v1"}, 1, "actor.tokenizer_revision=v1"),
    ((), {"reward.processor": ["clap"]}, 1, "reward.processor=[clap] is neither a step nor a function"),
    ((), {"resume": "auto"}, 1, "resume=auto has an effect on the command line only"),
    ((), {"num_iterations": None}, 1, "num_iterations=None num_epochs=None must not"),
    ((), {"launch.watchdog_first_s": 5.0}, 1, "launch.watchdog_first_s=5 is shorter than launch.watchdog_s=600"),
    ((), {"checkpoint.save_deadline": "soon"}, 1, "checkpoint.save_deadline=soon is not a time"),
    ((), {"num_epochs": 1.0}, 1, "num_iterations=90 num_epochs=1.0 must not"),
    ((), {"name": "a/b"}, 1, "name=a/b is not a folder name"),
    ((), {"name": ".."}, 1, "name=.. is not a folder name"),
    ((), {"name": ""}, 1, "name= is not a folder name"),
    ((), {"task.agents": {}}, 1, "task.agents={} has no agents"),
    ((), {"task.primary_metric": "score"}, 1, "task.primary_metric=score is not an evaluation metric"),
    ((), {"task.primary_metric": "greedy/"}, 1, "task.primary_metric=greedy/ is not an evaluation metric"),
    (
        (),
        {"task.primary_metric": "greedy/score", "evaluation.greedy": False},
        1,
        "task.primary_metric=greedy/score needs",
    ),
    ((), {"evaluation.patience": 2, "evaluation.every": 0}, 1, "evaluation.patience=2 has no effect"),
    (
        ("mode=critic",),
        {"evaluation.stop_at_risk": 0.5},
        1,
        "evaluation.stop_at_risk=0.5 has no effect with mode=critic",
    ),
    (("algorithm=distill",), {}, 1, "task.agents.low.actor.reference=initial is the policy before training"),
    (
        ("algorithm=distill", "actor.reference=owner/teacher"),
        {"algorithm.kl.loss.estimator": "k1+", "algorithm.ppo_epochs": 2},
        1,
        "algorithm.kl.loss.estimator=k1+ estimates the KL at tokens that the current policy has sampled, and a buffer",
    ),
    (("algorithm=distill",), {"algorithm.kl.loss.coef": 0.0}, 1, "algorithm.advantage=none leaves the policy without"),
    (
        ("algorithm=grpo",),
        {"algorithm.advantage": schema.Advantage.none, "algorithm.scale_by_std": None},
        1,
        "algorithm.objective=clip has no effect: advantage=none",
    ),
    (("mode=critic", "algorithm=grpo"), {}, 1, "critic=none has no values to fit"),
    (("mode=critic",), {"evaluation.sampled": False, "task.primary_metric": "greedy/score"}, 1, "evaluation.sampled=f"),
    (
        (GRPO,),
        {"rollout.refill_rounds": 2, "rollout.num_generations": 1, "algorithm.advantage": "my.py:estimate"},
        1,
        "rollout.refill_rounds=2 rollout.num_generations=1 replaces groups",
    ),
    (
        ("algorithm=ppo",),
        {"rollout.refill_rounds": 2, "rollout.num_generations": 8},
        1,
        "algorithm.advantage=gae needs groups of equal scores, from which it learns too, and rollout.refill_rounds=2",
    ),
    (
        (GRPO,),
        {"rollout.refill_rounds": 2, "reward.credit_assignment": "leave_out"},
        1,
        "rollout.refill_rounds=2 reward.credit_assignment=leave_out would discard",
    ),
    (
        (GRPO,),
        {"rollout.refill_rounds": 2, "algorithm.normalization_scope": schema.NormalizationScope.team},
        1,
        "rollout.refill_rounds=2 algorithm.normalization_scope=team would discard",
    ),
    (
        (GRPO,),
        {"rollout.refill_rounds": 2, "algorithm.kl.reward.coef": 0.1},
        1,
        "rollout.refill_rounds=2 algorithm.kl.reward.coef=0.1 would discard",
    ),
    (
        (GRPO, FUNCTION),
        {"rollout.refill_rounds": 2, "reward.function": "a.py:f", "reward.whole_batch": True},
        1,
        "rollout.refill_rounds=2 reward.whole_batch=true compares",
    ),
    (
        (GRPO,),
        {"rollout.refill_rounds": 2} | POOL,
        1,
        f"rollout.refill_rounds=2 needs {CURRENT}, and team.opponent",
    ),
    ((), {"task.curriculum.band_low": 0.2}, 1, "task.curriculum.band_low=0.2 band_high=None are not an interval"),
    (
        (),
        {"task.curriculum.band_low": 0.8, "task.curriculum.band_high": 0.2},
        1,
        "task.curriculum.band_low=0.8 band_high=0.2 are not an interval",
    ),
    (
        (),
        {"task.curriculum.levels": ["1", "2"]},
        1,
        "task.curriculum.level_field=None task.curriculum.levels=['1', '2'] name levels and no field",
    ),
    (
        (),
        {"task.curriculum.level_field": "level", "task.curriculum.levels": ["1", "1"]},
        1,
        "task.curriculum.level_field=level task.curriculum.levels=['1', '1'] need at least two",
    ),
    ((), {"task.length": 11}, 1, "task.length=11 is more than the 10 letters"),
    ((), {"task.alphabet": "aabb", "task.length": 3}, 1, "task.length=3 is more than the 2 letters"),
    ((JSONL,), {"task.train": None}, 1, "task.train=null names no data"),
    ((JSONL,), {"task.eval": None}, 1, "task.eval=null names no data"),
    ((JSONL,), {"task.train": ["a.jsonl", 3]}, 1, "task.train=['a.jsonl', 3] is neither a name nor a list of names"),
    (
        (JSONL,),
        {"task.train": "a", "task.eval": "b", "task.eval_share": 0.1},
        1,
        "task.eval_share=0.1 task.eval=b both",
    ),
    ((JSONL,), {"task.train": None, "task.eval": None, "task.eval_share": 0.1}, 1, "task.train=null names no data"),
    ((JSONL,), {"task.train": "a", "task.eval_share": 1.0}, 1, "task.eval_share=1.0 is out of range"),
    ((JSONL,), {**TWO, "task.weights": [1]}, 1, "task.weights=[1] must have a number above 0 for each"),
    ((JSONL,), {**TWO, "task.weights": [1, 0]}, 1, "task.weights=[1, 0] must have a number above 0"),
    ((JSONL,), {**TWO, "task.train": "a", "task.weights": [1]}, 1, "task.weights=[1] must have a number above 0"),
    ((JSONL,), {**TWO, "task.weights": [1, 5000]}, 1, "task.weights=[1, 5000] gives a source less than 1 of 1000"),
    (
        (JSONL,),
        {**TWO, "task.weights": [1, 1], "task.train_size": 5},
        1,
        "task.train_size=5 task.weights=[1, 1] cannot",
    ),
    ((JSONL,), {**TWO, "task.streaming": True}, 1, "task.streaming=true needs the number of rows"),
    ((JSONL,), {"task.eval": None, "task.eval_share": 0.5, "task.streaming": True}, 1, "task.streaming=true reads the"),
    ((JSONL,), {**TWO, "task.columns": {"q": []}}, 1, "task.columns.q=[] names no column"),
    ((JSONL,), {**TWO, "task.map": "rows"}, 1, "task.map=rows is not a function"),
    ((JSONL,), {**TWO, "task.filter": "rows.py"}, 1, "task.filter=rows.py names a file without a function"),
    ((), {"evaluation.sampled": False}, 1, "task.primary_metric=sampled/score needs the sampled evaluation"),
    ((), {"output_dir": ""}, 1, "output_dir= is empty"),
    ((JSONL,), {"task.train": []}, 1, "task.train= is empty"),
    ((), {"task.agents.low.system": "be brief"}, 1, "task.agents.low.system='be brief' has an effect with"),
    ((JSONL,), {"task.agents.solo.system": "be brief"}, 1, "task.agents.solo.system='be brief' has an effect with"),
    (
        (JSONL,),
        {"task.agents.solo.template": "messages:q"},
        1,
        "task.agents.solo.template=messages:q is a list of messages",
    ),
    ((JSONL,), {"task.chat_template": "maybe"}, 1, "task.chat_template=maybe is not known"),
    ((JSONL,), {"task.chat_template": True}, 1, "task.chat_template=true needs a tokenizer"),
    ((), {"actor.model": "some/model"}, 1, "actor.model=some/model cannot be set for actor=tiny"),
    ((), {"actor.num_heads": 3}, 1, "actor.num_heads=3 must divide actor.hidden_size=128"),
    ((), {"actor.num_heads": 128}, 1, "actor.num_heads=128 must divide actor.hidden_size=128"),
    ((), {"actor.hidden_size": 63, "actor.num_heads": 1}, 1, "actor.hidden_size=63 is odd"),
    ((JSONL, FUNCTION), {"task.agents.solo.answer": None}, 1, "task.agents.solo.answer=null leaves actor=tiny"),
    ((), {"task.protocol": "debate"}, 1, "task.protocol=debate is not known"),
    (
        (),
        {"task.protocol": "debate.py"},
        1,
        "task.protocol=debate.py names a file without a function",
    ),
    ((), {"task.protocol": "sequential", "task.num_turns": 2}, 1, "task.num_turns=2 is more than the one turn"),
    (
        (),
        {"task.agents.low.turn_template": "go on"},
        1,
        "task.agents.low.turn_template='go on' is used from the second",
    ),
    ((), {"rollout.context": "retokenize"}, 1, "rollout.context=retokenize has no effect"),
    (
        ("task=reasoning_gym",),
        {"rollout.context": "last_only"},
        1,
        "rollout.context=last_only has no effect: task.kind=r",
    ),
    (
        ("task=environment",),
        {"rollout.context": "retokenize", "task.max_turns": 1},
        1,
        "rollout.context=retokenize has no effect: task.kind=environment",
    ),
    (
        ("task=gymnasium",),
        {"rollout.context": "retokenize", "task.max_turns": 1},
        1,
        "rollout.context=retokenize has no effect: task.kind=gymnasium",
    ),
    (
        ("task=ladder",),
        {"rollout.context": "last_only", "task.num_rungs": 1},
        1,
        "rollout.context=last_only has no effect: task.kind=ladder",
    ),
    ((), {"task.protocol": "calls"}, 1, "task.num_turns=1 leaves no call"),
    (("task=sorting_solo",), {"task.protocol": "calls"}, 1, "task.protocol=calls calls other agents"),
    ((), {"task.num_turns": 2, "reward.reward_batch_rows": 8}, 1, "reward.reward_batch_rows=8 rewards rows during"),
    (("task=gymnasium",), {"reward.reward_batch_rows": 8}, 1, "reward.reward_batch_rows=8 rewards rows during"),
    (("task=relay",), {"task.alphabet": "aa"}, 1, "task.alphabet=aa has fewer than two letters"),
    (("task=ladder",), {"task.strides": 8}, 1, "task.strides=8 must be less than the 8 letters"),
    (("task=signalling",), {"task.signals": "a"}, 1, "task.signals=a has only one signal"),
    (("task=signalling",), {"task.symbols": "01"}, 1, "task.symbols=01 task.message_length=1 make 2 messages"),
    (("task=signalling",), {"task.eval_size": 7}, 1, "task.eval_size=7 is less than the 8 signals"),
    (("task=gymnasium",), {"task.env_id": None}, 1, "task.env_id=null names no environment"),
    (("task=reasoning_gym",), {"task.dataset": None}, 1, "task.dataset=null names no environment"),
    (("task=gymnasium", "reward=exact_match"), {}, 1, "reward.kind=exact_match compares responses with examples"),
    (("reward=environment", "task=sorting"), {}, 1, "reward.kind=environment needs an environment, a program or"),
    (
        ("task.agents.low.actor.kind=server", "task.agents.low.frozen=true"),
        {},
        1,
        "task.agents.low.actor.model=null names no tokenizer",
    ),
    (
        ("algorithm=turn_ppo",),
        {"algorithm.turn_value": "post", "task.num_turns": 3},
        1,
        "algorithm.turn_value=post is one value for a whole response, and",
    ),
    ((FULL,), {"actor.model": None}, 1, "actor.model=null names no weights for agent low"),
    ((SHARED, HAPPO), {}, 1, "team.update_order=sequential needs at least two trainable policies, and only shared is"),
    ((), {"team.update_order": "round_robin"}, 1, "team.round_robin_every=null is needed by team.update_order=round"),
    ((), {"team.round_robin_every": 2}, 1, "team.round_robin_every=2 has no effect"),
    ((), {"team.update_order": "sequential"}, 1, "team.update_order=sequential has no effect without a correc"),
    ((HAPPO,), {"team.update_order": "simultaneous"}, 1, "algorithm.sequential_correction.pooling=sum corrects for"),
    ((HAPPO,), {"algorithm.sequential_correction.cap": 0.5}, 1, "algorithm.sequential_correction.cap=0.5 truncates"),
    ((HAPPO,), {"task.protocol": "sequential"}, 1, "algorithm.sequential_correction.pooling=sum corrects for sim"),
    ((), {"task.agents.low.frozen": True, "task.agents.high.frozen": True}, 1, "task.agents.low.frozen=true leaves"),
    (
        (),
        {"task.agents.low.frozen": True, "task.agents.low.critic.learning_rate": 0.5},
        1,
        "task.agents.low.critic.learning_rate=0.5 has no effect",
    ),
    (
        ("algorithm=ppo",),
        {"task.agents.low.frozen": True, "task.agents.low.algorithm.ppo_epochs": 3},
        1,
        "task.agents.low.algorithm.ppo_epochs=3 has no effect: task.agents.low.frozen=true",
    ),
    (
        ("algorithm=mappo",),
        {"critic.shared": True, "task.agents.high.algorithm.ppo_epochs": 3},
        1,
        "critic.ppo_epochs=null follows algorithm.ppo_epochs, which is 5 of low and 3 of high",
    ),
    (
        (SHARED,),
        {"team.groups": {"pair": ["low", "high"]}, "task.agents.low.frozen": True},
        1,
        "team.groups.pair=[low,high] names low, which is not trained",
    ),
    (
        (),
        {"team.opponent_pool.every": 2, "team.opponent_pool.size": 2},
        1,
        "team.opponent_pool.share=null is required by the opponent pool",
    ),
    ((), {"team.opponent_pool.size": 2}, 1, "team.opponent_pool.size=2 has no effect: team.opponent_pool.every=0"),
    ((), {"team.opponent_pool.elo": True}, 1, "team.opponent_pool.elo=true rates policies by games with snapshots"),
    ((), POOL | {"task.agents.low.frozen": True}, 1, "team.opponent_pool.every=2 needs at least two trainable agents"),
    (
        (),
        POOL | {"team.opponent_pool.share": 0.0005},
        1,
        "team.opponent_pool.share=0.0005 is less than one of the 512 prompts",
    ),
    (
        (),
        POOL | {"reward.measure_credit_every": 2},
        1,
        "reward.measure_credit_every=2 needs episodes in which all agents act with",
    ),
    ((), POOL | {"team.opponent_pool.share": 1.5}, 1, "team.opponent_pool.share=1.5 is out of range"),
    (
        (),
        POOL | {"team.opponent_pool.elo": True},
        1,
        "team.opponent_pool.elo=true compares rewards of the environment, and task.kind",
    ),
    ((), {"team.round_robin_every": 0}, 1, "team.round_robin_every=0 is out of range"),
    ((SHARED,), {"team.groups": {"a-b": ["low"]}}, 1, "team.groups.a-b is used in metric names and folders"),
    ((SHARED,), {"team.groups": {"eval": ["low"]}}, 1, "team.groups.eval is used in metric names and folders"),
    ((SHARED,), {"team.groups": {"high": ["low"]}}, 1, "team.groups.high has the name of an agent"),
    ((SHARED,), {"team.groups": {"pair": []}}, 1, "team.groups.pair=[] is empty"),
    (
        (SHARED,),
        {"team.groups": {"pair": ["low", "mid"]}},
        1,
        "team.groups.pair=[low,mid] names mid, which is not an agent",
    ),
    (
        (SHARED,),
        {"team.groups": {"one": ["low"], "two": ["high", "low"]}},
        1,
        "team.groups.two=[high,low] names low, which is already in group one",
    ),
    (
        (SHARED, "++task.agents={shared:{}}", "task.agents.shared.template=x", "task.agents.shared.answer=x"),
        {},
        1,
        "team.groups={} puts all agents into a group named shared, and an agent has that name",
    ),
    (
        (SHARED,),
        {"task.agents.high.actor.learning_rate": 0.5},
        1,
        "task.agents.high.actor.learning_rate=0.5 differs from low's 0.00035, and both are in group shared",
    ),
    (
        (SHARED, "task.agents.high.critic.kind=value_head"),
        {},
        1,
        "task.agents.high.critic.kind=value_head differs from low's separate, and both are in group shared",
    ),
    (
        (SHARED,),
        {"task.agents.high.rollout.temperature": 0.5},
        1,
        "task.agents.high.rollout.temperature=0.5 differs from low's 1.0, and both are in group shared, which has one",
    ),
    (
        (SHARED,),
        {"task.agents.high.algorithm.ppo_epochs": 2},
        1,
        "task.agents.high.algorithm.ppo_epochs=2 differs from low's 1, and both are in group shared",
    ),
    ((), {"task.agents.high.rollout.top_p": 0.0}, 1, "task.agents.high.rollout.top_p=0.0 is out of range"),
    (
        (),
        {"task.agents.high.rollout.min_new_tokens": 9},
        1,
        "task.agents.high.rollout.min_new_tokens=9 is more than task.agents.high.rollout.max_new_tokens=8",
    ),
    (
        (),
        {"task.agents.high.rollout.stop_strings": ["x", ""]},
        1,
        "task.agents.high.rollout.stop_strings has an empty string",
    ),
    (
        (),
        {"task.agents.high.algorithm.mini_batch_size": 7},
        1,
        "task.agents.high.algorithm.mini_batch_size=7 does not divide rollout.buffer_size=512",
    ),
    (
        (),
        {"task.agents.high.algorithm.ppo_epochs": 2},
        1,
        "task.agents.high.algorithm.mini_batch_size=null task.agents.high.algorithm.ppo_epochs=2 make 2",
    ),
    (
        ("task.agents.high.critic.kind=none",),
        {},
        1,
        "task.agents.high.critic=none has no values, which algorithm.advantage=gae needs",
    ),
    (
        ("task.agents.high.actor.kind=full",),
        {},
        1,
        "task.agents.high.actor.model=null names no weights for agent high",
    ),
    (
        (SHARED,),
        {"team.groups": {"pair": ["high", "low"]}, "task.agents.low.critic.ppo_epochs": 3},
        1,
        "task.agents.high.critic.ppo_epochs=null differs from low's 3, and both are in group pair, which has one",
    ),
    ((), {"rollout.num_generations": 3}, 1, "rollout.num_generations=3 does not divide rollout.buffer_size=512"),
    ((), {"rollout.buffer_size": 2}, 3, "rollout.buffer_size=2 leaves some of the 3 processes"),
    ((), {"rollout.min_new_tokens": 9}, 1, "rollout.min_new_tokens=9 is more than rollout.max_new_tokens=8"),
    ((), {"rollout.zero3_gather": "layer"}, 1, "rollout.zero3_gather=layer has an effect at ZeRO stage 3 only"),
    (
        (),
        {"rollout.batch_invariant": True, "rollout.decode_batch_size": 40},
        1,
        "rollout.decode_batch_size=40 is no multiple of 32",
    ),
    (
        ("deepspeed=zero3",),
        {"rollout.batch_invariant": True, "rollout.zero3_gather": "layer"},
        1,
        "rollout.zero3_gather=layer gathers weights in every step",
    ),
    (
        ("rollout=engine",),
        {"rollout.batch_invariant": True, "rollout.engine": "a.py:E"},
        1,
        "rollout.batch_invariant=true has no effect with rollout=engine",
    ),
    ((), {"rollout.stop_strings": ["\n", ""]}, 1, "rollout.stop_strings has an empty string"),
    (("algorithm=ppo",), {"algorithm.mini_batch_size": 6}, 1, "algorithm.mini_batch_size=6 does not divide"),
    (("algorithm=ppo",), {"rollout.buffer_size": 64}, 1, "algorithm.mini_batch_size=128 does not divide"),
    ((), {"critic.mini_batch_size": 6}, 1, "critic.mini_batch_size=6 does not divide"),
    ((), {"algorithm.ppo_epochs": 2}, 1, "algorithm.mini_batch_size=null algorithm.ppo_epochs=2 make 2 optimizer"),
    ((), {"algorithm.mini_batch_size": 64}, 1, "algorithm.mini_batch_size=64 algorithm.ppo_epochs=1 make 8 optimizer"),
    (("algorithm=ippo", "critic=none"), {}, 1, "critic=none has no values, which algorithm.advantage=gae needs"),
    ((GRPO, "critic=separate"), {}, 1, "critic=separate trains values that algorithm.advantage=group does not use"),
    (
        ("algorithm=mappo", "critic=separate"),
        {},
        1,
        "critic=separate reads one agent's rows only, and algorithm.needs",
    ),
    (
        ("critic=centralized", "task.agents.low.critic.kind=value_head"),
        {},
        1,
        "task.agents.low.critic=value_head differs between agents",
    ),
    (
        ("critic=centralized", "algorithm=turn_ppo"),
        {"algorithm.turn_value": schema.TurnValue.post},
        1,
        "algorithm.turn_value=post is the value after a response",
    ),
    (("critic=centralized", "critic.context_limit=3"), {}, 1, "critic.context_limit=3 is too small for a response"),
    ((GRPO, "critic=value_head"), {}, 1, "critic=value_head trains values that"),
    ((GRPO,), {"algorithm.truncation": "bootstrap"}, 1, "algorithm.truncation=bootstrap needs a critic's value"),
    ((GRPO,), {"rollout.num_generations": 1}, 1, "rollout.num_generations=1 is too small: algorithm.advantage=group"),
    (("algorithm=pf_ppo",), {"rollout.num_generations": 1}, 1, "rollout.num_generations=1 is too small: algorithm.rew"),
    ((GRPO, "critic=separate"), {}, 1, "critic=separate trains values that algorithm.advantage=group does not"),
    ((VINE,), {"algorithm.truncation": "bootstrap"}, 1, "algorithm.truncation=bootstrap needs a critic's value"),
    (
        ("algorithm=remax",),
        {"reward.processor": ["zscore"]},
        1,
        "reward.processor=[zscore] centres the scores of greedy",
    ),
    (
        ("algorithm=remax", "reward=function", "reward.function=math.py:sqrt"),
        {"reward.whole_batch": True},
        1,
        "reward.whole_batch=true compares greedy responses with each other",
    ),
    (("algorithm=turn_ppo",), {"algorithm.turn_value": "post", "algorithm.credit": "auto"}, 1, "algorithm.turn_value"),
    (("algorithm=ppo",), {"algorithm.behavior_correction.level": "token"}, 1, "algorithm.behavior_correction.level"),
    (
        ("algorithm=sao",),
        {"rollout.recompute_logprobs": True},
        1,
        "rollout.recompute_logprobs=true computes log-probabilities that algorithm.ratio_base=sampler does not use",
    ),
    (
        ("algorithm=sao",),
        {"algorithm.behavior_correction.level": "token"},
        1,
        "algorithm.behavior_correction.level=token would correct for the sampler twice",
    ),
    (
        ("algorithm=ppo",),
        {"algorithm.behavior_correction.level": "sequence", "rollout.top_p": 0.9},
        1,
        "algorithm.behavior_correction.level=sequence has weights that vanish with the length",
    ),
    (
        ("algorithm=ppo",),
        {
            "algorithm.behavior_correction.level": "token",
            "algorithm.behavior_correction.band_low": 0.5,
            "algorithm.behavior_correction.band_high": 2.0,
            "rollout.repetition_penalty": 1.2,
        },
        1,
        "algorithm.behavior_correction.band_low=0.5 band_high=2.0 would mask tokens for the share",
    ),
    (
        ("algorithm=sao", "critic=separate"),
        {"deepspeed.tensor_parallel": 2},
        2,
        "deepspeed.tensor_parallel=2 critic.freeze=[*attn*] have not been verified together",
    ),
    (
        ("algorithm=ppo",),
        {
            "rollout.top_k": 5,
            "algorithm.behavior_correction.level": "token",
            "algorithm.behavior_correction.band_low": 0.5,
        },
        1,
        "algorithm.behavior_correction.band_low",
    ),
    (("algorithm=ppo",), {"algorithm.gamma": None}, 1, "algorithm.gamma=null is needed by this"),
    ((), {"algorithm.dual_clip": 3.0}, 1, "algorithm.dual_clip=3.0 has no effect: objective=on_policy has no ratio"),
    ((), {"algorithm.kl.reward.coef": 0.1, "algorithm.kl.loss.coef": 0.1}, 1, "algorithm.kl.reward.coef=0.1 algorithm"),
    ((), {"algorithm.kl.reward.target": 0.1}, 1, "algorithm.kl.reward.target=0.1 adapts a coefficient that is 0"),
    (
        (),
        {"algorithm.kl.reward.coef": 0.1, "algorithm.kl.reward.target": 0.1},
        1,
        "algorithm.kl.reward.horizon=null is needed",
    ),
    (
        (),
        {"algorithm.kl.reward.coef": 0.1, "algorithm.kl.reward.target": 0.1, "algorithm.kl.reward.horizon": 102},
        1,
        "algorithm.kl.reward.horizon=102 lets one buffer of rollout.buffer_size=512 lower the coefficient to 0",
    ),
    ((), {"algorithm.kl.loss.estimator": "k1", "algorithm.kl.loss.coef": 0.1}, 1, "algorithm.kl.loss.estimator=k1 has"),
    ((), {"deepspeed.offload_params": True}, 1, "deepspeed.offload_params=true needs ZeRO stage 3, not 1"),
    (("deepspeed=zero0",), {"deepspeed.offload_optimizer": True}, 1, "deepspeed.offload_optimizer=true needs ZeRO"),
    ((), {"reward.team_weight": 0.0}, 1, "reward.team_weight=0 reward.agent_weight=0 leave no reward"),
    (
        (),
        {"task.agents.low.reward.team_weight": 0.0},
        1,
        "task.agents.low.reward.team_weight=0 task.agents.low.reward.agent_weight=0 leave no reward",
    ),
    ((), {"reward.turn_weight": 0.5}, 1, "reward.turn_weight=0.5 has no effect: reward=exact_match gives no"),
    (
        (),
        {"task.agents.high.reward.turn_weight": 0.5},
        1,
        "task.agents.high.reward.turn_weight=0.5 has no effect: reward=exact_match gives no",
    ),
    (("reward=grid",), {"reward.agent_weight": 0.5}, 1, "reward.agent_weight=0.5 has no effect: reward=grid"),
    (
        ("task=arithmetic",),
        {"reward.exact_weight": 0.0, "reward.near_weight": 0.0, "reward.format_weight": 0.0},
        1,
        "reward.exact_weight=0 reward.near_weight=0 reward.format_weight=0 leave no reward",
    ),
    ((), {"reward.processor": ["clip"], "reward.clip_low": 10.0}, 1, "reward.clip_low=10.0 reward.clip_high=10.0 are"),
    (("reward=http",), {"reward.url": None}, 1, "reward.url=null names no server"),
    (("reward=http",), {"reward.url": "localhost:8000"}, 1, "reward.url=localhost:8000 is not an HTTP address"),
    (
        ("reward=http",),
        {"reward.token_env": "sk-a-b"},
        1,
        "reward.token_env is not the name of an environment variable",
    ),
    (("reward=judge",), {"reward.model": None}, 1, "reward.model=null names no model"),
    (("reward=judge",), {"reward.pattern": None}, 1, "reward.pattern=None reward.field=None define the position"),
    (("reward=judge",), {"reward.field": "score"}, 1, "reward.pattern=Score:"),
    (("reward=judge",), {"reward.pattern": "("}, 1, "reward.pattern=( is not a regular expression"),
    (("reward=judge",), {"reward.pattern": "a"}, 1, "reward.pattern=a has 0 groups"),
    (("reward=judge",), {"reward.max_score": 1.0}, 1, "reward.min_score=1.0 reward.max_score=1.0 are not an interval"),
    (("reward=judge",), {"reward.template": "{prompt}"}, 1, "reward.template='{prompt}' does not contain the response"),
    (("reward=model",), {"reward.model": None}, 1, "reward.model=null names no reward model"),
    (("reward=model",), {"reward.device": "gpu"}, 1, "reward.device=gpu is not a device"),
    ((FUNCTION,), {"reward.function": None}, 1, "reward.function=null names no function"),
    (
        (FUNCTION,),
        {"reward.whole_batch": True, "reward.reward_batch_rows": 8},
        1,
        "reward.reward_batch_rows=8 scores parts",
    ),
    (("reward=grid", "task=sorting"), {}, 1, "reward.kind=grid scores walks"),
    (("task=gymnasium", "reward=environment"), {"reward.turn_weight": 0.0}, 1, "reward.turn_weight=0 leaves no reward"),
    (
        (),
        {"reward.credit_assignment": "difference", "reward.measure_credit_every": 5},
        1,
        "reward.measure_credit_every=5 has no effect: reward.credit_assignment=difference measures credit",
    ),
    (
        (FUNCTION,),
        {"reward.function": "a.py:f", "reward.whole_batch": True, "reward.measure_credit_every": 5},
        1,
        "reward.whole_batch=true compares the rows of a batch, and reward.measure_credit_every scores",
    ),
    (
        ("algorithm=remax",),
        {"reward.credit_assignment": "leave_out"},
        1,
        "reward.credit_assignment=leave_out subtracts a baseline",
    ),
    (
        (),
        {"reward.credit_assignment": "leave_out", "task.num_turns": 2},
        1,
        "reward.credit_assignment=leave_out replaces one response of an episode and keeps all others, and with",
    ),
    (
        (),
        {"reward.credit_assignment": "leave_out", "task.agents.low.tools": "tools.py:make"},
        1,
        "reward.credit_assignment=leave_out replaces one response of an episode and keeps all others, and with tools",
    ),
    (
        ("task=pettingzoo", "reward=environment"),
        {"reward.credit_assignment": "counterfactual", "task.env_id": "classic/rps_v2"},
        1,
        "reward.credit_assignment=counterfactual replaces one response of an episode and keeps all others, and ta",
    ),
    (
        (),
        {"reward.credit_assignment": "counterfactual"},
        1,
        "rollout.num_generations=1 is too small: reward.credit_assignment=counterfactual",
    ),
    (
        (),
        {"reward.credit_alternatives": 2},
        1,
        "reward.credit_alternatives=2 has no effect: reward.credit_assignment=none samples no",
    ),
    (
        (),
        {"reward.credit_assignment": "leave_out", "reward.credit_turns": 2},
        1,
        "reward.credit_turns=2 has no effect: no alternatives",
    ),
    (
        (),
        ALTERNATIVES | {"reward.credit_turns": 2},
        1,
        "reward.credit_turns=2 has no effect: every agent has one turn",
    ),
    (
        (GRPO,),
        DIALOGUE | ALTERNATIVES | {"rollout.num_generations": 4},
        1,
        "algorithm.advantage=group needs one score for all turns of a row, and reward.credit_assignment=counterfactual",
    ),
    (
        ("algorithm=pf_ppo",),
        DIALOGUE | ALTERNATIVES,
        1,
        "algorithm.reweight.method=pow needs one score for all turns of a row, and reward.credit_assignment=",
    ),
    (
        (),
        DIALOGUE | ALTERNATIVES | {"algorithm.gamma": 0.9, "algorithm.credit": "token"},
        1,
        "algorithm.gamma=0.9 algorithm.credit=token discount by token",
    ),
    (
        (),
        DIALOGUE | ALTERNATIVES | {"reward.processor": ["running_zscore"]},
        1,
        "reward.processor=[running_zscore] belongs to the sum",
    ),
    ((JSONL, FULL), {"task.agents.solo.answer": None}, 1, "task.agents.solo.answer=null is not a reference answer"),
    (
        (FUNCTION,),
        {"reward.function": "a.py:f", "reward.per_sample": True, "reward.whole_batch": True},
        1,
        "reward.per_sample=true calls it row by row",
    ),
    (("reward=length",), {"reward.high": None}, 1, "reward.low=0 reward.high=null allow every length"),
    (("reward=length",), {"reward.low": 9, "reward.high": 8}, 1, "reward.low=9 reward.high=8 are not an interval"),
    (("reward=format",), {"reward.pattern": None}, 1, "reward.pattern=null is missing"),
    (("reward=format",), {"reward.pattern": "("}, 1, "reward.pattern=( is not a regular expression"),
    (
        ("reward=math",),
        {"task.agents.low.answer": None, "task.agents.high.answer": None},
        1,
        "task.agents.low.answer=n",
    ),
    (("task=gymnasium", "reward=math"), {}, 1, "reward.kind=math compares responses with examples"),
    (("reward=code",), {"reward.sandbox": "none"}, 1, "reward.sandbox=none runs no generated code"),
    (("reward=code_pair",), {"reward.helper": "a-b"}, 1, "reward.helper=a-b is not a function name"),
    (
        ("reward=code_pair",),
        {"reward.parses": 0.0, "reward.defines": 0.0, "reward.calls": 0.0, "reward.tests": 0.0},
        1,
        "reward.parses=0 reward.defines=0 reward.calls=0 reward.tests=0 leave no reward",
    ),
    ((JSONL, FULL, "reward=code_pair"), {}, 1, "reward.kind=code_pair needs two agents, and the task has 1"),
    (("reward=mix",), {"reward.parts": {}}, 1, "reward.parts={} leaves no reward"),
    (("reward=mix",), {"reward.parts": {"a b": MATCH}}, 1, "reward.parts.a b is used in metric names"),
    (("reward=mix",), {"reward.weights": {"b": 1.0}}, 1, "reward.weights names b, which is not a part"),
    (("reward=mix",), {"reward.weights": {"a": 0.0}}, 1, "reward.weights leave no reward"),
    (
        ("reward=mix",),
        {"reward.parts": {"a": MATCH, "b": MATCH}, "reward.weights": {"a": 0.0}, "reward.normalize": ["a"]},
        1,
        "reward.normalize=['a'] names a, which has weight 0",
    ),
    (
        ("reward=mix",),
        {"reward.normalize": ["a"], "reward.measure_credit_every": 2},
        1,
        "reward.normalize=['a'] normalises scores within a buffer",
    ),
    (
        ("task=gsm8k", FULL),
        {"task.agents.solver.answer": None},
        1,
        "task.agents.solver.answer=null is not a reference answer",
    ),
]


@cache
def line_of(case: int, make: Make) -> Line:
    """The line that raised the error of a case."""
    choices, changes, world_size, begins = BROKEN[case]
    with pytest.raises(ConfigError) as raised:
        check_config(make(choices, **changes), world_size)
    error = next((error for error in split_errors(raised.value) if str(error).startswith(begins)), raised.value)
    text, found, remedy = str(error).partition("; ")
    assert str(error).startswith(begins)
    assert len(text) > len(begins) - 1
    assert found
    assert remedy
    return raised_at(error)


def raised_at(error: BaseException) -> Line:
    """The line that raised an error; yielded errors have no traceback."""
    *_, last = traceback.extract_tb(error.__traceback__) or [traceback.FrameSummary("", 0, "")]
    return Path(last.filename), last.lineno or 0


@pytest.mark.parametrize("case", range(len(BROKEN)), ids=[re.sub(r"\W+", "-", case[3]) for case in BROKEN])
def test_broken_rules(case: int, config: Make) -> None:
    line_of(case, config)


def test_all_rules_have_a_case(config: Make, plain: Make) -> None:
    rules = {
        (Path(module.__file__), range(node.lineno, (node.end_lineno or node.lineno) + 1))
        for module in (
            checks,
            agent_checks,
            algorithm_checks,
            applicability,
            critic_fitting,
            critics,
            data,
            reward_models,
            rewards,
            task_checks,
        )
        for node in ast.walk(ast.parse(Path(module.__file__).read_text()))
        if isinstance(node, ast.Raise) and "ConfigError(" in ast.unparse(node)
    }
    tripped = {line_of(case, config) for case in range(len(BROKEN))} | {line_of_name("eval", plain)}
    assert len(rules) > 40
    assert [
        (file.name, lines.start) for file, lines in rules if not any((file, line) in tripped for line in lines)
    ] == []


@pytest.mark.parametrize("name", ["eval", "time", "perf", "iteration", "1st", "a-b", "a/b", "", "../x"])
def test_invalid_agent_names(name: str, plain: Make) -> None:
    line_of_name(name, plain)


def line_of_name(name: str, plain: Make) -> Line:
    """The line that rejected an agent's name."""
    values = plain()
    values["task"]["agents"] = {name: values["task"]["agents"]["low"]}
    with pytest.raises(ConfigError, match=rf"^task\.agents\.{re.escape(name)} is used in metric names .*; ") as raised:
        check_config(build_config(values), 1)
    return raised_at(raised.value)


def test_remedies_pass_the_checks(config: Make) -> None:
    offers = 0
    for choices, changes, world_size, _ in BROKEN:
        with pytest.raises(ConfigError) as raised:
            check_config(config(choices, **changes), world_size)
        text, _, remedy = str(split_errors(raised.value)[0]).partition("; ")
        if not (remedy.startswith("use one of ") and len(re.findall(r"[\w.]+=", text)) == 1):
            continue
        key = text.split("=")[0].split(" ")[0]
        choice = remedy.removeprefix("use one of ").split()
        for offer in {choice[0], choice[len(choice) // 2], choice[-1]}:
            value = int(offer) if offer.isdigit() else offer
            if key != "algorithm.mini_batch_size" or "algorithm=ppo" in choices:
                check_config(config(choices, **{**changes, key: value}), world_size)
                offers += 1
    assert offers >= 9


def bounded(node: Any, prefix: str = "") -> Iterator[tuple[Any, str, str, Range]]:
    """Owner, field, dotted name and range of every leaf with a range."""
    ranges = constraints(type(node))
    for field in fields(node):
        value = getattr(node, field.name)
        if is_dataclass(value):
            yield from bounded(value, f"{prefix}{field.name}.")
        elif field.name == "agents":
            for key, entry in value.items():
                yield from bounded(entry, f"{prefix}{field.name}.{key}.")
        elif isinstance(found := ranges.get(field.name), Range):
            yield node, field.name, f"{prefix}{field.name}", found


CHOICES_OF_GROUPS = [(), (JSONL,), (FULL, "algorithm=ppo"), ("critic=value_head", FUNCTION), (GRPO,)]


def outside(interval: Range) -> Iterator[float]:
    """Numbers just outside a range, and its limits if they are open."""
    yield interval.low if interval.open_low else interval.low - 1
    yield interval.high if interval.open_high else interval.high + 1


def refusals(made: Any) -> Iterator[tuple[str, Range, float, str]]:
    """Set every leaf to finite numbers outside its range: yields key, range, number and error; restores the value."""
    for owner, name, key, interval in bounded(made):
        before = getattr(owner, name)
        for value in filter(math.isfinite, outside(interval)):
            setattr(owner, name, value)
            with pytest.raises(ConfigError) as raised:
                check_config(made, 1)
            setattr(owner, name, before)
            yield key, interval, value, str(split_errors(raised.value)[0])


@pytest.mark.parametrize("choices", CHOICES_OF_GROUPS, ids=lambda value: "-".join(value) or "default")
def test_ranges_reject_values_outside(choices: tuple[str, ...], config: Make) -> None:
    made = config(choices)
    seen: set[str] = set()
    for key, _, value, expected in refusals(made):
        setting, _, rest = expected.partition(" ")
        rule, _, remedy = rest.partition("; ")
        assert setting == f"{key}={value}"
        assert rule.startswith("is out of range; it must be in"[: len(rule)])
        assert remedy
        seen.add(key.rpartition(".")[2])
    for owner, name, key, _ in bounded(made):
        before = getattr(owner, name)
        for value in (math.nan, math.inf, -math.inf):
            setattr(owner, name, value)
            with pytest.raises(ConfigError, match=re.escape(f"{key}={value} ")):
                check_config(made, 1)
        setattr(owner, name, before)
    check_config(made, 1)
    assert len(seen) > 20


@pytest.mark.parametrize("choices", CHOICES_OF_GROUPS, ids=lambda value: "-".join(value) or "default")
def test_ranges_accept_their_limits(choices: tuple[str, ...], config: Make) -> None:
    made = config(choices)
    for owner, name, key, interval in bounded(made):
        before = getattr(owner, name)
        for value, is_open in ((interval.low, interval.open_low), (interval.high, interval.open_high)):
            if is_open or not math.isfinite(value):
                continue
            setattr(owner, name, value)
            text = ""
            try:
                check_config(made, 1)
            except ConfigError as error:  # another rule
                text = str(error)
            assert not text.startswith(f"{key}={value} is out of range")
        setattr(owner, name, before)


def test_range_remedies_are_in_range(config: Make) -> None:
    made = config()
    for _, interval, value, expected in refusals(made):
        words, _, bound = expected.rsplit("; ", 1)[1].rpartition(" ")
        below = value <= interval.low
        assert float(bound) == pytest.approx(interval.low if below else interval.high)
        assert words.endswith(
            {(True, True): "above", (True, False): "at least", (False, True): "below", (False, False): "at most"}[
                below, interval.open_low if below else interval.open_high
            ]
        )


def test_all_numbers_have_a_range() -> None:
    for cls in (cls for cls in vars(schema).values() if is_dataclass(cls)):
        ranges = {name for name, found in constraints(cls).items() if isinstance(found, Range)}
        numbers = {name for name, kind in get_type_hints(cls).items() if {kind, *get_args(kind)} & {int, float}}
        assert ranges <= numbers
        assert numbers - ranges == numbers & UNBOUNDED, cls


@dataclass
class Waiting:
    timeout_s: Annotated[float | None, Range(0.5)]


@dataclass
class Launching:
    waiting: Waiting
    timeout_s: PositiveInt


def test_fields_of_the_same_name_have_separate_ranges() -> None:
    found = {key: constraint for key, _, constraint in constrained_leaves(Launching(Waiting(1.0), 1))}
    assert found == {"waiting.timeout_s": Range(0.5), "timeout_s": Range(1)}


def test_leaves_with_choices(config: Make) -> None:
    made = config()
    keys = {key for key, _, constraint in constrained_leaves(made) if isinstance(constraint, OneOf)}
    assert keys == {"algorithm.loss_aggregation", "algorithm.kl.reward.estimator", "algorithm.kl.loss.estimator"}


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (Range(1), "at least 1"),
        (Range(0.0, open_low=True), "above 0"),
        (Range(0, 2**31 - 1), "in [0, 2147483647]"),
        (Range(0.0, 1.0, open_low=True), "in (0, 1]"),
        (Range(0.0, 1.0, open_high=True), "in [0, 1)"),
    ],
)
def test_range_text(interval: Range, expected: str) -> None:
    assert str(interval) == expected


@pytest.mark.parametrize(
    ("protocol", "turns"),
    [("parallel", 1), ("parallel", 3), ("sequential", 1), ("dialogue", 1), ("dialogue", 4), ("my/own.py:Debate", 2)],
)
def test_valid_protocols_and_turns(protocol: str, turns: int, config: Make) -> None:
    check_config(config(**{"task.protocol": protocol, "task.num_turns": turns}), 1)


def test_user_protocol_with_environment_reward(config: Make) -> None:
    check_config(config(("reward=environment", "task=sorting"), **{"task.protocol": "my/own.py:debate"}), 1)


def test_later_turn_settings_with_several_turns(config: Make) -> None:
    later = {"task.num_turns": 2, "task.agents.low.turn_template": "go on", "rollout.context": "retokenize"}
    check_config(config(**{**later, "task.protocol": "dialogue"}), 1)
    check_config(config(**later), 1)


def test_environment_history_with_one_turn(config: Make) -> None:
    check_config(config(("task=gymnasium",), **{"task.max_turns": 1}), 1)
    check_config(config(("task=gymnasium",), **{"task.max_turns": 1, "rollout.context": "append"}), 1)
    check_config(config(("task=environment",), **{"task.max_turns": 2, "rollout.context": "retokenize"}), 1)


def test_protocol_file_without_name_suggests_definitions(
    config: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("debate.py").write_text("1 / 0\ndef argue(): ...\nclass Debate: ...\ndef _helper(): ...\n")
    with pytest.raises(ConfigError, match=r"^task\.protocol=debate\.py names a file") as refused:
        check_config(config(**{"task.protocol": "debate.py"}), 1)
    assert str(refused.value).endswith("; use task.protocol=debate.py:argue or task.protocol=debate.py:Debate")


def test_different_groups_may_have_different_settings(config: Make) -> None:
    alone = {"team.groups": {"pair": ["low"]}, "task.agents.high.actor.learning_rate": 0.5}
    check_config(config((SHARED,), **alone), 1)


def test_function_reward_needs_no_answer(config: Make) -> None:
    check_config(config(("task=gymnasium", FUNCTION)), 1)
    check_config(config((JSONL, FUNCTION), **{"task.agents.solo.answer": None, "actor.alphabet": "printable"}), 1)


def test_batch_sizes_worked_example(config: Make) -> None:
    made = config(
        ("algorithm=ppo",),
        **{
            "rollout.buffer_size": 64,
            "rollout.num_generations": 4,
            "algorithm.mini_batch_size": 16,
            "algorithm.ppo_epochs": 3,
            "task.agents.high.critic.mini_batch_size": 32,
            "task.agents.high.critic.ppo_epochs": 1,
            "num_iterations": 7,
        },
    )
    check_config(made, 3)
    sizes = compute_batch_sizes(made, 3, train_rows=1000)
    assert sizes.num_iterations == 7
    assert sizes.prompts_per_iteration == 16
    assert sizes.samples_per_rank == (21, 22)
    assert sizes.actor_steps == {"low": 12, "high": 12}  # 64 / 16 mini-batches, 3 times
    assert sizes.critic_steps == {"low": 12, "high": 2}


@pytest.mark.parametrize(
    ("epochs", "rows", "iterations"), [(1.0, 160, 10), (1.0, 161, 11), (2.5, 100, 16), (0.01, 5, 1)]
)
def test_epochs_round_up_to_iterations(epochs: float, rows: int, iterations: int, config: Make) -> None:
    made = config(num_iterations=None, num_epochs=epochs, **{"rollout.buffer_size": 64, "rollout.num_generations": 4})
    assert compute_batch_sizes(made, 1, rows).num_iterations == iterations


# Keys of `algorithm` without effect: choices, key, value, reason.
DISTILL = ("algorithm=distill", "actor.reference=owner/teacher")
IDLE: list[tuple[tuple[str, ...], str, Any, str]] = [
    (DISTILL, "advantage_normalization", True, "advantage=none has no advantages"),
    ((*DISTILL, "algorithm.kl.allow_both=true"), "kl.reward.coef", 0.1, "advantage=none has no advantages"),
    ((GRPO,), "credit", "turn", "advantage=group gives one advantage per response"),
    ((GRPO,), "gamma", 0.9, "advantage=group gives one advantage"),
    ((GRPO,), "gae_lambda", 0.9, "has no values"),
    ((GRPO,), "length_adaptive_alpha", 0.1, "has no values"),
    ((GRPO,), "critic_gae_lambda", 1.0, "has no values"),
    ((GRPO,), "turn_value", "first", "has no values"),
    ((GRPO,), "value_unit", "turn", "has no values"),
    ((GRPO,), "value_loss_coef", 0.5, "has no values"),
    ((GRPO,), "value_clip_range", 0.2, "has no values"),
    ((GRPO,), "huber_delta", 1.0, "has no values"),
    ((GRPO,), "critic_warmup", 1, "has no values"),
    ((GRPO,), "ratio_pooling", "sum", "ratio_level=token has no pooling"),
    ((GRPO,), "allow_off_policy_steps", True, "objective=clip always allows several steps"),
    ((CISPO,), "allow_off_policy_steps", True, "objective=cispo always allows several steps"),
    ((GRPO,), "clip_level", "token", "ratio_level=token pools no ratios"),
    ((), "clip_level", "token", "objective=on_policy has no ratio"),
    (
        (CISPO, "algorithm.ratio_level=sequence", "algorithm.ratio_pooling=mean"),
        "clip_level",
        "token",
        "clips no ratio",
    ),
    ((), "trust_region", "tv", "objective=on_policy has no ratio"),
    ((CISPO,), "trust_region", "kl", "objective=cispo limits the ratio"),
    (("algorithm=gspo",), "trust_region", "tv", "ratio_level=sequence limits the pooled ratio"),
    ((), "ratio_base", "sampler", "objective=on_policy has no ratio"),
    ((GRPO,), "ratio_cap", 20.0, "trust_region=ratio limits the ratio"),
    ((), "ratio_cap", 20.0, "objective=on_policy has no ratio"),
    ((), "dual_clip", 3.0, "objective=on_policy has no ratio"),
    ((CISPO,), "dual_clip", 3.0, "objective=cispo clips no ratio"),
    (("algorithm=dppo",), "dual_clip", 3.0, "trust_region=tv has ratio_cap"),
    (("algorithm=gmpo",), "dual_clip", 3.0, "clip_level=token limits the ratio"),
    ((GRPO, "algorithm.truncation=mask"), "truncation_penalty", 1.0, "truncation=mask subtracts nothing"),
    ((), "truncation_ramp", 0.2, "truncation=none has no ramp"),
    ((), "positive_nll.min_score", 1.0, "positive_nll.coef=0 has no likelihood term"),
    (("task=sorting_solo",), "normalization_scope", "team", "the run trains one agent"),
    (("algorithm=rloo",), "normalization_scope", "team", "normalises nothing"),
    ((), "scale_by_std", True, "advantage=gae has no standard deviation"),
    (("algorithm=rloo",), "scale_by_std", False, "advantage=leave_one_out has no standard deviation"),
    (("algorithm=remax",), "gamma", 1.0, "advantage=greedy_baseline gives one advantage"),
    ((GRPO,), "cross_agent.exponent", 2.0, "team.share_rollouts=false has no responses of other agents"),
    ((GRPO,), "cross_agent.capability_window", 5, "team.share_rollouts=false has no responses of other agents"),
    ((*HACPO, "algorithm.advantage=leave_one_out"), "cross_agent.capability_window", 5, ""),
    (
        (*HACPO, "algorithm.cross_agent.exponent=null", "algorithm.behavior_correction.level=token"),
        "cross_agent.clip_range",
        0.2,
        "cross_agent.exponent=null sets no weights",
    ),
    ((), "turn_value", "first", "credit=token has no turns"),
    ((), "value_unit", "turn", "credit=token has no turns"),
    ((), "clip_range_low", 0.1, "objective=on_policy has no ratio"),
    ((), "clip_range_high", 0.1, "objective=on_policy has no ratio"),
    ((), "ratio_level", "sequence", "objective=on_policy has no ratio"),
    ((), "ratio_pooling", "mean", "objective=on_policy has no ratio"),
    ((), "target_kl", 0.1, "there is one optimizer step per buffer"),
    ((), "truncation_penalty", 1.0, "truncation=none"),
    (("algorithm=ppo",), "length_adaptive_alpha", 0.1, ""),
    ((), "kl.reward.horizon", 10000, "without kl.reward.target the coefficient is fixed"),
    ((), "reweight.power", 2.0, "reweight.method=none has no power"),
    ((), "behavior_correction.cap", 2.0, "behavior_correction.level=none has no weights"),
    ((), "behavior_correction.band_low", 0.1, "behavior_correction.level=none has no weights"),
    ((), "behavior_correction.band_high", 0.1, "behavior_correction.level=none has no weights"),
    ((), "sequential_correction.cap", 2.0, "sequential_correction.pooling=null has no factors"),
]


@pytest.mark.parametrize(("choices", "key", "value", "why"), IDLE, ids=str)
def test_algorithm_keys_without_effect(choices: tuple[str, ...], key: str, value: Any, why: str, config: Make) -> None:
    with pytest.raises(ConfigError, match="has no effect") as raised:
        check_config(config(choices, **{f"algorithm.{key}": value}), 1)
    text, _, remedy = str(split_errors(raised.value)[0]).rpartition("; use ")
    assert why in text
    if why:  # the remedy must work
        assert text.startswith(f"algorithm.{key}=")
        offered = {"null": None, "false": False, "0": 0}.get(remedy, remedy)
        check_config(config(choices, **{f"algorithm.{key}": offered}), 1)


def test_all_applicability_rules_have_a_case(config: Make) -> None:
    there = {key for key, *_ in applicability.applicability_rules(config())}
    tested_elsewhere = {"needs_centralized_critic", "advantage_args", "objective_args"}
    assert there - {key for _, key, _, _ in IDLE} == tested_elsewhere


# Required keys of algorithms.
NEEDED = [
    ((), "gamma"),
    ((), "gae_lambda"),
    ((), "value_loss_coef"),
    (("algorithm=ppo",), "clip_range_low"),
    (("algorithm=ppo",), "clip_range_high"),
    ((GRPO,), "scale_by_std"),
    (("algorithm=turn_ppo",), "turn_value"),
    (("algorithm=turn_ppo",), "ratio_pooling"),
    (("algorithm=pf_ppo",), "reweight.power"),
    (("algorithm=reinforce_plus_plus",), "gamma"),
    ((CISPO,), "clip_range_high"),
    (("algorithm=gspo",), "ratio_pooling"),
    (HACPO, "cross_agent.clip_range"),
    (("algorithm=dapo",), "truncation_penalty"),
    (("algorithm=dapo",), "truncation_ramp"),
    (("algorithm=vapo",), "positive_nll.min_score"),
]


@pytest.mark.parametrize(("choices", "key"), NEEDED, ids=str)
def test_required_algorithm_keys(choices: tuple[str, ...], key: str, config: Make) -> None:
    with pytest.raises(ConfigError, match=rf"^algorithm\.{re.escape(key)}=null is needed by this algorithm; use "):
        check_config(config(choices, **{f"algorithm.{key}": None}), 1)


@pytest.mark.parametrize("name", sorted(file.stem for file in (config_dir() / "algorithm").glob("*.yaml")))
def test_algorithm_presets_pass_the_checks(name: str, config: Make) -> None:
    more = {"distill": "actor.reference=owner/teacher", "hacpo": "task=sorting_peers"}
    made = config((f"algorithm={name}", *([more[name]] if name in more else [])))
    check_config(made, 2)
    assert made.rollout.buffer_size == 512
    assert (made.critic.kind.value == "none") != made.algorithm.estimator.needs_critic
    text = (config_dir() / "algorithm" / f"{name}.yaml").read_text()
    assert next(line for line in text.splitlines() if "@package" not in line).startswith("# ")


def test_typed_critic_overrides_preset(config: Make) -> None:
    assert config(("algorithm=actor_critic",)).critic.kind.value == "value_head"
    assert config(("algorithm=actor_critic", "critic=separate")).critic.kind.value == "separate"


def test_value_head_has_no_critic_steps(config: Make) -> None:
    assert compute_batch_sizes(config(("critic=value_head",)), 1, 1).critic_steps == {}


def test_default_steps_of_policy_and_critic(
    config: Make,
) -> None:
    sizes = compute_batch_sizes(config(), 2, 1)
    assert (sizes.actor_steps, sizes.critic_steps) == ({"low": 1, "high": 1}, {"low": 8, "high": 8})
    for size, steps in ((5, 5), (12, 6), (513, 8)):  # mini-batches of an eighth, rounded up: at most eight steps
        sizes = compute_batch_sizes(config(**{"rollout.buffer_size": size}), 2, 1)
        assert sizes.critic_steps == {"low": steps, "high": steps}


def test_critic_steps_follow_policy_mini_batches(config: Make) -> None:
    sizes = compute_batch_sizes(config(("algorithm=ppo",)), 2, 1)
    assert sizes.critic_steps == sizes.actor_steps


def test_mappo_needs_centralized_critic(config: Make) -> None:
    assert config(("algorithm=mappo",)).critic.kind.value == "centralized"
    for critic in ("separate", "value_head"):
        wanted = rf"^critic={critic} reads one agent's rows only.*; use critic=centralized, or algorithm=ppo, which"
        with pytest.raises(ConfigError, match=wanted):
            check_config(config(("algorithm=mappo", f"critic={critic}")), 1)
    check_config(config(("algorithm=ppo", "critic=centralized")), 1)
    with pytest.raises(ConfigError, match=r"^algorithm.needs_centralized_critic=True has no effect"):
        check_config(config(("algorithm=grpo",), **{"algorithm.needs_centralized_critic": True}), 1)


def test_centralized_critic_rejects_turn_value_after(config: Make) -> None:
    with pytest.raises(ConfigError, match=r"^algorithm.turn_value=post .*; use first, mean or final, or critic=sepa"):
        check_config(config(("algorithm=comlrl_ippo", "critic=centralized")), 1)


def test_centralized_critic_context_limit(config: Make) -> None:
    made = config(("algorithm=mappo",))
    most = made.rollout.max_new_tokens
    check_config(config(("algorithm=mappo",), **{"critic.context_limit": most + 1}), 1)
    with pytest.raises(
        ConfigError, match=rf"^critic.context_limit={most} is too small .*; use more than {most}, or nu"
    ):
        check_config(config(("algorithm=mappo",), **{"critic.context_limit": most}), 1)


def test_shared_critic_steps(config: Make) -> None:
    assert compute_batch_sizes(config(("critic=centralized",)), 1, 1).critic_steps == {"low": 8, "high": 8}
    one = config(("critic=centralized",), **{"critic.shared": True})
    assert compute_batch_sizes(one, 1, 1).critic_steps == {"team": 8}
