"""What the literature claims about teams, as tables of `team_tables.py`: trainings, and what is measured on each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from learning import Outcome
from omegaconf import OmegaConf
from team_games import ALGORITHMS, MINI_BATCH, ROLE_BUFFER, Algorithm, Bounds

from ippo_cli.benchmark.tasks import SHORT_WARM_START

Values = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One row of a table for each task."""

    about: str
    algorithm: Algorithm = ALGORITHMS["ippo_clipped"]
    overrides: tuple[str, ...] = ()
    by_task: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # overrides beside these
    task: tuple[str, ...] = ()  # overrides of a task in place of the table's
    partner: Literal["first", "second"] | None = None  # frozen, after training with its own partner and the next seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A finished training: its outcome, and the folder of the run."""

    outcome: Outcome
    folder: Path
    bounds: Bounds
    variant: Variant
    train_other_seed: Callable[[], Training]  # the same with the next seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table: what is trained on which tasks, and what is measured."""

    title: str
    about: str  # the claim, what is expected, and what is measured
    tasks: tuple[str, ...]
    variants: dict[str, Variant]
    measure: Callable[[Training], Values]
    columns: dict[str, str] = field(default_factory=dict)  # name of a value -> heading; empty: all, by their names
    version: int = 1  # of the measure; another one makes recorded measurements invalid


def measure_score(training: Training) -> Values:
    """Return the normalised score after training."""
    return {"score": training.bounds.normalise(training.outcome.last)}


def measure_curve(training: Training) -> Values:
    """Return normalised scores after training, and as the mean over training: trapezoids between the evaluations,
    which need not be at equal distances.
    """
    points = training.outcome.points(held_out=True)
    area = sum(
        (after.samples - before.samples) * (before.score + after.score) / 2 for before, after in pairwise(points)
    )
    mean = area / (points[-1].samples - points[0].samples)
    return measure_score(training) | {"score_over_training": training.bounds.normalise(mean)}


def measure_cross_play(training: Training) -> Values:
    """Return scores of agents with partners of their own run, and of a run with another seed."""
    other = training.train_other_seed()
    record = evaluate([training.folder, other.folder], "crossplay-*/crossplay.json", "crossplay=true")
    tables = record["tables"]
    crossed = training.bounds.normalise(fmean(table["cross_play"] for table in tables))
    own = training.bounds.normalise(fmean(table["scores"][0][0] for table in tables))  # of this seed's run alone
    return {"self_play": own, "cross_play": crossed, "gap": own - crossed}


def measure_credit(training: Training) -> Values:
    """Return the rank correlation of each kind of credit with reference credit among turns of one prompt, and (`_all`)
    among all turns, corrected for the noise of sampled references: the mean over agents. Credit that is equal for all
    of an agent's turns counts as 0."""
    keys = CREDIT_REFERENCES[training.outcome.task]
    agents = evaluate([training.folder], "credit-*.json", "credit=true", *keys)["agents"]
    found: defaultdict[str, list[float]] = defaultdict(list)
    for kinds in agents.values():
        for kind, numbers in kinds.items():
            for suffix, key in (("", "rank_correlation_within_corrected"), ("_all", "rank_correlation_corrected")):
                value = numbers[key]["value"]
                found[kind + suffix].append(float("nan") if value is None else value)
    return {kind: fmean(values) for kind, values in found.items()}


def measure_shares(training: Training) -> Values:
    """Return the normalised score, and the smallest agent's Shapley value as a fraction of the team's gain."""
    record = evaluate([training.folder], "attribution-*.json", "attribution=true", "evaluation.greedy=false")
    (scores,) = (one for one in record["attribution"] if one["metric"] == record["primary_metric"])
    gain = scores["score"] - scores["baseline"]
    smallest = min(share["shapley"] for share in scores["shares"].values())
    return measure_score(training) | {"smallest_share": smallest / gain if gain > 0.1 else float("nan")}


