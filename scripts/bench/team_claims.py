"""What the literature claims about teams, as tables of `team_tables.py`: trainings, and what is measured on each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from learning import Outcome
from team_games import ALGORITHMS, MINI_BATCH, Algorithm, Bounds

Values = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One row of a table for each task."""

    about: str
    algorithm: Algorithm = ALGORITHMS["ippo_clipped"]
    overrides: tuple[str, ...] = ()
    by_task: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # overrides beside these
    task: tuple[str, ...] = ()  # overrides of a task in place of the table's
    read_tokens: int = 0  # that an episode's rows have, prompts included


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


def measure_score(training: Training) -> Values:
    """Return the normalised score after training."""
    return {"score": training.bounds.normalised(training.outcome.last)}


def measure_at_equal_tokens(training: Training) -> Values:
    """Return normalised scores after all episodes, as the mean of the evaluations, and after as many tokens as the
    single agent's episodes have."""
    points = training.outcome.points(held_out=True)
    tokens = [point.samples * training.variant.read_tokens for point in points]
    least = min(variant.read_tokens for variant in TABLES["single_agent"].variants.values())
    at_equal = np.interp(points[-1].samples * least, tokens, [point.score for point in points])
    mean = fmean(point.score for point in points)
    return measure_score(training) | {
        "score_over_training": training.bounds.normalised(mean),
        "score_at_equal_tokens": training.bounds.normalised(float(at_equal)),
    }


def measure_cross_play(training: Training) -> Values:
    """Return scores of agents with partners of their own run, and of a run with another seed."""
    other = training.train_other_seed()
    record = evaluate([training.folder, other.folder], "crossplay-*/crossplay.json", "crossplay=true")
    tables = record["tables"]
    own, crossed = (fmean(table[key] for table in tables) for key in ("self_play", "cross_play"))
    own, crossed = training.bounds.normalised(own), training.bounds.normalised(crossed)
    return {"self_play": own, "cross_play": crossed, "gap": own - crossed}


def measure_credit(training: Training) -> Values:
    """Return the rank correlation of each kind of credit with exact credit, the mean over agents."""
    # Answers outside of the 16 most probable tokens are left out: all others are enumerated.
    keys = ("credit=true", "credit_reference=exact", "credit_prompts=32", "rollout.top_k=16")
    agents = evaluate([training.folder], "credit-*.json", *keys)["agents"]
    found: defaultdict[str, list[float]] = defaultdict(list)
    for kinds in agents.values():
        for kind, numbers in kinds.items():
            if (value := numbers["rank_correlation"]["value"]) is not None:  # None: all credits are equal
                found[kind].append(value)
    return {kind: fmean(values) for kind, values in found.items()}


def measure_shares(training: Training) -> Values:
    """Return the normalised score, and the smallest agent's Shapley value as a fraction of the team's gain."""
    record = evaluate([training.folder], "attribution-*.json", "attribution=true", "evaluation.greedy=false")
    (scores,) = (one for one in record["attribution"] if one["metric"] == record["primary_metric"])
    gain = scores["score"] - scores["baseline"]
    smallest = min(share["shapley"] for share in scores["shares"].values())
    return measure_score(training) | {"smallest_share": smallest / gain if gain > 0.1 else float("nan")}


def measure_gradients(training: Training) -> Values:
    """Return each agent's fraction of right places, spikes and the largest gradient norm."""
    rows = read_metrics(training.folder)
    last = next(row for row in reversed(rows) if "eval/sampled/low/score" in row)
    norms = [row[f"{name}/policy/grad_norm"] for row in rows for name in ("low", "high") if f"{name}/score/mean" in row]
    spikes = sum(row.get(f"{name}/policy/grad_norm_spikes") or 0 for row in rows for name in ("low", "high"))
    return {
        "low": last["eval/sampled/low/score"],
        "high": (last["eval/sampled/high/score"] + 3) / 20,  # unlike_rewards.py
        "largest_norm": max(norms),
        "spikes": spikes,
    }