def measure_gradients(training: Training) -> Values:
    """Return each agent's fraction of right places, and how many iterations have a gradient norm above the clip limit.

    The norm of an iteration is the mean over its optimizer steps. `spikes` are steps with a norm above three times the
    median of the 50 steps before: relative, so that an agent with tiny gradients has them too.
    """
    metrics = read_metrics(training.folder)
    rows = [row for row in metrics if "low/score/mean" in row]  # of iterations
    last = next(row for row in reversed(metrics) if "eval/sampled/low/score" in row)
    limit = OmegaConf.load(training.folder / "config.yaml").task.agents.low.actor.max_grad_norm
    norms = {name: [row[f"{name}/policy/grad_norm"] for row in rows] for name in ("low", "high")}
    return {
        "low": last["eval/sampled/low/score"],
        "high": (last["eval/sampled/high/score"] + 3) / 20,  # unlike_rewards.py
        "low_clipped": fmean(norm > limit for norm in norms["low"]),
        "high_clipped": fmean(norm > limit for norm in norms["high"]),
        "spikes": sum(row.get(f"{name}/policy/grad_norm_spikes") or 0 for row in rows for name in norms),
    }


def measure_roles(training: Training) -> Values:
    """Return each agent's normalised score, how often the second answers as the first should, and means over training:
    of the agents' norms, the first's fraction of the gradient and weight, and the cosine of their parts.
    """
    metrics = read_metrics(training.folder)
    last = next(row for row in reversed(metrics) if "eval/sampled/first/score" in row)
    columns = {
        "first_norm": "first/policy/role_grad_norm",
        "second_norm": "second/policy/role_grad_norm",
        "fraction": "first/policy/role_grad_fraction",
        "cosine": "first/policy/role_grad_cosine/second",
        "weight": "first/policy/role_weight",
    }
    numbers = {name: [row[key] for row in metrics if row.get(key) is not None] for name, key in columns.items()}
    scores = {name: training.bounds.normalise(last[f"eval/sampled/{name}/score"]) for name in ("first", "second")}
    means = {name: fmean(found) if found else float("nan") for name, found in numbers.items()}
    return scores | {"copied": last["eval/sampled/copied"]} | means


def measure_exploitability(training: Training) -> Values:
    """Return NashConv of the probabilities of actions of four checkpoints: before, during and after training."""
    steps = sorted(int(path.name.rpartition("_")[2]) for path in (training.folder / "checkpoints").glob("step_*"))
    two, four = (steps[max(round(part * len(steps)) - 1, 0)] for part in (0.4, 0.8))
    places = {"start": "initial", "two_fifths": two, "four_fifths": four, "end": steps[-1]}
    found = {}
    for name, checkpoint in places.items():
        keys = ("exploitability=exact", f"checkpoint={checkpoint}")
        found[name] = evaluate([training.folder], "exploitability-*.json", *keys)["exploitability"]["nash_conv"]
    return found


def evaluate(folders: Sequence[Path], pattern: str, *keys: str) -> dict[str, Any]:
    """Run `ippo-eval` on runs, and return its newest result file in the first run's folder."""
    runs = ",".join(map(str, folders))
    run_module("evaluate", f"run=[{runs}]" if len(folders) > 1 else f"run={runs}", *keys)
    newest = max((folders[0] / "evaluations").glob(pattern), key=lambda file: file.stat().st_mtime)
    return json.loads(newest.read_text())