def measure_exploitability(training: Training) -> Values:
    """Return NashConv of the evaluations: before, during and after training, and its minimum."""
    curve = [-point.score for point in training.outcome.points(held_out=True)]
    names = {0: "start", len(curve) // 3: "third", 2 * len(curve) // 3: "two_thirds", len(curve) - 1: "end"}
    return {name: curve[place] for place, name in names.items()} | {"lowest": min(curve)}


def evaluate(folders: Sequence[Path], pattern: str, *keys: str) -> dict[str, Any]:
    """Run `ippo-eval` on runs, and return its newest result file in the first run's folder."""
    runs = ",".join(map(str, folders))
    command = [sys.executable, "-m", "ippo_cli.cli.evaluate", f"run=[{runs}]" if len(folders) > 1 else f"run={runs}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, *keys], check=True, env=environment, stdout=subprocess.DEVNULL)
    newest = max((folders[0] / "evaluations").glob(pattern), key=lambda file: file.stat().st_mtime)
    return json.loads(newest.read_text())


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Return the metrics of a run, one mapping per iteration."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


REINFORCE = Algorithm(
    about="REINFORCE++ with the group's mean as baseline",
    overrides=("algorithm=reinforce_plus_plus_baseline", f"algorithm.mini_batch_size={MINI_BATCH}"),
    critic=False,
)
COPY_ALONE = ("task=scripts/bench/alone.yaml", "rollout.max_new_tokens=4")
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
TABLES: dict[str, Table] = {
    "single_agent": Table(
        title="A team against a single agent",
        about=(
            "Expected: that a team is better at equal samples, since each agent learns a smaller task (MALT, "
            "MAPoRL and others compare with a single model). Each of two agents writes two letters, or one "
            "agent writes all four. At equal tokens the team gets fewer episodes, because every agent reads "
            "the prompt."
        ),
        tasks=("copy_1",),
        variants={
            "team": Variant(about="two agents write two letters each", read_tokens=2 * (3 + 2)),
            "single": Variant(about="one agent writes all four", task=COPY_ALONE, read_tokens=3 + 4),
        },
        measure=measure_at_equal_tokens,
        columns={
            "score_over_training": "mean over training",
            "score": "at equal episodes",
            "score_at_equal_tokens": "at equal tokens",
        },
    ),
    "one_trained": Table(
        title="Both agents trained, or one",
        about=(
            "Expected (MAPoRL, [2502.18439](https://arxiv.org/abs/2502.18439)): training all agents together "
            "is better than training one beside a frozen one."
        ),
        tasks=("signalling", "copy_1", "convention"),
        variants={
            "both": Variant(about="both agents are trained"),
            "first": Variant(about="the second agent is frozen", overrides=("task.agents.{second}.frozen=true",)),
            "second": Variant(about="the first agent is frozen", overrides=("task.agents.{first}.frozen=true",)),
        },
        measure=measure_score,
        columns={"score": "score"},
    ),
    "cross_play": Table(
        title="Cross-play between seeds",
        about=(
            "Expected (Other-Play, [2003.02979](https://arxiv.org/abs/2003.02979)): agents of different runs "
            "fail together where a convention is needed (`signalling`, `convention`), and not where the task "
            "determines each answer (`copy_1`). Each run is combined with that of the next seed."
        ),
        tasks=("signalling", "copy_1", "convention"),
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
            "Expected (C3, [2603.06859](https://arxiv.org/abs/2603.06859)): credit from alternatives in the "
            "same state ranks turns better than the return. Spearman correlation with exact credit Q - V "
            "after 8 buffers, mean over both agents ([kinds](evaluation.md#credit-of-turns))."
        ),
        tasks=("signalling", "copy_1_all", "sorting"),
        variants={
            "early": Variant(
                about="after 8 buffers",
                overrides=("num_iterations=8",),
                by_task={"sorting": ONE_LETTER_EACH},
            )
        },
        measure=measure_credit,
    ),
    "normalisation": Table(
        title="Normalisation by agent or team",
        about=(
            "Expected (Dr. MAS, [2602.08847](https://arxiv.org/abs/2602.08847)): with one mean and deviation "
            "for the team, gradient norms of agents with unlike rewards have spikes, and training is "
            "unstable. The rewards of `high` are 20 times those of `low`; scores are fractions of right "
            "letters."
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
            "largest_norm": "largest gradient norm",
            "spikes": "spikes",
        },
    ),
    "lazy_agents": Table(
        title="Lazy agents",
        about=(
            "Expected (value decomposition, [1706.05296](https://arxiv.org/abs/1706.05296)): with a joint "
            "reward one agent may stop learning while the other one succeeds, and credit per agent prevents "
            "that. The smallest share is the smaller of both Shapley values, as a fraction of the team's "
            "gain ([attribution](evaluation.md#attribution)); .5 is an equal contribution."
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
            "an equilibrium; opponents from earlier iterations lower exploitability. Exact NashConv of the "
            "frequencies of actions in an evaluation: 0 is an equilibrium, uniform play has .917 (`kuhn`) "
            "and 1.333 (`duel`)."
        ),
        tasks=("kuhn", "duel"),
        variants={
            "simultaneous": Variant(about="independent learners"),
            "round_robin": Variant(
                about="`team.update_order=round_robin`",
                overrides=("team.update_order=round_robin", "team.round_robin_every=2"),
            ),
            "self_play": Variant(about="one policy for both seats", algorithm=ALGORITHMS["shared_policy"]),
            "self_play_pool": Variant(
                about="the same, with an opponent pool in half of the games",
                algorithm=ALGORITHMS["shared_policy"],
                overrides=(
                    "team.opponent_pool.every=5",
                    "team.opponent_pool.size=6",
                    "team.opponent_pool.share=0.5",
                ),
            ),
        },
        measure=measure_exploitability,
        columns={
            "start": "start",
            "third": "after 1/3",
            "two_thirds": "after 2/3",
            "end": "end",
            "lowest": "lowest",
        },
    ),
}
AGENT_NAMES = {"signalling": ("sender", "receiver"), "sorting": ("low", "high")}  # others: first, second