def run_module(name: str, *arguments: str) -> None:
    """Run a command of the project with one thread. Raises `CalledProcessError` if it fails."""
    command = [sys.executable, "-m", f"ippo_cli.cli.{name}", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Return the metrics of a run, one mapping per iteration."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


REINFORCE = Algorithm(
    about="REINFORCE++ with the group's mean as baseline",
    overrides=("algorithm=reinforce_plus_plus_baseline", f"algorithm.mini_batch_size={MINI_BATCH}"),
    critic=False,
)
EQUAL_TOKENS = 56  # iterations of `copy_1`, which has 80: seven tenths
SHORT = (f"actor.warm_start_steps={SHORT_WARM_START}",)
COPY_ALONE = ("task=benchmark_solo", "rollout.max_new_tokens=4")
ONE_LETTER_EACH = (  # few enough responses for exact credit
    "task.length=2",
    "task.alphabet=abcdefgh",
    "task.train_size=32",
    "task.eval_size=24",
    "rollout.max_new_tokens=1",
)
NORMALISATION = (
    "reward=function",
    "reward.function=scripts/bench/unlike_rewards.py:score",
    "reward.team_weight=0",
    "reward.agent_weight=1",
    "rollout.num_generations=4",
)
# Exact references leave out answers that are not among the most probable tokens: all others are enumerated.
ONE_TURN = ("credit_reference=exact", "credit_prompts=32", "rollout.top_k=16")
CREDIT_REFERENCES = {
    "signalling": ONE_TURN,
    "copy_1_all": ONE_TURN,
    "sorting": ONE_TURN,
    "meet": ("credit_reference=exact", "credit_prompts=8", "rollout.top_k=3"),  # three moves
    "copy_3_end": ("credit_prompts=16", "credit_continuations=16"),
}
CREDIT_KINDS = (
    "none",
    "group",
    "critic",
    "difference",
    "leave_out",
    "counterfactual",
    "counterfactual, 2 alternatives",
)
CHECKPOINTS = {  # at each fifth of the run
    "kuhn": ("checkpoint.every=16", "checkpoint.keep=10"),
    "duel": ("checkpoint.every=8", "checkpoint.keep=10"),
}
SHARED_ROLES = Algorithm(
    about="PPO with a shared policy, with small buffers",
    overrides=(
        "algorithm=ppo",
        "algorithm.ppo_epochs=4",
        f"algorithm.mini_batch_size={ROLE_BUFFER // 2}",
        "team=shared_policy",
        "team.role_gradients_every=1",
    ),
    buffer=ROLE_BUFFER,
)
TABLES: dict[str, Table] = {
    "single_agent": Table(
        title="A team against a single agent",
        about=(
            "Expected: that a team is better at equal samples, since each agent learns a smaller task (MALT, "
            "MAPoRL and others compare with a single model). Each of two agents writes two letters, or one "
            "agent writes all four; learning rates and models are equal. The team's episodes have ten tokens, "
            "three of each prompt and two of each answer, and the single agent's have seven: with equal tokens the "
            "team trains on fewer episodes. The warm start has 10 steps: most first answers are invalid, and scores "
            "begin at -.5."
        ),
        tasks=("copy_1",),
        variants={
            "team": Variant(about="two agents write two letters each", overrides=SHORT),
            "single": Variant(about="one agent writes all four", overrides=SHORT, task=COPY_ALONE),
            "fewer": Variant(
                about="two agents, as many tokens as the single agent",
                overrides=(*SHORT, f"num_iterations={EQUAL_TOKENS}"),
            ),
        },
        measure=measure_curve,
        columns={"score_over_training": "mean over training", "score": "at the end"},
    ),
    "one_trained": Table(
        title="Both agents trained, or one",
        about=(
            "Expected (MAPoRL, [2502.18439](https://arxiv.org/abs/2502.18439)): training all agents together "
            "is better than training one beside a frozen one. A frozen agent is an initial one, which gives random "
            "valid answers, or the result of a run with the next seed. Beside an initial one, a trained agent "
            "cannot exceed .5 with `copy_1` and chance with the others; with both frozen the score remains that of "
            "random play, 0."
        ),
        tasks=("signalling", "copy_1", "convention"),
        variants={
            "both": Variant(about="both agents are trained"),
            "first": Variant(
                about="the first is trained beside an initial second",
                overrides=("task.agents.{second}.frozen=true",),
            ),
            "second": Variant(
                about="the second is trained beside an initial first", overrides=("task.agents.{first}.frozen=true",)
            ),
            "first_with_trained": Variant(about="the first is trained beside a trained second", partner="second"),
            "second_with_trained": Variant(about="the second is trained beside a trained first", partner="first"),
        },
        measure=measure_score,
        columns={"score": "score"},
    ),
    "cross_play": Table(
        title="Cross-play between seeds",
        about=(
            "Expected (Other-Play, [2003.02979](https://arxiv.org/abs/2003.02979)): agents of different runs "
            "fail together where a convention is needed (`signalling`, `convention`), and not where the task "
            "determines each answer (`copy_1_all`). Each run is combined with that of the next "
            "seed, so neighbouring seeds share a run."
        ),
        tasks=("signalling", "copy_1_all", "convention"),
        variants={
            "independent": Variant(about="each agent has its own policy"),
            "shared": Variant(about="one policy for both agents", algorithm=ALGORITHMS["shared_policy"]),
        },
        measure=measure_cross_play,
        columns={"self_play": "self-play", "cross_play": "cross-play", "gap": "gap"},
    ),
    "credit": Table(
        title="Credit fidelity",
        about=(
            "Expected (C3, [2603.06859](https://arxiv.org/abs/2603.06859)): credit from alternatives in the same state "
            "ranks turns better than the return. Spearman correlation with the advantage Q - V early in training, "
            "among the answers to one prompt and among all turns; constant credit counts as 0; mean over both agents "
            "([kinds](evaluation.md#credit-of-turns)). Q and V are enumerated in tasks of one turn "
            "(`rollout.top_k=16`) and in `meet`, here with three turns (`rollout.top_k=3`); in `copy_3_end` they are "
            "means of 16 continuations, and correlations are corrected for their noise."
        ),
        tasks=tuple(CREDIT_REFERENCES),
        variants={
            "early": Variant(
                about="after 8 buffers",
                overrides=("num_iterations=8",),
                by_task={
                    # With 3e-3 the answers to a prompt hardly vary after 8 buffers.
                    "sorting": (*ONE_LETTER_EACH, "actor.learning_rate=1e-3", "critic.learning_rate=1e-3"),
                    "meet": ("task.environment_args.turns=3",),
                },
            )
        },
        measure=measure_credit,
        version=2,
        columns={
            kind + suffix: f"`{kind}`{where}"
            for kind in CREDIT_KINDS
            for suffix, where in (("", ""), ("_all", ", all turns"))
        },
    ),
    "normalisation": Table(
        title="Normalisation by agent or team",
        about=(
            "Expected (Dr. MAS, [2602.08847](https://arxiv.org/abs/2602.08847)): with one mean and deviation "
            "for the team, gradient norms of agents with unlike rewards have spikes, and training is "
            "unstable. The algorithm is `reinforce_plus_plus_baseline`: no critic, one epoch, four responses to a "
            "prompt. The rewards of `high` are 20 times those of `low`; scores are fractions of right letters. The "
            "clip limit of gradients is 1. Spikes are optimizer steps of either agent with a norm above three times "
            "the median of the 50 steps before."
        ),
        tasks=("sorting",),
        variants={
            scope: Variant(
                about=f"`algorithm.normalization_scope={scope}`",
                algorithm=REINFORCE,
                overrides=(*NORMALISATION, f"algorithm.normalization_scope={scope}"),
            )
            for scope in ("agent", "team")
        },
        measure=measure_gradients,
        columns={
            "low": "`low`, small rewards",
            "high": "`high`, large rewards",
            "low_clipped": "`low`: iterations with a norm above 1",
            "high_clipped": "`high`",
            "spikes": "spikes",
        },
    ),
    "lazy_agents": Table(
        title="Lazy agents",
        about=(
            "Expected (value decomposition, [1706.05296](https://arxiv.org/abs/1706.05296)): with a joint "
            "reward one agent may stop learning while the other one succeeds, and credit per agent prevents "
            "that. The smallest share is the smaller of both Shapley values, as a fraction of the team's "
            "gain ([attribution](evaluation.md#attribution)); .5 is an equal contribution. "
            "Episodes that credit replays (two for each episode with `difference`, four with "
            "`counterfactual`) are not counted as training."
        ),
        tasks=("copy_1", "copy_1_all"),
        variants={
            "none": Variant(about="both learn from the team's score"),
            "difference": Variant(
                about="`reward.credit_assignment=difference`", overrides=("reward.credit_assignment=difference",)
            ),
            "counterfactual": Variant(
                about="`reward.credit_assignment=counterfactual`, two alternatives to each answer",
                overrides=("reward.credit_assignment=counterfactual", "reward.credit_alternatives=2"),
            ),
        },
        measure=measure_shares,
        columns={"score": "score", "smallest_share": "smallest share of the gain"},
    ),
    "exploitability": Table(
        title="Exploitability over training",
        about=(
            "Expected (fictitious self-play and later work): simultaneous learners cycle and do not approach "
            "an equilibrium; opponents from earlier iterations lower exploitability. NashConv by enumeration "
            "([exact](evaluation.md#exploitability)): 0 is an equilibrium, uniform play has .917 (`kuhn`) "
            "and 1.333 (`duel`). All variants play the same number of games. With `round_robin` each agent has half of "
            "the updates. With the pool, half of the games are self-play, which trains both seats; in the other half "
            "only the seat of the current policy is trained."
        ),
        tasks=("kuhn", "duel"),
        variants={
            "simultaneous": Variant(about="independent learners", by_task=CHECKPOINTS),
            "round_robin": Variant(
                about="`team.update_order=round_robin`",
                overrides=("team.update_order=round_robin", "team.round_robin_every=2"),
                by_task=CHECKPOINTS,
            ),
            "self_play": Variant(
                about="one policy for both seats", algorithm=ALGORITHMS["shared_policy"], by_task=CHECKPOINTS
            ),
            "self_play_pool": Variant(
                about="the same, with an opponent pool in half of the games",
                algorithm=ALGORITHMS["shared_policy"],
                overrides=(
                    "team.opponent_pool.every=5",
                    "team.opponent_pool.size=6",
                    "team.opponent_pool.share=0.5",
                ),
                by_task=CHECKPOINTS,
            ),
        },
        measure=measure_exploitability,
        columns={
            "start": "start",
            "two_fifths": "after 2/5",
            "four_fifths": "after 4/5",
            "end": "end",
        },
    ),
    "role_gradients": Table(
        title="Unequal roles of a shared policy",
        about=(
            "Expected (arXiv [2605.24202](https://arxiv.org/abs/2605.24202)): the agent with more turns has most of "
            "the gradient of a shared policy, and captures it. The first agent copies a letter in six turns, the "
            "second writes the letter after one in the last turn, each for its own score; a captured policy copies "
            "(`copied`: a third at first, 0 if right). 12 buffers of 64 episodes. Norms and fractions of the gradient "
            "are means over the first optimizer steps of all iterations, before weights "
            "([roles](teams.md#unequal-roles))."
        ),
        tasks=("unequal_turns",),
        variants={
            "none": Variant(about="`role_balance=none`", algorithm=SHARED_ROLES),
            "equal_norm": Variant(
                about="`equal_norm`", algorithm=SHARED_ROLES, overrides=("team.role_balance=equal_norm",)
            ),
            "gradnorm": Variant(
                about="`gradnorm`",
                algorithm=SHARED_ROLES,
                overrides=("team.role_balance=gradnorm", "team.gradnorm_alpha=1.5", "team.gradnorm_best_score=1"),
            ),
        },
        measure=measure_roles,
        columns={
            "first": "first's score",
            "second": "second's score",
            "copied": "copied",
            "first_norm": "first's norm",
            "second_norm": "second's norm",
            "fraction": "first's fraction",
            "cosine": "cosine",
            "weight": "first's weight",
        },
    ),
}
AGENT_NAMES = {"signalling": ("sender", "receiver"), "sorting": ("low", "high")}  # others: first, second
